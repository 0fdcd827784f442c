"""Whom does the adversary of a step hurt? Its own batch, and others that it has not seen.

    own    = f_B(w + epsilon) - f_B(w)       on the batch of the step
    others = f_B'(w + epsilon) - f_B'(w)     on the first batches of the same epoch

It looks at the last step of an epoch: by then an averaged slope has forgotten the first batches.
Nothing of the training is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vasso.diagnostics.passes import OfModel, objective
from vasso.diagnostics.probe import vectors_of
from vasso.diagnostics.radius import Adversary, rises_of
from vasso.lab.batches import Tensors
from vasso.optimizer import SharpnessAware
from vasso.records import StepRecord


class Onlooker:
    """Looks at one step's adversary, if there is one.

    Args:
        model: the model.
        losses: a model and a batch -> the loss of each sample.
        batches: where other batches come from.
        count: how many other batches.
    """

    def __init__(
        self, model: nn.Module, losses: Callable[..., Tensor], batches: Any, count: int
    ) -> None:
        self.model, self.batches = model, batches
        self.count = min(count, batches.per_epoch // 2)
        self.loss = OfModel(lambda model, batch: losses(model, *batch).mean())

    def at(
        self, step: int, optimizer: Any, batch: tuple[Tensor, ...], take: Callable[[], Any]
    ) -> Any:
        """Takes a step and looks at it, if it is the last of its epoch.

        Args:
            step: completed steps.
            optimizer: whose step it is; only a `SharpnessAware` has an adversary to look at.
            batch: of the step.
            take: takes the step.

        Returns:
            What `take` returned, and what was seen: None if there was no adversary.
        """
        place = step % self.batches.per_epoch
        last = place == self.batches.per_epoch - 1
        if not (last and self.count and isinstance(optimizer, SharpnessAware)):
            return take(), None
        seen: list[dict[str, Any]] = []
        others = [self.batches.at(step - place + i) for i in range(self.count)]
        handle = optimizer.observe(lambda record: seen.extend(self._look(record, batch, others)))
        try:
            return take(), next(iter(seen), None)
        finally:
            handle.remove()

    def _look(
        self, record: StepRecord, batch: tuple[Tensor, ...], others: list[Tensors]
    ) -> list[dict[str, Any]]:
        """The rises, and the cosines and norms of the step's vectors."""
        if record.epsilon is None:
            return []
        vectors = vectors_of(record)
        settings: dict[str, Any] = {"batchnorm": "batch", "dropout": True}
        with (
            torch.no_grad(),
            objective(self.model, self.loss, params=record.params, **settings) as f,
        ):
            here = Adversary(list(record.epsilon), batch)
            rises = rises_of(f, [here], others, [vectors["epsilon_norm"] or 0.0])
        own, rest = float(rises.own[0, 0]), [float(x) for x in rises.others[0, :, 0]]
        return [{"own": own, "others": rest, **vectors}]
