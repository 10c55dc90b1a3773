"""What tests may do to a running world: change its settings, slow a rank down, count and look.

For hvdlite's own tests and benchmarks, and for those of programs that use it.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hvdlite import basics
from hvdlite.collectives.interface import Collectives
from hvdlite.engine.channel import Channel
from hvdlite.engine.engine import Engine
from hvdlite.memory.shared_memory import Segment
from hvdlite.request import Request


def new_world(**environment: str) -> Collectives | None:
    """Start anew with these variables; the `collectives()` of the new world."""
    os.environ.update(environment)
    basics.shutdown()
    basics.init()
    return collectives() if basics.size() > 1 else None


def collectives(set_id: int = 0) -> Collectives:
    """How the bytes of a process set move on CPUs; `name` tells the algorithm."""
    return basics.engine().channels[set_id].collectives


def algorithms() -> list[str]:
    """The names of the algorithms of all process sets that this rank shares with others."""
    return [channel.collectives.name for channel in basics.engine().channels.values()]


def pending(set_id: int = 0) -> list[str]:
    """The calls of this rank that are under way, as messages name them."""
    return basics.engine().channels[set_id].titles()


def run(*requests: Request, set_id: int = 0) -> None:
    """Make calls of the runtime, below all bindings, and wait for them."""
    engine: Engine = basics.engine()
    engine.submit(requests, set_id)
    for request in requests:
        engine.wait(request)


def allocate(name: str, nbytes: int) -> Segment | None:
    """Shared memory with a row of `nbytes` for each rank of this host; all ranks call it."""
    return basics.engine().call("allocate", name, shapes=((nbytes,),)).result


@contextmanager
def counted(*methods: str) -> Iterator[list[str]]:
    """Within, the list gets the name of each of these methods of `collectives()` that runs."""
    ways, names = collectives(), []

    def counting(method: str):
        def call(*args):
            names.append(method)
            return getattr(type(ways), method)(ways, *args)

        return call

    for method in methods:
        setattr(ways, method, counting(method))
    try:
        yield names
    finally:
        for method in methods:
            delattr(ways, method)


@contextmanager
def slow_rank(seconds: float) -> Iterator[None]:
    """Within, this rank comes late to each collective that it has agreed on."""
    run_agreed = Channel.run

    def late(*args) -> None:
        time.sleep(seconds)
        run_agreed(*args)

    Channel.run = late
    try:
        yield
    finally:
        Channel.run = run_agreed


def interrupt_progress(set_id: int) -> None:
    """Let a KeyboardInterrupt come when this rank next looks after the process set's calls."""
    channel = basics.engine().channels[set_id]

    def interrupted() -> Sequence[Request]:
        del channel.advance
        raise KeyboardInterrupt

    channel.advance = interrupted
