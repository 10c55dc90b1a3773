"""Watches hvdlite, the data sets, and what the machine says of itself."""

from __future__ import annotations

import builtins
import functools
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..runtime_facts import CORES
from .data_side import Slice
from .recorder import Recorder, digest, sketch

OBJECTS = ("broadcast_object", "allgather_object", "exchange")
SMALL = 64  # values in a collective that are written down

# Called before every collective: each front end makes its rank's first weights its own.
before_collective: list[Callable[[], None]] = []
collectives = [0]  # how many calls there were
before_step: list[Callable[[], None]] = []  # the same, before the optimizer's
before_broadcast: list[Callable[[], None]] = []  # what notes the weights


def watch(record: Recorder, apart: int) -> None:
    """Watch the runtime: its start, and every collective of every front end.

    apart: the first runs of the script are on hosts of their own for each rank; see _pretend_hosts.
    """
    import hvdlite.engine.engine
    from hvdlite import basics

    _pretend_hosts(record, basics, apart)
    _note_questions(record, basics)
    init = basics.init

    @functools.wraps(init)
    def watched_init(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)
        told = basics.local_rank()
        for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"):
            if name in os.environ:
                os.environ[name] = str(told)
        facts = {"rank": basics.rank(), "size": basics.size(), "local_rank": told}
        facts["local_size"] = basics.local_size()
        record("init", **facts, where=record.where())

    basics.init = watched_init
    # Below all bindings, so that no spelling of a call is missed.
    submit = hvdlite.engine.engine.Engine.submit

    def watched_submit(self: Any, requests: Any, set_id: int = 0) -> None:
        collectives[0] += len(requests)
        for request in requests:
            for each in before_collective:
                each()
            what = request.descriptor
            for each in before_broadcast if what.kind == "broadcast" else ():
                each()
            if what.kind in ("allreduce", "reducescatter"):
                elements = int(sum(np.prod(shape) for shape in what.shapes))
            else:
                elements = sum(array.size for array in request.inputs)
            kind = "exchange" if what.kind in OBJECTS else what.kind
            name = what.name if what.packed else what.key
            facts = {"kind": kind, "name": name, "elements": elements, "op": what.op}
            if what.kind == "allreduce" and not what.packed:
                facts["sketch"] = _sketch(request)
            values = _values(request, elements)
            record("collective", **facts, values=values, where=record.where())
        submit(self, requests, set_id)

    hvdlite.engine.engine.Engine.submit = watched_submit


def note_weights(
    record: Recorder,
    weights: Callable[[], list[np.ndarray]],
    own: Callable[[], list[float] | None],
) -> None:
    """What a model has before a batch, for steps that no optimizer of a framework takes.

    own: gives a sketch of this rank's gradients of the last batch.
    """
    if record.stepped == record.phase:
        return
    arrays = weights()
    facts = {"elements": sum(array.size for array in arrays), "own": own()}
    record("weights", digest=digest(arrays), sketch=sketch(arrays).tolist(), **facts)


def _pretend_hosts(record: Recorder, basics: Any, apart: int) -> None:
    """Tell the ranks of other hosts than there are, so that who takes one number for another shows.

    In the first `apart` runs of the script each rank has a host of its own: all are local rank 0.
    In the others they share one, where their local ranks are in reverse.
    """
    size, rank = basics.size, basics.rank  # which raise before init(), and so do the others

    def told(alone: Callable[[], int], together: Callable[[], int]) -> Callable[[], int]:
        return lambda: alone() if record.phase <= apart else together()

    basics.local_rank = told(lambda: 0 * size(), lambda: size() - 1 - rank())
    basics.local_size = told(lambda: min(1, size()), size)
    basics.cross_rank = told(rank, lambda: 0 * size())
    basics.cross_size = told(size, lambda: min(1, size()))


def _note_questions(record: Recorder, basics: Any) -> None:
    """Whether the script asks the runtime which rank it is, and of how many."""

    def noted(name: str, answer: Callable[[], int]) -> Callable[[], int]:
        @functools.wraps(answer)
        def function() -> int:
            if record.from_script() and (record.phase, name) not in asked:
                asked.add((record.phase, name))
                record("asked", what=name)
            return answer()

        return function

    asked: set[tuple[int, str]] = set()
    basics.rank, basics.size = noted("rank", basics.rank), noted("size", basics.size)


def _sketch(request: Any) -> list[float]:
    """Of the tensors that a call sends, which may lie in one buffer."""
    flat = np.concatenate([np.asarray(each, np.float64).ravel() for each in request.inputs])
    ends = np.cumsum([int(np.prod(shape)) for shape in request.descriptor.shapes])
    return sketch(np.split(flat, ends[:-1])).tolist()


def _values(request: Any, elements: int) -> list[float]:
    """The numbers that a small call sends; none for what is no number."""
    try:
        if request.descriptor.kind in OBJECTS:
            import cloudpickle

            data = request.payload[0]
            if not isinstance(data, bytes) or len(data) > 4096:
                return []
            return _flat(cloudpickle.loads(data))
        if elements > SMALL:
            return []
        return [float(x) for array in request.inputs for x in np.asarray(array, np.float64)]
    except Exception:
        return []


def _flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [x for each in value for x in _flat(each)]
    return [float(value)] if isinstance(value, int | float | np.number) else []


def watch_data(slices: Slice) -> None:
    """Give the script a small slice of the data that it asks for."""
    from hvdlab import data

    def load(name: str, *_: Any, **__: Any) -> data.Dataset:
        spec = data.catalog.data_set(name)
        arrays = slices.arrays(name)
        more = {"classes": spec.classes, "origin": "the check", "is_sample": True}
        return data.Dataset(spec.name, spec.title, **arrays, **more)

    data.load = load


def watch_stderr(record: Recorder) -> None:
    """What the student's code tells there, by logging or by print; on stdout it is seen anyway."""
    emit, show = logging.StreamHandler.emit, builtins.print

    @functools.wraps(show)
    def watched_print(*values: Any, file: Any = None, **kwargs: Any) -> None:
        show(*values, file=file, **kwargs)
        if file is sys.__stderr__ and record.from_script():
            record("logged", text=" ".join(map(str, values))[:200])

    builtins.print = watched_print

    @functools.wraps(emit)
    def watched(self: logging.StreamHandler, told: logging.LogRecord) -> None:
        of_script = told.pathname.startswith(record.folder) and told.levelno <= logging.INFO
        if of_script and self.stream is sys.stderr:
            record("logged", text=self.format(told)[:200])
        emit(self, told)

    logging.StreamHandler.emit = watched


def watch_cores(record: Recorder) -> None:
    """Tell the student's code, and nobody else, of a machine with CORES cores."""

    def told(real: Callable, answer: Any) -> Callable:
        @functools.wraps(real)
        def function(*args: Any, **kwargs: Any) -> Any:
            return answer() if record.from_script() else real(*args, **kwargs)

        return function

    os.cpu_count = told(os.cpu_count, lambda: CORES)
    os.sched_getaffinity = told(os.sched_getaffinity, lambda: set(range(CORES)))
    if hasattr(os, "process_cpu_count"):
        os.process_cpu_count = told(os.process_cpu_count, lambda: CORES)
    multiprocessing.cpu_count = told(multiprocessing.cpu_count, lambda: CORES)
