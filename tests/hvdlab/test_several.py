"""Several things at a time: as many as there are cores, and nothing new after an interrupt."""

import threading

import pytest

from hvdlab.compare.machine import cores
from hvdlab.several import MOST, several


def test_as_many_at_a_time_as_there_are_cores(capsys):
    at_a_time = min(cores(), MOST)
    all_there = threading.Barrier(at_a_time)

    def meet(item: int) -> int:
        all_there.wait(60)
        return item * item

    items = range(2 * at_a_time)
    found = dict(several(meet, items, "squaring", "number"))
    assert found == {item: item * item for item in items}
    shown = "".join(capsys.readouterr())  # where Jupyter's modules are there, on stdout
    assert "squaring" in shown and f"{len(items)}/{len(items)}" in shown


def test_an_error_ends_it_and_nothing_new_begins():
    begun, end = [], threading.Event()

    def fail(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise KeyboardInterrupt
        end.wait(60)

    with pytest.raises(KeyboardInterrupt):
        list(several(fail, range(100), "failing", "thing"))
    end.set()
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPool"):
            thread.join(60)
    assert len(begun) <= MOST + 1
