"""Which images go where? Samples in which every class keeps its share."""

from __future__ import annotations

import torch
from torch import Tensor

from vasso.lab.data import chance


def stratified(y: Tensor, size: int, seed: int, *, purpose: str = "subset") -> Tensor:
    """Draws images so that every class keeps its share, to within one image.

    Class c gives floor(size n_c / n) images, and those with the largest remainders one more.

    Args:
        y: the labels, whole numbers from 0.
        size: how many images to draw.
        seed: which draw.
        purpose: draws for different ends are independent.

    Returns:
        Their indices, in ascending order.

    Raises:
        ValueError: size is not between 1 and the number of images.

    Example:
        >>> stratified(torch.tensor([0, 1] * 50), 6, seed=0).remainder(2).bincount().tolist()
        [3, 3]
    """
    if not 1 <= size <= len(y):
        raise ValueError(f"cannot draw {size} of {len(y)} images: ask for 1 to {len(y)}")
    quotas = _quotas(torch.bincount(y), size)
    shuffled = chance.permutation(len(y), purpose, seed)
    drawn = [shuffled[y[shuffled] == c][: int(q)] for c, q in enumerate(quotas)]
    return torch.cat(drawn).sort().values


def _quotas(counts: Tensor, size: int) -> Tensor:
    """How many images each class gives: largest remainders, the lower class first in a tie."""
    n = int(counts.sum())
    quotas = counts * size // n
    remainders = counts * size % n
    missing = size - int(quotas.sum())
    quotas[torch.argsort(remainders, descending=True, stable=True)[:missing]] += 1
    return quotas


def validation_split(y: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sets training images aside for validation, in every class the same share.

    Args:
        y: the training labels.
        size: how many images to set aside; some must remain.
        seed: which draw.

    Returns:
        Indices to train on and indices to validate on, each in ascending order.

    Raises:
        ValueError: size is not between 1 and the number of images less one.
    """
    if not 1 <= size < len(y):
        raise ValueError(
            f"a validation set of {size} cannot be taken from {len(y)} training images: "
            f"ask for 1 to {len(y) - 1}"
        )
    validation = stratified(y, size, seed, purpose="validation")
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[validation] = False
    return rest.nonzero().squeeze(1), validation
