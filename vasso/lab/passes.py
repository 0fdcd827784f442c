"""What does an optimizer call? The closure of a batch, of a fresh one, of all the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vasso.lab.batches import Tensors


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
        batches: of training data.
        closure_of: a batch -> its closure.

    Attributes:
        step: the step under way; to be set before it begins.
    """

    def __init__(self, batches: Any, closure_of: Callable[[Tensors], Pass]) -> None:
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
    """The mean gradient over all training data, taken in chunks.

    Args:
        source: where they are.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.cost = source.batches.in_batches

    def __call__(self) -> Tensor:
        batches = self.source.batches
        total = torch.zeros(())
        for first, tensors in enumerate(batches.everything(self.source.step // batches.per_epoch)):
            chunk = self.source.closure_of(tensors)
            if not first:
                chunk.zero_grad()
            share = len(chunk) * batches.world / batches.samples
            loss = chunk.loss() * share
            chunk.backward(loss)
            total = total.to(loss.device) + loss.detach()
        return total
