"""The callbacks for models of Keras."""

import keras

from hvdlite.keras import callbacks_for

__all__ = [
    "BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "LearningRateScheduleCallback",
    "LearningRateWarmupCallback", "MetricAverageCallback",
]  # fmt: skip


class BroadcastGlobalVariablesCallback(
    callbacks_for.BroadcastGlobalVariables, keras.callbacks.Callback
):
    """Gives model and optimizer the variables of rank `root_rank` after the first batch."""


class MetricAverageCallback(callbacks_for.MetricAverage, keras.callbacks.Callback):
    """Makes each metric of an epoch the mean over ranks, for the callbacks that come after it."""


class LearningRateScheduleCallback(callbacks_for.LearningRateSchedule, keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` times `multiplier`, from start to end epoch."""


class LearningRateWarmupCallback(callbacks_for.LearningRateWarmup, LearningRateScheduleCallback):
    """Raises the learning rate from initial_lr / size() to initial_lr, batch by batch.

    `initial_lr` is the rate for all ranks together, the scaled one.
    """


class BestModelCheckpoint(callbacks_for.BestModel, keras.callbacks.ModelCheckpoint):
    """Keeps the best model so far, in the file that its attribute `filepath` names."""
