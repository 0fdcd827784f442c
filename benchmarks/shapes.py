"""The parameter shapes of networks, without the networks.

| name       | network                                            | tensors | parameters  |
|------------|----------------------------------------------------|---------|-------------|
| `resnet18` | ResNet-18 for CIFAR: 3x3 stem, 10 classes          |      62 |  11,173,962 |
| `wrn28_10` | Wide ResNet 28-10, shortcuts without BatchNorm     |      80 |  36,479,194 |
| `vit_s32`  | ViT-S/32 at 224 pixels, 1000 classes               |     152 |  22,878,952 |
| `gpt2`     | GPT-2 small, head tied to the embedding            |     148 | 124,439,808 |
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

Shapes: TypeAlias = list[tuple[int, ...]]

PARAMETERS = {
    "resnet18": 11_173_962,
    "wrn28_10": 36_479_194,
    "vit_s32": 22_878_952,
    "gpt2": 124_439_808,
}


def shapes_of(name: str) -> Shapes:
    """The shapes of a network by name; raises if their parameters are not as many as is known."""
    shapes = NETWORKS[name]()
    expected = PARAMETERS.get(name)
    if expected is not None and parameters(shapes) != expected:
        raise AssertionError(f"{name} has {parameters(shapes)} parameters instead of {expected}")
    return shapes


def parameters(shapes: Shapes) -> int:
    """How many numbers the tensors hold together."""
    return sum(map(math.prod, shapes))


def resnet18(width: int = 64) -> Shapes:
    """Two basic blocks in each of four stages; a stage that widens has a 1x1 shortcut."""
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    shapes = [(width, 3, 3, 3), *norm(width)]
    for wide_in, wide in pairwise(widths):
        for first in (wide_in, wide):
            shapes += [(wide, first, 3, 3), *norm(wide), (wide, wide, 3, 3), *norm(wide)]
            if first != wide:
                shapes += [(wide, first, 1, 1), *norm(wide)]
    return shapes + linear(8 * width, 10)


def wrn28_10() -> Shapes:
    """Four pre-activation blocks in each of three stages, ten times as wide as a ResNet's."""
    shapes: Shapes = [(16, 3, 3, 3)]
    for wide_in, wide in pairwise([16, 160, 320, 640]):
        for first in (wide_in, wide, wide, wide):
            shapes += [*norm(first), (wide, first, 3, 3), *norm(wide), (wide, wide, 3, 3)]
            if first != wide:
                shapes.append((wide, first, 1, 1))
    return shapes + norm(640) + linear(640, 10)


def vit_s32() -> Shapes:
    """Class token, positions of 7 x 7 patches and the class, patch embedding, twelve blocks."""
    shapes: Shapes = [(1, 1, 384), (1, 50, 384), (384, 3, 32, 32), (384,)]
    return shapes + 12 * block(384) + norm(384) + linear(384, 1000)


def gpt2() -> Shapes:
    """Token and position embedding, twelve blocks, a last norm; the head is the embedding."""
    return [(50257, 768), (1024, 768)] + 12 * block(768) + norm(768)


def block(width: int) -> Shapes:
    """A transformer block: queries, keys and values in one, output; up to four widths and back."""
    attention = linear(width, 3 * width) + linear(width, width)
    return (
        norm(width) + attention + norm(width) + linear(width, 4 * width) + linear(4 * width, width)
    )


def norm(width: int) -> Shapes:
    """Scale and shift of a normalisation layer."""
    return [(width,), (width,)]


def linear(fan_in: int, fan_out: int) -> Shapes:
    """Weight and bias of a linear layer."""
    return [(fan_out, fan_in), (fan_out,)]


NETWORKS: dict[str, Callable[[], Shapes]] = {
    "resnet18": resnet18,
    "wrn28_10": wrn28_10,
    "vit_s32": vit_s32,
    "gpt2": gpt2,
    "tiny": lambda: resnet18(width=8),
}
