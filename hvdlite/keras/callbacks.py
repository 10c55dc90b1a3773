"""The callbacks for models of Keras."""

import keras

from hvdlite.keras.callbacks_for import make

(
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    BestModelCheckpoint,
) = make(keras)
