"""The site of the documentation: whole, without a warning or the network, and no dead link."""

import html
import importlib.util
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import expect, sync_playwright
from sphinx.errors import SphinxError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(docs, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("docs") / "site"
    docs.build(path)
    return path


def test_the_site_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert {"index.html", "instructor.html", "architecture.html"} <= {page.name for page in pages}
    for page in pages:
        loaded = re.findall(
            r"<(?:script|img|link|iframe)[^>]+(?:src|href)=\"([^\"]+)", page.read_text()
        )
        assert not [one for one in loaded if re.match(r"(https?:)?//", one)], page.name


@pytest.mark.parametrize("lab", sorted(path.name for path in ROOT.glob("labs/[01]*")))
def test_a_lab_has_its_outputs_and_no_answer(site, lab):
    page = (site / "labs" / lab / f"{lab}.html").read_text()
    solved = (ROOT / "labs" / lab / "solution" / f"{lab}.ipynb").read_text()
    assert 'class="cell_output' in page
    assert ("<img" in page) == ("image/png" in solved)
    source = (ROOT / "labs" / lab / "lab.py").read_text()
    answers = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", source, re.DOTALL)
    assert answers
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())
    told = [each for each in answers if len(each) > 60 and " ".join(each.split()) in words]
    assert not told


def test_the_interface_is_told_from_the_docstrings(site):
    page = (site / "api" / "hvdlite.torch.html").read_text()
    for name in ("allreduce", "DistributedOptimizer", "broadcast_parameters"):
        assert f'id="hvdlite.torch.{name}"' in page
    assert "Wrap an optimizer so that" in page


@pytest.fixture(scope="module")
def browse(site):
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path, "no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()

        def browse(address: str):
            page.goto(f"{site.as_uri()}/{address}")
            return page

        yield browse
        browser.close()


def test_search_needs_no_server(browse: Callable):
    page = browse("search.html?q=set_epoch")
    expect(page.locator("#search-results li").first).to_be_visible(timeout=30_000)


def test_a_lab_for_the_projector(browse: Callable):
    page = browse("labs/08_timeline/08_timeline.html")
    text = page.locator("article p").first
    size = text.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
    page.get_by_role("button", name="For the projector").click()
    assert text.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") > 1.4 * size
    expect(page.locator(".sidebar-drawer")).to_be_hidden()
    assert page.url.endswith("?projector=")
    page.reload()
    page.get_by_role("button", name="Back to the page").click()
    expect(page.locator(".sidebar-drawer")).to_be_visible()


def test_a_link_that_leads_nowhere_is_an_error(docs, tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "MODULES", [])
    monkeypatch.setattr(docs, "PAGES", ["README.md", "docs"])
    monkeypatch.setattr(docs, "FIRST", ["labs/README"])
    monkeypatch.setattr(docs, "LAST", [])
    for name in ("labs", "docs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"# {name}\n")
    (tmp_path / "README.md").write_text("# Here\n\n[there](docs/page.md)\n")
    (tmp_path / "docs" / "page.md").write_text("# There\n")
    docs.build(tmp_path / "site")
    (tmp_path / "docs" / "page.md").write_text("# There\n\n[more](nowhere.md)\n")
    with pytest.raises(SphinxError):
        docs.build(tmp_path / "site")
