"""The networks of the published benchmarks: what each layer weighs, and what it costs.

VGG-16 and ResNet-101 are counted from their descriptions. Inception V3 is listed by its modules,
counted in Keras 3.15's `keras.applications.InceptionV3`; a test counts them again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """Parameters, and multiplications a forward pass of one image takes."""

    name: str
    parameters: int
    work: float


@dataclass(frozen=True)
class Network:
    """Layers in the order of the forward pass; gradients appear in the opposite order."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        """All layers' parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def bytes(self) -> int:
        """What a step sends: float32 gradients."""
        return 4 * self.parameters


def _convolution(name: str, size: int, kernel: int, inputs: int, outputs: int, extra: int) -> Layer:
    """`size` is the output's height and width; `extra` parameters each output (bias, norm)."""
    weights = kernel * kernel * inputs * outputs
    return Layer(name, weights + extra * outputs, float(size * size * weights))


def _dense(name: str, inputs: int, outputs: int) -> Layer:
    return Layer(name, (inputs + 1) * outputs, float(inputs * outputs))


def _vgg16() -> Network:
    """K. Simonyan, A. Zisserman, arXiv:1409.1556, column D."""
    layers, inputs, size = [], 3, 224
    for block, (outputs, repeats) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]):
        for repeat in range(repeats):
            name = f"conv{block + 1}_{repeat + 1}"
            layers.append(_convolution(name, size, 3, inputs, outputs, extra=1))
            inputs = outputs
        size //= 2
    sizes = (inputs * size * size, 4096, 4096, 1000)
    dense = [_dense(f"fc{i + 6}", sizes[i], sizes[i + 1]) for i in range(3)]
    return Network("VGG-16", (*layers, *dense))


def _resnet101() -> Network:
    """K. He et al., arXiv:1512.03385: bottlenecks of 1x1, 3x3, 1x1, batch norm after each."""
    layers = [_convolution("conv1", 112, 7, 3, 64, extra=2)]
    inputs, size = 64, 56
    for stage, (width, repeats) in enumerate([(64, 3), (128, 4), (256, 23), (512, 3)]):
        for repeat in range(repeats):
            name = f"conv{stage + 2}_{repeat + 1}"
            if repeat == 0:
                layers.append(_convolution(f"{name}s", size, 1, inputs, 4 * width, extra=2))
            layers.append(_convolution(f"{name}a", size, 1, inputs, width, extra=2))
            layers.append(_convolution(f"{name}b", size, 3, width, width, extra=2))
            layers.append(_convolution(f"{name}c", size, 1, width, 4 * width, extra=2))
            inputs = 4 * width
        size //= 2
    return Network("ResNet-101", (*layers, _dense("fc", inputs, 1000)))


def _inception_v3() -> Network:
    """C. Szegedy et al., arXiv:1512.00567; parameters and million multiplications by module."""
    modules = (
        ("stem1", 28_640, 616.6),
        ("stem2", 143_632, 724.2),
        ("mixed0", 255_440, 312.3),
        ("mixed1", 276_976, 338.7),
        ("mixed2", 284_656, 348.1),
        ("mixed3", 1_152_640, 401.9),
        ("mixed4", 1_295_872, 374.1),
        ("mixed5", 1_689_280, 487.7),
        ("mixed6", 1_689_280, 487.7),
        ("mixed7", 2_140_032, 617.9),
        ("mixed8", 1_697_024, 291.0),
        ("mixed9", 5_041_344, 322.4),
        ("mixed10", 6_073_536, 388.5),
        ("predictions", 2_049_000, 2.0),
    )
    return Network("Inception V3", tuple(Layer(n, p, 1e6 * work) for n, p, work in modules))


VGG16 = _vgg16()
RESNET101 = _resnet101()
INCEPTION_V3 = _inception_v3()
NETWORKS = {network.name: network for network in (INCEPTION_V3, RESNET101, VGG16)}
