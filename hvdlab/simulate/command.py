"""`hvdlab simulate`: the simulator's answers as a table."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.table import Table

from . import MODERN_CLUSTER, NETWORKS, PUBLISHED, PUBLISHED_CLUSTER, Link, reproduce
from .published import BATCH


def run(
    network: str,
    workers: str,
    algorithm: str,
    cluster: str,
    images_per_second: float | None,
    gbit: float | None,
    compression: float,
) -> None:
    """Print step time, what of it is waiting, and efficiency for each number of workers.

    Raises ValueError for names and numbers that make no sense.
    """
    chosen = NETWORKS.get(network)
    if chosen is None:
        raise ValueError(f"no network {network!r}; there are {', '.join(NETWORKS)}")
    clusters = {"published": PUBLISHED_CLUSTER, "modern": MODERN_CLUSTER}
    if cluster not in clusters:
        raise ValueError(f"no cluster {cluster!r}; there are {', '.join(clusters)}")
    try:
        counts = [int(part) for part in workers.split(",")]
    except ValueError:
        raise ValueError(f"--workers {workers!r}: give numbers such as 1,8,512") from None
    machines = clusters[cluster]
    if gbit is not None:
        link = Link(machines.network.latency, gbit * 1e9 / 8)
        machines = replace(machines, network=link)
    figure = [one for one in PUBLISHED if one.network is chosen][-1]
    rate = images_per_second or figure.images_per_second
    table = Table(title=f"{chosen.name}, {algorithm}, {rate:g} images/s for one worker alone")
    for column in ("workers", "step (ms)", "waiting (ms)", "efficiency", "images/s"):
        table.add_column(column, justify="right")
    for count in counts:
        step = reproduce(
            figure,
            workers=count,
            cluster=machines,
            algorithm=algorithm,
            alone=BATCH / rate,
            compression=compression,
        )
        table.add_row(
            f"{count:,}",
            f"{1e3 * step.seconds:,.1f}",
            f"{1e3 * step.exposed:,.1f}",
            f"{100 * step.efficiency:.1f} %",
            f"{rate * step.speedup:,.0f}",
        )
    Console().print(table)
