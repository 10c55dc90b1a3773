"""What the callbacks of `hvd.elastic` do, for Keras 3 as for tf_keras.

Each binding makes them callbacks of its Keras.
"""

from typing import Any


class _OfState:
    def __init__(self, state: Any):
        super().__init__()
        self.state = state


class CommitState(_OfState):
    """Commits the state after so many batches, and at the end of each epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1):
        super().__init__(state)
        self.batches_per_commit = batches_per_commit
        self._since = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._since = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._since += 1
        if self._since == self.batches_per_commit:
            self._since = 0
            self.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.commit()

    def commit(self) -> None:
        """Commits the state; subclasses may do more."""
        self.state.commit()


class UpdateBatchState(_OfState):
    """Keeps the number of the last batch in `state.batch`, 0 between epochs."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochState(_OfState):
    """Counts the epochs in `state.epoch`, over all starts of the training."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self._before + epoch + 1
