"""The site of the documentation: made without a warning, offline, and no link leads nowhere."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from properdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def docs():
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_is_made_without_a_warning_and_loads_nothing(docs, tmp_path):
    docs.build(tmp_path / "site")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"index.html", "instructor.html", "architecture.html"} <= {page.name for page in pages}
    for page in pages:
        loaded = re.findall(
            r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"([^\"]+)", page.read_text()
        )
        assert not [one for one in loaded if re.match(r"(https?:)?//", one)], page.name


def test_a_link_that_leads_nowhere_is_an_error(docs, tmp_path, monkeypatch):
    for name in (*docs.PAGES, "labs/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for path in ROOT.glob("labs/*/*.ipynb"):
        (tmp_path / "labs" / path.parent.name).mkdir()
        shutil.copy(path, tmp_path / "labs" / path.parent.name)
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    docs.build(tmp_path / "site")
    with open(tmp_path / "docs" / "style.md", "a") as page:
        page.write("\n[more](nowhere.md)\n")
    with pytest.raises(Abort):
        docs.build(tmp_path / "site")
