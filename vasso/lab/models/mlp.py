"""A multilayer perceptron: two hidden layers of 512 units with BatchNorm."""

from __future__ import annotations

from torch import nn

from vasso.lab.models.widths import scaled


def mlp(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """Pixels - 512 - 512 - classes, each hidden layer linear, BatchNorm, ReLU.

    Args:
        classes: outputs.
        width: factor on the hidden units.
        channels: of the images.
        size: height and width of the images.

    Returns:
        The network.
    """
    hidden = scaled(512, width)
    return nn.Sequential(
        nn.Flatten(),
        *_layer(channels * size * size, hidden),
        *_layer(hidden, hidden),
        nn.Linear(hidden, classes),
    )


def _layer(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()
