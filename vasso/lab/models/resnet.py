"""Residual networks (He et al., 2016): y = ReLU(F(x) + shortcut(x)).

| name | stem | stages | blocks | widths |
|---|---|---|---|---|
| resnet8 | 3x3, stride 2 | 1, 1, 1 | basic | 32 to 128 |
| resnet18 | 3x3 | 2, 2, 2, 2 | basic | 64 to 512 |
| resnet34 | 3x3 | 3, 4, 6, 3 | basic | 64 to 512 |
| resnet50 | 7x7, stride 2, max pooling | 3, 4, 6, 3 | bottleneck | 256 to 2048 |

The first three are for images of 16 to 64 pixels, with torch's own initialisation; resnet50 is for
ImageNet, with He's, and halves the resolution in the 3x3 convolution of a block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vasso.lab.models.widths import scaled


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
        """The block's output.

        Args:
            x: features.

        Returns:
            Features.
        """
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
    """A stem, stages of residual blocks that halve the resolution, the mean, a linear layer.

    Args:
        stem: from images to features of the first width.
        block: the kind of block.
        depths: blocks of each stage.
        widths: channels of each stage, before expansion.
        classes: outputs.
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
        """Scores of the classes.

        Args:
            x: images.

        Returns:
            One score for each image and class.
        """
        features: Tensor = self.stages(self.stem(x))
        scores: Tensor = self.head(features.mean((2, 3)))
        return scores


def _small_stem(channels: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(_conv(channels, outputs, 3, stride), nn.BatchNorm2d(outputs), nn.ReLU())


def resnet8(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """One basic block per stage, for quick experiments: 308,650 weights for ten classes.

    Args:
        classes: outputs.
        width: factor on the channels.
        channels: of the images.
        size: height and width of the images; any will do.

    Returns:
        The network.
    """
    widths = [scaled(w, width) for w in (32, 64, 128)]
    return ResNet(_small_stem(channels, widths[0], 2), Basic, (1, 1, 1), widths, classes)


def resnet18(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """ResNet-18 for small images: 11,173,962 weights for ten classes.

    Args:
        classes: outputs.
        width: factor on the channels.
        channels: of the images.
        size: height and width of the images; any will do.

    Returns:
        The network.
    """
    widths = [scaled(w, width) for w in (64, 128, 256, 512)]
    return ResNet(_small_stem(channels, widths[0]), Basic, (2, 2, 2, 2), widths, classes)


def resnet34(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """ResNet-34 for small images.

    Args:
        classes: outputs.
        width: factor on the channels.
        channels: of the images.
        size: height and width of the images; any will do.

    Returns:
        The network.
    """
    widths = [scaled(w, width) for w in (64, 128, 256, 512)]
    return ResNet(_small_stem(channels, widths[0]), Basic, (3, 4, 6, 3), widths, classes)


def resnet50(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """ResNet-50 for ImageNet: 25,557,032 weights for a thousand classes.

    Args:
        classes: outputs.
        width: factor on the channels.
        channels: of the images.
        size: height and width of the images; any will do.

    Returns:
        The network.
    """
    widths = [scaled(w, width) for w in (64, 128, 256, 512)]
    stem = nn.Sequential(
        _conv(channels, widths[0], 7, 2),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    net = ResNet(stem, Bottleneck, (3, 4, 6, 3), widths, classes)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net
