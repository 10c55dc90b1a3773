"""How training scales: cost models of the collectives, a simulated step, a fit to measurements.

    from hvdlab import simulate
    step = simulate.step(simulate.VGG16, workers=512, cluster=simulate.PUBLISHED_CLUSTER)
    step.efficiency             # 0 to 1, of the ideal

The formulas are those of the literature, each with its source where it stands. What they leave
out: switches that are shared with other jobs, reading the data, and the work of adding up.
Units everywhere: seconds, bytes, bytes per second.
"""

from .clusters import MODERN_CLUSTER, PUBLISHED_CLUSTER, Cluster, Link
from .costs import ALGORITHMS, allreduce, hierarchical, parameter_server, ring, tree
from .fit import Fit, fit
from .networks import INCEPTION_V3, NETWORKS, RESNET101, VGG16, Layer, Network
from .published import PUBLISHED, Published, reproduce
from .step import Span, Step, step

__all__ = [
    "ALGORITHMS",
    "MODERN_CLUSTER",
    "INCEPTION_V3",
    "NETWORKS",
    "PUBLISHED",
    "PUBLISHED_CLUSTER",
    "RESNET101",
    "VGG16",
    "Cluster",
    "Fit",
    "Layer",
    "Link",
    "Network",
    "Published",
    "Span",
    "Step",
    "allreduce",
    "fit",
    "hierarchical",
    "parameter_server",
    "reproduce",
    "ring",
    "step",
    "tree",
]
