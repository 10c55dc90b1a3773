"""The wheel that pip installs: its files, what it does alone, and beside Horovod's own."""

import base64
import hashlib
import importlib.util
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("hvdlite", "hvdrun", "horovod", "hvdnames", "hvdlab")
COURSE = ("labs", "scripts", "slurm", "docs", "constraints.txt")


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


def source_files(*folders: str) -> set[str]:
    listing = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *folders)
    return {name for name in listing.splitlines() if (ROOT / name).exists()}


def test_wheel_has_every_file_of_the_packages_and_no_other(built):
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    # Where Python looks for it at each start, and not among the files of its package.
    packages = source_files(*PACKAGES) - {"hvdnames/hvdnames.pth"} | {"hvdnames.pth"}
    course = {f"hvdlab/course/{name}" for name in source_files(*COURSE)}
    shared = {"hvdlite-0.2.0.data/data/etc/ipython/ipython_kernel_config.py"}
    assert names == packages | course | shared
    assert any(name.startswith("hvdlab/") and name.endswith(".gz") for name in names)


def test_source_archive_builds_without_the_tests(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames()}
    assert source_files(*PACKAGES, *COURSE) <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not any(name.startswith("tests/") for name in names)


def test_wheel_has_the_commands(built):
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
    text = archive.read(entry_points).decode()
    for line in (
        "horovodrun = hvdrun.cli:main",
        "hvdliterun = hvdrun.cli:main",
        "hvdlab = hvdlab.__main__:main",
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
    assert version.endswith("+hvdlite.0.2.0\n")
    assert warning.count("Warning") == 1
    assert "gives hvdlite 0.2.0, although Horovod 0.28.1 is installed too" in warning
    assert "pip uninstall" in warning
    assert ask(python, code, PMI_RANK="1") == (version, "")  # rank 0 says it for all


def test_theirs_installed_last_is_in_use_and_untouched(venv_with_both):
    python = venv_with_both("theirs last")
    code = "import horovod.torch; print(horovod.__version__, horovod.torch.THEIRS)"
    assert ask(python, code) == ("0.28.1 True\n", "")
    assert ask(python, "import hvdlite; print(hvdlite.__version__)") == ("0.2.0\n", "")


# The wheel alone


@pytest.fixture(scope="module")
def alone(tmp_path_factory, built) -> Path:
    """A folder with what the wheel installs."""
    (ours,) = built.glob("*.whl")
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--quiet", "--target", target]
    run(sys.executable, "-m", "pip", "install", *options, ours)
    return target


def bare(*arguments: str | Path, path: Path) -> subprocess.CompletedProcess:
    """Python with the modules of the folder `path` and with none that is installed."""
    command = [sys.executable, "-S", *arguments]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(path)}
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=120)


def test_alone_there_is_no_warning(alone):
    code = "import horovod; print(horovod.__file__)"
    place, warning = ask(Path(sys.executable), code, PYTHONPATH=str(alone))
    assert place == f"{alone}/horovod/__init__.py\n"
    assert warning == ""


def test_labs_are_written_from_the_wheel_and_edits_stay(alone, tmp_path):
    course = tmp_path / "course"
    words = ["handout", "--all", str(course)]
    code = f"import sys; from hvdlab.__main__ import main; sys.argv[1:] = {words}; main()"
    told, _ = ask(Path(sys.executable), code, PYTHONPATH=str(alone))
    assert "12 of them notebooks" in told and "stay" not in told
    found = {str(path.relative_to(course)) for path in course.rglob("*") if path.is_file()}
    assert found == source_files(*COURSE)
    for name in found:
        assert (course / name).read_bytes() == (ROOT / name).read_bytes()
    (course / "scripts" / "mnist_torch.py").write_text("mine")
    told, _ = ask(Path(sys.executable), code, PYTHONPATH=str(alone))
    assert "0 files written" in told
    assert "stay as they are: 1, such as scripts/mnist_torch.py" in told
    assert (course / "scripts" / "mnist_torch.py").read_text() == "mine"
    code = (
        f"import os; os.chdir({str(course)!r}); {code.replace(str(words), repr(['reset', '06']))}"
    )
    ask(Path(sys.executable), code, PYTHONPATH=str(alone))
    assert (course / "labs/old_06_pytorch_1/scripts/mnist_torch.py").read_text() == "mine"


def test_the_shell_completes_the_commands(alone):
    asked = {"_HVDLAB_COMPLETE": "complete_bash", "COMP_WORDS": "hvdlab han", "COMP_CWORD": "1"}
    told, _ = ask(
        Path(sys.executable), "from hvdlab.__main__ import main; main()",
        PYTHONPATH=str(alone), **asked,
    )  # fmt: skip
    assert told.split() == ["handout"]


def test_commands_name_the_extra_that_is_missing(alone):
    for arguments in (["-m", "hvdlab"], ["-c", "from hvdlab.__main__ import main; main()"]):
        done = bare(*arguments, path=alone)
        assert done.returncode == 1 and not done.stdout
        assert done.stderr == "hvdlab: typer is not installed: pip install 'hvdlite[labs]'\n"


@pytest.fixture
def without_frameworks(alone, tmp_path) -> Path:
    """A folder with the wheel's packages and what they depend on, as pip installs them."""
    for name in ("hvdlite", "hvdrun", "horovod", "hvdnames"):
        (tmp_path / name).symlink_to(alone / name)
    for name in ("numpy", "mpi4py", "cloudpickle", "psutil", "ml_dtypes", "packaging"):
        (tmp_path / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    return tmp_path


@pytest.mark.parametrize(
    ("binding", "lacking", "extra"),
    [
        ("torch", "torch", "torch"),
        ("tensorflow", "tensorflow", "tensorflow"),
        ("tensorflow.keras", "tensorflow", "tensorflow"),
        ("keras", "keras", "tensorflow"),
    ],
)
@pytest.mark.parametrize("package", ["horovod", "hvdlite"])
def test_a_binding_names_the_extra_that_is_missing(
    without_frameworks, package, binding, lacking, extra
):
    done = bare("-c", f"import {package}.{binding}", path=without_frameworks)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    asked = binding.partition(".")[0]
    assert f"hvdlite.{asked} needs {lacking}, which is not installed: pip install" in last
    assert f"'hvdlite[{extra}]'" in last
    assert ("hvdlite[tensorflow-cpu]" in last) == (extra == "tensorflow")


def test_the_strategy_for_lightning_names_its_extra(without_frameworks):
    code = "from hvdlite.lightning import HorovodStrategy"
    done = bare("-c", code, path=without_frameworks)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: hvdlite.lightning needs lightning, which is not installed: "
        "pip install 'hvdlite[lightning]'"
    )


def test_doctor_knows_what_installs_here_and_what_is_proven(alone, tmp_path):
    info = tmp_path / "torch-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99.0+cpu\n")
    code = """
from hvdlab.doctor import software
print(software.installed_with("labs"))
print(software.untested("torch"))
print(software.untested("numpy"))
"""
    told, _ = ask(Path(sys.executable), code, PYTHONPATH=f"{alone}:{tmp_path}")
    command, torch, numpy = told.splitlines()
    assert command == "pip install 'hvdlite[labs]'"
    assert "the tests prove torch 2." in torch
    assert numpy == ""
    told, _ = ask(Path(sys.executable), code, PYTHONPATH=str(ROOT))
    assert told.splitlines()[0] == "pip install -c constraints.txt -e '.[labs]'"


@pytest.mark.whole
@pytest.mark.timeout(1800)  # pip fetches PyTorch, and lab 06 measures
def test_an_empty_environment_gets_the_course_from_the_wheel_and_loses_it_again(built):
    (ours,) = built.glob("*.whl")
    command = [sys.executable, ROOT / "tools" / "try_wheel.py", ours]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("lab 06 solved, nothing left.\n")
