"""Keras 3 on TensorFlow: a step compiled by XLA around its collective.

A collective is a Python function, which XLA can't compile, and so not the whole step. Instead all
that comes before it is one program, from the data to the gradients, and the optimizer's update is
another.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvdlite.keras.optimizer import attributes, is_distributed
from hvdlite.tensorflow import graph
from hvdlite.tensorflow.sync_batch_norm import SyncBatchNormalization


def split_steps(model: type) -> None:
    """Let models with a DistributedOptimizer be trained so where Keras would compile the step.

    But not those with a `train_step` of their own, which may do more behind the update, nor those
    with a SyncBatchNormalization. Another collective in a model raises ValueError.
    """
    owner = next(each for each in model.__mro__ if "make_train_function" in vars(each))
    original, plain_step = owner.make_train_function, owner.train_step

    def make(self: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        self.jit_compile = False
        try:
            with attributes(self, train_step=step):
                original(self, True)
        finally:
            self.jit_compile = True
        return self.train_function

    @functools.wraps(original)
    def make_train_function(self: Any, force: bool = False) -> Any:
        if not (self.jit_compile and is_distributed(self.optimizer)):
            return original(self, force)
        if self.train_function is not None and not force:
            return self.train_function
        step = self.train_step
        is_plain = getattr(step, "__func__", None) is plain_step
        synced = any(isinstance(layer, SyncBatchNormalization) for layer in self._flatten_layers())
        return make(self, _split(self) if is_plain and not synced else step)

    owner.make_train_function = make_train_function


def _split(model: Any) -> Callable[[Any], Any]:
    whole, optimizer = model.train_step, model.optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    variables: list[Any] = []

    def up_to_the_gradients(data: Any) -> tuple[Any, list[Any]]:
        gradients: list[Any] = []

        def apply_gradients(pairs: Any) -> None:
            gradients[:], variables[:] = zip(*pairs, strict=True)

        collectives = graph.made[0]
        with attributes(optimizer, apply_gradients=apply_gradients):
            logs = whole(data)
        if graph.made[0] != collectives:
            raise ValueError(
                "the model makes collective calls itself, which XLA can't compile: "
                "compile it with model.compile(..., jit_compile=False)"
            )
        return logs, gradients

    program = tf.function(up_to_the_gradients, jit_compile=True, autograph=False)

    @functools.wraps(whole)
    def train_step(data: Any) -> Any:
        logs, gradients = program(data)
        with attributes(inner, _hvd_compile=_update):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return logs

    return train_step


def _update(update: Callable[..., None], gradients: Sequence[Any], variables: list[Any]) -> None:
    """Run an optimizer's update as a program of XLA, but for sparse gradients."""
    if not all(isinstance(each, tf.Tensor) for each in gradients):
        update(gradients, variables)
        return

    def traced(*given: tf.Tensor) -> None:
        update(list(given), variables)

    tf.function(traced, jit_compile=True, autograph=False)(*gradients)
