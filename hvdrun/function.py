"""`hvdlite.run`: a Python function on several ranks, called from a script or a notebook."""

import inspect
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from hvdrun.run import run_command


# fmt: off
def run(
    func: Callable[..., Any], args: tuple = (), kwargs: dict[str, Any] | None = None,
    num_proc: int = 1, min_num_proc: int | None = None, max_num_proc: int | None = None,
    slots: int | None = None, reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None, hosts: str | None = None,
    hostfile: str | None = None, host_discovery_script: str | None = None,
    start_timeout: float | None = None, ssh_port: int | None = None,
    ssh_identity_file: str | None = None, disable_cache: bool | None = None,
    output_filename: str | None = None, verbose: bool | None = None, use_gloo: bool | None = None,
    use_mpi: bool | None = None, mpi_args: str | None = None,
    network_interface: str | None = None, network_interfaces: str | None = None,
    executable: str | None = None, np: int | None = None, min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call `func(*args, **kwargs)` on `num_proc` ranks; returns their results in rank order.

    The function may be defined anywhere, a notebook's cell included; it travels with what it uses.
    Its output appears while it runs. The arguments are horovodrun's options under Horovod's names;
    with min_num_proc or host_discovery_script the job is elastic, and the results are those of the
    ranks at its end, at most min_num_proc of them.
    Raises TypeError for a function that can't travel, RuntimeError with the rank's traceback where
    the function fails, KeyboardInterrupt after an interrupt; no rank is left then.
    """
    least = min_num_proc if min_np is None else min_np
    interfaces = network_interfaces or network_interface
    with tempfile.TemporaryDirectory(prefix="hvdlite-run-") as folder:
        Path(folder, "call").write_bytes(_pack(func, args, kwargs or {}))
        command = [executable or sys.executable, "-m", "hvdrun.function", folder]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        code = run_command(
            command, num_proc if np is None else np, env=env, stdout=sys.stdout, stderr=sys.stderr,
            hosts=hosts, hostfile=hostfile, start_timeout=start_timeout, ssh_port=ssh_port,
            ssh_identity_file=ssh_identity_file, output_filename=output_filename,
            verbose=verbose, mpi_args=mpi_args, nics=interfaces and interfaces.split(","),
            min_np=least, max_np=max_num_proc if max_np is None else max_np, slots=slots,
            reset_limit=reset_limit, cooldown_range=cooldown_range, discovery=host_discovery_script,
        )
        told = [path.read_text() for path in sorted(Path(folder).glob("error.*"))]
        if code == 130 and not told:
            raise KeyboardInterrupt
        results = Path(folder, "results")
        if code == 0 and results.exists():
            packed = pickle.loads(results.read_bytes())
            return [cloudpickle.loads(result) for result in packed[:least]]
        raise RuntimeError("\n".join([f"hvdlite.run ended with exit code {code}", *told]))
# fmt: on


def _pack(func: Callable, args: tuple, kwargs: dict) -> bytes:
    try:
        return cloudpickle.dumps((func, args, kwargs))
    except Exception as error:
        scope = {f"args[{i}]": value for i, value in enumerate(args)} | kwargs
        if inspect.isfunction(func):
            used = inspect.getclosurevars(func)
            scope |= {**used.globals, **used.nonlocals}
        bad = [name for name, value in scope.items() if not _travels(value)]
        raise TypeError(
            f"{getattr(func, '__name__', func)} can't be sent to the ranks: "
            f"{', '.join(bad) or error} can't be "
            "pickled. Make such things (locks, files, connections) inside the function"
        ) from error


def _travels(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
        return True
    except Exception:
        return False


def _call_on_rank(folder: Path) -> None:
    """A rank's part: get the function, call it, and give the result back.

    A rank that sees the caller's folder reads the one and writes the other.
    """
    import mpi4py.run
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    call = Path(folder, "call")
    seen = comm.allgather(call.exists())
    if True not in seen:
        if comm.rank == 0:
            text = f"hvdlite.run: no rank sees {folder} of the calling machine; name localhost in"
            print(f"{text} hosts=, or in TMPDIR a folder that all hosts share", file=sys.stderr)
        sys.exit(1)
    root = seen.index(True)
    packed = comm.bcast(call.read_bytes() if comm.rank == root else None, root)
    func, args, kwargs = cloudpickle.loads(packed)
    try:
        result = cloudpickle.dumps(func(*args, **kwargs))
    except BaseException as error:
        if getattr(error, "restarts", False):
            raise  # the ranks of an elastic job start anew
        if folder.is_dir():
            text = f"rank {comm.rank} of {comm.size}:\n{traceback.format_exc()}"
            Path(folder, f"error.{comm.rank:05}").write_text(text)
        code = error.code if isinstance(error, SystemExit) else 1
        # Without a result even code 0 is a failure. At this rank's end, all others end too.
        mpi4py.run.set_abort_status(code or 1)
        if isinstance(error, SystemExit) and not code:
            raise SystemExit(1) from None
        raise
    results = comm.gather(result, root)
    if comm.rank == root:
        Path(folder, "results").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    _call_on_rank(Path(sys.argv[1]))
