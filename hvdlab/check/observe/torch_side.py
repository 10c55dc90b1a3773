"""Watches PyTorch: devices, threads, batches, losses and the optimizer's steps."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import weakref
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import TorchFunctionMode

from ..evidence import is_known
from ..runtime_facts import CORES
from . import runtime
from .recorder import Recorder, Samples, digest, sketch

local: dict[int, Any] = {}  # of each parameter this rank's own gradient, before it is reduced


def array_of(value: Any) -> np.ndarray | None:
    """The numbers of a tensor or an array; None for anything else."""
    if isinstance(value, torch.Tensor):
        return next((each.astype(np.float32) for each in numbers([value])), None)
    return value if isinstance(value, np.ndarray) else None


def numbers(tensors: Any) -> list[np.ndarray]:
    """Those of the tensors that there are, as arrays; NumPy has no bfloat16."""
    with temporarily_clear_interpreter_stack():  # of torch.func, which wraps tensors
        plain = [_unwrapped(each) for each in tensors if each is not None]
        there = [each.detach() for each in plain if not each.is_meta]
        dense = [each.to_dense().resolve_conj().resolve_neg() for each in there]
        return [(x.float() if x.dtype == torch.bfloat16 else x).numpy() for x in dense]


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def float_buffers(model: torch.nn.Module) -> list[np.ndarray]:
    """The buffers of a model that its state has and that are no counters."""
    state, names = model.state_dict(), dict(model.named_buffers())
    return numbers(state[n] for n in names if n in state and state[n].is_floating_point())


def is_training() -> bool:
    """Whether gradients will be asked for."""
    return torch.is_grad_enabled()


def own_gradients() -> list[float] | None:
    """A sketch of this rank's own gradients."""
    return sum(local.values()).tolist() if local else None


def watch(record: Recorder, samples: Samples) -> None:
    """Start to watch; before the script has made anything."""
    torch.set_num_threads(1)
    _pretend_gpus(record)
    _watch_threads(record)
    _load_here()
    _compile_nothing()
    modules = _modules()
    _watch_batches(record, samples)
    _watch_backward(record, modules)
    _own_first_weights(record, modules)
    _watch_steps(record, modules)
    _watch_decisions(record)


# Devices


# What gives parameters first weights at random.
_DRAWN = {f"{how}normal_" for how in ("", "xavier_", "kaiming_", "trunc_")} | {
    "uniform_", "xavier_uniform_", "kaiming_uniform_", "orthogonal_"}  # fmt: skip


class _GpusOnTheCpu(TorchFunctionMode):
    """Takes every CUDA device for the CPU, and notes its number."""

    def __init__(self, note: Any):
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            self._note(args[1] if len(args) > 1 else kwargs.get("device"))
            return args[0]
        if func is torch.device:
            return func(*args, **kwargs)  # a device is placed when it is used
        if getattr(func, "__name__", "") in _DRAWN:
            for each in (*args[:1], kwargs.get("tensor")):
                if getattr(each, "_is_shifted", False):
                    each._is_shifted = False  # see _own_first_weights
        if isinstance(device := kwargs.get("device"), int):
            kwargs = {**kwargs, "device": torch.device("cuda", device)}
        moves = func is torch.Tensor.to or func is torch._C._nn._parse_to
        if moves:  # to a device that may be a mere number
            args = [torch.device("cuda", each) if type(each) is int else each for each in args]
        args = tuple(self._place(value) for value in args)
        return func(*args, **{name: self._place(value) for name, value in kwargs.items()})

    def _place(self, value: Any) -> Any:
        is_name = isinstance(value, str) and value.startswith("cuda")
        if is_name or (isinstance(value, torch.device) and value.type == "cuda"):
            self._note(value)
            return torch.device("cpu")
        return value


class _Nothing:
    """A stream or an event of a pretended GPU: nothing is ever under way."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0.0 if name == "elapsed_time" else None


def _pretend_gpus(record: Recorder) -> None:
    current: dict[int, int] = defaultdict(int)  # by the run of the script
    seen: set[tuple[int, str, int]] = set()

    def number(device: Any) -> int:
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return current[record.phase] if index is None else index

    def note(device: Any, how: str = "used") -> None:
        record.gpus_are_seen()
        if (record.phase, how, number(device)) not in seen:
            seen.add((record.phase, how, number(device)))
            record("gpu", how=how, index=number(device), where=record.where())

    def set_device(device: Any) -> None:
        current[record.phase] = number(device)
        note(device, "set")

    @contextlib.contextmanager
    def chosen(device: Any):
        before, current[record.phase] = current[record.phase], number(device)
        yield
        current[record.phase] = before

    cuda = torch.cuda
    cuda.is_available, cuda.device_count = lambda: record.gpus > 0, lambda: record.gpus
    cuda.current_device = lambda: current[record.phase]
    cuda.set_device, cuda.device = set_device, chosen
    cuda.synchronize = cuda.empty_cache = lambda *_: None
    cuda.get_device_name = lambda *_: "a pretended GPU"
    cuda.get_device_capability = lambda *_: (8, 0)
    cuda.get_device_properties = lambda *_: SimpleNamespace(
        name="a pretended GPU", major=8, minor=0, total_memory=40 << 30, multi_processor_count=108
    )
    cuda.is_bf16_supported = lambda *_, **__: True
    cuda.is_current_stream_capturing = lambda: False  # which optimizers ask
    cuda.Event = cuda.Stream = cuda.current_stream = _Nothing
    cuda.stream = lambda _: contextlib.nullcontext()
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
        setattr(cuda, name, lambda *_: 0)
    cuda.reset_peak_memory_stats = lambda *_: None
    torch.backends.cuda.is_built = lambda: False
    if accelerator := getattr(torch, "accelerator", None):  # since 2.6; optimizers ask it, too
        accelerator.is_available, accelerator.device_count = cuda.is_available, cuda.device_count
        accelerator.current_accelerator = lambda *_, **__: torch.device("cuda")
        accelerator.current_device_index = accelerator.current_device_idx = cuda.current_device
        accelerator.set_device_index = accelerator.set_device_idx = set_device
        accelerator.synchronize, accelerator.current_stream = cuda.synchronize, _Nothing
    load = torch.load

    @functools.wraps(load)
    def load_on_cpu(*args: Any, map_location: Any = None, **kwargs: Any) -> Any:
        return load(*args, map_location="cpu", **kwargs)

    class Generator(torch.Generator):
        def __new__(cls, device: Any = None) -> torch.Generator:
            return super().__new__(cls)

    torch.load, torch.Generator = load_on_cpu, Generator
    torch.Tensor.pin_memory = lambda self, *_: self
    _GpusOnTheCpu(note).__enter__()


def _watch_threads(record: Recorder) -> None:
    threads = [CORES]

    def set_num_threads(count: int) -> None:
        threads[0] = int(count)
        record("threads", count=int(count), where=record.where())

    torch.set_num_threads, torch.get_num_threads = set_num_threads, lambda: threads[0]


# What the model sees, and what comes of it


def _compile_nothing() -> None:
    """What is compiled runs as it is written: the same numbers, sooner, and it can be watched."""

    def as_it_is(model: Any = None, **_: Any) -> Any:
        return model if model is not None else (lambda function: function)

    torch.compile = as_it_is
    torch.nn.Module.compile = lambda self, *_, **__: None


def _load_here() -> None:
    """Every DataLoader loads in its own process: what it loads is the same, sooner."""
    init = torch.utils.data.DataLoader.__init__
    signature = inspect.signature(init)
    alone = {
        "num_workers": 0, "multiprocessing_context": None, "persistent_workers": False,
        "prefetch_factor": None,
    }  # fmt: skip

    @functools.wraps(init)
    def watched(*args: Any, **kwargs: Any) -> None:
        init(**{**signature.bind(*args, **kwargs).arguments, **alone})

    torch.utils.data.DataLoader.__init__ = watched


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in what a model gets, such as a batch in a dictionary."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


def _watch_batches(record: Recorder, samples: Samples) -> None:
    # Of each module that is running the images that it got, where it is the outermost that got any.
    running: list[list[int | str]] = []
    trains, begun = [False], [0]

    def is_test(module: torch.nn.Module, ids: list[int | str]) -> bool:
        """Whether this is validation, also where nobody said torch.no_grad()."""
        of_test_set = all(str(number).startswith("t") for number in ids)
        return of_test_set or (not module.training and not any(isinstance(i, int) for i in ids))

    def before(module: torch.nn.Module, args: Any) -> None:
        ids: list[int | str] = []
        if not any(running) and next(module.parameters(), None) is not None:
            images = next((each for each in _tensors(args) if each.ndim > 1), None)
            if images is not None:
                ids = samples.identify(array_of(images))
                trains[0] = torch.is_grad_enabled() and not is_test(module, ids)
                for each in runtime.before_step if trains[0] else ():
                    each()
                if trains[0] and begun[0] < record.phase and any(map(is_known, ids)):
                    begun[0] = record.phase
                    record("buffers", digest=digest(float_buffers(module)))
                weights = functools.partial(numbers, module.parameters())
                runtime.note_weights(record, weights, own_gradients)
                record("batch", train=trains[0], ids=ids)
        running.append(ids)

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        ids = running.pop()
        if not ids or not isinstance(output, torch.Tensor):
            return
        scores = array_of(output)
        if trains[0]:
            record("expected", value=samples.cross_entropy(ids, scores))
        elif (right := samples.right(ids, scores)) is not None:
            record("right", count=right, of=len(ids))

    torch.nn.modules.module.register_module_forward_pre_hook(before)
    torch.nn.modules.module.register_module_forward_hook(after, always_call=True)


Modules = weakref.WeakValueDictionary[int, torch.nn.Module]


def _modules() -> Modules:
    """All modules that are made from now on, by their number."""
    modules: Modules = weakref.WeakValueDictionary()
    numbers = itertools.count()
    init = torch.nn.Module.__init__

    @functools.wraps(init)
    def watched(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        modules[next(numbers)] = self

    torch.nn.Module.__init__ = watched
    return modules


def _own_parameters(modules: Modules) -> list[torch.nn.Parameter]:
    made = [module for _, module in sorted(modules.items())]
    return [param for each in made for param in each.parameters(recurse=False)]


def _watch_backward(record: Recorder, modules: Modules) -> None:
    backward = torch.Tensor.backward

    @functools.wraps(backward)
    def watched(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if self.numel() == 1:
            record("loss", value=float(self.detach()))
        backward(self, *args, **kwargs)
        for param in _own_parameters(modules):
            if param.grad is not None and not param.grad.is_sparse:
                local[id(param)] = sketch(numbers([param.grad]))

    torch.Tensor.backward = watched


def _own_first_weights(record: Recorder, modules: Modules) -> None:
    """Rank 1 starts from weights of its own, as it would with another seed.

    Equal seeds would hide that nothing was broadcast.
    """

    def shift() -> None:
        if record.rank == 0:
            return
        with torch.no_grad():
            for param in _own_parameters(modules):
                is_parameter = isinstance(param, torch.nn.Parameter)  # no copy in its place
                is_new = is_parameter and not getattr(param, "_is_shifted", False)
                if is_new and param.is_floating_point():
                    param._is_shifted = True
                    param.data.mul_(1 + 0.1 * record.rank).add_(0.01 * record.rank)

    def before(function: Any) -> Any:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if record.from_script():
                shift()
            return function(*args, **kwargs)

        return watched

    for name in ("parameters", "named_parameters", "state_dict"):  # of which copies may be made
        setattr(torch.nn.Module, name, before(getattr(torch.nn.Module, name)))
    runtime.before_collective.append(shift)
    runtime.before_step.append(shift)
    register_optimizer_step_pre_hook(lambda *_: shift())


def _watch_steps(record: Recorder, modules: Modules) -> None:
    pending: dict[str, Any] = {}

    def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # Where a wrapper's step calls another one's, the innermost tells what is really used.
        params = parameters(optimizer)
        with_grads = [p for p in params if p.grad is not None]
        grads = numbers(p.grad for p in with_grads)
        own = [local[id(p)] for p in with_grads if id(p) in local]
        pending.update(
            own=sum(own).tolist() if len(own) == len(grads) > 0 else None,
            used=sketch(grads).tolist(),
            without=sum(p.requires_grad and p.grad is None for p in params),
            lr=max(float(group["lr"]) for group in optimizer.param_groups),
            rates=[float(group["lr"]) for group in optimizer.param_groups],
            elements=sum(p.numel() for p in params if p.requires_grad),
            grads=digest(grads),
            before=digest(numbers(params)),
        )

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if pending:
            weights = digest(numbers(parameters(optimizer)))
            mine = {id(p) for p in parameters(optimizer)}
            rest = [p for p in _own_parameters(modules) if id(p) not in mine or not p.requires_grad]
            untrained = digest(numbers(rest)) if rest else ""
            record("step", **pending, after=weights, untrained=untrained)
            pending.clear()

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _watch_decisions(record: Recorder) -> None:
    """What a schedule that follows a metric decides by."""
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    step = plateau.step

    @functools.wraps(step)
    def watched(self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        record("decision", by=plateau.__name__, monitor="its metric", value=float(metrics))
        return step(self, metrics, *args, **kwargs)

    plateau.step = watched
