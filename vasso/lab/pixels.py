"""Where do pixels come from? From memory, or from files that are decoded as training goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from vasso.lab.data import Augmentation, Folder, Images, normalised, training_batches
from vasso.lab.data.decoding import Central, Decoded, decoded

CHUNK = 500
"""Images in a pass of a test, which holds no activations; larger is not faster on a CPU."""


class Pixels(Protocol):
    """Training images.

    Attributes:
        ahead_pays: whether images should be asked for several batches at a time.
    """

    ahead_pays: ClassVar[bool]

    def stream(self, places: Sequence[Tensor], seed: int, epoch: int) -> Iterator[Tensor]:
        """Batches of augmented images.

        Args:
            places: of each batch, among the images that are trained on.
            seed: of the augmentation.
            epoch: of the augmentation.
        """


@dataclass(frozen=True, eq=False)
class InMemory:
    """Training images in memory.

    Args:
        x: those that are trained on, uint8.
        rows: which of the data set they are; augmentation depends on it.
        augmentation: what is done to them.
        mean: per channel.
        std: per channel.
    """

    x: Tensor
    rows: Tensor
    augmentation: Augmentation
    mean: tuple[float, ...]
    std: tuple[float, ...]

    ahead_pays: ClassVar[bool] = False

    def stream(self, places: Sequence[Tensor], seed: int, epoch: int) -> Iterator[Tensor]:
        """Batches of augmented images.

        Args:
            places: of each batch, among the images that are trained on.
            seed: of the augmentation.
            epoch: of the augmentation.

        Yields:
            Images, float32.
        """
        for batch in places:
            x, index = self.x[batch.to(self.x.device)], self.rows[batch].to(self.x.device)
            keys = {"seed": seed, "epoch": epoch}
            yield self.augmentation(x, index, mean=self.mean, std=self.std, **keys)


@dataclass(frozen=True, eq=False)
class OnDisk:
    """Training images in files.

    Args:
        folder: the files.
        rows: which of them are trained on.
        augmentation: what is done to them.
        workers: processes that decode.
    """

    folder: Folder
    rows: Tensor
    augmentation: Augmentation
    workers: int = 0

    ahead_pays: ClassVar[bool] = True

    def stream(self, places: Sequence[Tensor], seed: int, epoch: int) -> Iterator[Tensor]:
        """Batches of augmented images.

        Args:
            places: of each batch, among the images that are trained on; of one size, but the last.
            seed: of the augmentation.
            epoch: of the augmentation.

        Yields:
            Images, float32.
        """
        batches = training_batches(
            self.folder,
            self.rows[torch.cat(list(places))],
            len(places[0]),
            augmentation=self.augmentation,
            seed=seed,
            epoch=epoch,
            workers=self.workers if len(places) > 1 else 0,
        )
        for x, _, _ in batches:
            yield x


class Examples(Protocol):
    """Images to test on."""

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images and labels.

        Args:
            rank: of this process.
            world: how many share the work.
        """

    def some(self, count: int) -> Examples:
        """Some of them, evenly spaced: files may be sorted by class.

        Args:
            count: how many, at most all.
        """


@dataclass(frozen=True, eq=False)
class StoredExamples:
    """Images in memory to test on.

    Args:
        x: images, uint8.
        y: labels.
        mean: per channel.
        std: per channel.
    """

    x: Tensor
    y: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All images, normalised.

        Args:
            rank: of this process.
            world: how many share the work.

        Yields:
            Images and labels.
        """
        mine = self.x[rank::world], self.y[rank::world]
        for x, y in zip(*(torch.split(t, CHUNK) for t in mine), strict=True):
            yield normalised(x, self.mean, self.std), y

    def some(self, count: int) -> StoredExamples:
        """Some of them, evenly spaced: files may be sorted by class.

        Args:
            count: how many, at most all.

        Returns:
            Examples.
        """
        kept = spaced(count, len(self.y)).to(self.x.device)
        return StoredExamples(self.x[kept], self.y[kept], self.mean, self.std)


@dataclass(frozen=True, eq=False)
class FileExamples:
    """Images in files to test on: the central part of each.

    Args:
        folder: the files; its size is that of the images.
        training: whether they are among the training files.
        rows: which.
        y: labels.
        workers: processes that decode.
    """

    folder: Folder
    training: bool
    rows: Tensor
    y: Tensor
    workers: int = 0

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All images, normalised.

        Args:
            rank: of this process.
            world: how many share the work.

        Yields:
            Images and labels.
        """
        files = self.folder.train if self.training else self.folder.test
        mine, labels = self.rows[rank::world], torch.split(self.y[rank::world], CHUNK)
        pixels = decoded(Decoded(files.paths, Central(self.folder.size)), mine, CHUNK, self.workers)
        for (x, _), y in zip(pixels, labels, strict=True):
            yield normalised(x, self.folder.mean, self.folder.std), y

    def some(self, count: int) -> FileExamples:
        """Some of them, evenly spaced: files may be sorted by class.

        Args:
            count: how many, at most all.

        Returns:
            Examples.
        """
        kept = spaced(count, len(self.y))
        return FileExamples(self.folder, self.training, self.rows[kept], self.y[kept], self.workers)


def spaced(count: int, of: int) -> Tensor:
    """Evenly spaced places.

    Args:
        count: how many, at most all.
        of: among how many.

    Returns:
        Ascending.

    Example:
        >>> spaced(3, 9)
        tensor([0, 3, 6])
    """
    count = min(count, of)
    return torch.arange(count) * of // max(count, 1)


def examples_of(
    data: Images | Folder, rows: Tensor | None = None, y: Tensor | None = None, workers: int = 0
) -> Examples:
    """Images to test on.

    Args:
        data: the data set.
        rows: which training images; None for the test images.
        y: labels of those; None for the data set's own.
        workers: processes that decode files.

    Returns:
        Examples.
    """
    if isinstance(data, Images):
        if rows is None:
            return StoredExamples(data.test_x, data.test_y, data.mean, data.std)
        labels = data.train_y[rows] if y is None else y
        return StoredExamples(data.train_x[rows], labels, data.mean, data.std)
    if rows is None:
        return FileExamples(data, False, torch.arange(len(data.test.y)), data.test.y, workers)
    return FileExamples(data, True, rows, data.train.y[rows] if y is None else y, workers)
