"""The networks of the paper, and two small ones; `width` makes any of them narrower.

| name | what |
|---|---|
| mlp | two hidden layers of 512 units with BatchNorm, for any images |
| pyramidnet110 | PyramidNet-110 for small images |
| resnet8 | ResNet of eight layers, 32 to 128 channels, for small images |
| resnet18 | ResNet-18 for small images |
| resnet34 | ResNet-34 for small images |
| resnet50 | ResNet-50 for images of 224 pixels |
| vgg11_bn | VGG-11 with BatchNorm for small images |
| vit_s4 | ViT-S with patches of 4x4, for images of 32 pixels |
| vit_s8 | ViT-S with patches of 8x8, for images of 64 pixels |
| vit_s32 | ViT-S with patches of 32x32, for images of 224 pixels |
| wrn28_10 | wide ResNet-28-10 for small images |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from vasso import checks
from vasso.lab.models.mlp import mlp
from vasso.lab.models.pyramid import pyramidnet110
from vasso.lab.models.resnet import resnet8, resnet18, resnet34, resnet50
from vasso.lab.models.vgg import vgg11_bn
from vasso.lab.models.vit import vit_s4, vit_s8, vit_s32
from vasso.lab.models.wide import wrn28_10

Builder: TypeAlias = Callable[[int, float, int, int], nn.Module]
"""From classes, width, channels and size of the images to a network."""

MODELS: dict[str, Builder] = {
    "mlp": mlp,
    "pyramidnet110": pyramidnet110,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "vgg11_bn": vgg11_bn,
    "vit_s4": vit_s4,
    "vit_s8": vit_s8,
    "vit_s32": vit_s32,
    "wrn28_10": wrn28_10,
}

__all__ = ["MODELS", "Builder", "build"]


def build(
    name: str,
    *,
    classes: int,
    width: float = 1.0,
    channels: int = 3,
    size: int = 32,
    seed: int | None,
) -> nn.Module:
    """A network with fresh weights.

    Args:
        name: one of `MODELS`.
        classes: how many classes it tells apart.
        width: factor on the channels of every layer; the architecture stays.
        channels: of the images.
        size: height and width of the images.
        seed: the weights depend on it alone; they are made on the CPU, and torch's generators are
            left as they were. None: the weights come from the generator of the current device.

    Returns:
        The network, in training mode.

    Raises:
        ValueError: the name is unknown or a number is not above 0.

    Example:
        >>> net = build("resnet8", classes=10, seed=0)
        >>> sum(p.numel() for p in net.parameters())
        308650
    """
    checks.one_of("name", name, *MODELS)
    for what, value in (
        ("classes", classes),
        ("width", width),
        ("channels", channels),
        ("size", size),
    ):
        if not value > 0:
            raise ValueError(f"{what} must be above 0, got {value}")
    if seed is None:
        return MODELS[name](classes, width, channels, size)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too
        return MODELS[name](classes, width, channels, size)
