"""How a rank ends: what the other ranks and the launcher learn of it, and whether the job goes on.

A rank that ends with another code than 0 (an exception, `sys.exit` with an argument, an interrupt)
ends the job, once the others had time for their own messages: MPI would wait for it for ever. One
that ends well waits for the others, without using its core for that, as ending MPI needs them all.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import os
import sys
from types import ModuleType, TracebackType

from hvdlite.runtime import launchers
from hvdlite.runtime.world import Job, World
from hvdlite.waiting import status
from hvdlite.waiting.wait import Patience

_GRACE = 3.0  # seconds for the other ranks to learn of a failure and to report it themselves
_said: list[object] = []  # by the SystemExit that has ended the program: its code
_pid = 0  # of the process that has called `init`; its forked children leave nothing


def watch() -> None:
    """From now on this process's end is a rank's. Does nothing the second time."""
    global _pid
    if _pid != os.getpid():
        _pid = os.getpid()
        _watch_system_exit()
        atexit.register(_at_exit)
        if not hasattr(sys, "ps1"):
            sys.excepthook = functools.partial(_on_error, sys.excepthook)


def _watch_system_exit() -> None:
    """Have the interpreter tell the exit code that a SystemExit ends it with.

    It calls no hook then, but asks the exception for its `code`, which so becomes a property. No
    Python code runs at that moment, while a program that has caught one asks from its own frame.
    Before Python 3.12 the exception of `sys.exit` has no object yet that could be asked, but for
    a function that raises one itself; some programs have imported `exit` by name.
    """
    if isinstance(SystemExit.code, property):
        return
    attributes = gc.get_referents(SystemExit.__dict__)[0]  # the type itself takes no attribute
    code, exit_ = attributes["code"], sys.exit

    def get(error: SystemExit) -> object:
        value = code.__get__(error)
        try:
            sys._getframe(1)
        except ValueError:
            _said.append(value)
        return value

    @functools.wraps(exit_)
    def raise_system_exit(status: object = None, /) -> None:
        raise status if isinstance(status, SystemExit) else SystemExit(status)

    attributes["code"] = property(get, code.__set__, doc=code.__doc__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    for module in [each for each in sys.modules.values() if isinstance(each, ModuleType)]:
        for name in [name for name, value in vars(module).items() if value is exit_]:
            setattr(module, name, raise_system_exit)


def _on_error(
    show: object, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """The excepthook: print the error as always, and end the job."""
    show(kind, error, traceback)
    sys.stderr.flush()
    if Job.last is not None and os.getpid() == _pid:
        _end_job_by(Job.last, error)


def _end_job_by(world: World, error: BaseException) -> None:
    code = 130 if isinstance(error, KeyboardInterrupt) else 1  # as a shell says it
    said = f": {error}" if str(error) else ""
    _end_job(world, code, f"ended with {type(error).__name__}{said}")


def _uncaught() -> BaseException | None:
    """The error that has ended the program, where it has an excepthook of its own."""
    trace = getattr(sys, "last_traceback", None)  # Python's, before it calls the hook
    whole = trace is not None and trace.tb_frame.f_back is None
    return sys.last_value if whole and not hasattr(sys, "ps1") else None


def _at_exit() -> None:
    world = Job.last
    if os.getpid() != _pid:
        return  # a forked child that runs its parent's exit handlers
    if world is not None and world.status.read(world.rank).state != status.GONE:
        if (error := _uncaught()) is not None:
            _end_job_by(world, error)
        elif code := _exit_code():
            _end_job(world, code, f"has left by sys.exit({_said[-1]!r})")
        else:
            world.status.write(status.GONE, "has ended its program")
            _report(world, 0)
    try:
        _leave(world)
    except KeyboardInterrupt:
        _abort(130)


def _exit_code() -> int:
    """The exit code that a SystemExit has given this process, else 0."""
    value = _said[-1] if _said else None
    return (value & 0xFF if isinstance(value, int) else 1) if value is not None else 0


def _end_job(world: World, code: int, text: str) -> None:
    """End the job with this code, unless this rank ends only because another one has."""
    first = not world.status.gone()
    world.status.write(status.GONE, text)
    _report(world, code)
    patience, waits = Patience(), True
    with contextlib.suppress(KeyboardInterrupt):
        while waits and len(world.status.gone()) < world.size - 1:
            waits = patience.pause() < _GRACE
        if not first and waits:
            return  # all others have ended
    _abort(code)


def _abort(code: int) -> None:
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(code)


def _report(world: World, code: int) -> None:
    """Tell horovodrun: this rank ends with `code`, perhaps because of another rank ("-" for none).

    MPI's launcher only knows which process has ended first.
    """
    from mpi4py import MPI

    groups = world.comm.Get_group(), MPI.COMM_WORLD.Get_group()
    blamed = world.status.blamed
    ranks = [world.rank] if blamed is None else [world.rank, blamed]
    rank, cause = [*MPI.Group.Translate_ranks(groups[0], ranks, groups[1]), "-"][:2]
    tell_launcher(f"end {rank} {code} {cause}")


def tell_launcher(words: str) -> None:
    """Tell horovodrun something, if it has started this rank and hears it."""
    with contextlib.suppress(KeyError, OSError):  # no horovodrun, or it is on another machine
        pipe = os.open(os.environ[launchers.REPORT], os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, f"{words}\n".encode())
        os.close(pipe)


def _leave(world: World | None) -> None:
    """Wait for the other ranks without using a core, then end MPI, which waits busily."""
    if "mpi4py.MPI" not in sys.modules:
        return
    import mpi4py
    from mpi4py import MPI

    patience = Patience()
    while world is not None and len(world.status.gone()) < world.size - 1:
        patience.pause()
    # mpi4py ends MPI by itself where the user's program has started it.
    if mpi4py.rc.finalize is False and not MPI.Is_finalized():
        MPI.Finalize()
