"""The one helper that runs test code on several MPI ranks.

`Ranks(2).run(function, *args)` calls a function of the test's module on every rank and returns
the results in rank order. The ranks stay up between tests, since starting them costs seconds; a
failure or a time-out stops them, and the next run starts new ones. `launch` runs a program of its
own, for tests in which ranks die or need another environment.
"""

import atexit
import contextlib
import functools
import importlib.util
import inspect
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
TORCH = ("torch", "torch._dynamo")  # what its optimizers import when they are first used
KERAS = ("tensorflow.keras",)  # Keras 3, or tf_keras if TF_USE_LEGACY_KERAS says so
KERAS_ON_TORCH = ("keras", *TORCH)  # with KERAS_BACKEND=torch
# What Keras looks at when it is imported, and not when it is used.
KINDS_OF_KERAS = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS")


def mpirun() -> str:
    """The mpirun of this Python's environment, else the one on the PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def paths(*folders: str) -> str:
    """PYTHONPATH with the repository, these folders of it and what it has been before."""
    here = [ROOT, *(ROOT / folder for folder in folders)]
    return os.pathsep.join([*map(str, here), os.environ.get("PYTHONPATH", "")])


def environment(folder: str | None = None, extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a program under test; an mpirun gets a `folder` for its own files.

    Without one, an mpirun that is killed leaves them in /tmp under its process id, and a later
    mpirun that gets the same number refuses to start.
    """
    env = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": paths(),
    }
    if folder is not None:
        env["PRTE_MCA_prte_tmpdir_base"] = folder
    env.update(extra or {})
    return env


def in_memory(folder: str, extra: dict[str, str] | None) -> dict[str, str]:
    """`environment` with all of Open MPI's files in a folder of memory.

    It names its shared memory by a hash of mpirun's process id, and takes a file of that name that
    is there already for its own: two jobs with one hash would write to each other's memory.
    """
    from hvdrun.mpi import FOLDER_VARIABLES  # not at the top: some ranks are to have no hvdlite

    return environment(folder, {**dict.fromkeys(FOLDER_VARIABLES, folder), **(extra or {})})


@functools.cache
def _binds_nothing() -> tuple[str, ...]:
    """The words by which Open MPI neither binds ranks nor counts cores; others do neither."""
    said = subprocess.run([mpirun(), "--version"], capture_output=True, text=True).stdout
    return ("--oversubscribe", "--bind-to", "none") if "Open MPI" in said else ()


def command(np: int, *program: str) -> list[str]:
    return [mpirun(), "-n", str(np), *_binds_nothing(), *program]


_nests = contextlib.ExitStack()
_pythons: dict[tuple, list[str]] = {(): [sys.executable]}
atexit.register(_nests.close)


def python(modules: tuple[str, ...], env: dict[str, str] | None = None) -> list[str]:
    """The command for a rank that has these modules, imported for the Keras that `env` asks for.

    They are imported by one process for all, before anything of hvdlite or MPI.
    """
    from hvdlab.warm import Nest  # not at the top: see `in_memory`

    kind = {name: env[name] for name in KINDS_OF_KERAS if name in (env or {})}
    key = (modules, *kind.items()) if modules else ()
    if key not in _pythons:
        made = tempfile.TemporaryDirectory(prefix="nest-", dir="/dev/shm")
        folder = _nests.enter_context(made)
        extra = {"PYTHONPATH": paths("tests"), "TF_CPP_MIN_LOG_LEVEL": "3", **kind}
        nest = _nests.enter_context(Nest(modules, folder, environment(extra=extra)))
        _pythons[key] = nest.python
    return _pythons[key]


class Outcome:
    """How a program run by `launch` ended."""

    def __init__(self, returncode: int, stdout: str, stderr: str, seconds: float):
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"exit code {self.returncode}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def launch(
    source: str,
    np: int,
    timeout: float = 300,
    env: dict[str, str] | None = None,
    modules: tuple[str, ...] = (),
) -> Outcome:
    """Run a Python program, given as text, on `np` ranks under mpirun.

    With `modules` the ranks have imported these already (hvdlab.warm), which is for programs
    that end by themselves.
    Raises AssertionError if it has not ended after `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        program = Path(folder, "program.py")
        program.write_text(inspect.cleandoc(source))
        started = time.monotonic()
        job = subprocess.Popen(
            command(np, *python(modules, env), str(program)),
            env=in_memory(folder, {"PYTHONPATH": paths("tests"), **(env or {})}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            out, err = job.communicate()
            raise AssertionError(f"still running after {timeout} s\n{out}\n{err}") from None
        return Outcome(job.returncode, out, err, time.monotonic() - started)


class Ranks:
    """`np` processes under mpirun that run functions of the tests.

    `modules` are those that take long to import, which the ranks shall have from the start.
    """

    def __init__(self, np: int, env: dict[str, str] | None = None, modules: tuple[str, ...] = ()):
        self.np = np
        self._env = env
        self._modules = modules
        self._job: subprocess.Popen | None = None
        self._pipes: list[Any] = []
        self._processes: list[psutil.Process] = []

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 240) -> list[Any]:
        """Call a module-level function on every rank; its results in rank order.

        Raises AssertionError with every rank's traceback if one of them raises, or what they
        are doing if they take longer than `timeout` seconds.
        """
        try:
            if self._job is None:
                self._start()
            task = (inspect.getfile(function), function.__qualname__, args)
            return self._answers(pickle.dumps(task), timeout)
        except BaseException:
            self.stop()  # a late answer would be taken for that of the next call
            raise

    def _answers(self, task: bytes, timeout: float) -> list[Any]:
        for pipe in self._pipes:
            pipe.send_bytes(task)
        deadline = time.monotonic() + timeout
        answers, ended = [], False
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                where = self.stop(dump=True)
                raise AssertionError(f"rank {rank} did not end within {timeout} s\n{where}")
            try:
                answers.append(pipe.recv())
            except EOFError:
                ended = True
                answers.append((False, "the process has ended"))
        if not all(good for good, _ in answers):
            told = [f"rank {i}:\n{text}" for i, (good, text) in enumerate(answers) if not good]
            if ended:
                told.append(f"what they printed:\n{self.stop()}")
            raise AssertionError("\n".join(told))
        return [result for _, result in answers]

    def _start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ranks-", dir="/dev/shm")
        address = os.path.join(self._folder, "socket")
        self._output = open(os.path.join(self._folder, "output"), "w+")
        with Listener(address, backlog=self.np) as listener:
            self._job = subprocess.Popen(
                command(self.np, *python(self._modules, self._env), __file__, address),
                env=in_memory(self._folder, self._env),
                stdout=self._output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            listener._listener._socket.settimeout(240)  # they may import a framework
            pipes = [listener.accept() for _ in range(self.np)]
        # Warm ranks are no children of mpirun's.
        hellos = sorted((*pipe.recv(), pipe) for pipe in pipes)
        self._processes = [psutil.Process(pid) for _, pid, _ in hellos]
        self._pipes = [pipe for _, _, pipe in hellos]

    def stop(self, dump: bool = False) -> str:
        """End the ranks; returns what they printed, with `dump` also where each one was."""
        if self._job is None:
            return ""
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []
        if dump:
            _signal(self._processes, signal.SIGUSR1)
            time.sleep(1)
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._job.wait(10)
        left = list(self._processes)  # with those below mpirun, if some have not come up
        with contextlib.suppress(psutil.NoSuchProcess):
            left += psutil.Process(self._job.pid).children(recursive=True)
        if self._job.poll() is None:
            os.killpg(self._job.pid, signal.SIGKILL)
        _signal(left, signal.SIGKILL)
        self._job.wait()
        self._job = None
        self._output.seek(0)
        text = self._output.read()
        self._output.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return text


def pools(modules: tuple[str, ...] = ()) -> Iterator[Callable[[int], Ranks]]:
    """A fixture's body: a function that gives `np` ranks, which stay until the fixture's end."""
    made: dict[int, Ranks] = {}
    yield lambda np: made.setdefault(np, Ranks(np, modules=modules))
    for each in made.values():
        each.stop()


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _serve(address: str) -> None:
    import faulthandler

    faulthandler.register(signal.SIGUSR1)
    # Open MPI's name for it, and that of MPICH and Intel MPI.
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    with Client(address) as pipe:
        pipe.send((rank, os.getpid()))
        while True:
            try:
                file, name, args = pickle.loads(pipe.recv_bytes())
            except EOFError:
                return
            try:
                answer = True, getattr(_module(file), name)(*args)
            except BaseException:
                answer = False, traceback.format_exc()
            try:
                pipe.send(answer)
            except OSError:
                return


_modules: dict[str, Any] = {}


def _module(file: str) -> Any:
    if file not in _modules:
        name = f"on_ranks_{Path(file).stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        _modules[file] = module
    return _modules[file]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    _serve(sys.argv[1])
