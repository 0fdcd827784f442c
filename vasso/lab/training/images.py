"""Workload of images: batches of pixels and labels, a loss for each image, accuracy."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from vasso.engine.batchnorm import BatchNormStatistics, evaluating
from vasso.lab.data import ImageFolder, Images
from vasso.lab.experiment.method import MethodConfig
from vasso.lab.experiment.task import Task
from vasso.lab.training.image_batches import (
    Examples,
    ImageBatches,
    Pixels,
    PixelsInMemory,
    PixelsOnDisk,
    build_test_examples,
    build_training_examples,
)
from vasso.lab.training.setup import build_criterion, build_image_model, split_images
from vasso.numerics.rng import mix_seed

MAX_BYTES_ON_DEVICE = 2 << 30
"""Training images of no more bytes are kept on the GPU."""
MAX_TRAINING_EXAMPLES = 10_000
"""Training images that are tested after the last step, unless the task tests on fewer."""


class ImageWorkload:
    """The images of a task; see `Workload`. `workers` processes decode files."""

    unit: ClassVar[str] = "images"
    batches: ImageBatches
    validation: Examples | None = None

    def __init__(self, task: Task, data: Images | ImageFolder, seed: int, workers: int = 0) -> None:
        self.task, self.seed, self.workers = task, seed, workers
        side = data.train_x.shape[2] if isinstance(data, Images) else data.size
        task.check_image_size(side, in_files=isinstance(data, ImageFolder))
        self.split = split_images(task, data, seed)
        self.wrong_share = self.split.wrong_share
        self.data_digest = data.digest
        self.criterion = build_criterion(task)
        self.held_out: Examples | None = None

    def build_model(self, device: torch.device) -> nn.Module:
        """The model with fresh weights, for this device but not on it."""
        model = build_image_model(self.task, self.split.data, self.seed)
        self.has_convolutions = any(isinstance(m, nn.Conv2d) for m in model.modules())
        if self.has_convolutions and device.type == "cpu" and "bf16" in self.task.precision:
            warn_of_slow_bf16()
        if self.has_convolutions:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def build_method_loss(self, method: MethodConfig, model: nn.Module) -> Any:
        def mean_loss(logits: Tensor, y: Tensor) -> Tensor:
            return self.criterion(logits, y).mean()

        samples, classes = len(self.split.train), self.split.data.classes
        return method.build_loss(model, samples, classes, mean_loss)

    def prepare_batches(
        self, device: torch.device, dtype: torch.dtype, rank: int, world: int
    ) -> None:
        self.device, self.dtype = device, dtype
        task, split, workers = self.task, self.split, self.workers
        self.batches = ImageBatches(
            self._pixels(),
            split.y,
            size=task.batch,
            seed=self.seed,
            drop_last=task.drop_last,
            rank=rank,
            world=world,
            to_device=self._to_device,
        )
        trained = build_training_examples(split.data, split.train, split.y, workers)
        self.statistics_examples = trained.some(task.reestimate or len(split.y))
        self.training_examples = self._training_examples(trained)
        self.test = build_test_examples(split.data, workers)
        if task.test_size is not None:
            self.test = self.test.some(task.test_size)
        if split.validation is not None:
            self.validation = build_training_examples(split.data, split.validation, workers=workers)

    def _training_examples(self, trained: Examples) -> dict[str, Any]:
        split = self.split
        most = self.task.test_size or MAX_TRAINING_EXAMPLES
        examples: dict[str, Any] = {"training": trained.some(min(most, len(split.y)))}
        wrong = split.wrong[:most]
        if len(wrong):
            rows, y = split.train[wrong], split.y[wrong]
            examples["wrong"] = build_training_examples(split.data, rows, y, self.workers)
        return examples

    def _pixels(self) -> Pixels:
        """Training images: on the device if they are small, in files if they are very large."""
        data, rows, augmentation = self.split.data, self.split.train, self.task.augmentation
        if not isinstance(data, Images):
            return PixelsOnDisk(data, rows, augmentation, self.workers)
        x = data.train_x[rows]
        if x.numel() <= MAX_BYTES_ON_DEVICE:
            x = x.to(self.device)
        return PixelsInMemory(x, rows, augmentation, data.mean, data.std)

    def _to_device(self, x: Tensor) -> Tensor:
        x = x.to(self.device, self.dtype, non_blocking=True)
        return x.contiguous(memory_format=torch.channels_last) if self.has_convolutions else x

    def hold_out(self, count: int) -> None:
        """Take random training images out of the training, with the labels they have there."""
        if not count:
            return
        split, size = self.split, len(self.split.y)
        if count >= size:
            raise ValueError(f"{count} images to set rho cannot be held out of {size}")
        generator = torch.Generator().manual_seed(mix_seed(self.seed, count))
        order = torch.randperm(size, generator=generator)
        out, kept = order[:count].sort().values, order[count:].sort().values
        wrong = torch.isin(kept, split.wrong).nonzero().flatten()
        y, train = split.y[kept], split.train[kept]
        self.held_out = build_training_examples(split.data, split.train[out], split.y[out])
        self.split = replace(split, train=train, y=y, wrong=wrong)

    def outputs(self, model: nn.Module, *tensors: Tensor) -> Tensor:
        logits: Tensor = model(tensors[0])
        return logits

    def losses_of(self, outputs: Tensor, *tensors: Tensor) -> Tensor:
        return self.criterion(outputs, tensors[1])

    def test_statistics(self, model: nn.Module, reestimate: bool) -> AbstractContextManager[None]:
        wanted = self.statistics_examples if reestimate or self.task.reestimate else None
        return reestimated_statistics(model, wanted, self._to_device)

    def loss_sums(
        self, model: nn.Module, examples: Examples, rank: int = 0, world: int = 1
    ) -> Tensor:
        return loss_sums(model, examples, self.criterion, self._to_device, rank, world)

    def scores(self, name: str, sums: Tensor) -> dict[str, float]:
        """Mean loss, and accuracy in %."""
        loss, correct, count = map(float, sums)
        return {f"{name}_loss": loss / count, f"{name}_accuracy": 100 * correct / count}

    def validation_score(self, scores: Mapping[str, Any]) -> float:
        return float(scores["validation_accuracy"])

    def tables(self) -> dict[str, dict[str, Any]]:
        """No files: the weights are enough."""
        return {}


@torch.no_grad()
def loss_sums(
    model: nn.Module,
    examples: Examples,
    criterion: Callable[[Tensor, Tensor], Tensor],
    to_device: Callable[[Tensor], Tensor],
    rank: int = 0,
    world: int = 1,
) -> Tensor:
    """Sums of losses, correct answers and images over the examples of a process; float64."""
    total = torch.zeros(3, dtype=torch.float64)
    with evaluating(model):
        for x, y in examples.chunks(rank, world):
            logits = model(to_device(x)).float()
            y = y.to(logits.device)
            correct = (logits.argmax(dim=1) == y).sum()
            sums = torch.stack([criterion(logits, y).double().sum(), correct.double()])
            total += torch.cat([sums, sums.new_tensor([len(y)])]).cpu()
    return total


@contextmanager
def reestimated_statistics(
    model: nn.Module, examples: Examples | None, to_device: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Estimate BatchNorm's statistics on some examples; afterwards they are restored.

    So a test never changes the training. None leaves the statistics as they are.
    """
    if examples is None:
        yield
        return
    statistics = BatchNormStatistics(model)
    before = statistics.copy()
    try:
        estimate_statistics(model, examples, to_device)
        yield
    finally:
        statistics.put_back(before)


def estimate_statistics(
    model: nn.Module, examples: Examples, to_device: Callable[[Tensor], Tensor]
) -> None:
    """Set BatchNorm's statistics to those of some examples; random numbers are not consumed."""
    with torch.random.fork_rng(devices=[]):
        update_bn((to_device(x) for x, _ in examples.chunks()), model)


def warn_of_slow_bf16() -> None:
    """Warn if the processor has no convolutions in bfloat16."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        warnings.warn(
            "this processor has no bfloat16 convolutions, torch's own are several times "
            'slower: use precision="32-true"',
            stacklevel=2,
        )
