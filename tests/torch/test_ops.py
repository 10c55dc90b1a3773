"""The collectives on tensors: values, dtypes, shapes, gradients, names, wrong arguments."""

import pytest


def _every_dtype() -> list[str]:
    """Each operation for each dtype, in place and not, compared with a twin on this rank."""
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    wrong = []
    integers = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    twins = {
        hvd.Sum: lambda stack: stack.sum(0),
        hvd.Min: lambda stack: stack.amin(0),
        hvd.Max: lambda stack: stack.amax(0),
        hvd.Product: lambda stack: stack.prod(0),
    }
    for dtype in integers + floats:
        parts = [torch.tensor([1, 2, 3 + r, 2 * r]).to(dtype) for r in range(size)]
        stack = torch.stack(parts).double()
        for op, twin in twins.items():
            expected = twin(stack).to(dtype)
            inplace = parts[rank].clone()
            new = hvd.allreduce(parts[rank], op=op)
            result = hvd.allreduce_(inplace, op=op)
            if not (torch.equal(new, expected) and new.dtype == dtype):
                wrong.append(f"allreduce {op} {dtype}: {new}")
            if not torch.equal(inplace, expected) or result.data_ptr() != inplace.data_ptr():
                wrong.append(f"allreduce_ {op} {dtype}: {inplace}")
        mean = stack.mean(0)
        expected = mean.trunc().to(dtype) if dtype in integers else mean.to(dtype)
        if not torch.equal(hvd.allreduce(parts[rank]), expected):
            wrong.append(f"average {dtype}")
    for dtype in [*integers, *floats, torch.bool]:
        mine = torch.tensor([rank, 1, 0]).to(dtype)
        if not torch.equal(hvd.broadcast(mine, 1), torch.tensor([1, 1, 0]).to(dtype)):
            wrong.append(f"broadcast {dtype}")
        gathered = hvd.allgather(mine)
        expected = torch.cat([torch.tensor([r, 1, 0]).to(dtype) for r in range(size)])
        if not torch.equal(gathered, expected) or gathered.dtype != dtype:
            wrong.append(f"allgather {dtype}: {gathered}")
    flags = torch.tensor([rank == 0, True, False])
    if hvd.allreduce(flags, op=hvd.Max).tolist() != [True, True, False]:
        wrong.append("max of bool")
    try:
        hvd.allreduce(flags, op=hvd.Sum)
        wrong.append("sum of bool was not refused")
    except ValueError as error:
        if "Sum is not defined for bool" not in str(error):
            wrong.append(str(error))
    return wrong


@pytest.mark.parametrize("np", [2, 3])
def test_every_dtype(ranks, np):
    for wrong in ranks(np).run(_every_dtype):
        assert wrong == []


def _integers_in_place() -> list[int]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    tensor = torch.tensor([[1, 2], [3, 4]][hvd.rank()])
    hvd.allreduce_(tensor, op=hvd.Sum)
    return tensor.tolist()


def test_the_sum_of_integers_in_place(ranks):
    assert ranks(2).run(_integers_in_place) == [[4, 6], [4, 6]]


def _near_the_largest_half() -> list[float]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    large = torch.full((3,), 60000.0, dtype=torch.float16)
    same = hvd.allreduce(large)
    compressed = hvd.allreduce(large.float(), compression=hvd.Compression.fp16)
    assert compressed.dtype == torch.float32
    return [*same.tolist(), *compressed.tolist()]


def test_a_half_average_does_not_overflow(ranks):
    for values in ranks(2).run(_near_the_largest_half):
        assert values == [60000.0] * 6


def _shapes() -> list[str]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank, size, wrong = hvd.rank(), hvd.size(), []
    total = sum(range(1, size + 1))
    tensors = {
        "0-d": torch.tensor(1.0),
        "empty": torch.empty(0),
        "empty rows": torch.empty(0, 3),
        "transposed": torch.ones(3, 5).t(),
        "strided": torch.ones(10)[::2],
        "channels last": torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "requires grad": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "expanded": torch.ones(1).expand(1),
        "conjugated": torch.full((3,), 1 + 2j).conj(),
        "negated": torch.full((3,), 1 + 2j).conj().imag,
        "both": torch._neg_view(torch.full((3,), 1 + 2j).conj()),
    }
    for name, tensor in tensors.items():
        same = {
            "allreduce": hvd.allreduce(tensor),
            "allgather": hvd.allgather(tensor.reshape(-1))[: tensor.numel()],
            "broadcast": hvd.broadcast(tensor, 0),
            "alltoall": hvd.alltoall(torch.cat([tensor.reshape(-1)] * size))[: tensor.numel()],
        }
        if tensor.dim():
            rows = len(tensor) // size + (rank < len(tensor) % size)
            scattered = hvd.reducescatter(tensor)
            if scattered.shape[0] != rows or not torch.equal(scattered, tensor[:rows]):
                wrong.append(f"reducescatter of {name}: {scattered}")
        for op, result in same.items():
            if not torch.equal(result.reshape(-1), tensor.reshape(-1)):
                wrong.append(f"{op} of {name}: {result}")
        in_place = {"broadcast_": lambda t: hvd.broadcast_(t, 0), "allreduce_": hvd.allreduce_}
        for op, call in in_place.items():
            if name in ("conjugated", "negated", "both"):
                base = torch.full((3,), 1 + 2j)
                view = {"conjugated": base.conj(), "negated": base.conj().imag}
                view = view.get(name, torch._neg_view(base.conj()))
                call(view.mul_(rank + 1))
                factor = 1 if op == "broadcast_" else total / size
                if not torch.equal(view, tensor * factor):
                    wrong.append(f"{op} of {name}: {view}")
        scaled = tensor.detach() * (rank + 1)
        result = hvd.allreduce(scaled, op=hvd.Sum)
        if result.shape != tensor.shape or not torch.equal(result, tensor.detach() * total):
            wrong.append(f"allreduce of {name}: {result}")
        scaled = tensor.detach().clone().mul_(rank + 1)
        hvd.allreduce_(scaled, op=hvd.Sum)
        if not torch.equal(scaled, tensor.detach() * total):
            wrong.append(f"allreduce_ of {name}: {scaled}")
        hvd.broadcast_(scaled, 0)
    view = torch.zeros(4, 4)
    hvd.allreduce_(view[1:3, 1:3].fill_(rank + 1), op=hvd.Sum)
    if view.sum() != 4 * total or view[0].any():
        wrong.append(f"in place on a view: {view}")
    gathered = hvd.allgather(torch.full((rank, 2), float(rank)))
    if gathered.shape != (sum(range(size)), 2):
        wrong.append(f"allgather of different lengths: {gathered.shape}")
    if hvd.allgather(torch.empty(rank + 1, 0)).shape != (total, 0):
        wrong.append("allgather of rows without elements")
    return wrong


@pytest.mark.parametrize("np", [2, 3])
def test_shapes_strides_and_views(ranks, np):
    for wrong in ranks(np).run(_shapes):
        assert wrong == []


def _scales() -> list:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    ones = torch.ones(2)
    return [
        hvd.allreduce(ones, op=hvd.Sum, prescale_factor=3.0).tolist(),
        hvd.allreduce(ones, op=hvd.Sum, postscale_factor=0.5).tolist(),
        hvd.allreduce(ones, op=hvd.Average, prescale_factor=2.0, postscale_factor=5.0).tolist(),
        hvd.allreduce(torch.tensor([3, 4]), op=hvd.Sum, prescale_factor=0.5).tolist(),
        hvd.allreduce(torch.ones(200_000), op=hvd.Sum, prescale_factor=3.0)[-1].item(),
        [t.tolist() for t in hvd.grouped_allreduce([ones, torch.tensor([3, 5])], op=hvd.Sum)],
    ]


def test_scale_factors_and_groups(ranks):
    for result in ranks(2).run(_scales):
        assert result == [[6, 6], [1, 1], [10, 10], [2, 4], 6, [[2, 2], [6, 10]]]


def _gradients() -> dict[str, list[float]]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()
    found = {}

    def gradient(name, call, length=2):
        x = torch.ones(length, requires_grad=True)
        out = call(x)
        # Each rank weights what it sees with its rank + 1.
        (out.sum() * (rank + 1)).backward()
        found[name] = x.grad.tolist()

    gradient("average", lambda x: hvd.allreduce(x, op=hvd.Average))
    gradient("sum", lambda x: hvd.allreduce(x, op=hvd.Sum))
    gradient("broadcast", lambda x: hvd.broadcast(x, 1))
    gradient("allgather", hvd.allgather, length=rank + 1)
    gradient("prescaled", lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0))
    return found


def test_gradients_flow_as_in_horovod(ranks):
    one, two = ranks(2).run(_gradients)
    # The mean of the ranks' weights is 1.5, their sum 3.
    assert one["average"] == two["average"] == [1.5, 1.5]
    assert one["sum"] == two["sum"] == [3, 3]
    assert one["broadcast"] == [0, 0] and two["broadcast"] == [1.5, 1.5]
    assert one["allgather"] == [1.5] and two["allgather"] == [1.5, 1.5]
    assert one["prescaled"] == [6, 6]


def _handles() -> list:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
    polls = 0
    while not hvd.poll(handle):
        polls += 1
        assert polls < 10_000_000
    result = hvd.synchronize(handle).tolist()
    try:
        hvd.synchronize(handle)
        again = ""
    except ValueError as error:
        again = str(error)
    return [result, again]


def test_poll_then_synchronize_once(ranks):
    for result, again in ranks(2).run(_handles):
        assert result == [2, 2]
        assert "can be synchronized once" in again


def _wrong_arguments() -> dict[str, str]:
    import torch

    import hvdlite.torch as hvd

    hvd.init()
    ones = torch.ones(2)
    calls = {
        "no tensor": lambda: hvd.allreduce([1.0, 2.0]),
        "op and average": lambda: hvd.allreduce(ones, average=True, op=hvd.Sum),
        "no such op": lambda: hvd.allreduce(ones, op=17),
        "root": lambda: hvd.broadcast(ones, 7),
        "0-d allgather": lambda: hvd.allgather(torch.tensor(1.0)),
        "sparse": lambda: hvd.allreduce(ones.to_sparse()),
        "dtype": lambda: hvd.allreduce(torch.quantize_per_tensor(ones, 1.0, 0, torch.qint8)),
        "root of object": lambda: hvd.broadcast_object(1, root_rank=9),
        "params": lambda: hvd.broadcast_parameters(3, 0),
    }
    messages = {}
    for name, call in calls.items():
        try:
            call()
            messages[name] = "nothing raised"
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages


def test_wrong_arguments_say_what_to_do(ranks):
    expected = {
        "no tensor": ("TypeError", "torch.Tensor, not list"),
        "op and average": ("ValueError", "op is the one to use"),
        "no such op": ("ValueError", "Average"),
        "root": ("ValueError", "choose one of [0, 1]"),
        "0-d allgather": ("ValueError", "reshape it to (1,)"),
        "sparse": ("ValueError", "dense"),
        "dtype": ("ValueError", "qint8"),
        "root of object": ("ValueError", "not a rank"),
        "params": ("ValueError", "named_parameters"),
    }
    one, two = ranks(2).run(_wrong_arguments)
    assert one == two
    for name, (kind, text) in expected.items():
        assert one[name].startswith(kind) and text in one[name], one[name]


def test_alone_everything_works_without_a_launcher():
    import subprocess
    import sys

    program = """
import sys
import torch
import hvdlite.torch as hvd
try:
    hvd.size()
except ValueError as error:
    print(error)
hvd.init(); hvd.init()
assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()) == (0, 1, 0, 1)
assert hvd.allreduce(torch.tensor([2, 5]), prescale_factor=2.0).tolist() == [4, 10]
assert hvd.allgather(torch.ones(2, 3)).shape == (2, 3)
assert hvd.broadcast(torch.ones(2), 0).tolist() == [1, 1]
assert hvd.broadcast_object({"a": 1}) == {"a": 1} and hvd.allgather_object(3) == [3]
hvd.barrier()
model = torch.nn.Linear(2, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
hvd.broadcast_parameters(model.state_dict(), 0)
hvd.broadcast_optimizer_state(optimizer, 0)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
assert "mpi4py.MPI" not in sys.modules
hvd.shutdown()
assert not hvd.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "call hvd.init() first" in done.stdout


def _objects() -> list:
    import numpy as np

    import hvdlite.torch as hvd

    hvd.init()
    rank = hvd.rank()
    mine = [{"a": 2**60}, np.arange(700_000), None][rank]
    small, array, nothing = hvd.allgather_object(mine)
    good = [small == {"a": 2**60}, array.sum() == 699_999 * 350_000, nothing is None]
    for step in range(50):
        lists = hvd.allgather_object(list(range(rank * step)))
        good.append([len(x) for x in lists] == [0, step, 2 * step])
    good.append(hvd.broadcast_object("from two" if rank == 2 else None, 2) == "from two")
    import threading

    try:
        hvd.allgather_object(threading.Lock() if rank == 1 else 5)
        message = ""
    except hvd.HorovodInternalError as error:
        message = str(error)
    good.append(hvd.allgather_object(rank) == [0, 1, 2])
    return [all(good), message]


def test_objects_of_any_size_and_one_that_cannot_travel(ranks):
    results = ranks(3).run(_objects)
    assert {message for _, message in results} == {results[0][1]}
    for good, message in results:
        assert good
        assert "on rank 1" in message and "lock" in message and "pickled" in message
