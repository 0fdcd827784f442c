"""scikit-learn's handwritten digits: 1,797 real images of 8x8 pixels that need no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vasso.lab.data.images import Images
from vasso.lab.data.split import validation_split

TEST = 500


def read_digits(_: Path) -> Images:
    """The digits, of which 500, always the same ones, are the test set.

    Values of 0 to 16 become 0 to 255.

    Returns:
        1,297 training and 500 test images with one channel in 10 classes.
    """
    # Takes two seconds to import, for the digits alone.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(np.round(pixels * 255 / 16).astype(np.uint8)).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels.astype(np.int64))
    train, test = validation_split(y, TEST, seed=0)
    shares = x[train].double() / 255
    mean, std = (shares.mean().item(),), (shares.std(correction=0).item(),)
    return Images("digits", x[train], y[train], x[test], y[test], 10, mean, std)
