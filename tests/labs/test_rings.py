"""What an allreduce really sends, recorded on real ranks: right and wrong ones, cheap and dear."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from hvdlab import engines, rings
from hvdlab.rings import replay

FUNCTIONS = """
import numpy as np

def _around(comm, chunks, first, add):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    arriving = np.empty_like(chunks[0])
    for step in range(comm.size - 1):
        place = chunks[(first - step - 1) % comm.size]
        comm.Sendrecv(chunks[(first - step) % comm.size], dest=right, recvbuf=arriving, source=left)
        place[:] = place + arriving if add else arriving

def ring(comm, data):
    chunks = np.array_split(data, comm.size)
    _around(comm, chunks, comm.rank, True)
    _around(comm, chunks, comm.rank + 1, False)

def copies(comm, data):  # works on a copy, returns it, and uses other calls
    data = data.copy()
    chunks = np.array_split(data, comm.size)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for step in range(2 * comm.size - 2):
        sent = comm.isend(chunks[(comm.rank - step) % comm.size].copy(), dest=right)
        place, arriving = chunks[(comm.rank - step - 1) % comm.size], comm.recv(source=left)
        place[:] = place + arriving if step < comm.size - 1 else arriving
        sent.wait()
    return data

def whole(comm, data):  # the sum is right, but everybody passes all of it around
    moving, arriving = data.copy(), np.empty_like(data)
    for step in range(comm.size - 1):
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        comm.Sendrecv(moving, dest=right, recvbuf=arriving, source=left)
        data += arriving
        moving, arriving = arriving.copy(), moving

def server(comm, data):
    part = np.empty_like(data)
    if comm.rank == 0:
        for worker in range(1, comm.size):
            comm.Recv(part, source=worker)
            data += part
        for worker in range(1, comm.size):
            comm.Send(data, dest=worker)
    else:
        comm.Send(data, dest=0)
        comm.Recv(data, source=0)

def twice(comm, data):  # adds its neighbour's numbers two times
    part = np.empty_like(data)
    comm.Sendrecv(data, dest=1 - comm.rank, recvbuf=part, source=1 - comm.rank)
    data += 2 * part

def cheat(comm, data):
    from mpi4py import MPI
    comm.Allreduce(MPI.IN_PLACE, data)

def nothing(comm, data): ...

def stuck(comm, data):
    comm.Recv(data, source=(comm.rank + 1) % comm.size)
"""


@pytest.fixture(scope="module")
def ranks():
    with engines.start(3) as ranks:
        ranks.run(FUNCTIONS)
        yield ranks


@pytest.mark.parametrize("function", ["ring", "copies"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_ring_sends_the_least_that_can_be(ranks, function, size):
    found = rings.record(ranks, function, size)
    assert all(found.right) and found.steps == 2 * (size - 1)
    assert found.messages_sent == [2 * (size - 1)] * size
    assert {(m.target - m.source) % size for m in found.messages} == {1}
    if function == "ring":  # the other one's lengths are those of pickled arrays' numbers, too
        assert set(found.bytes_sent) == {round(found.least)}
    assert all(len(m.content) == 1 for m in found.messages)


def test_each_step_shows_whose_numbers_are_where(ranks):
    found = rings.record(ranks, "ring")
    alone = [[tuple(int(r == own) for r in range(3))] * 3 for own in range(3)]
    assert found.states[0] == alone
    first = [m for m in found.messages if m.step == 0]
    assert [(m.source, m.target, m.content) for m in first] == [
        (own, (own + 1) % 3, {own: alone[own][0]}) for own in range(3)
    ]
    for rank in range(3):  # after the scatter-reduce
        assert found.states[2][rank][(rank + 1) % 3] == (1, 1, 1)
    assert found.states[-1] == [[(1, 1, 1)] * 3] * 3
    assert replay.describe(found, 0).startswith("Step 1: rank 0 sends chunk 0 to rank 1;")


def test_a_ring_of_whole_arrays_is_right_and_too_dear(ranks):
    found = rings.record(ranks, "whole")
    assert all(found.right)
    assert min(found.bytes_sent) > 1.4 * found.least
    assert all(len(m.content) == 3 for m in found.messages)


def test_a_server_carries_everything(ranks):
    found = rings.record(ranks, "server")
    assert all(found.right) and found.messages_sent == [2, 1, 1] and found.steps == 2
    assert found.bytes_sent == [2 * found.data_bytes, found.data_bytes, found.data_bytes]


def test_what_is_wrong_is_seen(ranks, capsys):
    found = rings.record(ranks, "twice", 2)
    assert found.right == [False, False] and found.states[-1][0][0] == (1, 2)
    found = rings.record(ranks, "cheat")
    assert all(found.right) and found.collectives == ["Allreduce"] and not found.messages
    assert rings.record(ranks, "nothing").is_empty
    assert rings.record(ranks, "stuck", limit=6) is None
    assert "rank 0 waits in comm.Recv for rank 1" in capsys.readouterr().out
    assert all(rings.record(ranks, "ring").right), "the ranks work on after the deadlock"


def test_the_player_needs_nothing_but_the_page(ranks):
    frames = []
    found = rings.record(ranks, "ring")
    for step in range(found.steps + 1):
        frames.append(("AAAA", replay.describe(found, step)))
    page = replay._player(frames)
    assert page.count("<img") == 5 and 'max="4"' in page
    assert "http" not in page and "src=" in page and "End: 3 of 3 ranks" in page


def test_the_frames_differ_from_step_to_step(ranks):
    found = rings.record(ranks, "ring")
    pictures = []
    for step in (0, 1, found.steps):
        canvas = FigureCanvasAgg(replay._frame(found, step, "Ring"))
        canvas.draw()
        picture = np.asarray(canvas.buffer_rgba())
        pictures.append(picture[40:, : picture.shape[1] // 2])  # the ranks, without the title
    assert not np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[1], pictures[2])
