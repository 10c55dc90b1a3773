"""The course's models in PyTorch. Input: float32 [batch, 1, 28, 28]; output: 10 logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


def create_model(name: str = "cnn") -> nn.Module:
    """A fresh model.

    Args:
        name: "cnn", the small network for CPUs (1.2 million parameters), or "wrn-16-10",
            Wide ResNet with 16 layers and width 10 (17 million), for GPUs.

    Raises:
        ValueError: there is no such model.
    """
    if name in MODELS:
        return MODELS[name]()
    raise ValueError(f"no model is called {name!r}; there are {', '.join(MODELS)}")


def small_cnn() -> nn.Module:
    """Two convolutions and two linear layers: 28 x 28 pixels to class scores."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class WideBlock(nn.Module):
    """Batch norm, ReLU and convolution, twice, with a short cut around them."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.dropout = nn.Dropout(0.01)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.shortcut = (
            nn.Identity()
            if channels_in == channels_out and stride == 1
            else nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        active = functional.relu(self.norm1(images))
        # Where the shape changes, the short cut starts behind the first norm.
        around = images if isinstance(self.shortcut, nn.Identity) else self.shortcut(active)
        active = functional.relu(self.norm2(self.conv1(active)))
        return around + self.conv2(self.dropout(active))


class WideResNet(nn.Module):
    """Wide residual network (Zagoruyko and Komodakis, 2016): 16 layers, 10 times as wide."""

    def __init__(self) -> None:
        super().__init__()
        channels = [16, 160, 320, 640]
        layers: list[nn.Module] = [nn.Conv2d(1, channels[0], 3, padding=1, bias=False)]
        for group in range(3):
            for block in range(2):  # in three groups: 6 x 2 + 4 layers
                first = block == 0
                layers.append(
                    WideBlock(
                        channels[group] if first else channels[group + 1],
                        channels[group + 1],
                        stride=2 if first and group > 0 else 1,
                    )
                )
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels[3]), nn.ReLU())
        self.classifier = nn.Linear(channels[3], 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).mean(dim=(2, 3)))


MODELS: dict[str, Callable[[], nn.Module]] = {"cnn": small_cnn, "wrn-16-10": WideResNet}
