"""What `hvd.elastic` has in common for all frameworks: states, and the loop that puts them back.

A program commits its state now and then. Where a collective fails, which is an error on all ranks,
each rank goes back to its last commit, finds the others again, takes over the root's state, and
calls the training function once more. In an elastic job of horovodrun the ranks start anew instead,
also when hosts come and go or a rank ends, and `restart.py` gives them the last commit.
"""

import copy
import functools
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import cloudpickle

from hvdlite import basics
from hvdlite.elastic import restart
from hvdlite.exceptions import HorovodInternalError, HostsUpdatedInterrupt


class State:
    """What must not be lost when training begins anew.

    A subclass has `save`, `restore` and `sync`. What `save` assigns to the state's attributes is
    kept for the processes that come after this one.
    `bcast_object(value)` gives the root's value on every rank, `get_rank()` this one's number.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]):
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self._commits = 0
        self._assigned: set[str] | frozenset[str] = frozenset()  # attributes, by `save`
        self._host_messages = restart.HostMessages()
        self._last_updated_timestamp = 0.0

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Functions to call after each new start, before the state is synchronized."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called after each new start."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Called where hosts have come or gone; 1 stands for gone, 2 for come, 3 for both."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Keep the state as it is now: what a failure goes back to.

        Raises HostsUpdatedInterrupt as `check_host_updates` does.
        """
        self._commit()
        self.check_host_updates()

    def _commit(self) -> None:
        self._assigned = set()
        self.save()
        self._assigned = frozenset(self._assigned)  # what is assigned later does not count
        self._commits += 1
        restart.keep(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(assigned := vars(self).get("_assigned"), set):
            assigned.add(name)
        super().__setattr__(name, value)

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt, on all ranks, if hosts have come or gone.

        All ranks must call it. Does nothing where ranks don't come and go.
        """
        if restart.folder() is None:
            return
        before = latest = self._last_updated_timestamp
        changes = 0
        while not self._host_messages.empty():
            timestamp, change = self._host_messages.get()
            if timestamp > latest:
                latest, changes = timestamp, changes | change
        roots = self._bcast_object((before, latest, changes))
        before, self._last_updated_timestamp, changes = roots
        if self._last_updated_timestamp > before:
            raise HostsUpdatedInterrupt(skip_sync=changes == 1)

    def save(self) -> None:
        """Copy the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over the root's state; every rank must call it."""
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses that must do something after a new start."""

    def _kept(self) -> Any:
        """What goes to the next processes of an elastic job: the attributes that `save` assigns."""
        if not self._assigned:
            raise NotImplementedError(f"{type(self).__name__}.save() assigns nothing to the "
                                      "state's attributes, so nothing is kept")  # fmt: skip
        return {name: vars(self)[name] for name in self._assigned}

    def _take(self, kept: Any) -> None:
        """Have saved this instead."""
        vars(self).update(kept)

    def _write_kept(self, file: BinaryIO) -> None:
        cloudpickle.dump(self._kept(), file)

    def _read_kept(self, file: BinaryIO) -> None:
        self._take(pickle.load(file))


class ObjectState(State):
    """Python objects, which are attributes of the state.

    A commit copies them deeply, but for those that can't be copied.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ):
        super().__init__(bcast_object, get_rank)
        self._saved_state = {name: _copy(value) for name, value in kwargs.items()}
        for name, value in kwargs.items():
            setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """For type checkers: the program names the attributes."""

    def save(self) -> None:
        self._saved_state = {name: _copy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, _copy(value))

    def sync(self) -> None:
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            ObjectState.restore(self)


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # then it can only be kept as it is
        return value


def reset() -> None:
    """Leave the world and find the same ranks again. Process sets have to be added anew."""
    basics.shutdown()
    basics.init(basics._State.comm)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """`func(state, ...)`, called again from the last commit when a collective has failed.

    A second failure without a commit in between, of whatever kind, is raised.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        elastic = restart.folder() is not None
        failed_at = -1
        if restart.recall(state):
            failed_at = state._commits
            state.restore()
            state.on_reset()
        while True:
            failure: Exception | None = None
            try:
                state.sync()
                return func(state, *args, **kwargs)
            except HostsUpdatedInterrupt:
                if elastic:  # the state goes on as it is now
                    state._commit()
                    raise restart.leave() from None
            except Exception as error:
                if not _is_internal(error):
                    raise
                failure = error
                if state._rank() == 0:
                    print(f"hvdlite: {error}\nhvdlite: back to the last commit", file=sys.stderr)
                if elastic and state._commits > failed_at:
                    raise restart.leave() from None
                if elastic:
                    raise
                state.restore()
            reset()
            # The root decides, since ranks may have come to different commits.
            if state._bcast_object(failure is not None and state._commits == failed_at):
                raise failure or HorovodInternalError("a collective has failed on another rank")
            if failure is not None:
                failed_at = state._commits
            state.on_reset()

    return wrapper


def _is_internal(error: Exception) -> bool:
    """Whether a collective failed; TensorFlow's graphs wrap that into errors of their own."""
    return isinstance(error, HorovodInternalError) or "HorovodInternalError:" in str(error)


class _Notifications:
    """Accepted for compatibility: a state looks by itself for hosts that come and go."""

    def init(self) -> None:
        """Nothing to prepare."""

    def register_listener(self, listener: State) -> None:
        """Nothing to listen to."""

    def remove_listener(self, listener: State) -> None:
        """Nothing to forget."""


notification_manager = _Notifications()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a training function, whose first argument is the state."""
    return run_fn(func, reset)
