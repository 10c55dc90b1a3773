# Written by tools/stubs.py.
from hvdlite.keras import callbacks_for as callbacks_for
from hvdlite.tensorflow.keras.callbacks import BestModelCheckpoint as BestModelCheckpoint
from hvdlite.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback as BroadcastGlobalVariablesCallback
from hvdlite.tensorflow.keras.callbacks import LearningRateScheduleCallback as LearningRateScheduleCallback
from hvdlite.tensorflow.keras.callbacks import LearningRateWarmupCallback as LearningRateWarmupCallback
from hvdlite.tensorflow.keras.callbacks import MetricAverageCallback as MetricAverageCallback
