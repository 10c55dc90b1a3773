"""The machines of a simulation: links, and how many workers share one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """A connection in Hockney's model: n bytes take `latency` + n / `bandwidth`.

    Source: R. Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994);
    latency is called alpha there and 1 / bandwidth beta. Seconds, and bytes a second each way.
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if self.latency < 0 or self.bandwidth <= 0:
            raise ValueError(f"a link has a latency of 0 or more and some bandwidth, not {self}")


@dataclass(frozen=True)
class Cluster:
    """Servers with `per_server` workers each, which share their server's network link.

    `local` joins the workers inside a server, `network` the servers.
    """

    per_server: int
    local: Link
    network: Link

    def __post_init__(self) -> None:
        if self.per_server < 1:
            raise ValueError(f"a server has at least one worker, not {self.per_server}")

    def servers(self, workers: int) -> int:
        """How many servers it takes; the last one may be partly empty.

        Raises ValueError for less than one worker.
        """
        if workers < 1:
            raise ValueError(f"training takes at least one worker, not {workers}")
        return -(-workers // self.per_server)


# The share of a network's line rate that a ring reaches. No source gives it for these machines; it
# is chosen from one published run (see published.py). The headers of RoCE leave 93 %.
SHARE = 0.84

# Four P100 a server, 25 Gbit/s RoCE: the machines of Horovod's benchmarks.
# Source of the kind and number: Horovod's README. Latencies and PCIe's bandwidth: the figures
# that NCCL itself calculates with (src/graph/tuning.cc, ring, protocol "simple": PCIe 5.7 us,
# network 14 us; src/graph/topo.h: PCIe 3.0 x16 12 GB/s).
PUBLISHED_CLUSTER = Cluster(
    per_server=4,
    local=Link(latency=5.7e-6, bandwidth=12e9),
    network=Link(latency=14e-6, bandwidth=SHARE * 25e9 / 8),
)

# A present-day server, for "what if": eight GPUs on NVLink, and 400 Gbit/s for each of them.
# Source: NVIDIA's data sheets of H100 and DGX H100 (NVLink 450 GB/s each way, eight network ports
# of 400 Gbit/s), with the same share; NVLink's latency out of NCCL's tuning.cc.
MODERN_CLUSTER = Cluster(
    per_server=8,
    local=Link(latency=3.4e-6, bandwidth=SHARE * 450e9),
    network=Link(latency=14e-6, bandwidth=SHARE * 8 * 400e9 / 8),
)
