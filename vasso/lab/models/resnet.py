"""Residual networks (He et al., 2016): y = ReLU(F(x) + shortcut(x)).

| name | stem | stages | blocks | widths |
|---|---|---|---|---|
| resnet8 | 3x3, stride 2 | 1, 1, 1 | basic | 32 to 128 |
| resnet8_s4 | two of 3x3, stride 2 | 1, 1, 1 | basic | 32 to 128 |
| resnet18 | 3x3 | 2, 2, 2, 2 | basic | 64 to 512 |
| resnet34 | 3x3 | 3, 4, 6, 3 | basic | 64 to 512 |
| resnet50 | 7x7, stride 2, max pooling | 3, 4, 6, 3 | bottleneck | 256 to 2048 |

The first four are for images of 16 to 64 pixels, with torch's own initialisation; resnet50 is for
ImageNet, with He's, and halves the resolution in the 3x3 convolution of a block. In the wide
network of Zagoruyko and Komodakis (2016) BatchNorm and ReLU come first.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from vasso.lab.models.layers import initialise_he, scaled


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Residual(nn.Module):
    """ReLU(F(x) + shortcut(x)); the shortcut is a 1x1 convolution where shapes differ."""

    expansion = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = outputs * self.expansion
        self.body = self._body(inputs, outputs, wide, stride)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != wide:
            self.shortcut = nn.Sequential(_conv(inputs, wide, 1, stride), nn.BatchNorm2d(wide))

    def _body(self, inputs: int, outputs: int, wide: int, stride: int) -> nn.Module:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Basic(Residual):
    """Two 3x3 convolutions."""

    def _body(self, inputs: int, outputs: int, wide: int, stride: int) -> nn.Module:
        return nn.Sequential(
            _conv(inputs, outputs, 3, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            _conv(outputs, wide, 3),
            nn.BatchNorm2d(wide),
        )


class Bottleneck(Residual):
    """1x1 down, 3x3, 1x1 up to four times the width."""

    expansion = 4

    def _body(self, inputs: int, outputs: int, wide: int, stride: int) -> nn.Module:
        return nn.Sequential(
            _conv(inputs, outputs, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            _conv(outputs, outputs, 3, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            _conv(outputs, wide, 1),
            nn.BatchNorm2d(wide),
        )


class ResNet(nn.Module):
    """Stem, stages of residual blocks that halve the resolution, global average, linear layer.

    `depths` are the blocks and `widths` the channels, before expansion, of each stage.
    """

    def __init__(
        self,
        stem: nn.Module,
        block: type[Residual],
        depths: Sequence[int],
        widths: Sequence[int],
        classes: int,
    ) -> None:
        super().__init__()
        self.stem = stem
        stages, inputs = [], widths[0]
        for i, (depth, outputs) in enumerate(zip(depths, widths, strict=True)):
            blocks = []
            for j in range(depth):
                blocks.append(block(inputs, outputs, 2 if i and not j else 1))
                inputs = outputs * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(x))
        scores: Tensor = self.head(features.mean((2, 3)))
        return scores


def _small_stem(channels: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(_conv(channels, outputs, 3, stride), nn.BatchNorm2d(outputs), nn.ReLU())


def resnet8(classes: int, width: float, channels: int, size: int) -> ResNet:
    """One basic block per stage, for quick experiments: 308,650 weights for ten classes."""
    widths = [scaled(w, width) for w in (32, 64, 128)]
    return ResNet(_small_stem(channels, widths[0], 2), Basic, (1, 1, 1), widths, classes)


def resnet8_s4(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """ResNet-8 at a quarter of the resolution, three times as fast: 317,930 weights."""
    net = resnet8(classes, width, channels, size)
    wide = scaled(32, width)
    net.stem = nn.Sequential(net.stem, _small_stem(wide, wide, 2))
    return net


def resnet18(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """ResNet-18 for small images: 11,173,962 weights for ten classes."""
    widths = [scaled(w, width) for w in (64, 128, 256, 512)]
    return ResNet(_small_stem(channels, widths[0]), Basic, (2, 2, 2, 2), widths, classes)


def resnet34(classes: int, width: float, channels: int, size: int) -> nn.Module:
    widths = [scaled(w, width) for w in (64, 128, 256, 512)]
    return ResNet(_small_stem(channels, widths[0]), Basic, (3, 4, 6, 3), widths, classes)


def resnet50(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """ResNet-50 for ImageNet: 25,557,032 weights for a thousand classes."""
    widths = [scaled(w, width) for w in (64, 128, 256, 512)]
    stem = nn.Sequential(
        _conv(channels, widths[0], 7, 2),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    net = ResNet(stem, Bottleneck, (3, 4, 6, 3), widths, classes)
    initialise_he(net)
    return net


class WideBlock(nn.Module):
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
        a = torch.relu(self.first_norm(x))
        f: Tensor = self.second(torch.relu(self.second_norm(self.first(a))))
        return f + (x if self.shortcut is None else self.shortcut(a))


def wrn28_10(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """WRN-28-10 without dropout: 36,479,194 weights for ten classes."""
    widths = [scaled(w, width) for w in (16, 160, 320, 640)]
    blocks = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        blocks.append(WideBlock(inputs, outputs, 2 if i else 1))
        blocks += [WideBlock(outputs, outputs, 1) for _ in range(3)]
    net = nn.Sequential(
        nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False),
        *blocks,
        nn.BatchNorm2d(widths[-1]),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], classes),
    )
    initialise_he(net)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return net
