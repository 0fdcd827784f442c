"""Networks without shortcuts: an MLP, and VGG-11 with BatchNorm (Simonyan and Zisserman, 2015)."""

from torch import nn

from vasso.lab.models.layers import scaled

VGG11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def mlp(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """Pixels - 512 - 512 - classes, each hidden layer linear, BatchNorm, ReLU."""
    hidden = scaled(512, width)
    return nn.Sequential(
        nn.Flatten(),
        *_layer(channels * size * size, hidden),
        *_layer(hidden, hidden),
        nn.Linear(hidden, classes),
    )


def _layer(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()


def vgg11_bn(classes: int, width: float, channels: int, size: int) -> nn.Module:
    """Eight convolutions with biases, then 512 - 4096 - 4096 - classes with two dropouts.

    28,149,514 weights for ten classes. The maximum pooling rounds up and the mean is taken at the
    end, so that images of any size will do; at 32x32 pixels neither changes anything.
    """
    layers: list[nn.Module] = []
    for stage in VGG11:
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
