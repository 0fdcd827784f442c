"""Measurements during training: running sums, the adversary of a step, the signal-to-noise ratio.

`AdversaryHook` evaluates the adversary of the last step of an epoch:

    own    = f_B(w + epsilon) - f_B(w)       on the batch of the step
    others = f_B'(w + epsilon) - f_B'(w)     on the first batches of the same epoch

By then an averaged slope has forgotten the first batches. `SnrHook` measures

    SNR = ||grad f||^2 / E||g_B - grad f||^2     at the weights before the first step of an epoch

on random batches of its own, with the augmentation, batch statistics and dropout of training.
Neither changes the training.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vasso.diagnostics.adversary.radius import Adversary, rises_of
from vasso.diagnostics.adversary.snr import snr
from vasso.diagnostics.passes import OfModel, objective
from vasso.diagnostics.probe import vectors_of
from vasso.lab.training.closures import Tensors
from vasso.optimizer import SharpnessAware
from vasso.records import StepRecord, StepSummary

FIRST_DRAW = 1 << 20
"""Numbers of the random batches of the SNR begin here, above those that methods draw."""


@dataclass
class RunningSums:
    """Sums over the steps of the epoch and of the run; adding does not synchronise the device.

    `seconds` are without tests and checkpoints. `samples` are images, or pieces of sentences.
    `rises` counts the steps that perturbed and computed both losses, `rise` sums their rises.
    """

    loss: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    steps: int = 0
    seconds: float = 0.0
    samples: int = 0
    run_seconds: float = 0.0
    run_samples: int = 0
    rise: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    rises: int = 0

    def add(self, loss: Tensor, samples: int, seconds: float) -> None:
        self.loss = self.loss.to(loss.device) + loss.detach().double()
        self.steps += 1
        self.seconds += seconds
        self.run_seconds += seconds
        self.samples += samples
        self.run_samples += samples

    def add_rise(self, last: StepSummary | None) -> None:
        """Add the rise of the loss from w to the adversary, if the optimizer knows both losses."""
        if last is None or not last.climbed or last.loss_at != "w" or last.perturbed_loss is None:
            return
        rise = (last.perturbed_loss - last.loss).detach().double()
        self.rise = self.rise.to(rise.device) + rise
        self.rises += 1

    def next_epoch(self) -> None:
        self.loss, self.steps, self.seconds, self.samples = torch.zeros_like(self.loss), 0, 0.0, 0
        self.rise, self.rises = torch.zeros_like(self.rise), 0


class AdversaryHook:
    """Evaluates the adversary of the last step of an epoch on `count` other batches."""

    def __init__(
        self, model: nn.Module, losses: Callable[..., Tensor], batches: Any, count: int
    ) -> None:
        self.model, self.batches = model, batches
        self.count = min(count, batches.per_epoch // 2)
        self.loss = OfModel(lambda model, batch: losses(model, *batch).mean())

    def around(
        self, step: int, optimizer: Any, batch: tuple[Tensor, ...], take_step: Callable[[], Any]
    ) -> tuple[Any, dict[str, Any] | None]:
        """The result of `take_step`, and the measurement: None at most steps.

        Only a `SharpnessAware` optimizer has an adversary.
        """
        position = step % self.batches.per_epoch
        is_last = position == self.batches.per_epoch - 1
        if not (is_last and self.count and isinstance(optimizer, SharpnessAware)):
            return take_step(), None
        measured: list[dict[str, Any]] = []
        others = [self.batches.at(step - position + i) for i in range(self.count)]
        handle = optimizer.observe(
            lambda record: measured.extend(self._measure(record, batch, others))
        )
        try:
            return take_step(), next(iter(measured), None)
        finally:
            handle.remove()

    def _measure(
        self, record: StepRecord, batch: tuple[Tensor, ...], others: list[Tensors]
    ) -> list[dict[str, Any]]:
        """The rises, and the cosines and norms of the step's vectors; empty without adversary."""
        if record.epsilon is None:
            return []
        vectors = vectors_of(record)
        settings: dict[str, Any] = {"batchnorm": "batch", "dropout": True}
        with (
            torch.no_grad(),
            objective(self.model, self.loss, params=record.params, **settings) as f,
        ):
            adversary = Adversary(list(record.epsilon), batch)
            rises = rises_of(f, [adversary], others, [vectors["epsilon_norm"] or 0.0])
        own, rest = float(rises.own[0, 0]), [float(x) for x in rises.others[0, :, 0]]
        return [{"own": own, "others": rest, **vectors}]


class SnrHook:
    """Measures the signal-to-noise ratio before each epoch, on `count` batches; 0 for never.

    `autocast` gives the precision of the training's passes.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: OfModel,
        batches: Any,
        count: int,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        if count and batches.world > 1:
            raise ValueError("the SNR is measured in one process: use snr=0 or devices=1")

        def in_precision(model: nn.Module, batch: Any) -> Tensor:
            with autocast():
                return loss.loss(model, batch)

        self.model, self.loss, self.batches = model, OfModel(in_precision), batches
        self.count = count

    def before(self, step: int) -> dict[str, Any] | None:
        """The SNR with its interval as a row, if this step is the first of its epoch."""
        if not self.count or step % self.batches.per_epoch:
            return None
        drawn = (self.batches.drawn(step, FIRST_DRAW + i) for i in range(self.count))
        return snr(self.model, self.loss, drawn).row()
