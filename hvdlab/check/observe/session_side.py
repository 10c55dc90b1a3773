"""Watches TensorFlow 1: what each run of a session is fed, and what its training ops apply."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.client.session import BaseSession

from .recorder import Recorder, Samples, digest

_COLLECTIVES = ("EagerPyFunc", "PyFunc", "PyFuncStateless")


def watch(record: Recorder, samples: Samples) -> None:
    """Start to watch; before the script has made anything."""
    _watch_config(record)
    _watch_runs(record, samples)


def _watch_config(record: Recorder) -> None:
    init = BaseSession.__init__

    @functools.wraps(init)
    def watched(self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        if config is not None and not record.is_quiet():
            visible = config.gpu_options.visible_device_list
            hidden = config.device_count.get("GPU", -1) == 0
            chosen = [] if hidden else [int(x) for x in visible.split(",") if x.strip()]
            record("gpu", how="session", chosen=chosen, where=record.where())
            if config.intra_op_parallelism_threads:
                record("threads", count=config.intra_op_parallelism_threads, where=record.where())
            given, config = config, type(config)()
            config.CopyFrom(given)
            config.intra_op_parallelism_threads = 1
            config.gpu_options.visible_device_list = ""
        init(self, target, graph, config)

    BaseSession.__init__ = watched


def _flat(fetches: Any) -> list[Any]:
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, list | tuple):
        return [each for part in fetches for each in _flat(part)]
    return [fetches]


def _applies(op: Any) -> bool:
    return op.type.startswith(("Apply", "ResourceApply", "ResourceSparseApply"))


class _Graph:
    """What the fetches of a run lead to, found once for each set of fetches."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], list[Any]] = {}

    def special(self, graph: Any, fetches: Any) -> list[Any]:
        """The operations behind the fetches that train, talk to other ranks or read data."""
        ops = []
        for each in _flat(fetches):
            try:
                element = graph.as_graph_element(each)
            except (TypeError, ValueError, KeyError):
                continue
            ops.append(getattr(element, "op", element))
        key = (str(id(graph)), *(op.name for op in ops))
        if key not in self._known:
            self._known[key] = self._search(ops)
        return self._known[key]

    def _search(self, ops: list[Any]) -> list[Any]:
        seen, stack, found = set(), list(ops), []
        while stack:
            op = stack.pop()
            if op.name in seen:
                continue
            seen.add(op.name)
            if _applies(op) or op.type in (*_COLLECTIVES, "IteratorGetNext"):
                found.append(op)
            stack += [each.op for each in op.inputs] + list(op.control_inputs)
        return found


def _argument(op: Any, *names: str) -> Any:
    for position, argument in enumerate(op.op_def.input_arg):
        if argument.name in names:
            return op.inputs[position]
    return None


def _watch_runs(record: Recorder, samples: Samples) -> None:
    run, graphs, shifted = BaseSession.run, _Graph(), set()

    def read(session: Any) -> list[np.ndarray]:
        with session.graph.as_default():
            return run(session, tf.compat.v1.trainable_variables())

    def shift(session: Any) -> None:
        """Rank 1 starts from weights of its own, as it would with another seed."""
        if session.graph in shifted:
            return
        try:
            values = read(session)
        except tf.errors.FailedPreconditionError:
            return  # not initialized yet
        if not values:
            return
        shifted.add(session.graph)
        with session.graph.as_default():
            variables = tf.compat.v1.trainable_variables()
        if record.rank:
            for variable, value in zip(variables, values, strict=True):
                new = value * (1 + 0.1 * record.rank) + 0.01 * record.rank
                feed = {variable.initializer.inputs[1]: new}
                run(session, variable.initializer, feed)

    def note_images(arrays: list[Any], trains: bool) -> None:
        for array in arrays:
            if isinstance(array, np.ndarray) and array.ndim > 1:
                record("batch", train=trains, ids=samples.identify(array))
                return

    @functools.wraps(run)
    def watched(
        self: Any,
        fetches: Any,
        feed_dict: Any = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        if record.is_quiet():
            return run(self, fetches, feed_dict, options, run_metadata)
        special = graphs.special(self.graph, fetches)
        # By name: a rank with more hooks finds them in another order.
        train = sorted((op for op in special if _applies(op)), key=lambda op: op.name)
        if special:
            shift(self)
        sources = [t for op in special if op.type == "IteratorGetNext" for t in op.outputs]
        fed = list((feed_dict or {}).values())
        if not train:
            if not sources:
                note_images(fed, False)
                result = run(self, fetches, feed_dict, options, run_metadata)
                shift(self)  # at once where this was what initializes the variables
                return result
            result, data = run(self, [fetches, sources], feed_dict, options, run_metadata)
            note_images(data, False)
            return result
        rates = [_argument(op, "lr", "alpha") for op in train]
        grads = [_argument(op, "grad", "delta") for op in train]
        extra = [[x for x in rates if x is not None], [x for x in grads if x is not None], sources]
        before = read(self)
        result, (rates, grads, data) = run(self, [fetches, extra], feed_dict, options, run_metadata)
        note_images([*fed, *data], True)
        for value in _flat(result):
            if isinstance(value, np.floating):
                record("loss", value=float(value))
                break
        facts = {"lr": float(max(rates, default=0)), "elements": sum(v.size for v in before)}
        facts |= {"grads": digest(grads), "before": digest(before), "after": digest(read(self))}
        record("step", **facts)
        return result

    BaseSession.run = watched
