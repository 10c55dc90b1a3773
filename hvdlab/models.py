"""The course's models in PyTorch. Input: float32 [batch, 1, 28, 28]; output: 10 logits."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

MODELS = ("cnn", "wrn-16-10")


def create_model(name: str = "cnn", classes: int = 10) -> nn.Module:
    """A fresh model.

    Args:
        name: "cnn", the small network for CPUs (1.2 million parameters), or "wrn-16-10",
            Wide ResNet with 16 layers and width 10 (17 million), for GPUs.

    Raises:
        ValueError: there is no such model.
    """
    if name == "cnn":
        return small_cnn(classes)
    if name == "wrn-16-10":
        return WideResNet(depth=16, width=10, classes=classes)
    raise ValueError(f"no model is called {name!r}; there are {', '.join(MODELS)}")


def small_cnn(classes: int = 10) -> nn.Module:
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
        nn.Linear(128, classes),
    )


class WideBlock(nn.Module):
    """Batch norm, ReLU and convolution, twice, with a short cut around them."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)
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
    """Wide residual network (Zagoruyko and Komodakis, 2016); depth is 6 n + 4."""

    def __init__(
        self, depth: int = 16, width: int = 10, classes: int = 10, dropout: float = 0.01
    ) -> None:
        super().__init__()
        if (depth - 4) % 6:
            raise ValueError(f"the depth of a wide ResNet is 6 n + 4, not {depth}")
        blocks = (depth - 4) // 6
        channels = [16, 16 * width, 32 * width, 64 * width]
        layers: list[nn.Module] = [nn.Conv2d(1, channels[0], 3, padding=1, bias=False)]
        for group in range(3):
            for block in range(blocks):
                first = block == 0
                layers.append(
                    WideBlock(
                        channels[group] if first else channels[group + 1],
                        channels[group + 1],
                        stride=2 if first and group > 0 else 1,
                        dropout=dropout,
                    )
                )
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels[3]), nn.ReLU())
        self.classifier = nn.Linear(channels[3], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).mean(dim=(2, 3)))
