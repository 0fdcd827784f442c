"""What is a data set? Images of one size in memory, with labels; and how it is made smaller."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vasso.lab.data.split import stratified


class DataError(RuntimeError):
    """Files of a data set are missing, damaged or not what they should be."""


@dataclass(frozen=True, eq=False)
class Images:
    """A data set in memory.

    Attributes:
        name: as given to `load`.
        train_x: training images, uint8, N x C x H x W.
        train_y: their labels, int64.
        test_x: test images.
        test_y: their labels.
        classes: how many classes there are.
        mean: per channel, in units of 0 to 1.
        std: per channel, in units of 0 to 1.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for part, x, y in (
            ("train", self.train_x, self.train_y),
            ("test", self.test_x, self.test_y),
        ):
            if x.dtype != torch.uint8 or x.ndim != 4 or y.dtype != torch.int64:
                raise DataError(f"{self.name}: {part} must be uint8 N x C x H x W and int64 labels")
            if len(x) != len(y):
                raise DataError(f"{self.name}: {len(x)} {part} images but {len(y)} labels")
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                raise DataError(f"{self.name}: a {part} label is outside 0 to {self.classes - 1}")

    def subset(self, train_size: int, seed: int) -> Images:
        """Fewer training images, every class with its share; the test set stays.

        Args:
            train_size: how many.
            seed: which draw.

        Returns:
            The smaller data set.
        """
        kept = stratified(self.train_y, train_size, seed)
        return replace(self, train_x=self.train_x[kept], train_y=self.train_y[kept])


def area_average(x: Tensor, size: int) -> Tensor:
    """Images at another resolution: each new pixel is the mean over the area that it covers.

    In whole numbers, halves rounded up, so that the result is the same on every machine.

    Args:
        x: images, uint8, N x C x H x W.
        size: the new height and width.

    Returns:
        Images, uint8, N x C x size x size.

    Raises:
        ValueError: size is below 1.

    Example:
        >>> area_average(torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.uint8), 1).item()
        1
    """
    if size < 1:
        raise ValueError(f"size must be 1 pixel or more, got {size}")
    height, width = x.shape[2:]
    if height == width == size:
        return x
    down, across = _overlaps(height, size), _overlaps(width, size).T
    area = height * width
    parts = [
        ((down @ part.double() @ across).long() * 2 + area).div(2 * area, rounding_mode="floor")
        for part in torch.split(x, 1000)
    ]
    return torch.cat([part.to(torch.uint8) for part in parts]) if parts else x


def _overlaps(old: int, new: int) -> Tensor:
    """How much of each old pixel each new one covers, in units of 1/new of an old pixel."""
    # float64 holds these whole numbers and their sums exactly, and multiplies faster than int64.
    start, end = torch.arange(new) * old, torch.arange(1, new + 1) * old
    begin, stop = torch.arange(old) * new, torch.arange(1, old + 1) * new
    shared = torch.minimum(end[:, None], stop) - torch.maximum(start[:, None], begin)
    return shared.clamp(min=0).double()
