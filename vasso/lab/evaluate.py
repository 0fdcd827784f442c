"""How good is a model? Loss and accuracy on images it has not been trained on.

Where asked, BatchNorm's statistics are estimated anew on training images first, and put back after:
a test never changes a training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from vasso.batchnorm import Statistics, evaluating
from vasso.lab.data import normalised

CHUNK = 500
"""Images in a pass; a test holds no activations, and larger chunks are not faster on a CPU."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Images to test on, as they are stored.

    Args:
        x: images, uint8.
        y: labels.
        mean: per channel.
        std: per channel.
        place: puts images on the device.
    """

    x: Tensor
    y: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    place: Callable[[Tensor], Tensor] = lambda x: x

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
            images = self.place(normalised(x, self.mean, self.std))
            yield images, y.to(images.device)

    def some(self, count: int) -> Examples:
        """Some of them, evenly spaced: files may be sorted by class.

        Args:
            count: how many, at most all.

        Returns:
            Examples.
        """
        count = min(count, len(self.y))
        kept = torch.arange(count) * len(self.y) // count
        kept = kept.to(self.x.device)
        return Examples(self.x[kept], self.y[kept], self.mean, self.std, self.place)


@torch.no_grad()
def score(
    model: nn.Module,
    examples: Examples,
    criterion: Callable[[Tensor, Tensor], Tensor],
    rank: int = 0,
    world: int = 1,
) -> Tensor:
    """Sums over the examples of a process, to be added up over processes.

    Args:
        model: the model.
        examples: what it is tested on.
        criterion: the loss of each sample.
        rank: of this process.
        world: how many share the work.

    Returns:
        The sum of losses, how many answers were right, how many examples there were; float64.
    """
    total = torch.zeros(3, dtype=torch.float64)
    with evaluating(model):
        for x, y in examples.chunks(rank, world):
            logits = model(x).float()
            right = (logits.argmax(dim=1) == y).sum()
            sums = torch.stack([criterion(logits, y).double().sum(), right.double()])
            total += torch.cat([sums, sums.new_tensor([len(y)])]).cpu()
    return total


@contextmanager
def reestimated(model: nn.Module, examples: Examples | None) -> Iterator[None]:
    """Inside, BatchNorm's statistics are those of some examples; afterwards they are the old.

    Args:
        model: the model.
        examples: of which; None leaves the statistics as they are.

    Yields:
        Nothing.
    """
    if examples is None:
        yield
        return
    statistics = Statistics(model)
    before = statistics.copy()
    try:
        with torch.random.fork_rng(devices=[]):
            update_bn((x for x, _ in examples.chunks()), model)
        yield
    finally:
        statistics.put_back(before)
