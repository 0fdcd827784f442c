"""Wide residual networks (Zagoruyko and Komodakis, 2016): BatchNorm and ReLU come first."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from vasso.lab.models.widths import scaled


class Block(nn.Module):
    """x + F(a) with a = ReLU(BatchNorm(x)); where shapes differ, a 1x1 convolution of a for x."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output.

        Args:
            x: features.

        Returns:
            Features.
        """
        a = torch.relu(self.first_norm(x))
        f: Tensor = self.second(torch.relu(self.second_norm(self.first(a))))
        return f + (x if self.shortcut is None else self.shortcut(a))


def wrn28_10(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """WRN-28-10 without dropout: 36,479,194 weights for ten classes.

    Args:
        classes: outputs.
        width: factor on the channels.
        channels: of the images.
        size: height and width of the images; any will do.

    Returns:
        The network.
    """
    widths = [scaled(w, width) for w in (16, 160, 320, 640)]
    blocks = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        blocks.append(Block(inputs, outputs, 2 if i else 1))
        blocks += [Block(outputs, outputs, 1) for _ in range(3)]
    net = nn.Sequential(
        nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False),
        *blocks,
        nn.BatchNorm2d(widths[-1]),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], classes),
    )
    _he(net)
    return net


def _he(net: nn.Module) -> None:
    """He's initialisation by outputs; no bias at the start."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
