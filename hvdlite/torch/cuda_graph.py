"""A training step as a CUDA graph: Python runs it a few times, then the GPU repeats it alone.

Where a step's kernels are short, Python is what it waits for. A graph is started as one thing; the
collectives are part of it. See torch.cuda.CUDAGraph.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

_ADVICE = (
    "a step that is to be a CUDA graph can't look at a number of the GPU, as .item(), print and "
    "`if loss < 1` do, nor use memory of the host: return the tensor, and look at it outside"
)


def cuda_graph(step: Callable[..., Any], warmup: int = 5) -> Callable[..., Any]:
    """The step, from its forward pass to `optimizer.step()`, as a CUDA graph; also a decorator.

    It takes tensors on the current GPU, or none, and returns a tensor, a tuple or list of them, or
    None. All of its calls are real steps: the first `warmup` ones run as always, the next one is
    recorded, and from then on the record is replayed, with the tensors' numbers copied into it.
    What it returns is the caller's. With tensors in host memory nothing is recorded.

    Python no longer runs, and the ranks no longer compare their calls. So every rank must call it
    equally often; all tensors must keep shape and dtype (ValueError; `drop_last=True` keeps them
    in a loader); and numbers such as a learning rate stay what they were, unless they are tensors:
    `SGD(..., lr=torch.tensor(0.1, device="cuda"), fused=True)`, where schedulers write into it.
    """
    calls, recorded = 0, None

    @functools.wraps(step)
    def run(*tensors: torch.Tensor) -> Any:
        nonlocal calls, recorded
        if not torch.cuda.is_available() or not all(each.is_cuda for each in tensors):
            return step(*tensors)
        calls += 1
        if calls > warmup:
            recorded = recorded or _Recorded(step, tensors)
            return recorded.replay(tensors)
        stream = _stream(torch.cuda.current_device())  # recording needs one that is no default
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = step(*tensors)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    return run


@functools.cache
def _stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class _Recorded:
    def __init__(self, step: Callable[..., Any], tensors: tuple[torch.Tensor, ...]):
        self._inputs = [each.clone() for each in tensors]
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(self._graph, stream=_stream(torch.cuda.current_device())):
                self._result = step(*self._inputs)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{_ADVICE}") from error

    def replay(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        for own, given in zip(self._inputs, tensors, strict=True):
            if own.shape != given.shape or own.dtype != given.dtype:
                raise ValueError(
                    f"the step was recorded with a tensor of {own.dtype}, {tuple(own.shape)}, and "
                    f"is called with {given.dtype}, {tuple(given.shape)}; drop_last=True in the "
                    "DataLoader leaves out a last batch that is smaller"
                )
            own.copy_(given, non_blocking=True)
        self._graph.replay()
        if isinstance(self._result, tuple | list):
            return type(self._result)(each.detach().clone() for each in self._result)
        return None if self._result is None else self._result.detach().clone()
