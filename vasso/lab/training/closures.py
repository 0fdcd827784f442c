"""Closures for the optimizer: of a batch, of a random batch, of all training data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""A batch: images, labels and their positions in the training set; or source, target, weights."""


def share_of_rank(batches: Any, rows: Tensor) -> Tensor:
    """An equal share for each process: a mean over processes is the mean over the batch."""
    return rows[: len(rows) - len(rows) % batches.world][batches.rank :: batches.world]


class BatchClosure:
    """The closure of a batch, which can also compute the loss of each sample; a `vasso.Batch`.

    `losses_of` computes one loss for each sample. `mean_of` computes the loss of the batch where
    that is not their mean. `noted` holds the losses of the last call, as in `vasso.Samples`: ESAM
    needs no extra pass for them. A call takes `micro` samples at a time and adds up their gradients
    if that is not 0; `unsynchronised` is a context for all of these passes but the last.
    """

    def __init__(
        self,
        losses_of: Callable[..., Tensor],
        zero_grad: Callable[[], None],
        backward: Callable[[Tensor], Any],
        tensors: tuple[Tensor, ...],
        mean_of: Callable[..., Tensor] | None = None,
        micro: int = 0,
        unsynchronised: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.losses_of, self.zero_grad, self.backward = losses_of, zero_grad, backward
        self.tensors, self.mean_of = tensors, mean_of
        self.micro, self.unsynchronised = micro, unsynchronised
        self.noted: Tensor | None = None

    def __call__(self) -> Tensor:
        self.zero_grad()
        if 0 < self.micro < len(self):
            return self._accumulated()
        loss = self.loss()
        self.backward(loss)
        return loss

    def _accumulated(self) -> Tensor:
        """The loss of the batch; its gradient is the sum of those of micro-batches."""
        parts = self.split(self.micro)
        shares: list[Tensor] = []
        for part in parts:
            with nullcontext() if part is parts[-1] else self.unsynchronised():
                share = part.loss() * (len(part) / len(self))
                self.backward(share)
            shares.append(share.detach())
        if all(part.noted is not None for part in parts):
            self.noted = torch.cat([part.noted for part in parts if part.noted is not None])
        return torch.stack(shares).sum()

    def loss(self) -> Tensor:
        if self.mean_of is not None:
            return self.mean_of(*self.tensors)
        losses = self.losses_of(*self.tensors)
        self.noted = losses.detach()
        return losses.mean()

    def __len__(self) -> int:
        return len(self.tensors[0])

    @torch.no_grad()
    def losses(self) -> Tensor:
        return self.losses_of(*self.tensors)

    def subset(self, indices: Tensor) -> BatchClosure:
        return self._with(tuple(t[indices.to(t.device)] for t in self.tensors))

    def split(self, m: int) -> list[BatchClosure]:
        """All samples in order, in chunks of m; the last may be smaller."""
        columns = [torch.split(tensor, m) for tensor in self.tensors]
        return [self._with(row) for row in zip(*columns, strict=True)]

    def _with(self, tensors: tuple[Tensor, ...]) -> BatchClosure:
        more = self.mean_of, self.micro, self.unsynchronised
        return BatchClosure(self.losses_of, self.zero_grad, self.backward, tensors, *more)


class DataSource:
    """Data beyond the batch of the step, for the methods that need it; a `vasso.Source`."""

    def __init__(self, batches: Any, closure_of: Callable[[Tensors], BatchClosure]) -> None:
        self.batches, self.closure_of = batches, closure_of
        self.step, self._count = 0, 0

    def begin(self, step: int) -> None:
        """Begin the step after so many completed ones: its random batches depend on it."""
        self.step, self._count = step, 0

    def fresh(self) -> BatchClosure:
        self._count += 1
        return self.closure_of(self.batches.drawn(self.step, self._count))

    def full(self) -> FullClosure:
        return FullClosure(self)


class FullClosure:
    """The mean loss and gradient over all training data, computed in chunks."""

    def __init__(self, source: DataSource) -> None:
        self.source = source
        self.cost = source.batches.in_batches

    def __call__(self) -> Tensor:
        batches = self.source.batches
        total = torch.zeros(())
        for number, tensors in enumerate(batches.everything(self.source.step // batches.per_epoch)):
            chunk = self.source.closure_of(tensors)
            if not number:
                chunk.zero_grad()
            share = len(chunk) * batches.world / batches.samples
            loss = chunk.loss() * share
            chunk.backward(loss)
            total = total.to(loss.device) + loss.detach()
        return total
