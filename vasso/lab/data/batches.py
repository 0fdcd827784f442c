"""In which order do the images come? A function of the seed and the epoch."""

from __future__ import annotations

from torch import Tensor

from vasso.lab.data import chance


def order(n: int, seed: int, epoch: int) -> Tensor:
    """The order of the training images in one epoch.

    Args:
        n: how many images.
        seed: the run's.
        epoch: from 0.

    Returns:
        The indices 0 to n - 1, shuffled, the same on every machine.

    Raises:
        ValueError: n is negative.

    Example:
        >>> first, again, next_one = order(9, 0, 0), order(9, 0, 0), order(9, 0, 1)
        >>> bool((first == again).all()), bool((first == next_one).all())
        (True, False)
    """
    if n < 0:
        raise ValueError(f"n must be 0 or more images, got {n}")
    return chance.permutation(n, "order", seed, epoch)
