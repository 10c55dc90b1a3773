"""pyproject.toml, constraints.txt, environment.yml and the installed packages must agree."""

import importlib.metadata
import re
import sys
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
EXTRAS = PROJECT["optional-dependencies"]
# What `make lab` installs on a machine without a GPU, and what conda users and GPUs get.
ON_CPU = [
    "mpi",
    "torch",
    "torchvision",
    "lightning",
    "tensorflow-cpu",
    "estimator",
    "labs",
    "grading",
    "test",
]
ON_CONDA = [
    "mpi",
    "torch",
    "torchvision",
    "lightning",
    "tensorflow",
    "estimator",
    "labs",
    "grading",
    "test",
]
CONDA_NAMES = {"pytorch": "torch"}


def requirements(extras: list[str]) -> list[Requirement]:
    lines = PROJECT["dependencies"] + [line for extra in extras for line in EXTRAS[extra]]
    return [Requirement(line) for line in lines]


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins() -> dict[str, str]:
    """The exact versions for the Python that runs this test."""
    return {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in constraints()
        if pin.marker is None or pin.marker.evaluate()
    }


def is_installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def test_constraints_are_exact_and_free_of_places():
    for pin in constraints():
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert "+" not in specifier.version, f"{pin} names a local build"
        assert pin.url is None, f"{pin} names a place"


@pytest.mark.parametrize("python", ["3.10.0", "3.11.9", "3.12.1", "3.13.0"])
def test_constraints_satisfy_every_range_on_every_python(python):
    environment = {"python_full_version": python, "python_version": python.rsplit(".", 1)[0]}
    chosen: dict[str, str] = {}
    for pin in constraints():
        if pin.marker is None or pin.marker.evaluate(environment):
            name = canonicalize_name(pin.name)
            assert name not in chosen, f"two versions of {name} for Python {python}"
            chosen[name] = next(iter(pin.specifier)).version
    for wanted in requirements(list(EXTRAS)):
        name = canonicalize_name(wanted.name)
        if name.startswith("nvidia-"):
            continue  # follows from the build of PyTorch
        if wanted.marker is None or wanted.marker.evaluate(environment):
            assert name in chosen, f"constraints.txt lacks {name} for Python {python}"
            assert wanted.specifier.contains(chosen[name]), f"{wanted} against {chosen[name]}"


def test_ranges_and_constraints_admit_what_is_installed():
    """Every package that `make lab` brings, down to the last dependency, has the proven version."""
    pinned = pins()
    waiting = requirements(ON_CPU if is_installed("tensorflow-cpu") else ON_CONDA)
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(key)
        if key[0] == "triton" or key[0].startswith(("nvidia-", "cuda-")):
            continue  # CUDA's own, which follow from the build of PyTorch
        found = importlib.metadata.version(wanted.name)
        assert wanted.specifier.contains(found, prereleases=True), f"{wanted} against {found}"
        if key[0] not in ("setuptools", "wheel"):
            assert pinned.get(key[0]) == found.split("+")[0], f"constraints.txt and {key[0]}"
        for line in importlib.metadata.requires(wanted.name) or []:
            needed = Requirement(line)
            if needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in wanted.extras | {""}
            ):
                needed.marker = None
                waiting.append(needed)
    assert len(seen) > 100  # the walk did reach JupyterLab's and TensorFlow's own dependencies


def test_readme_names_the_proven_versions():
    page = (ROOT / "README.md").read_text()
    (sentence,) = re.findall(r"^The tests prove .*$", page, re.MULTILINE)
    titles = {"PyTorch": "torch", "TensorFlow": "tensorflow", "tf-keras": "tf-keras"}
    titles["Keras"] = "keras"
    for title, name in titles.items():
        versions = [str(pin.specifier).lstrip("=") for pin in constraints() if pin.name == name]
        assert versions
        assert f" {title} {versions[-1]}" in sentence
        assert all(version in sentence for version in versions), (name, sentence)


def test_conda_environment_equals_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    lines = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert "--editable ." in pip
    offered = [Requirement(line) for line in [*lines, *pip] if not line.startswith("--")]
    offered = {CONDA_NAMES.get(r.name, canonicalize_name(r.name)): r.specifier for r in offered}
    assert offered.pop("pip") == SpecifierSet()
    assert offered.pop("python") == SpecifierSet(PROJECT["requires-python"])
    assert offered == {canonicalize_name(r.name): r.specifier for r in requirements(ON_CONDA)}
