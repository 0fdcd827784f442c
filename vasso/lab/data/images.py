"""Data sets in memory: images with labels, stratified subsets, reduced resolution."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vasso.lab.data import splitmix
from vasso.lab.schema import LabError


class DataError(LabError):
    """Files of a data set are missing, damaged or not what they should be."""


_verified: set[tuple[Path, int, int]] = set()


def check_md5(path: Path, content: bytes, md5: str, remedy: str) -> None:
    """Checks the published md5, once for each size and modification time of a file."""
    state = (path, len(content), path.stat().st_mtime_ns)
    if state in _verified:
        return
    seen = hashlib.md5(content).hexdigest()
    if seen != md5:
        raise DataError(f"{path} is damaged: its md5 is {seen}, published is {md5}. {remedy}")
    _verified.add(state)


def digest_of(tensors: Iterable[Tensor]) -> str:
    """A short hash of the shapes and values of some tensors."""
    digest = hashlib.sha256()
    for x in tensors:
        digest.update(str(tuple(x.shape)).encode())
        digest.update(x.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Images:
    """A data set in memory: images uint8, N x C x H x W, and their labels int64.

    `mean` and `std` are per channel, in units of 0 to 1.
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

    @cached_property
    def digest(self) -> str:
        """A short hash of all images and labels."""
        return digest_of((self.train_x, self.train_y, self.test_x, self.test_y))

    def subset(self, train_size: int, seed: int) -> Images:
        """Fewer training images, with the same share of every class; the test set stays."""
        kept = stratified(self.train_y, train_size, seed)
        return replace(self, train_x=self.train_x[kept], train_y=self.train_y[kept])


def stratified(y: Tensor, size: int, seed: int, *, purpose: str = "subset") -> Tensor:
    """Draws images so that every class keeps its share, to within one image.

    Class c gives floor(size n_c / n) images, and those with the largest remainders one more. Draws
    with different purposes are independent. The indices come in ascending order.
    """
    if not 1 <= size <= len(y):
        raise ValueError(f"cannot draw {size} of {len(y)} images: ask for 1 to {len(y)}")
    quotas = _quotas(torch.bincount(y), size)
    shuffled = splitmix.permutation(len(y), purpose, seed)
    drawn = [shuffled[y[shuffled] == c][: int(q)] for c, q in enumerate(quotas)]
    return torch.cat(drawn).sort().values


def _quotas(counts: Tensor, size: int) -> Tensor:
    """Images of each class: largest remainders, the lower class first in a tie."""
    n = int(counts.sum())
    quotas = counts * size // n
    remainders = counts * size % n
    missing = size - int(quotas.sum())
    quotas[torch.argsort(remainders, descending=True, stable=True)[:missing]] += 1
    return quotas


def validation_split(y: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices for training and for validation, ascending, with the same share of every class."""
    if not 1 <= size < len(y):
        raise ValueError(
            f"a validation set of {size} cannot be taken from {len(y)} training images: "
            f"ask for 1 to {len(y) - 1}"
        )
    validation = stratified(y, size, seed, purpose="validation")
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[validation] = False
    return rest.nonzero().squeeze(1), validation


def area_average(x: Tensor, size: int) -> Tensor:
    """Images at another resolution: each new pixel is the mean over the area that it covers.

    It computes with whole numbers and rounds halves up, so the result is the same on every machine.
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
    """The part of each old pixel that each new one covers, in units of 1/new of an old pixel."""
    # float64 holds these whole numbers and their sums exactly, and multiplies faster than int64.
    start, end = torch.arange(new) * old, torch.arange(1, new + 1) * old
    begin, stop = torch.arange(old) * new, torch.arange(1, old + 1) * new
    shared = torch.minimum(end[:, None], stop) - torch.maximum(start[:, None], begin)
    return shared.clamp(min=0).double()
