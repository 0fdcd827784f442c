"""Images to train on: batches of pixels and labels, a loss for each, accuracy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vasso.lab.batches import Batches
from vasso.lab.data import Folder, Images
from vasso.lab.evaluate import reestimated, score
from vasso.lab.methods import Method
from vasso.lab.pixels import Examples, InMemory, OnDisk, Pixels, examples_of
from vasso.lab.tasks import Task

IN_MEMORY = 2 << 30
"""Images of no more bytes than this are kept on the GPU."""

ENOUGH = 10_000
"""How many training images are looked at after the last step, unless the task tests on fewer."""


class Pictures:
    """The images of a task.

    Args:
        task: what is learnt.
        data: the images.
        seed: of the run.
        workers: processes that decode files.

    Attributes:
        realised: the share of labels that is wrong.
        batches: to train on.
        test: to test on.
        validation: to choose an epoch by, None for none.
        taught: images that were trained on, "wrong" those whose label was made wrong.
        seen: images by which BatchNorm's statistics are estimated anew.
    """

    unit: ClassVar[str] = "images"
    batches: Batches
    validation: Examples | None = None

    def __init__(self, task: Task, data: Images | Folder, seed: int, workers: int = 0) -> None:
        self.task, self.seed, self.workers = task, seed, workers
        task.check_pictures(data.train_x.shape[2] if isinstance(data, Images) else data.size)
        self.prepared = task.split(data, seed)
        self.realised = self.prepared.realised
        self.criterion = task.criterion

    def build_model(self, device: torch.device) -> nn.Module:
        """The model with fresh weights.

        Args:
            device: where it is going to be.

        Returns:
            The model.
        """
        model = self.task.build_model(self.prepared.data, self.seed)
        self.convolves = any(isinstance(m, nn.Conv2d) for m in model.modules())
        if self.convolves and device.type == "cpu" and "bf16" in self.task.precision:
            warn_of_slow_bf16()
        if self.convolves:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def own_loss(self, method: Method, model: nn.Module) -> Any:
        """The loss of a method that is one.

        Args:
            method: the method.
            model: the model.

        Returns:
            A module; None for other methods.
        """
        samples, classes = len(self.prepared.train), self.prepared.data.classes
        return method.build_loss(model, samples, classes, partial(_mean, self.criterion))

    def settle(self, device: torch.device, dtype: torch.dtype, rank: int, world: int) -> None:
        """Makes the batches of a process, and what is tested on.

        Args:
            device: where they go.
            dtype: of the images.
            rank: of the process.
            world: how many processes there are.
        """
        self.device, self.dtype = device, dtype
        task, prepared, workers = self.task, self.prepared, self.workers
        self.batches = Batches(
            self._pixels(),
            prepared.y,
            size=task.batch,
            seed=self.seed,
            drop_last=task.drop_last,
            rank=rank,
            world=world,
            place=self._place,
        )
        seen = examples_of(prepared.data, prepared.train, prepared.y, workers)
        self.seen = seen.some(task.reestimate or len(prepared.y))
        self.taught = self._taught(seen)
        self.test = examples_of(prepared.data, workers=workers)
        if task.test_size is not None:
            self.test = self.test.some(task.test_size)
        if prepared.validation is not None:
            self.validation = examples_of(prepared.data, prepared.validation, workers=workers)

    def _taught(self, seen: Examples) -> dict[str, Any]:
        prepared = self.prepared
        enough = self.task.test_size or ENOUGH
        taught: dict[str, Any] = {"training": seen.some(min(enough, len(prepared.y)))}
        misled = prepared.misled[:enough]
        if len(misled):
            rows, y = prepared.train[misled], prepared.y[misled]
            taught["wrong"] = examples_of(prepared.data, rows, y, self.workers)
        return taught

    def _pixels(self) -> Pixels:
        """Training images: small data sets live on the GPU, the largest in files."""
        data, rows, augmentation = self.prepared.data, self.prepared.train, self.task.augmentation
        if not isinstance(data, Images):
            return OnDisk(data, rows, augmentation, self.workers)
        x = data.train_x[rows]
        if x.numel() <= IN_MEMORY:
            x = x.to(self.device)
        return InMemory(x, rows, augmentation, data.mean, data.std)

    def _place(self, x: Tensor) -> Tensor:
        x = x.to(self.device, self.dtype, non_blocking=True)
        return x.contiguous(memory_format=torch.channels_last) if self.convolves else x

    def losses(self, model: nn.Module, *tensors: Tensor) -> Tensor:
        """One loss for each image.

        Args:
            model: the model.
            *tensors: images, labels, and whatever else a batch has.

        Returns:
            Losses.
        """
        return self.criterion(model(tensors[0]), tensors[1])

    def statistics(self, model: nn.Module, anew: bool) -> AbstractContextManager[None]:
        """Inside, BatchNorm's statistics are those that tests use.

        Args:
            model: the model.
            anew: estimates them even if the task does not ask for it.

        Returns:
            A context; afterwards they are the old.
        """
        wanted = self.seen if anew or self.task.reestimate else None
        return reestimated(model, wanted, self._place)

    def sums(self, model: nn.Module, examples: Examples, rank: int = 0, world: int = 1) -> Tensor:
        """Loss, right answers and count.

        Args:
            model: the model.
            examples: what it is tested on.
            rank: of this process.
            world: how many share the work.

        Returns:
            The sums of this process.
        """
        return score(model, examples, self.criterion, self._place, rank, world)

    def told(self, name: str, sums: Tensor) -> dict[str, float]:
        """Mean loss, and accuracy in %.

        Args:
            name: of the examples.
            sums: over all of them.

        Returns:
            Both.
        """
        loss, right, count = map(float, sums)
        return {f"{name}_loss": loss / count, f"{name}_accuracy": 100 * right / count}

    def worth(self, found: Mapping[str, Any]) -> float:
        """Accuracy on validation images.

        Args:
            found: what was told.

        Returns:
            In %.
        """
        return float(found["validation_accuracy"])

    def tables(self) -> dict[str, dict[str, Any]]:
        """The weights say it all.

        Returns:
            Nothing.
        """
        return {}


def warn_of_slow_bf16() -> None:
    """Warns where a processor has no convolutions in bfloat16."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        warnings.warn(
            "this processor has no bfloat16 convolutions, torch's own are several times "
            'slower: use precision="32-true"',
            stacklevel=2,
        )


def _mean(criterion: Any, logits: Tensor, y: Tensor) -> Tensor:
    found: Tensor = criterion(logits, y).mean()
    return found
