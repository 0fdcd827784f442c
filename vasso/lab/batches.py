"""Which samples come at a step? A function of the seed and the step, so there is nothing to save.

| batch        | what it is for                                            |
|--------------|-----------------------------------------------------------|
| `at`         | the batch of a step                                       |
| `other`      | an adversary's own batch, none of its images in the first |
| `drawn`      | a batch at random: what Entropy-SGD walks on              |
| `everything` | all images in chunks: a full gradient (SVRG, SARAH)       |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vasso.lab.data import order
from vasso.lab.pixels import Pixels
from vasso.randomness import mixed

Tensors = tuple[Tensor, Tensor, Tensor]
"""Images, labels, and their places among the images that are trained on."""


@dataclass(eq=False)
class Batches:
    """The training images of one process.

    Args:
        pixels: the images.
        y: their labels.
        size: images in a step, over all processes.
        seed: of the run.
        drop_last: leaves out a smaller batch at the end of an epoch.
        rank: of this process.
        world: how many processes there are.
        place: puts images on the device.

    Raises:
        ValueError: there are fewer images than in a batch, or fewer in it than processes.
    """

    pixels: Pixels
    y: Tensor
    size: int
    seed: int
    drop_last: bool = True
    rank: int = 0
    world: int = 1
    place: Callable[[Tensor], Tensor] = lambda x: x

    def __post_init__(self) -> None:
        if len(self.y) < self.size and self.drop_last:
            raise ValueError(
                f"a batch of {self.size} does not fit into {len(self.y)} training images: lower "
                "batch, or let smaller ones be by drop_last=false (--set drop_last=false, or "
                "--no-drop-last of `vasso train`)"
            )
        if self.size < self.world:
            raise ValueError(f"a batch of {self.size} cannot be shared by {self.world} processes")
        self._order = lru_cache(maxsize=2)(order)
        self._stream: tuple[int, Iterator[Tensor]] | None = None

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        whole, rest = divmod(len(self.y), self.size)
        return whole if self.drop_last or rest < self.world else whole + 1

    @property
    def samples(self) -> int:
        """How many images there are."""
        return len(self.y)

    @property
    def in_batches(self) -> float:
        """The same in batches."""
        return len(self.y) / self.size

    def amount(self, step: int) -> int:
        """Images in a step.

        Args:
            step: completed steps.

        Returns:
            Of this process.
        """
        return len(self._share(self._indices(step)))

    def at(self, step: int) -> Tensors:
        """The batch of a step.

        Args:
            step: completed steps.

        Returns:
            The share of this process.
        """
        places = self._share(self._indices(step))
        if not self.pixels.ahead_pays:
            return self._tensors(places, self.seed, step // self.per_epoch)
        if self._stream is None or self._stream[0] != step:
            self._stream = step, self._ahead(step)
        stream = self._stream[1]
        x = next(stream)
        last = step % self.per_epoch == self.per_epoch - 1
        self._stream = None if last else (step + 1, stream)
        return self._with_labels(x, places)

    def _ahead(self, step: int) -> Iterator[Tensor]:
        """The images of a step and of the others to the end of its epoch."""
        epoch = step // self.per_epoch
        steps = range(step, (epoch + 1) * self.per_epoch)
        places = [self._share(self._indices(s)) for s in steps]
        return self.pixels.stream(places, self.seed, epoch)

    def other(self, step: int, share: float) -> Tensors:
        """A batch for an adversary of its own: none of the step's images are in it.

        Args:
            step: completed steps.
            share: how large it is, of a batch.

        Returns:
            The share of this process.

        Raises:
            ValueError: there are not enough other images.
        """
        epoch, place = divmod(step, self.per_epoch)
        mine, wanted = self._indices(step), round(share * self.size)
        seed = mixed(self.seed, 1) >> 32
        rolled = self._order(len(self.y), seed, epoch).roll(-place * self.size)
        others = rolled[~torch.isin(rolled, mine)][:wanted]
        if len(others) < wanted:
            raise ValueError(
                f"another batch of {wanted} does not fit into {len(self.y)} training images beside "
                f"the batch of {len(mine)}: lower batch"
            )
        return self._tensors(self._share(others), seed, epoch)

    def drawn(self, step: int, number: int) -> Tensors:
        """A batch at random.

        Args:
            step: completed steps.
            number: which of the step's.

        Returns:
            The share of this process.
        """
        seed = mixed(self.seed, 2, step, number) >> 32
        chosen = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(seed))
        return self._tensors(self._share(chosen[: self.size]), seed, 0)

    def everything(self, epoch: int) -> Iterator[Tensors]:
        """All images, in chunks of a batch.

        Args:
            epoch: of the augmentation.

        Yields:
            The share of this process.
        """
        for chunk in torch.split(torch.arange(len(self.y)), self.size):
            if len(chunk) >= self.world:
                yield self._tensors(self._share(chunk), self.seed, epoch)

    def _indices(self, step: int) -> Tensor:
        epoch, place = divmod(step, self.per_epoch)
        return self._order(len(self.y), self.seed, epoch)[place * self.size :][: self.size]

    def _share(self, index: Tensor) -> Tensor:
        """Equal shares: a mean over processes is then the mean over the batch."""
        return index[: len(index) - len(index) % self.world][self.rank :: self.world]

    def _tensors(self, places: Tensor, seed: int, epoch: int) -> Tensors:
        return self._with_labels(next(self.pixels.stream([places], seed, epoch)), places)

    def _with_labels(self, x: Tensor, places: Tensor) -> Tensors:
        x = self.place(x)
        return x, self.y[places.to(self.y.device)].to(x.device), places.to(x.device)
