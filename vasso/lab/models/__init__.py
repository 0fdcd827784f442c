"""Image models: the networks of the paper and three small ones; `width` scales their channels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from vasso import validation
from vasso.lab.models.plain import mlp, vgg11_bn
from vasso.lab.models.pyramid import pyramidnet110
from vasso.lab.models.resnet import resnet8, resnet8_s4, resnet18, resnet34, resnet50, wrn28_10
from vasso.lab.models.vit import vit_s4, vit_s8, vit_s32


@dataclass(frozen=True)
class ModelInfo:
    """A model: its constructor (classes, width, channels, image size) and a description."""

    build: Callable[[int, float, int, int], nn.Module]
    description: str


MODELS: dict[str, ModelInfo] = {
    "mlp": ModelInfo(mlp, "two hidden layers of 512 units with BatchNorm, for any images"),
    "pyramidnet110": ModelInfo(pyramidnet110, "PyramidNet-110 for small images"),
    "resnet8": ModelInfo(resnet8, "ResNet of eight layers, 32 to 128 channels, for small images"),
    "resnet8_s4": ModelInfo(resnet8_s4, "the same with a stem of stride 4, for 32 pixels or more"),
    "resnet18": ModelInfo(resnet18, "ResNet-18 for small images"),
    "resnet34": ModelInfo(resnet34, "ResNet-34 for small images"),
    "resnet50": ModelInfo(resnet50, "ResNet-50 for images of 224 pixels"),
    "vgg11_bn": ModelInfo(vgg11_bn, "VGG-11 with BatchNorm for small images"),
    "vit_s4": ModelInfo(vit_s4, "ViT-S with patches of 4x4, for images of 32 pixels"),
    "vit_s8": ModelInfo(vit_s8, "ViT-S with patches of 8x8, for images of 64 pixels"),
    "vit_s32": ModelInfo(vit_s32, "ViT-S with patches of 32x32, for images of 224 pixels"),
    "wrn28_10": ModelInfo(wrn28_10, "wide ResNet-28-10 for small images"),
}

__all__ = ["MODELS", "ModelInfo", "build"]


def build(
    name: str,
    *,
    classes: int,
    width: float = 1.0,
    channels: int = 3,
    size: int = 32,
    seed: int | None,
) -> nn.Module:
    """A network with fresh weights, in training mode.

    Args:
        name: one of `MODELS`.
        classes: number of classes.
        width: factor on the channels of every layer.
        channels: of the images.
        size: height and width of the images.
        seed: the weights depend on it alone; they are made on the CPU, and torch's generators keep
            their state. None: the weights come from the generator of the current device.

    Example:
        >>> net = build("resnet8", classes=10, seed=0)
        >>> sum(p.numel() for p in net.parameters())
        308650
    """
    validation.one_of("name", name, *MODELS)
    given = {"classes": classes, "width": width, "channels": channels, "size": size}
    for argument, value in given.items():
        if not value > 0:
            raise ValueError(f"{argument} must be above 0, got {value}")
    if seed is None:
        return MODELS[name].build(classes, width, channels, size)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too
        return MODELS[name].build(classes, width, channels, size)
