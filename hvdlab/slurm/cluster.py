"""A real Slurm on one machine: `up`, `down`, and who is there."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from . import config, processes

INSTALL = (
    "sudo apt-get install --no-install-recommends slurmctld slurmd slurm-client munge libpmix-dev"
)
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "sinfo", "squeue", "srun")
_PATIENCE = 60  # seconds for the daemons to find each other, on a busy machine


class SlurmError(RuntimeError):
    """Something that the user can put right; the message says how."""


def default_folder() -> Path:
    """HVDLITE_SLURM_DIR, else a folder of the user's own."""
    named = os.environ.get("HVDLITE_SLURM_DIR")
    return Path(named) if named else platformdirs.user_state_path("hvdlite") / "slurm"


class Cluster:
    """The cluster of one folder. All its daemons, files and sockets are in or of this folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(folder or default_folder()).absolute()
        self.conf = self.folder / "slurm.conf"

    # --- starting ---------------------------------------------------------------------------

    def up(self, nodes: int = 2, cpus: int = 8, gpus: int = 4) -> bool:
        """Start the cluster; False if it is up already.

        Args:
            nodes: how many nodes there are; each is a slurmd of its own.
            cpus, gpus: how many each node claims to have, whatever this machine has.

        Raises:
            SlurmError: Slurm is missing, or a daemon does not start.
        """
        if nodes < 1 or cpus < 1 or gpus < 0:
            raise SlurmError("a cluster has at least one node with one CPU; GPUs may be none")
        programs()
        self._check_folder()
        with self._lock():
            if self.conf.exists() and not self.missing():
                return False
            self._clear()
            for attempt in range(3):
                try:
                    self._start(nodes, cpus, gpus)
                    return True
                except BaseException as error:
                    taken = "Address already in use" in self._logs()
                    self._clear()
                    if not (taken and isinstance(error, SlurmError) and attempt < 2):
                        raise
        return False

    def _check_folder(self) -> None:
        """Refuse what Slurm and MUNGE can't live in."""
        cure = "set HVDLITE_SLURM_DIR to a short path on a local disk"
        if not re.fullmatch(r"[\w./+@:-]+", str(self.folder)):
            raise SlurmError(f"Slurm can't use the folder {self.folder} (its letters); {cure}")
        if len(str(self.folder)) > 80:
            raise SlurmError(f"the path {self.folder} is too long for a socket in it; {cure}")
        if self.folder.exists() and not self.conf.exists() and any(self.folder.iterdir()):
            raise SlurmError(f"{self.folder} holds other files; {cure}")

    def _start(self, nodes: int, cpus: int, gpus: int) -> None:
        try:
            user = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            raise SlurmError(
                f"user number {os.geteuid()} has no name in /etc/passwd, and Slurm wants names"
            ) from None
        names = config.node_names(nodes)
        self.folder.chmod(0o700)
        address = own_address()
        ports = _free_ports(address, 1 + nodes)
        config.write(self.folder, user, address, ports, cpus, gpus, version())
        self._daemon(
            "munged",
            "--force",  # it would like others to reach its socket; we would not
            f"--key-file={self.folder}/munge.key",
            f"--socket={self.folder}/munge.socket",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/log/munged.log",
            f"--seed-file={self.folder}/munge.seed",
        )
        self._daemon("slurmctld")
        for name in names:
            self.start_node(name)
        self.wait_for(
            lambda: (
                self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split() == ["idle"] * nodes
            ),
            "the nodes did not come up",
        )

    def start_node(self, name: str) -> None:
        """Start a node's slurmd.

        Open MPI learns from PMIx which ranks share a host, and PMIx compares host names, so each
        node needs its own name for that.
        """
        self._daemon("slurmd", "-N", name, PMIX_HOSTNAME=name)

    def _daemon(self, program: str, *arguments: str, **environment: str) -> None:
        """Run a program that goes into the background by itself once it is ready."""
        clean = {k: os.environ[k] for k in ("HOME", "LANG", "USER", "TZ") if k in os.environ}
        clean |= {"PATH": _path(), "SLURM_CONF": str(self.conf), **environment}
        with open(self.folder / "log" / f"{program}.start", "a+") as output:
            done = subprocess.run(
                [programs()[program], *arguments],
                env=clean, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, timeout=_PATIENCE,
            )  # fmt: skip
        if done.returncode:
            raise SlurmError(f"{program} does not start:\n{self._logs()}")

    def _logs(self) -> str:
        """The last lines of every daemon's log."""
        parts = []
        for path in sorted((self.folder / "log").glob("*")):
            lines = path.read_text(errors="replace").splitlines()[-8:]
            parts += [f"--- {path.name}", *lines] if lines else []
        return "\n".join(parts)

    def wait_for(self, ready: Callable[[], bool], problem: str, seconds: float = _PATIENCE) -> None:
        """Ask until it is so; raise SlurmError with the logs when time is up."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if ready():
                    return
            except SlurmError:
                pass  # slurmctld does not answer yet
            if time.monotonic() > deadline:
                raise SlurmError(f"{problem} within {seconds:g} s\n{self._logs()}")
            time.sleep(0.2)

    # --- ending -----------------------------------------------------------------------------

    def down(self) -> bool:
        """End every process of the cluster, jobs included, and remove its folder.

        Works in whatever state it is. Returns False if there was nothing.
        """
        there = self.folder.exists() and (self.conf.exists() or not any(self.folder.iterdir()))
        if not there:
            return False
        with self._lock():
            self._clear()
            shutil.rmtree(self.folder)
        return True

    def _clear(self) -> None:
        """End all processes and empty the folder."""
        # slurmctld first, so that it does not start jobs anew on what is ending.
        processes.end(lambda: processes.daemons(self.folder, "slurmctld"))
        processes.end(lambda: processes.of_cluster(self.folder))
        processes.end(lambda: processes.daemons(self.folder, "munged"))
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Only one `up` or `down` at a time; the folder itself is the lock."""
        while True:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.folder.stat().st_uid != os.geteuid():
                raise SlurmError(f"{self.folder} belongs to somebody else; set HVDLITE_SLURM_DIR")
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                # A `down` that held the lock has removed the folder that we opened.
                if self.folder.exists() and os.path.samestat(os.fstat(handle), self.folder.stat()):
                    yield
                    return
            finally:
                os.close(handle)

    # --- asking -----------------------------------------------------------------------------

    def require(self) -> None:
        """Raise SlurmError where there is no cluster."""
        if not self.conf.exists():
            raise SlurmError("no cluster is up; start one with: hvdlab slurm up")

    def nodes(self) -> list[str]:
        """The nodes' names, from the configuration."""
        self.require()
        return re.findall(r"^NodeName=(\S+)", self.conf.read_text(), re.M)

    def missing(self) -> list[str]:
        """What should run and does not: "munged", "slurmctld", or a node's name."""
        lost = [n for n in ("munged", "slurmctld") if not processes.daemons(self.folder, n)]
        commands = map(processes.command, processes.daemons(self.folder, "slurmd"))
        alive = {command[-1] for command in commands if command}
        return lost + [node for node in self.nodes() if node not in alive]

    def environment(self) -> dict[str, str]:
        """The variables with which sbatch, squeue and the others find this cluster."""
        found = {"SLURM_CONF": str(self.conf)}
        if os.geteuid() == 0:  # a plain mpirun refuses to work for root without these
            found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return found

    def ask(self, program: str, *arguments: str) -> str:
        """Run one of Slurm's programs on this cluster and return what it says.

        Raises:
            SlurmError: there is no cluster, or the program failed; with its words.
        """
        self.require()
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        try:
            done = subprocess.run(
                [programs()[program], *arguments],
                env=keep | self.environment(), stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=_PATIENCE,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SlurmError(
                f"{program} does not answer; is the cluster up? hvdlab slurm status"
            ) from None
        if done.returncode:
            raise SlurmError(f"{program}: {(done.stderr or done.stdout).strip()}")
        return done.stdout


def _path() -> str:
    """PATH with the folders where Debian keeps daemons; a user's PATH often lacks them."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def programs() -> dict[str, str]:
    """Where Slurm's programs are; raises SlurmError with the cure where one is missing."""
    found = {name: shutil.which(name, path=_path()) for name in _PROGRAMS}
    lost = [name for name, path in found.items() if path is None]
    if lost:
        raise SlurmError(f"{', '.join(lost)} not found; Slurm is installed with:\n  {INSTALL}")
    return found


def version() -> tuple[int, int]:
    """The version of the Slurm that is installed, such as (22, 5)."""
    done = subprocess.run([programs()["slurmctld"], "-V"], capture_output=True, text=True)
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    if not match:
        raise SlurmError(f"slurmctld -V does not tell its version: {done.stdout}{done.stderr}")
    return int(match[1]), int(match[2])


def pmix_cure() -> str | None:
    """What to install so that `srun --mpi=pmix` works; None if it does."""
    try:
        ctypes.CDLL("libpmix.so")  # Slurm's plug-in opens it under this very name
    except OSError:
        return "sudo apt-get install --no-install-recommends libpmix-dev"
    return None


def own_address() -> str:
    """The address on which Slurm listens: it asks what this machine's name stands for.

    There is no setting for another one, short of listening on all. 127.0.1.1, where Debian's
    installer puts the name, won't do: a connection to it comes from 127.0.0.1, and it is there
    that the step daemons look for srun.
    """
    name = os.uname().nodename
    try:
        address = socket.gethostbyname(name)
    except OSError:
        raise SlurmError(
            f"this machine's own name, {name}, has no address, and Slurm needs one; this gives it "
            f"the loopback device's:\n  echo 127.0.0.1 {name} | sudo tee -a /etc/hosts"
        ) from None
    if address.startswith("127.") and address != "127.0.0.1":
        number = address.replace(".", r"\.")
        raise SlurmError(
            f"this machine's own name, {name}, stands for {address}, where Slurm's programs miss "
            "each other; this lets it stand for 127.0.0.1:\n"
            f"  sudo sed -i 's/^{number}\\b/127.0.0.1/' /etc/hosts"
        )
    return address


def _free_ports(address: str, count: int) -> list[int]:
    """Ports of an address that nobody uses at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((address, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
