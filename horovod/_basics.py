"""`horovod.common.basics`: the class whose methods are the basics, as libraries make one."""

from collections.abc import Sequence
from typing import Any

import hvdlite
from hvdlite import basics, request


class HorovodBasics:
    """The functions of `hvdlite` as methods; Horovod's reads them from a library in C++."""

    Average, Sum, Adasum = request.AVERAGE, request.SUM, request.ADASUM
    Min, Max, Product = request.MIN, request.MAX, request.PRODUCT

    def __init__(self, pkg_path: str | None = None, *args: str) -> None:
        self.MPI_LIB_CTYPES = None

    def __getattr__(self, name: str) -> Any:
        if name in hvdlite.__all__:
            return getattr(hvdlite, name)
        raise AttributeError(f"'HorovodBasics' object has no attribute {name!r}")

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return basics.process_set_ranks()

    def _get_process_set_ranks(self, process_set_id: int) -> Sequence[int]:
        return basics.process_set_ranks()[process_set_id]
