"""`horovod.common.util`: the helpers of Horovod's that programs import."""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from packaging.version import Version

from hvdlite import basics

_cache = functools.cache


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a binding can be used: "torch", "tensorflow", "keras"."""
    return importlib.util.find_spec(ext_base_name) is not None and (
        importlib.util.find_spec(f"hvdlite.{ext_base_name}") is not None
    )


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raise ImportError for a binding ("horovod.torch") that can't be used."""
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(f"{ext_name} can't be used: its framework is not installed")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a binding's tensors on a GPU are reduced there."""
    return extension_available(ext_base_name) and basics.nccl_built() > 0


def mpi_built(verbose: bool = False) -> bool:
    """Whether mpi4py is installed."""
    return basics.mpi_built()


def nccl_built(verbose: bool = False) -> bool:
    """Whether CuPy brings NCCL."""
    return basics.nccl_built() > 0


def cuda_built(verbose: bool = False) -> bool:
    """Whether CuPy, through which GPUs are used, is installed."""
    return basics.cuda_built()


def _not_built(verbose: bool = False) -> bool:
    """False: Gloo, IBM's DDL, Intel's oneCCL and AMD's GPUs are not served."""
    return False


gloo_built = ddl_built = ccl_built = rocm_built = _not_built


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Nothing: there is no library that was built for one version of a framework."""


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[..., int]:
    """The function that makes one `op` of `op` and the older `average`, each None or given."""

    def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
        if op is not None and average is not None:
            raise ValueError("the op parameter supersedes average: give one of the two")
        if op is not None:
            return op
        return reduce_ops.Sum if average is False else reduce_ops.Average

    return handle_average_backwards_compatibility


@contextlib.contextmanager
def env(**kwargs: Any) -> Iterator[None]:
    """Set variables of the environment for a while; None takes one out."""
    before = dict(os.environ)
    for name, value in kwargs.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two, as Adasum wants it."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def is_iterable(x: Any) -> bool:
    """Whether something can be iterated over."""
    return isinstance(x, Iterable)


def split_list(l: Sequence[Any], n: int) -> list[Sequence[Any]]:  # noqa: E741
    """`n` parts of a list; the first ones are one longer where it can't be even."""
    share, more = divmod(len(l), n)
    ends = [i * share + min(i, more) for i in range(n + 1)]
    return [l[ends[i] : ends[i + 1]] for i in range(n)]


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target` or later. Raises ValueError unless that is "1.2.3"."""
    if target.count(".") != 2:
        raise ValueError(f"the version to compare with must have three parts, not {target!r}")
    return Version(ver) >= Version(target)
