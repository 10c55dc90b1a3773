"""torch.compile around our calls: it leaves them as they are."""

import pytest


def _in_a_compiled_function(what: str) -> object:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    x = torch.ones(4, 3) * (1 + hvd.rank())

    def step():
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()

    def only_the_step():
        optimizer.step()

    def process_set():
        added = hvd.add_process_set([0])
        result = hvd.allreduce(x, process_set=added) if added.included() else x
        hvd.remove_process_set(added)
        return result[0, 0].item()

    def collectives():
        handle = hvd.allreduce_async(x * 2)
        gathered = hvd.allgather(x[:1])
        return (hvd.synchronize(handle)[0] + gathered.sum(0)).tolist()

    def broadcast_state():
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    calls = {
        "step": step,
        "only the step": only_the_step,
        "broadcast_object": lambda: hvd.broadcast_object({"rank": hvd.rank()}),
        "allgather_object": lambda: hvd.allgather_object(hvd.rank()),
        "broadcast state": broadcast_state,
        "join": hvd.join,
        "process set": process_set,
        "collectives": collectives,
    }
    compiled = torch.compile(calls[what], backend="eager")
    if what == "only the step":
        model(x).pow(2).mean().backward()
    results = [compiled() for _ in range(1 if what == "only the step" else 3)]
    if "step" in what:
        return hvd.allgather(model.weight.detach()).tolist()
    return results[-1]


@pytest.mark.parametrize("what", ["step", "only the step"])
def test_a_compiled_step_reduces(ranks, what):
    (of_zero, of_one), _ = ranks(2).run(_in_a_compiled_function, what)
    assert of_zero == of_one


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("broadcast_object", [{"rank": 0}] * 2),
        ("allgather_object", [[0, 1]] * 2),
        ("broadcast state", [None] * 2),
        ("process set", [1.0, 2.0]),
        ("collectives", [[6.0] * 3] * 2),
    ],
)
def test_calls_in_a_compiled_function(ranks, what, expected):
    assert ranks(2).run(_in_a_compiled_function, what) == expected


def test_join_in_a_compiled_function(ranks):
    first, second = ranks(2).run(_in_a_compiled_function, "join")
    assert first == second and first in (0, 1)


def _without_the_compiler() -> bool:
    import subprocess
    import sys

    program = "import sys, hvdlite.torch; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return done.stdout.strip() == "False"


def test_the_compiler_is_not_imported_with_the_binding():
    assert _without_the_compiler()
