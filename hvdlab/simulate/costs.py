"""What an allreduce costs: alpha-beta models of four algorithms.

Each function takes the tensor's bytes n, the number of workers W and the cluster, and returns
seconds. a and b stand for a link's latency and its time for a byte. The time to add numbers up is
left out: memory is much faster than the links.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .clusters import Cluster, Link

Cost = Callable[[float, int, Cluster], float]


def ring(n: float, workers: int, cluster: Cluster) -> float:
    """Ring: scatter-reduce, then allgather; 2 (W - 1) a + 2 (W - 1) / W n b.

    Each worker sends 2 (W - 1) / W of the tensor, whatever W is, which is the least possible.
    A chunk passes every link of the ring, so that fast and slow ones share the latencies; the
    slowest sets the pace of the bytes. A server's network link carries one stream each way.

    Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", J. Parallel Distrib. Comput. 69 (2009). Latencies over two kinds of links as in
    NCCL's own model (src/graph/tuning.cc: 2 x servers of the 2 (W - 1) steps use the network).
    """
    _check(n)
    servers = cluster.servers(workers)
    steps = 2 * (workers - 1)
    far = min(steps, 2 * servers) if servers > 1 else 0
    latency = far * cluster.network.latency + (steps - far) * cluster.local.latency
    return latency + steps / workers * n / _slowest(workers, cluster)


def tree(n: float, workers: int, cluster: Cluster) -> float:
    """Reduce up a binary tree and broadcast down it, in k chunks that follow each other.

    With D = ceil(log2 W) levels: (2 D + 2 (k - 1)) (a + n b / k), at the best k. For k = 1 this
    is 2 D (a + n b), the tree of the textbooks; for large tensors it nears 2 n b, as the ring
    does, with log2 W latencies in the place of W.

    Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
    operations in MPICH", IJHPCA 19 (2005), for k = 1; P. Sanders, J. Speck, J. Traeff, "Two-tree
    algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009),
    for the pipeline, and why two trees are needed to keep all links busy.
    """
    _check(n)
    depth = math.ceil(math.log2(workers)) if cluster.servers(workers) else 0
    if depth == 0:
        return 0.0
    latency = cluster.local.latency if cluster.servers(workers) == 1 else cluster.network.latency
    moving = n / _slowest(workers, cluster)
    if latency == 0:
        return 2 * moving  # any number of chunks is free

    def seconds(chunks: int) -> float:
        return (2 * depth + 2 * (chunks - 1)) * (latency + moving / chunks)

    best = min(1e9, math.sqrt((depth - 1) * moving / latency))
    # The cost falls and then rises with the chunks: the best whole number is next to `best`.
    return min(seconds(max(1, chunks)) for chunks in (math.floor(best), math.ceil(best)))


def hierarchical(n: float, workers: int, cluster: Cluster) -> float:
    """Scatter-reduce inside each server, rings between servers, allgather inside each server.

    g workers a server take n / g bytes each around a ring of N servers:
    2 (g - 1) (a_local + n / g b_local) + 2 (N - 1) a_network + 2 (N - 1) / N n b_network.

    Source: X. Jia et al., "Highly scalable deep learning training system with mixed-precision:
    training ImageNet in four minutes", arXiv:1807.11205 (2018), section on hierarchical
    allreduce; Horovod's HOROVOD_HIERARCHICAL_ALLREDUCE.
    """
    _check(n)
    servers = cluster.servers(workers)
    inside = min(workers, cluster.per_server)
    local, network = cluster.local, cluster.network
    seconds = 2 * (inside - 1) * (local.latency + n / inside / local.bandwidth)
    between = 2 * (servers - 1) * (network.latency + n / servers / network.bandwidth)
    return seconds + between


def parameter_server(n: float, workers: int, cluster: Cluster, servers: int = 1) -> float:
    """All send their gradients to `servers` machines and fetch the result: 2 (a + W n b / S).

    The servers' links are the bottleneck, since each carries n / S bytes of every worker.

    Source: M. Li et al., "Scaling distributed machine learning with the parameter server",
    OSDI 2014; counted this way in A. Sergeev, M. Del Balso, "Horovod", arXiv:1802.05799 (2018),
    section 3. Raises ValueError for less than one server.
    """
    _check(n)
    if servers < 1:
        raise ValueError(f"it takes at least one parameter server, not {servers}")
    if cluster.servers(workers) == 1 and workers == 1:
        return 0.0
    link = cluster.local if cluster.servers(workers) == 1 else cluster.network
    return 2 * (link.latency + workers * n / servers / link.bandwidth)


ALGORITHMS: dict[str, Cost] = {
    "ring": ring,
    "tree": tree,
    "hierarchical": hierarchical,
    "parameter server": parameter_server,
}


def allreduce(algorithm: str, n: float, workers: int, cluster: Cluster) -> float:
    """The cost by the algorithm's name; raises ValueError with the names there are."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algorithm](n, workers, cluster)


def _slowest(workers: int, cluster: Cluster) -> float:
    links: list[Link] = [cluster.local] if workers > 1 and cluster.per_server > 1 else []
    if cluster.servers(workers) > 1 or not links:
        links.append(cluster.network)
    return min(link.bandwidth for link in links)


def _check(n: float) -> None:
    if n < 0:
        raise ValueError(f"a tensor has 0 bytes or more, not {n}")
