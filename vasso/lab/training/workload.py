"""Workload: what a run trains on. Images and sentences implement the same protocol.

`Training` uses this protocol alone; it does not know what it trains on.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from vasso.lab.experiment.method import MethodConfig
from vasso.lab.experiment.task import Task
from vasso.lab.training.closures import Tensors
from vasso.lab.training.images import ImageWorkload
from vasso.lab.training.sentences import SentenceWorkload, trained_weights
from vasso.lab.training.setup import load_data
from vasso.lab.translation.pairs import Texts


class Batches(Protocol):
    """Training batches of one of `world` processes, functions of the seed and the step."""

    world: int

    @property
    def per_epoch(self) -> int:
        """Steps of an epoch."""

    @property
    def samples(self) -> int:
        """The number of training samples."""

    @property
    def in_batches(self) -> float:
        """The number of training samples, in batches."""

    def amount(self, step: int) -> int:
        """The number of images, or of pieces of sentences, of this process in a step."""

    def at(self, step: int) -> Tensors:
        """The batch of a step."""

    def other(self, step: int, share: float) -> Tensors:
        """A batch for an adversary, with no sample of the step; `share` is its relative size."""

    def drawn(self, step: int, number: int) -> Tensors:
        """The random batch of this number in a step."""

    def everything(self, epoch: int) -> Iterator[Tensors]:
        """All samples in chunks."""


class Workload(Protocol):
    """The data of a run, its model and losses, and how it is tested.

    `data_digest` is that of the data as they were read. `unit` is what `Batches.amount` counts. By
    the examples of `validation`, None for none, an epoch is chosen. `training_examples`, by name,
    are samples that are tested after the last step.
    """

    unit: ClassVar[str]
    data_digest: str
    wrong_share: float
    batches: Any  # `Batches`
    test: Any
    validation: Any
    held_out: Any
    training_examples: dict[str, Any]

    def build_model(self, device: torch.device) -> nn.Module:
        """The model with fresh weights, to be moved to a device."""

    def build_method_loss(self, method: MethodConfig, model: nn.Module) -> Any:
        """The loss of a method that is a loss; None for other methods."""

    def prepare_batches(
        self, device: torch.device, dtype: torch.dtype, rank: int, world: int
    ) -> None:
        """Prepare the batches of one of `world` processes."""

    def hold_out(self, count: int) -> None:
        """Take so many samples out of the training into `held_out`, before `prepare_batches`."""

    def outputs(self, model: nn.Module, *tensors: Tensor) -> Tensor:
        """What the model makes of a batch."""

    def losses_of(self, outputs: Tensor, *tensors: Tensor) -> Tensor:
        """One loss for each sample of a batch; their mean is the loss of the batch."""

    def test_statistics(self, model: nn.Module, reestimate: bool) -> AbstractContextManager[None]:
        """A context with the BatchNorm statistics of tests, re-estimated if asked."""

    def loss_sums(self, model: nn.Module, examples: Any, rank: int = 0, world: int = 1) -> Tensor:
        """Sums over the examples of a process, to be added up over processes."""

    def scores(self, name: str, sums: Tensor) -> dict[str, float]:
        """The scores of such sums; their names begin with `name`."""

    def validation_score(self, scores: Mapping[str, Any]) -> float:
        """The score by which the best epoch is chosen; more is better."""

    def tables(self) -> dict[str, dict[str, Any]]:
        """Files, by name, to be stored with the weights."""


def load_workload(
    task: Task, seed: int, data_root: Path | None = None, workers: int = 0
) -> Workload:
    """Load the data of a task; `workers` processes decode image files."""
    data = load_data(task, seed, data_root)
    if isinstance(data, Texts):
        trained = trained_weights(task, data_root) if task.pretrain else None
        return SentenceWorkload(task, data, seed, trained)
    return ImageWorkload(task, data, seed, workers)
