"""hvdlite: Horovod's interface on a runtime that one person can read in an afternoon.

The functions here need no framework. `hvdlite.torch` and the other bindings offer them too.
"""

from hvdlite._version import __version__

# fmt: off
_BASICS = [
    "ProcessSet", "add_process_set", "ccl_built", "cross_rank", "cross_size", "cuda_built",
    "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous",
    "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "process_set_ranks", "rank", "remove_process_set",
    "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]
# fmt: on

__all__ = ["__version__", "run", *_BASICS]


def __getattr__(name: str) -> object:
    # Imported when asked for: the launcher needs none of the runtime, and ranks no launcher.
    if name == "run":
        from hvdrun.function import run

        return run
    if name in _BASICS:
        from hvdlite import basics

        return getattr(basics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
