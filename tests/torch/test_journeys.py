"""How far it is from a user's line to the reduction: the files and functions on the way.

Counted are hvdlite's functions that are on the stack whenever something happens to the data: it is
put where the others find it, asked for, agreed on, reduced, sent, given back. Left out is what
stands beside the way (a check, a name, a digest, which return before that), and the loop that
waits for other ranks, in which a rank that comes last never is.
"""

import pytest
from twin import restore

# What happens to the data, by file and function.
STATIONS = {
    ("torch/buckets.py", "put"), ("torch/buckets.py", "fill"), ("torch/tensors.py", "as_array"),
    ("torch/tensors.py", "give_back"), ("engine/channel.py", "add"),
    ("waiting/exchange.py", "post"), ("waiting/exchange.py", "arrived"),
    ("collectives/reduction.py", "reduce_into"), ("runtime/groups.py", "begin"),
}  # fmt: skip
WAITS = {
    ("engine/engine.py", "_wait"), ("engine/engine.py", "_advanced"),
    ("waiting/wait.py", "wait_until"), ("runtime/groups.py", "wait_all"),
}  # fmt: skip


class _Way:
    """Within, notes the functions of hvdlite on the way, as (file, line of its `def`, name)."""

    def __enter__(self) -> "_Way":
        import sys

        self.hops, self._stack = [], []
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error) -> None:
        import sys

        sys.setprofile(None)

    def _note(self, frame, event: str, arg) -> None:
        code = frame.f_code
        _, ours, file = code.co_filename.rpartition("/hvdlite/")
        if event not in ("call", "return") or not ours or code.co_name.endswith("comp>"):
            return
        if event == "return":
            # Nothing to take away for the frame within which the notes began.
            if self._stack and self._stack[-1][1] == code.co_firstlineno:
                self._stack.pop()
            return
        self._stack.append((file, code.co_firstlineno, code.co_name))
        if (file, code.co_name) in STATIONS:
            on_way = [hop for hop in self._stack if (hop[0], hop[2]) not in WAITS]
            self.hops += [hop for hop in on_way if hop not in self.hops]


def _gradient() -> list[tuple[str, int, str]]:
    """From the hook to the step, in the second step."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = torch.nn.Linear(10, 2)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 10)).sum()
        with _Way() as way:
            loss.backward()
            optimizer.step()
    return way.hops


def _allreduce() -> list[tuple[str, int, str]]:
    """Over two hosts of two ranks, from the call to its result."""
    import torch

    import hvdlite.torch as hvd
    from hvdlite import testing

    assert testing.new_world(HVDLITE_RANKS_PER_HOST="2").name == "hierarchical"
    with _Way() as way:
        hvd.allreduce(torch.ones(10), name="x")
    return way.hops


@pytest.fixture
def four(ranks):
    yield ranks(4)
    ranks(4).run(restore)


def _check(hops: list, stations: set[str], most_files: int, most_hops: int) -> None:
    told = "\n".join(f"{file}:{line} {name}" for file, line, name in hops)
    assert stations <= {name for _, _, name in hops}, told
    assert len({file for file, _, _ in hops}) <= most_files, told
    assert len(hops) <= most_hops, told


def test_a_gradient_is_near_its_reduction(ranks):
    for hops in ranks(2).run(_gradient):
        _check(hops, {"put", "add", "post", "reduce_into"}, 10, 22)


def test_an_allreduce_over_two_hosts_is_near_its_reduction(four):
    for hops in four.run(_allreduce):
        _check(hops, {"as_array", "add", "begin", "reduce_into", "give_back"}, 11, 27)
