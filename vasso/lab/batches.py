"""Which samples come at a step? A function of the seed and the step, so there is nothing to save.

| batch      | what it is for                                            |
|------------|-----------------------------------------------------------|
| `at`       | the batch of a step                                       |
| `other`    | an adversary's own batch, none of its images in the first |
| `drawn`    | a batch at random: what Entropy-SGD walks on              |
| `everything` | all images in chunks: a full gradient (SVRG, SARAH)     |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vasso.lab.data import Augmentation, order
from vasso.randomness import mixed

Tensors = tuple[Tensor, Tensor, Tensor]
"""Images, labels and which training images they are."""


@dataclass(eq=False)
class Batches:
    """The training images of one process.

    Args:
        x: images, uint8.
        y: labels.
        augmentation: what is done to them.
        mean: per channel.
        std: per channel.
        size: images in a step, over all processes.
        seed: of the run.
        drop_last: leaves out a smaller batch at the end of an epoch.
        rank: of this process.
        world: how many processes there are.
        place: puts images on the device.

    Raises:
        ValueError: there are fewer images than in a batch, or fewer in it than processes.
    """

    x: Tensor
    y: Tensor
    augmentation: Augmentation
    mean: tuple[float, ...]
    std: tuple[float, ...]
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
                "batch, or set drop_last=false"
            )
        if self.size < self.world:
            raise ValueError(f"a batch of {self.size} cannot be shared by {self.world} processes")
        self._order = lru_cache(maxsize=2)(order)

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""
        whole, rest = divmod(len(self.y), self.size)
        return whole if self.drop_last or rest < self.world else whole + 1

    def at(self, step: int) -> Tensors:
        """The batch of a step.

        Args:
            step: completed steps.

        Returns:
            The share of this process.
        """
        epoch = step // self.per_epoch
        return self._tensors(self._share(self._indices(step)), self.seed, epoch)

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

    def _tensors(self, index: Tensor, seed: int, epoch: int) -> Tensors:
        where = index.to(self.x.device)
        x = self.augmentation(
            self.x[where], where, seed=seed, epoch=epoch, mean=self.mean, std=self.std
        )
        x = self.place(x)
        return x, self.y[where].to(x.device), index.to(x.device)


class Pass:
    """The closure of a batch, which can show its samples; a `vasso.Batch`.

    Args:
        losses_of: images, labels, indices -> one loss for each sample, with gradients.
        zero_grad: clears the gradients.
        backward: of the host.
        tensors: the batch.
        mean_of: the loss of the batch, where it is not the mean over the samples.
    """

    def __init__(
        self,
        losses_of: Callable[..., Tensor],
        zero_grad: Callable[[], None],
        backward: Callable[[Tensor], Any],
        tensors: tuple[Tensor, ...],
        mean_of: Callable[..., Tensor] | None = None,
    ) -> None:
        self.losses_of, self.zero_grad, self.backward = losses_of, zero_grad, backward
        self.tensors, self.mean_of = tensors, mean_of
        self.noted: Tensor | None = None

    def __call__(self) -> Tensor:
        self.zero_grad()
        loss = self.loss()
        self.backward(loss)
        return loss

    def loss(self) -> Tensor:
        """The loss of the batch, with gradients."""
        if self.mean_of is not None:
            return self.mean_of(*self.tensors)
        losses = self.losses_of(*self.tensors)
        self.noted = losses.detach()
        return losses.mean()

    def __len__(self) -> int:
        return len(self.tensors[0])

    @torch.no_grad()
    def losses(self) -> Tensor:
        """The loss of each sample at the current weights."""
        return self.losses_of(*self.tensors)

    def subset(self, indices: Tensor) -> Pass:
        """Some of the samples.

        Args:
            indices: which.

        Returns:
            A batch of them.
        """
        return self._like(tuple(t[indices.to(t.device)] for t in self.tensors))

    def split(self, m: int) -> list[Pass]:
        """All samples in chunks.

        Args:
            m: samples in a chunk; the last may have fewer.

        Returns:
            The chunks in order.
        """
        columns = [torch.split(tensor, m) for tensor in self.tensors]
        return [self._like(row) for row in zip(*columns, strict=True)]

    def _like(self, tensors: tuple[Tensor, ...]) -> Pass:
        return Pass(self.losses_of, self.zero_grad, self.backward, tensors, self.mean_of)


class Source:
    """Data beyond the batch at hand, for the methods that need it; a `vasso.Source`.

    Args:
        batches: the training images.
        closure_of: a batch -> its closure.

    Attributes:
        step: the step under way; to be set before it begins.
    """

    def __init__(self, batches: Batches, closure_of: Callable[[Tensors], Pass]) -> None:
        self.batches, self.closure_of = batches, closure_of
        self.step, self._number = 0, 0

    def begin(self, step: int) -> None:
        """Tells which step is under way.

        Args:
            step: completed steps.
        """
        self.step, self._number = step, 0

    def fresh(self) -> Pass:
        """The closure of a batch drawn at random."""
        self._number += 1
        return self.closure_of(self.batches.drawn(self.step, self._number))

    def full(self) -> Everything:
        """The closure of the whole training set."""
        return Everything(self)


class Everything:
    """The mean gradient over all training images, taken in chunks.

    Args:
        source: where they are.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.cost = len(source.batches.y) / source.batches.size

    def __call__(self) -> Tensor:
        batches = self.source.batches
        total = torch.zeros(())
        for first, tensors in enumerate(batches.everything(self.source.step // batches.per_epoch)):
            chunk = self.source.closure_of(tensors)
            if not first:
                chunk.zero_grad()
            share = len(chunk) * batches.world / len(batches.y)
            loss = chunk.loss() * share
            chunk.backward(loss)
            total = total.to(loss.device) + loss.detach()
        return total
