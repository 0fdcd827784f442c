"""VGG-11 with BatchNorm (Simonyan and Zisserman, 2015), for small images."""

from __future__ import annotations

from torch import nn

from vasso.lab.models.widths import scaled

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11_bn(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """Eight convolutions with biases, then 512 - 4096 - 4096 - classes with two dropouts.

    28,149,514 weights for ten classes. The maximum pooling rounds up and the mean is taken at the
    end, so that images of any size will do; at 32x32 pixels neither changes anything.

    Args:
        classes: outputs.
        width: factor on the channels and hidden units.
        channels: of the images.
        size: height and width of the images; any will do.

    Returns:
        The network.
    """
    layers: list[nn.Module] = []
    for stage in STAGES:
        for outputs in (scaled(w, width) for w in stage):
            layers += [nn.Conv2d(channels, outputs, 3, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    hidden = scaled(4096, width)
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *(nn.Linear(channels, hidden), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(hidden, classes),
    )
