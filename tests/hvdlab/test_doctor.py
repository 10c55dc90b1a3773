"""The doctor on this machine, and on this machine with a part that is broken."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hvdlab import doctor
from hvdlab.doctor import asking, machine, software

ROOT = Path(__file__).parents[2]


def run(*arguments: str, path: Path | None = None, **env: str) -> subprocess.CompletedProcess:
    paths = [str(path or ""), str(ROOT), os.environ.get("PYTHONPATH")]
    return subprocess.run(
        [sys.executable, "-c", "from hvdlab.cli import app; app()", "doctor", *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "COLUMNS": "160",
            **env,
        },
        capture_output=True,
        text=True,
        timeout=280,
    )


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.slow
def test_this_machine_is_ready():
    told = run("--json", OMP_NUM_THREADS="1")
    report = json.loads(told.stdout)
    states = {finding["what"]: finding["state"] for finding in report["findings"]}
    assert told.returncode == 0 and report["ok"], told.stdout
    for what in ("Python", "hvdlite", "PyTorch", "TensorFlow", "Jupyter", "MPI", "Ports"):
        assert states[what] == "ok", report


@pytest.mark.slow
def test_broken_parts_are_problems_with_something_to_do(tmp_path):
    torch = tmp_path / "modules" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
    program(tmp_path / "bin", "mpirun", "echo 'mpirun (Open MPI) 5.0.0'; exit 3")
    told = run(
        path=tmp_path / "modules",
        HVDLITE_MPIRUN=str(tmp_path / "bin" / "mpirun"),
        OMP_NUM_THREADS="1000",
        PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
    )
    assert told.returncode == 1, told
    for words in ("libcudart.so.12: cannot open", "✘  MPI", "unset OMP_NUM_THREADS", "3 problems"):
        assert words in told.stdout, told.stdout
    assert told.stdout.count("To do:") == 3


def test_two_programs_of_one_rank_are_not_two_ranks(monkeypatch, tmp_path):
    """What an mpirun of another MPI does: each process believes to be alone."""
    alone = f'[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.0" && exit; {sys.executable} -c '
    program(tmp_path, "mpirun", alone + "'print(\"RANKS=1 SUM=1 Other MPI\")'")
    monkeypatch.setenv("HVDLITE_MPIRUN", str(tmp_path / "mpirun"))
    finding = software.mpi()
    assert finding.state == "problem" and "don't agree" in finding.detail
    assert "HVDLITE_MPI=system" in finding.fix


@pytest.mark.parametrize(("cache", "state"), [(7 << 29, "ok"), (1 << 20, "problem")])
def test_a_file_in_the_cache_is_no_memory_in_use(tmp_path, cache, state):
    (tmp_path / "memory.max").write_text(f"{4 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{15 << 28}\n")  # 3.75 GiB
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    assert machine.memory(tmp_path).state == state


def test_a_question_without_an_answer_ends_with_all_that_it_started():
    mark = f"{time.time():.6f}".replace(".", "")[-9:]  # sleeps that are nobody else's
    with pytest.raises(asking.NoAnswer, match="no answer within 1 s"):
        asking.ask(["sh", "-c", f"trap '' TERM; sleep {mark} & sleep {mark}"], limit=1)
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]
    assert left == []


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["/nowhere/sinfo"], "No such file"),
        (["sh", "-c", "echo the reason >&2; exit 4"], "the reason"),
        (["sh", "-c", "exit 4"], "exit code 4"),
    ],
)
def test_a_failed_question_says_why(command, says):
    with pytest.raises(asking.NoAnswer, match=says):
        asking.ask(command)


def test_slurm_that_answers_and_slurm_that_does_not(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    program(tmp_path, "sinfo", "echo 'gpu* 4'")
    assert software.slurm() == asking.Finding("Slurm", "ok", "partitions and nodes: gpu* 4")
    program(tmp_path, "sinfo", "echo 'slurm_load_partitions: Unable to contact' >&2; exit 1")
    assert software.slurm().state == "problem"
    program(tmp_path, "sinfo", "echo 'Could not establish a configuration source' >&2; exit 1")
    assert software.slurm().state == "absent"


def test_missing_data_are_fine_and_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HVDLITE_DATA_DIR", raising=False)
    finding = software.data_sets()
    assert (finding.state, finding.fix) == ("absent", "hvdlab data")


def test_a_question_that_breaks_is_a_line_of_the_report(monkeypatch):
    def broken():
        raise RuntimeError("what is this?")

    monkeypatch.setattr(doctor, "QUESTIONS", (broken, doctor.ports))
    first, second = doctor.examine()
    assert first.state == "problem" and "what is this?" in first.detail
    assert second.state == "ok"
