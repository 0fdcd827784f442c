"""Batches of images: pixels in memory or in files, training batches, and images to test on.

A training batch is a function of the seed and the step, so nothing has to be saved.

| batch        | what it is for                                                     |
|--------------|--------------------------------------------------------------------|
| `at`         | the batch of a step                                                |
| `other`      | an adversary's own batch, which shares no image with that          |
| `drawn`      | a random batch, for the walk of Entropy-SGD                        |
| `everything` | all images in chunks, for a full gradient (SVRG, SARAH)            |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from vasso.lab.data import Augmentation, ImageFolder, Images, normalised, order, training_batches
from vasso.lab.data.image_folder import CentralCrop, DecodedFiles, decoded_batches
from vasso.lab.training.closures import Tensors, share_of_rank
from vasso.numerics.rng import mix_seed

CHUNK = 500
"""Images in a pass of a test, which stores no activations; more is not faster on a CPU."""


class Pixels(Protocol):
    """Training images; `reads_ahead` says that several batches should be asked for at a time."""

    reads_ahead: ClassVar[bool]

    def stream(self, positions: Sequence[Tensor], seed: int, epoch: int) -> Iterator[Tensor]:
        """Batches of augmented images, float32, by their positions among the training images.

        Seed and epoch are those of the augmentation.
        """


@dataclass(frozen=True, eq=False)
class PixelsInMemory:
    """Training images in memory, uint8; the augmentation depends on `rows`, their indices."""

    x: Tensor
    rows: Tensor
    augmentation: Augmentation
    mean: tuple[float, ...]
    std: tuple[float, ...]

    reads_ahead: ClassVar[bool] = False

    def stream(self, positions: Sequence[Tensor], seed: int, epoch: int) -> Iterator[Tensor]:
        for batch in positions:
            x, index = self.x[batch.to(self.x.device)], self.rows[batch].to(self.x.device)
            keys = {"seed": seed, "epoch": epoch}
            yield self.augmentation(x, index, mean=self.mean, std=self.std, **keys)


@dataclass(frozen=True, eq=False)
class PixelsOnDisk:
    """Training images in files, by their indices; decoded in worker processes."""

    folder: ImageFolder
    rows: Tensor
    augmentation: Augmentation
    workers: int = 0

    reads_ahead: ClassVar[bool] = True

    def stream(self, positions: Sequence[Tensor], seed: int, epoch: int) -> Iterator[Tensor]:
        """Batches as `Pixels` says; all of one size, but the last."""
        batches = training_batches(
            self.folder,
            self.rows[torch.cat(list(positions))],
            len(positions[0]),
            augmentation=self.augmentation,
            seed=seed,
            epoch=epoch,
            workers=self.workers if len(positions) > 1 else 0,
        )
        for x, _, _ in batches:
            yield x


@dataclass(eq=False)
class ImageBatches:
    """The training batches of the process `rank` of `world`; `size` is over all processes."""

    pixels: Pixels
    y: Tensor
    size: int
    seed: int
    drop_last: bool = True
    rank: int = 0
    world: int = 1
    to_device: Callable[[Tensor], Tensor] = lambda x: x

    def __post_init__(self) -> None:
        if len(self.y) < self.size and self.drop_last:
            raise ValueError(
                f"a batch of {self.size} does not fit into {len(self.y)} training images: lower "
                "batch, or allow a smaller batch with drop_last=false (--set drop_last=false, or "
                "--no-drop-last of `vasso train`)"
            )
        if self.size < self.world:
            raise ValueError(f"a batch of {self.size} cannot be shared by {self.world} processes")
        self._order = lru_cache(maxsize=2)(order)
        self._stream: tuple[int, Iterator[Tensor]] | None = None

    @property
    def per_epoch(self) -> int:
        whole, rest = divmod(len(self.y), self.size)
        return whole if self.drop_last or rest < self.world else whole + 1

    @property
    def samples(self) -> int:
        return len(self.y)

    @property
    def in_batches(self) -> float:
        return len(self.y) / self.size

    def amount(self, step: int) -> int:
        return len(share_of_rank(self, self._positions(step)))

    def at(self, step: int) -> Tensors:
        """The share of this process in the batch of a step."""
        positions = share_of_rank(self, self._positions(step))
        if not self.pixels.reads_ahead:
            return self._tensors(positions, self.seed, step // self.per_epoch)
        if self._stream is None or self._stream[0] != step:
            self._stream = step, self._rest_of_epoch(step)
        stream = self._stream[1]
        x = next(stream)
        last = step % self.per_epoch == self.per_epoch - 1
        self._stream = None if last else (step + 1, stream)
        return self._with_labels(x, positions)

    def _rest_of_epoch(self, step: int) -> Iterator[Tensor]:
        epoch = step // self.per_epoch
        steps = range(step, (epoch + 1) * self.per_epoch)
        positions = [share_of_rank(self, self._positions(s)) for s in steps]
        return self.pixels.stream(positions, self.seed, epoch)

    def other(self, step: int, share: float) -> Tensors:
        epoch, place = divmod(step, self.per_epoch)
        own, wanted = self._positions(step), round(share * self.size)
        seed = mix_seed(self.seed, 1) >> 32
        rolled = self._order(len(self.y), seed, epoch).roll(-place * self.size)
        others = rolled[~torch.isin(rolled, own)][:wanted]
        if len(others) < wanted:
            raise ValueError(
                f"another batch of {wanted} does not fit into {len(self.y)} training images "
                f"together with the batch of {len(own)}: lower batch"
            )
        return self._tensors(share_of_rank(self, others), seed, epoch)

    def drawn(self, step: int, number: int) -> Tensors:
        seed = mix_seed(self.seed, 2, step, number) >> 32
        chosen = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(seed))
        return self._tensors(share_of_rank(self, chosen[: self.size]), seed, 0)

    def everything(self, epoch: int) -> Iterator[Tensors]:
        """All images, in chunks of a batch, with the augmentation of an epoch."""
        for chunk in torch.split(torch.arange(len(self.y)), self.size):
            if len(chunk) >= self.world:
                yield self._tensors(share_of_rank(self, chunk), self.seed, epoch)

    def _positions(self, step: int) -> Tensor:
        epoch, place = divmod(step, self.per_epoch)
        return self._order(len(self.y), self.seed, epoch)[place * self.size :][: self.size]

    def _tensors(self, positions: Tensor, seed: int, epoch: int) -> Tensors:
        return self._with_labels(next(self.pixels.stream([positions], seed, epoch)), positions)

    def _with_labels(self, x: Tensor, positions: Tensor) -> Tensors:
        x = self.to_device(x)
        return x, self.y[positions.to(self.y.device)].to(x.device), positions.to(x.device)


class Examples(Protocol):
    """Images to test on."""

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised images and labels, those of one of `world` processes."""

    def some(self, count: int) -> Examples:
        """At most so many of them, evenly spaced: files may be sorted by class."""


@dataclass(frozen=True, eq=False)
class ExamplesInMemory:
    """Images in memory (uint8) to test on, with labels and statistics per channel."""

    x: Tensor
    y: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        mine = self.x[rank::world], self.y[rank::world]
        for x, y in zip(*(torch.split(t, CHUNK) for t in mine), strict=True):
            yield normalised(x, self.mean, self.std), y

    def some(self, count: int) -> ExamplesInMemory:
        kept = evenly_spaced(count, len(self.y)).to(self.x.device)
        return ExamplesInMemory(self.x[kept], self.y[kept], self.mean, self.std)


@dataclass(frozen=True, eq=False)
class ExamplesOnDisk:
    """Images in files to test on, by their indices: the central part of each.

    `training` says whether they are among the training files.
    """

    folder: ImageFolder
    training: bool
    rows: Tensor
    y: Tensor
    workers: int = 0

    def chunks(self, rank: int = 0, world: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        files = self.folder.train if self.training else self.folder.test
        mine, labels = self.rows[rank::world], torch.split(self.y[rank::world], CHUNK)
        pixels = decoded_batches(
            DecodedFiles(files.paths, CentralCrop(self.folder.size)), mine, CHUNK, self.workers
        )
        for (x, _), y in zip(pixels, labels, strict=True):
            yield normalised(x, self.folder.mean, self.folder.std), y

    def some(self, count: int) -> ExamplesOnDisk:
        kept = evenly_spaced(count, len(self.y))
        return ExamplesOnDisk(
            self.folder, self.training, self.rows[kept], self.y[kept], self.workers
        )


def evenly_spaced(count: int, of: int) -> Tensor:
    """At most so many ascending indices among `of`, evenly spaced."""
    count = min(count, of)
    return torch.arange(count) * of // max(count, 1)


def build_test_examples(data: Images | ImageFolder, workers: int = 0) -> Examples:
    if isinstance(data, Images):
        return ExamplesInMemory(data.test_x, data.test_y, data.mean, data.std)
    return ExamplesOnDisk(data, False, torch.arange(len(data.test.y)), data.test.y, workers)


def build_training_examples(
    data: Images | ImageFolder, rows: Tensor, y: Tensor | None = None, workers: int = 0
) -> Examples:
    """Training images to test on; labels other than those of the data set can be given."""
    if isinstance(data, Images):
        labels = data.train_y[rows] if y is None else y
        return ExamplesInMemory(data.train_x[rows], labels, data.mean, data.std)
    return ExamplesOnDisk(data, True, rows, data.train.y[rows] if y is None else y, workers)
