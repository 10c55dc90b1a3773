"""One training step of many workers: the backward pass, and the allreduces that run beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from .clusters import Cluster
from .costs import allreduce
from .networks import Network

MIB = 1 << 20


@dataclass(frozen=True)
class Span:
    """A piece of work: what, and from when to when, in seconds since the step began."""

    name: str
    start: float
    end: float
    bytes: float = 0.0


@dataclass(frozen=True)
class Step:
    """What became of a step; times in seconds."""

    workers: int
    alone: float  # one worker without any communication
    seconds: float
    compute: tuple[Span, ...]
    communication: tuple[Span, ...]

    @property
    def efficiency(self) -> float:
        """Images a second for each worker, as a share of what one worker alone does; 0 to 1."""
        return self.alone / self.seconds

    @property
    def speedup(self) -> float:
        """How many times the images a second of one worker."""
        return self.workers * self.efficiency

    @property
    def exposed(self) -> float:
        """The part of the communication for which the workers wait."""
        return self.seconds - self.compute[-1].end


def slowest(workers: int, jitter: float) -> float:
    """How much longer than the mean the slowest of `workers` takes, as a share of the mean.

    All wait for the slowest. If the times of the workers are normally distributed with the
    standard deviation `jitter` (a share of the mean), the largest of them is expected at the
    quantile (W - 3/8) / (W + 1/4). Source: G. Blom, "Statistical estimates and transformed
    beta-variables", Wiley 1958.
    """
    if workers == 1 or jitter == 0:
        return 0.0
    return jitter * NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))


def step(
    network: Network,
    workers: int,
    cluster: Cluster,
    alone: float = 0.5,
    algorithm: str = "ring",
    fusion_bytes: float = 64 * MIB,
    cycle: float = 0.0,
    jitter: float = 0.0,
    overlap: bool = True,
    compression: float = 1.0,
) -> Step:
    """Simulate a step of weak scaling: each worker has as many images as one had alone.

    The backward pass makes the gradients from the last layer to the first, each after its share
    of the work. One channel carries allreduces, one after the other; it takes what is ready
    together, up to `fusion_bytes`, as Horovod's tensor fusion does.

    Args:
        alone: seconds that a step of one worker takes.
        algorithm: a name out of ALGORITHMS.
        fusion_bytes: gradients that are ready together share a buffer of so many bytes; 0 sends
            each layer by itself.
        cycle: seconds between two looks for ready gradients (HOROVOD_CYCLE_TIME); 0 looks at once.
        jitter: standard deviation of a worker's compute time as a share of it; see slowest().
        overlap: False starts communicating only after the backward pass.
        compression: how many times smaller the gradients become; 2 for fp16.

    The forward pass is a third of the work: the backward pass computes two products for each of
    its one, towards the weights and towards the inputs (for instance J. Kaplan et al.,
    arXiv:2001.08361, section 2.1).

    Raises:
        ValueError: a number makes no sense, or there is no such algorithm.
    """
    if alone <= 0 or compression <= 0 or min(fusion_bytes, cycle, jitter) < 0:
        raise ValueError(
            "times and factors must be positive; fusion, cycle and jitter not negative"
        )
    compute = alone * (1 + slowest(workers, jitter))
    work = sum(layer.work for layer in network.layers)
    clock = compute / 3
    spans = [Span("forward", 0.0, clock)]
    for layer in reversed(network.layers):
        start, clock = clock, clock + 2 / 3 * compute * layer.work / work
        spans.append(Span(layer.name, start, clock, 4 * layer.parameters / compression))
    messages: list[Span] = []
    if workers > 1:
        ready = [(span.end if overlap else clock, span) for span in spans[1:]]
        messages = _communicate(ready, workers, cluster, algorithm, fusion_bytes, cycle)
    end = max(clock, messages[-1].end) if messages else clock
    return Step(workers, alone, end, tuple(spans), tuple(messages))


def _communicate(
    ready: list[tuple[float, Span]],
    workers: int,
    cluster: Cluster,
    algorithm: str,
    fusion_bytes: float,
    cycle: float,
) -> list[Span]:
    messages: list[Span] = []
    free, at = 0.0, 0
    while at < len(ready):
        start = max(free, ready[at][0])
        if cycle:
            start = math.ceil(start / cycle - 1e-9) * cycle
        size, first = 0.0, at
        while at < len(ready) and ready[at][0] <= start:
            if at > first and size + ready[at][1].bytes > fusion_bytes:
                break
            size += ready[at][1].bytes
            at += 1
        free = start + allreduce(algorithm, size, workers, cluster)
        names = [span.name for _, span in ready[first:at]]
        title = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        messages.append(Span(title, start, free, size))
    return messages
