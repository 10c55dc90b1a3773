"""The course in one file: made here, installed without a network, handed out in the room."""

import io
import json
import os
import platform
import socket
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from hvdlab.bundle import unpack
from hvdlab.bundle.make import _packages

FACTS = {
    "python": list(sys.version_info[:2]),
    "machine": platform.machine(),
    "libc": platform.libc_ver(),
    "bytes": 1,
    "version": "1.0",
}


def run(*command: str | Path, alone: bool = False, **variables: str) -> subprocess.CompletedProcess:
    """Run a command; `alone` in a namespace that has no network but its own loopback."""
    if alone:
        up = 'ip link set lo up && exec "$@"'
        command = ("unshare", "--map-root-user", "--net", "bash", "-c", up, "bash", *command)
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env = {**kept, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        command, env={**env, **variables}, capture_output=True, text=True, timeout=500
    )


def write(path: Path, archive: bytes = b"", **facts: object) -> Path:
    """A bundle of which everything is real but that its packages are those of `archive`."""
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.write(unpack.__file__, "__main__.py")
        bundle.writestr(unpack.FACTS, json.dumps({**FACTS, **facts}))
        bundle.writestr(unpack.ENVIRONMENT, archive)
    return path


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"python": [3, 99]}, "start the bundle with python3.99, which is not installed here"),
        ({"machine": "pdp11"}, "The bundle is for Linux on pdp11"),
        ({"libc": [platform.libc_ver()[0], "99.1"]}, "as old as the oldest of the class"),
        ({"bytes": 1 << 60}, "are needed"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_written(tmp_path, facts, words):
    done = run(sys.executable, write(tmp_path / "b.pyz", **facts), tmp_path / "course")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert words in done.stderr
    assert not (tmp_path / "course" / ".venv").exists()


def test_an_environment_of_somebody_elses_stays(tmp_path):
    mine = tmp_path / "course" / ".venv" / "mine"
    mine.parent.mkdir(parents=True)
    mine.touch()
    bundle = write(tmp_path / "b.pyz", b"no archive")
    done = run(sys.executable, bundle, tmp_path / "course")
    assert done.returncode == 1 and "not from a bundle" in done.stderr and mine.exists()
    for _ in range(2):  # one that was left unfinished is made anew
        done = run(sys.executable, bundle, tmp_path / "other")
        assert done.returncode == 1 and "fetch it again" in done.stderr


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside"])
def test_no_file_is_written_outside_of_the_folder(tmp_path, name):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    bundle = write(tmp_path / "b.pyz", packed.getvalue())
    done = run(sys.executable, bundle, tmp_path / "course")
    assert done.returncode == 1 and "a file outside of its folder" in done.stderr
    assert not list(tmp_path.rglob("outside"))


def test_a_damaged_bundle_is_told(tmp_path):
    done = run(sys.executable, write(tmp_path / "b.pyz", b"no archive"), tmp_path / "course")
    assert done.returncode == 1 and "fetch it again" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_has_what_the_extras_need_and_no_tools_of_the_tests():
    found = set(_packages(("labs", "torch")))
    assert {"torch", "jupyterlab", "mpi4py", "numpy", "pip", "sympy"} <= found
    assert not {"pytest", "mypy", "playwright", "keras"} & found


@pytest.mark.slow
def test_the_course_is_installed_without_a_network(tmp_path):
    """Without the frameworks, which are large; `test_with_everything` has them."""
    bundle, course = tmp_path / "hvdlite.pyz", tmp_path / "my course"
    left_out = [
        word for name in ("torch", "tensorflow", "lightning") for word in ("--without", name)
    ]
    made = run(Path(sys.executable).with_name("hvdlab"), "bundle", bundle, *left_out)
    assert made.returncode == 0, made.stderr
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home" / "cache")}
    done = run(sys.executable, bundle, course, alone=True, **home)
    assert done.returncode == 0, done.stderr
    assert (course / "labs" / "00_welcome").is_dir() and (course / "slurm").is_dir()
    programs = course / ".venv" / "bin"
    found = run(programs / "hvdlab", "data", "--require-full", alone=True, **home)
    assert found.returncode == 0 and "the bundle" in found.stdout, found.stderr
    program = course / "program.py"
    program.write_text(
        "import sys, hvdlite.basics as hvd\n"
        "hvd.init()\n"
        "print(hvd.rank() + 10 * hvd.size(), sys.prefix)\n"
    )
    ran = run(programs / "horovodrun", "-np", "2", programs / "python", program, alone=True, **home)
    assert ran.returncode == 0, ran.stderr
    assert f"20 {course / '.venv'}" in ran.stdout and f"21 {course / '.venv'}" in ran.stdout
    scripts = [path.read_bytes() for path in programs.iterdir() if path.is_file()]
    assert not any(text.startswith(b"#!" + sys.prefix.encode()) for text in scripts)


@pytest.mark.whole
@pytest.mark.timeout(1500)
def test_with_everything(tmp_path):
    """The whole bundle: doctor is content, and a lab runs, without a network."""
    bundle, course, whole = (tmp_path / name for name in ("hvdlite.pyz", "course", "whole"))
    made = run(Path(sys.executable).with_name("hvdlab"), "bundle", bundle)
    assert made.returncode == 0, made.stderr
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home" / "cache")}
    done = run(sys.executable, bundle, course, alone=True, **home)
    assert done.returncode == 0, done.stderr
    programs = course / ".venv" / "bin"
    home["PATH"] = f"{programs}:{os.environ['PATH']}"
    healthy = run(programs / "hvdlab", "doctor", alone=True, **home)
    assert healthy.returncode == 0, healthy.stdout
    assert run(programs / "hvdlab", "handout", "--all", whole).returncode == 0
    rehearsed = run(
        programs / "hvdlab", "rehearse", "06", "--out", tmp_path / "out", alone=True, **home
    )
    assert rehearsed.returncode == 0, rehearsed.stdout


@pytest.fixture
def served(tmp_path):
    """The address of a server for a bundle of 300,000 bytes, whose folder has another file."""
    (tmp_path / "hvdlite.pyz").write_bytes(bytes(range(250)) * 1200)
    (tmp_path / "secret.txt").write_text("secret")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hvdlab", "serve-bundle", tmp_path / "hvdlite.pyz"]
    server = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    lines = [server.stdout.readline() for _ in range(4)]
    address = f"http://127.0.0.1:{port}"
    assert any(f"{address}/hvdlite.pyz" in line for line in lines), lines
    yield address
    server.terminate()
    server.wait()


def test_it_is_handed_out_and_nothing_else(served):
    with urllib.request.urlopen(f"{served}/hvdlite.pyz") as answer:
        assert answer.read() == bytes(range(250)) * 1200
    part = urllib.request.Request(f"{served}/hvdlite.pyz", headers={"Range": "bytes=299990-"})
    with urllib.request.urlopen(part) as answer:
        assert answer.status == 206 and answer.read() == bytes(range(240, 250))
    with urllib.request.urlopen(served) as answer:
        assert "python3 hvdlite.pyz" in answer.read().decode()
    for other in ("secret.txt", "..%2fsecret.txt", "hvdlite.pyz/../secret.txt"):
        with pytest.raises(urllib.error.HTTPError, match="40[34]"):
            urllib.request.urlopen(f"{served}/{other}")


def test_no_bundle_no_server(tmp_path):
    done = run(sys.executable, "-m", "hvdlab", "serve-bundle", tmp_path / "none.pyz")
    assert done.returncode == 1 and "make it: hvdlab bundle" in done.stderr
