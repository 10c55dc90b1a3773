"""What goes out with a release: the pages, the recipe for conda-forge, and the workflow."""

import email
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = "https://forge.example/owner/hvdlite"
VERSION = re.search(r'"(.+)"', (ROOT / "hvdlite/_version.py").read_text().splitlines()[-1])[1]
CONDA_NAMES = {"pytorch": "torch"}


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of what is built, with a section for the version in CHANGELOG.md."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listing.stdout.splitlines():
        if not name.startswith(("tests/", "benchmarks/")) and (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    changes = tmp_path / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("[Unreleased]", f"[{VERSION}]"))
    return tmp_path


def release(checkout: Path, *words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "tools/release.py", *map(str, words)]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=120)


def build(checkout: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-d", "dist"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return checkout / "dist"


def test_the_page_on_an_index_leads_somewhere(checkout):
    done = release(checkout, "pages", REPOSITORY, f"v{VERSION}")
    assert done.returncode == 0, done.stderr
    (wheel,) = build(checkout).glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    page = email.message_from_bytes(archive.read(name))
    urls = dict(line.split(", ") for line in page.get_all("Project-URL"))
    assert urls["Source"] == REPOSITORY and len(urls) == 4
    text = page.get_payload(decode=True).decode()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10
    assert all(link.startswith(("https://", "#")) for link in links), links
    assert f"({REPOSITORY}/raw/v{VERSION}/docs/img/compare.png)" in text
    assert f"({REPOSITORY}/blob/v{VERSION}/labs/README.md)" in text


def test_a_tag_or_a_section_that_does_not_fit_stops_the_release(checkout):
    done = release(checkout, "pages", REPOSITORY, "v99.0")
    assert done.returncode == 1
    assert done.stderr == (f"release: the tag is v99.0, and hvdlite/_version.py says {VERSION}\n")
    (checkout / "CHANGELOG.md").write_text("## [Unreleased]\n")
    done = release(checkout, "pages", REPOSITORY, f"v{VERSION}")
    assert done.stderr == f"release: CHANGELOG.md has no section [{VERSION}]\n"
    assert release(checkout).stderr.count("\n") > 3  # how it is used


def test_the_recipe_gets_the_hash_of_the_archive_and_refuses_another_one(checkout):
    (archive,) = build(checkout).glob("*.tar.gz")
    done = release(checkout, "recipe", archive)
    assert done.returncode == 0, done.stderr
    source = yaml.safe_load(done.stdout)["source"]
    assert source["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert source["url"].endswith("hvdlite-${{ version }}.tar.gz")
    other = archive.rename(archive.with_name("hvdlite-99.tar.gz"))
    assert "is not what conda/recipe.yaml is for" in release(checkout, "recipe", other).stderr


def test_the_recipe_is_that_of_the_project():
    recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())
    variables = {f"${{{{ {name} }}}}": text for name, text in recipe["context"].items()}

    def ranges(lines: list[str]) -> dict[str, SpecifierSet]:
        found = {}
        for line in lines:
            for name, text in variables.items():
                line = line.replace(name, text)
            wanted = Requirement(line)
            found[CONDA_NAMES.get(wanted.name, canonicalize_name(wanted.name))] = wanted.specifier
        return found

    def projects(*lines: str) -> dict[str, SpecifierSet]:
        return {canonicalize_name((one := Requirement(line)).name): one.specifier for line in lines}

    assert recipe["context"]["version"] == VERSION
    assert recipe["package"] == {"name": PROJECT["name"], "version": "${{ version }}"}
    points = [f"{name} = {place}" for name, place in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == points
    run = [line for line in recipe["requirements"]["run"] if line != "__linux"]
    assert ranges(run) == {
        **projects(*PROJECT["dependencies"]),
        "python": SpecifierSet(PROJECT["requires-python"]),
    }
    extras = PROJECT["optional-dependencies"]
    optional = [line for name in ("torch", "lightning", "tensorflow", "labs")
                for line in extras[name] if "tf-keras" not in line]  # fmt: skip
    assert ranges(recipe["requirements"]["run_constraints"]) == projects(*optional)
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])
    for line in extras["labs"]:
        assert Requirement(line).name in about["description"]


def test_only_the_job_that_publishes_may_and_it_waits_for_the_trial():
    path = ROOT / ".github/workflows/release.yml"
    jobs = yaml.safe_load(path.read_text())["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == [
        "publish"
    ]
    assert set(jobs["publish"]["needs"]) == {"build", "try"} and jobs["conda"]["needs"] == "publish"
    for tool in re.findall(r"python (tools/\w+\.py)", path.read_text()):
        assert (ROOT / tool).is_file()
