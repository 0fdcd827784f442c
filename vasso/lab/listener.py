"""How much of a batch's gradient is signal, as training goes? Measured where an epoch begins.

    SNR = ||grad f||^2 / E||g_B - grad f||^2     at the weights before the first step of the epoch

It is measured on batches drawn at random for the purpose, with the augmentation, the batch
statistics and the dropout of training. Nothing of the training is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from vasso.diagnostics.passes import OfModel
from vasso.diagnostics.snr import snr

FIRST = 1 << 20
"""Batches drawn for measuring are counted from here, apart from those that methods draw."""


class Listener:
    """Measures the signal-to-noise ratio before the first step of each epoch.

    Args:
        model: the model, as it is in one process.
        loss: the mean loss of a batch.
        batches: where batches come from.
        count: of how many the gradients are taken; 0 for no measurement.
        autocast: gives the precision of training's passes.

    Raises:
        ValueError: there are several processes.
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

        def cast(model: nn.Module, batch: Any) -> Tensor:
            with autocast():
                return loss.loss(model, batch)

        self.model, self.loss, self.batches, self.count = model, OfModel(cast), batches, count

    def at(self, step: int) -> dict[str, Any] | None:
        """Measures, if this step is the first of its epoch.

        Args:
            step: completed steps.

        Returns:
            The SNR with its interval, as a row; None if it was not measured.
        """
        if not self.count or step % self.batches.per_epoch:
            return None
        drawn = (self.batches.drawn(step, FIRST + i) for i in range(self.count))
        return snr(self.model, self.loss, drawn).row()
