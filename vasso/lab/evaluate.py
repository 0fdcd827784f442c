"""How good is a model? Loss and accuracy on images it has not been trained on.

Where asked, BatchNorm's statistics are estimated anew on training images first, and put back after:
a test never changes a training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from vasso.batchnorm import Statistics, evaluating
from vasso.lab.pixels import Examples


@torch.no_grad()
def score(
    model: nn.Module,
    examples: Examples,
    criterion: Callable[[Tensor, Tensor], Tensor],
    place: Callable[[Tensor], Tensor],
    rank: int = 0,
    world: int = 1,
) -> Tensor:
    """Sums over the examples of a process, to be added up over processes.

    Args:
        model: the model.
        examples: what it is tested on.
        criterion: the loss of each sample.
        place: puts images on the device.
        rank: of this process.
        world: how many share the work.

    Returns:
        The sum of losses, how many answers were right, how many examples there were; float64.
    """
    total = torch.zeros(3, dtype=torch.float64)
    with evaluating(model):
        for x, y in examples.chunks(rank, world):
            logits = model(place(x)).float()
            y = y.to(logits.device)
            right = (logits.argmax(dim=1) == y).sum()
            sums = torch.stack([criterion(logits, y).double().sum(), right.double()])
            total += torch.cat([sums, sums.new_tensor([len(y)])]).cpu()
    return total


@contextmanager
def reestimated(
    model: nn.Module, examples: Examples | None, place: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Inside, BatchNorm's statistics are those of some examples; afterwards they are the old.

    Args:
        model: the model.
        examples: of which; None leaves the statistics as they are.
        place: puts images on the device.

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
            update_bn((place(x) for x, _ in examples.chunks()), model)
        yield
    finally:
        statistics.put_back(before)
