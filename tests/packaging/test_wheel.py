"""The wheel that pip installs: its files, and how it gets along with Horovod's own."""

import base64
import hashlib
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("hvdlite", "hvdrun", "horovod", "hvdnames", "hvdlab")


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder)
    return folder


def source_files() -> set[str]:
    listing = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES)
    return {name for name in listing.splitlines() if (ROOT / name).exists()}


def test_wheel_has_every_file_of_the_packages_and_no_other(built):
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    # Where Python looks for it at each start, and not among the files of its package.
    assert names == source_files() - {"hvdnames/hvdnames.pth"} | {"hvdnames.pth"}
    assert any(name.startswith("hvdlab/") and name.endswith(".gz") for name in names)


def test_source_archive_builds_without_the_tests(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames()}
    assert source_files() <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not any(name.startswith(("tests/", "labs/")) for name in names)


def test_wheel_has_the_commands(built):
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
    text = archive.read(entry_points).decode()
    for line in (
        "horovodrun = hvdrun.cli:main",
        "hvdliterun = hvdrun.cli:main",
        "hvdlab = hvdlab.cli:app",
    ):
        assert line in text


@pytest.fixture(scope="module")
def their_wheel(tmp_path_factory) -> Path:
    """A wheel of a distribution called horovod, with the layout of Horovod's own."""
    path = tmp_path_factory.mktemp("theirs") / "horovod-0.28.1-py3-none-any.whl"
    info = "horovod-0.28.1.dist-info"
    files = {
        "horovod/__init__.py": "__version__ = '0.28.1'\n",
        "horovod/torch/__init__.py": "THEIRS = True\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record.append(f"{name},sha256={digest.decode().rstrip('=')},{len(text)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return path


@pytest.fixture
def venv_with_both(tmp_path, built, their_wheel):
    """Installs both into a new environment, in the order asked for; returns its Python."""

    def install(order: str) -> Path:
        run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
        python = tmp_path / "venv/bin/python"
        # Everything else comes from here, and stands behind what is installed there.
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = Path(run(python, "-c", code).strip())
        (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (ours,) = built.glob("*.whl")
        for wheel in (ours, their_wheel) if order == "theirs last" else (their_wheel, ours):
            options = ["--no-deps", "--no-index", "--ignore-installed", "--quiet"]
            run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel)
        return python

    return install


def ask(python: Path, code: str, **variables: str) -> tuple[str, str]:
    done = subprocess.run(
        [python, "-c", code],
        cwd=python.parent,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_ours_installed_last_is_in_use_and_says_so(venv_with_both):
    python = venv_with_both("ours last")
    code = "import horovod, horovod.common; print(horovod.__version__)"
    version, warning = ask(python, code)
    assert version.endswith("+hvdlite.0.1.0\n")
    assert warning.count("Warning") == 1
    assert "gives hvdlite 0.1.0, although Horovod 0.28.1 is installed too" in warning
    assert "pip uninstall" in warning
    assert ask(python, code, PMI_RANK="1") == (version, "")  # rank 0 says it for all


def test_theirs_installed_last_is_in_use_and_untouched(venv_with_both):
    python = venv_with_both("theirs last")
    code = "import horovod.torch; print(horovod.__version__, horovod.torch.THEIRS)"
    assert ask(python, code) == ("0.28.1 True\n", "")
    assert ask(python, "import hvdlite; print(hvdlite.__version__)") == ("0.1.0\n", "")


def test_alone_there_is_no_warning(tmp_path, built):
    (ours,) = built.glob("*.whl")
    target = tmp_path / "site"
    options = ["--no-deps", "--no-index", "--quiet", "--target", target]
    run(sys.executable, "-m", "pip", "install", *options, ours)
    code = "import horovod; print(horovod.__file__)"
    place, warning = ask(Path(sys.executable), code, PYTHONPATH=str(target))
    assert place == f"{target}/horovod/__init__.py\n"
    assert warning == ""
