# Written by tools/stubs.py.
from hvdlite.keras import callbacks_for as callbacks_for
from hvdlite.keras.callbacks import BestModelCheckpoint as BestModelCheckpoint
from hvdlite.keras.callbacks import BroadcastGlobalVariablesCallback as BroadcastGlobalVariablesCallback
from hvdlite.keras.callbacks import LearningRateScheduleCallback as LearningRateScheduleCallback
from hvdlite.keras.callbacks import LearningRateWarmupCallback as LearningRateWarmupCallback
from hvdlite.keras.callbacks import MetricAverageCallback as MetricAverageCallback
