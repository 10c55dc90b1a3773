"""The callbacks for models of tf.keras."""

import tensorflow as tf

from hvdlite.keras.callbacks_for import make

(
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    BestModelCheckpoint,
) = make(tf.keras)
