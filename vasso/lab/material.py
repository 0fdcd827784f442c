"""What is a batch, what is its loss, how is it scored? Images and sentences answer, each in a way.

`Training` asks these questions and no others; it does not know what it trains on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from vasso.lab.batches import Tensors
from vasso.lab.methods import Method
from vasso.lab.pictures import Pictures
from vasso.lab.tasks import Task
from vasso.lab.translation.pairs import Texts
from vasso.lab.translation.sentences import Sentences


class Drawn(Protocol):
    """Batches of training data, each a function of the seed and the step.

    Attributes:
        world: how many processes share a batch.
    """

    world: int

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""

    @property
    def samples(self) -> int:
        """How many samples there are."""

    @property
    def in_batches(self) -> float:
        """The same in batches."""

    def amount(self, step: int) -> int:
        """Images or pieces of sentences in a step of this process."""

    def at(self, step: int) -> Tensors:
        """The batch of a step."""

    def other(self, step: int, share: float) -> Tensors:
        """Another one for an adversary, with none of its samples."""

    def drawn(self, step: int, number: int) -> Tensors:
        """One at random."""

    def everything(self, epoch: int) -> Iterator[Tensors]:
        """All samples in chunks."""


class Material(Protocol):
    """What a run is about.

    Attributes:
        unit: what is counted.
        realised: the share of labels that is wrong.
        batches: to train on; there once it has settled.
        test: to test on.
        validation: to choose an epoch by, None for none.
        taught: name -> training samples that are scored after the last step.
    """

    unit: ClassVar[str]
    realised: float
    batches: Any  # `Drawn`
    test: Any
    validation: Any
    taught: dict[str, Any]

    def build_model(self, device: torch.device) -> nn.Module:
        """The model with fresh weights, to be put on a device."""

    def own_loss(self, method: Method, model: nn.Module) -> Any:
        """The loss of a method that is one; None for others."""

    def settle(self, device: torch.device, dtype: torch.dtype, rank: int, world: int) -> None:
        """Makes the batches of a process, of all that share the work."""

    def losses(self, model: nn.Module, *tensors: Tensor) -> Tensor:
        """One loss for each sample of a batch; their mean is the loss of the batch."""

    def statistics(self, model: nn.Module, anew: bool) -> AbstractContextManager[None]:
        """Inside, BatchNorm's statistics are those that tests use; estimated anew if asked."""

    def sums(self, model: nn.Module, examples: Any, rank: int = 0, world: int = 1) -> Tensor:
        """Sums over the examples of a process, to be added up over processes."""

    def told(self, name: str, sums: Tensor) -> dict[str, float]:
        """What the sums say; the keys begin with the name."""

    def worth(self, found: Mapping[str, Any]) -> float:
        """How good an epoch is by validation; more is better."""

    def tables(self) -> dict[str, dict[str, Any]]:
        """File -> what the weights are of no use without, to be kept beside them."""


def material_of(task: Task, seed: int, root: Any = None, workers: int = 0) -> Material:
    """Loads what a task is about.

    Args:
        task: the task.
        seed: of the run.
        root: where data are.
        workers: processes that decode image files.

    Returns:
        Images or sentences.
    """
    data = task.load(seed, root)
    if isinstance(data, Texts):
        return Sentences(task, data, seed)
    return Pictures(task, data, seed, workers)
