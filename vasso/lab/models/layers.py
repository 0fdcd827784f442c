"""Functions shared by models: scaled widths and He's initialisation."""

from torch import nn


def scaled(channels: float, width: float) -> int:
    """Channels times width, rounded, at least one; width 1 is the network as published."""
    return max(1, round(channels * width))


def initialise_he(net: nn.Module) -> None:
    """He's initialisation of all convolutions, by their outputs."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
