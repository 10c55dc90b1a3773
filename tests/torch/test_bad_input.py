"""Wrong arguments: an exception that Horovod's users catch, with a message that says what to do."""

import pytest


def _caught(calls: dict) -> dict[str, str]:
    told = {}
    for name, call in calls.items():
        try:
            call()
            told[name] = "nothing raised"
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    return told


def _tensors() -> dict[str, str]:
    """Each collective with what is no tensor, and with tensors that have no data to send."""
    import numpy as np
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    ops = {
        "allreduce": hvd.allreduce,
        "allreduce_": hvd.allreduce_,
        "allreduce_async": hvd.allreduce_async,
        "allgather": hvd.allgather,
        "allgather_async": hvd.allgather_async,
        "broadcast": lambda tensor: hvd.broadcast(tensor, 0),
        "broadcast_": lambda tensor: hvd.broadcast_(tensor, 0),
        "broadcast_async": lambda tensor: hvd.broadcast_async(tensor, 0),
        "alltoall": hvd.alltoall,
        "alltoall_async": hvd.alltoall_async,
        "reducescatter": hvd.reducescatter,
        "reducescatter_async": hvd.reducescatter_async,
        "grouped_allreduce": lambda tensor: hvd.grouped_allreduce([torch.ones(2), tensor]),
        "grouped_allgather": lambda tensor: hvd.grouped_allgather([torch.ones(2), tensor]),
        "grouped_reducescatter": lambda tensor: hvd.grouped_reducescatter([torch.ones(2), tensor]),
    }
    arguments = {
        "a number": 1.0,
        "nothing": None,
        "an array": np.ones(2),
        "meta": torch.ones(2, device="meta"),
        "sparse": torch.ones(2).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
    }
    calls = {
        f"{op} of {what}": lambda function=function, argument=argument: function(argument)
        for op, function in ops.items()
        for what, argument in arguments.items()
    }
    told = _caught(calls)
    told["afterwards"] = str(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
    return told


def test_what_can_not_be_sent(ranks):
    expected = {
        "a number": "TypeError: {} takes a torch.Tensor, not float",
        "nothing": "TypeError: {} takes a torch.Tensor, not NoneType",
        "an array": "TypeError: {} takes a torch.Tensor, not ndarray",
        "meta": "ValueError: {} takes a tensor with data; this one is on the meta device",
        "sparse": "ValueError: {} takes a dense tensor",
        "quantized": "ValueError: collectives don't support tensors of torch.qint8",
    }
    for told in ranks(2).run(_tensors):
        assert told.pop("afterwards") == "2.0"
        for name, message in told.items():
            op, _, what = name.partition(" of ")
            kind = op.removeprefix("grouped_").removesuffix("_async").removesuffix("_")
            assert message.startswith(expected[what].format(kind)), f"{name}: {message}"


def _values() -> dict[str, str]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    two = torch.ones(2)

    def split(splits):
        return lambda: hvd.alltoall(two, splits)

    calls = {
        "splits: sum": split([1, 2]),
        "splits: number": split([2]),
        "splits: negative": split([3, -1]),
        "splits: fractions": split([1.5, 0.5]),
        "splits: float tensor": split(torch.tensor([1.0, 1.0])),
        "splits: table": split(torch.tensor([[1, 1], [0, 0]])),
        "splits: no list": split(2),
        "splits: text": split("11"),
        "splits: uneven": lambda: hvd.alltoall(torch.ones(3)),
        "rows: alltoall": lambda: hvd.alltoall(torch.tensor(1.0)),
        "rows: reducescatter": lambda: hvd.reducescatter(torch.tensor(1.0)),
        "root: negative": lambda: hvd.broadcast(two, -1),
        "root: too large": lambda: hvd.broadcast_(two, 2),
        "root: text": lambda: hvd.broadcast_async(two, "0"),
        "root: nothing": lambda: hvd.broadcast_async_(two, None),
        "root: list": lambda: hvd.broadcast(two, [0]),
        "root: parameters": lambda: hvd.broadcast_parameters({"w": two}, 5),
        "root: object": lambda: hvd.broadcast_object("x", 5),
        "root: state": lambda: hvd.broadcast_optimizer_state(
            torch.optim.SGD([torch.nn.Parameter(two)], lr=1.0), 5
        ),
        "op: text": lambda: hvd.allreduce(two, op="Sum"),
        "op: number": lambda: hvd.allreduce_(two, op=-1),
        "op: reducescatter": lambda: hvd.reducescatter(two, op=9),
        "op: both": lambda: hvd.grouped_allreduce([two], average=True, op=hvd.Sum),
        "op: complex": lambda: hvd.allreduce(two.to(torch.complex64), op=hvd.Max),
        "factor: text": lambda: hvd.allreduce(two, prescale_factor="twice"),
        "factor: nothing": lambda: hvd.allreduce(two, postscale_factor=None),
        "factor: reducescatter": lambda: hvd.reducescatter(two, postscale_factor=[1]),
        "compression: text": lambda: hvd.allreduce(two, compression="fp16"),
        "set: list": lambda: hvd.allreduce(two, process_set=[0, 1]),
        "set: nothing": lambda: hvd.allgather(two, process_set=None),
        "set: not in use": lambda: hvd.broadcast(two, 0, process_set=hvd.ProcessSet([0])),
        "sparse": lambda: hvd.sparse_allreduce_async(two, "w", hvd.Sum),
        "sparse op": lambda: hvd.sparse_allreduce_async(two.to_sparse(), "w", hvd.Max),
        "handle": lambda: hvd.synchronize(None),
        "poll": lambda: hvd.poll(10**9),
        "parameters": lambda: hvd.broadcast_parameters(two, 0),
        "no optimizer": lambda: hvd.broadcast_optimizer_state(torch.nn.Linear(1, 1), 0),
        "group": lambda: hvd.grouped_allreduce(two.sum()),
    }
    told = _caught(calls)
    told["afterwards"] = str(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
    return told


VALUES = {
    "splits": ("ValueError", "splits"),
    "splits: uneven": ("ValueError", "give splits"),
    "rows": ("ValueError", "reshape it to (1,)"),
    "root": ("ValueError", "not a rank of"),
    "op": ("ValueError", "op"),
    "op: text": ("ValueError", "Sum, Average"),
    "op: complex": ("ValueError", "Max is not defined for complex numbers"),
    "factor": ("TypeError", "scale factors must be numbers"),
    "compression": ("TypeError", "hvd.Compression.fp16"),
    "set": ("TypeError", "hvd.ProcessSet"),
    "set: not in use": ("ValueError", "hvd.add_process_set()"),
    "sparse": ("ValueError", "takes a sparse (COO) tensor"),
    "sparse op": ("ValueError", "op=hvd.Sum or hvd.Average"),
    "handle": ("ValueError", "is not a handle"),
    "poll": ("ValueError", "is not a handle"),
    "parameters": ("ValueError", "model.state_dict()"),
    "no optimizer": ("TypeError", "takes an optimizer, not Linear"),
    "group": ("TypeError", "0-d tensor"),
}


def test_what_makes_no_sense(ranks):
    for told in ranks(2).run(_values):
        assert told.pop("afterwards") == "2.0"
        for name, message in told.items():
            kind, text = VALUES.get(name) or VALUES[name.partition(":")[0]]
            assert message.startswith(kind) and text in message, f"{name}: {message}"


def _foreign_set() -> dict[str, str]:
    """Rank 1 makes every call on a process set of rank 0 alone; nobody is disturbed."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    alone = hvd.add_process_set([0])
    two, told = torch.ones(2), {}
    if hvd.rank() == 1:
        one = {"process_set": alone}
        calls = {
            "allreduce": lambda: hvd.allreduce(two, **one),
            "allreduce_": lambda: hvd.allreduce_(two, **one),
            "grouped_allreduce": lambda: hvd.grouped_allreduce([two], **one),
            "allgather": lambda: hvd.allgather(two, **one),
            "grouped_allgather": lambda: hvd.grouped_allgather([two], **one),
            "broadcast": lambda: hvd.broadcast(two, 0, **one),
            "broadcast_": lambda: hvd.broadcast_(two, 0, **one),
            "alltoall": lambda: hvd.alltoall(two, **one),
            "reducescatter": lambda: hvd.reducescatter(two, **one),
            "grouped_reducescatter": lambda: hvd.grouped_reducescatter([two], **one),
            "barrier": lambda: hvd.barrier(process_set=alone),
            "sparse": lambda: hvd.sparse_allreduce_async(two.to_sparse(), "w", hvd.Sum, **one),
            "broadcast_object": lambda: hvd.broadcast_object(1, 0, **one),
            "allgather_object": lambda: hvd.allgather_object(1, **one),
            "broadcast_parameters": lambda: hvd.broadcast_parameters([two], 0, **one),
        }
        told = _caught(calls)
    told["afterwards"] = str(hvd.allreduce(two, op=hvd.Sum)[0].item())
    hvd.remove_process_set(alone)
    return told


def test_a_process_set_without_this_rank(ranks):
    for told in ranks(2).run(_foreign_set):
        assert told.pop("afterwards") == "2.0"
    for name, message in told.items():
        assert message.startswith("ValueError: rank 1 is not in ProcessSet"), f"{name}: {message}"


def _optimizers() -> dict[str, str]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0))
    return _caught(
        {
            "model": lambda: hvd.DistributedOptimizer(model),
            "twice": lambda: hvd.DistributedOptimizer(wrapped),
            "compression": lambda: hvd.DistributedOptimizer(sgd, compression="fp16"),
            "op": lambda: hvd.DistributedOptimizer(sgd, op=hvd.Max),
            "op text": lambda: hvd.DistributedOptimizer(sgd, op="Average"),
            "predivide": lambda: hvd.DistributedOptimizer(sgd, gradient_predivide_factor=0.0),
            "passes": lambda: hvd.DistributedOptimizer(sgd, backward_passes_per_step="2"),
            "set": lambda: hvd.DistributedOptimizer(sgd, process_set=[0, 1]),
            "new set": lambda: hvd.DistributedOptimizer(sgd, process_set=hvd.ProcessSet([0])),
            "later": lambda: wrapped.set_backward_passes_per_step(0),
        }
    )


def test_wrapping_what_can_not_be_wrapped(ranks):
    expected = {
        "model": "TypeError: DistributedOptimizer takes an optimizer, not Linear",
        "twice": "ValueError: this optimizer is a DistributedOptimizer already",
        "compression": "TypeError: compression='fp16' must be hvd.Compression.none",
        "op": "ValueError: op must be hvd.Average, hvd.Sum or hvd.Adasum",
        "op text": "ValueError: op must be hvd.Average, hvd.Sum or hvd.Adasum",
        "predivide": "ValueError: gradient_predivide_factor",
        "passes": "ValueError: backward_passes_per_step='2'",
        "set": "TypeError: process_set",
        "new set": "ValueError: ProcessSet",
        "later": "ValueError: backward_passes_per_step=0",
    }
    for told in ranks(2).run(_optimizers):
        for name, message in told.items():
            assert message.startswith(expected[name]), f"{name}: {message}"


def _before_init() -> dict[str, str]:
    import torch

    import hvdlite.torch as hvd

    hvd.shutdown()
    two, param = torch.ones(2), torch.nn.Parameter(torch.ones(2))
    sgd = torch.optim.SGD([param], lr=1.0)
    return _caught(
        {
            "size": hvd.size,
            "local_rank": hvd.local_rank,
            "is_homogeneous": hvd.is_homogeneous,
            "allreduce": lambda: hvd.allreduce(two),
            "allgather": lambda: hvd.allgather(two),
            "broadcast_": lambda: hvd.broadcast_(two, 0),
            "alltoall": lambda: hvd.alltoall(two),
            "reducescatter": lambda: hvd.reducescatter(two),
            "join": hvd.join,
            "barrier": hvd.barrier,
            "broadcast_object": lambda: hvd.broadcast_object(1),
            "allgather_object": lambda: hvd.allgather_object(1),
            "parameters": lambda: hvd.broadcast_parameters({"w": two}, 0),
            "state": lambda: hvd.broadcast_optimizer_state(sgd, 0),
            "optimizer": lambda: hvd.DistributedOptimizer(sgd),
            "set": lambda: hvd.add_process_set([0]),
            "timeline": lambda: hvd.start_timeline("never"),
        }
    )


def test_calls_before_init(ranks):
    for told in ranks(2).run(_before_init):
        for name, message in told.items():
            assert message.endswith("call hvd.init() first"), f"{name}: {message}"
            assert message.startswith("NotInitializedError"), f"{name}: {message}"


def _differ() -> dict[str, str]:
    """Rank 1 gives each call something else; the same error on all ranks, which go on."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    odd = hvd.rank() == 1
    row = torch.ones(6, 3 if odd else 2)
    kind = torch.ones(6, dtype=torch.int32 if odd else torch.float32)
    told = _caught(
        {
            "allgather 'rows'": lambda: hvd.allgather(row, "rows"),
            "allgather 'kind'": lambda: hvd.allgather(kind, "kind"),
            "broadcast 'rows'": lambda: hvd.broadcast(row, 0, "rows"),
            "broadcast 'kind'": lambda: hvd.broadcast_(kind, 0, "kind"),
            "alltoall 'rows'": lambda: hvd.alltoall(row, name="rows"),
            "alltoall 'kind'": lambda: hvd.alltoall(kind, name="kind"),
            "reducescatter 'rows'": lambda: hvd.reducescatter(row, "rows"),
            "reducescatter 'kind'": lambda: hvd.reducescatter(kind, "kind"),
            "reducescatter 'op'": lambda: hvd.reducescatter(
                torch.ones(2), "op", op=hvd.Sum if odd else hvd.Average
            ),
            "allreduce 'group_1of2'": lambda: hvd.grouped_allreduce([row, row], name="group"),
        }
    )
    told["afterwards"] = str(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
    return told


@pytest.mark.parametrize("np", [2, 3])
def test_ranks_that_differ(ranks, np):
    first, *others = ranks(np).run(_differ)
    assert others == [first] * (np - 1)
    assert first.pop("afterwards") == f"{np}.0"
    for name, message in first.items():
        assert message.startswith(f"HorovodInternalError: {name}: the ranks disagree"), message
        assert "on rank 1" in message and "the same call on every rank" in message


def _old_handle() -> dict[str, str]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    handle, other = hvd.allreduce_async(torch.ones(2)), hvd.allreduce_async(torch.ones(2))
    hvd.shutdown()
    hvd.init()
    told = _caught({"poll": lambda: hvd.poll(other), "wait": lambda: hvd.synchronize(handle)})
    told["afterwards"] = str(hvd.allreduce(torch.ones(1), op=hvd.Sum).item())
    return told


def test_a_handle_from_before_shutdown(ranks):
    for told in ranks(2).run(_old_handle):
        assert told.pop("afterwards") == "2.0"
        for message in told.values():
            assert message.startswith("HorovodInternalError: hvdlite was shut down")
