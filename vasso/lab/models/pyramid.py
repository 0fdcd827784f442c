"""PyramidNet (Han, Kim and Kim, 2017): the width grows with every block.

Width of block k of K: round(16 + alpha k / K), k = 1 to K. Basic blocks, shortcuts without weights:
average pooling where the resolution is halved, zeros for the new channels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from vasso.lab.models.layers import initialise_he, scaled


class Block(nn.Module):
    """shortcut(x) + BN conv ReLU BN conv BN (x)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.new = outputs - inputs
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.AvgPool2d(2, ceil_mode=True) if stride == 2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        body: Tensor = self.body(x)
        return body + functional.pad(self.shortcut(x), (0, 0, 0, 0, 0, self.new))


class PyramidNet(nn.Module):
    """Stem, three stages of equally many blocks, BatchNorm, ReLU, global average, linear layer.

    `depth` counts layers with weights, 6 n + 2; `alpha` channels are added from the first block to
    the last.
    """

    def __init__(self, depth: int, alpha: float, classes: int, width: float, channels: int) -> None:
        super().__init__()
        count = (depth - 2) // 2
        widths = [scaled(16 + alpha * k / count, width) for k in range(count + 1)]
        self.stem = nn.Sequential(
            nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0])
        )
        halving = (count // 3, 2 * count // 3)
        self.blocks = nn.Sequential(
            *(Block(widths[k], widths[k + 1], 2 if k in halving else 1) for k in range(count))
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], classes)
        initialise_he(self)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.blocks(self.stem(x))))
        scores: Tensor = self.head(features.mean((2, 3)))
        return scores


def pyramidnet110(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """PyramidNet-110 with alpha 270: 28,485,477 weights for ten classes."""
    return PyramidNet(110, 270, classes, width, channels)
