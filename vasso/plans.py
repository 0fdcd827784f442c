"""Which data where? A plan divides the data of a step into shares, each climbed by itself.

| plan        | adversary from        | gradient from            | needs a `Batch` |
|-------------|-----------------------|--------------------------|-----------------|
| `Same`      | the batch             | the batch                | no              |

The step is the mean of the algorithm over the shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from vasso.parts import Part

Data: TypeAlias = Callable[[], Any]
"""Zeroes the gradients, computes the loss, calls backward and returns the loss: a closure."""


@runtime_checkable
class Batch(Protocol):
    """A closure that can tell more of its data than the mean loss."""

    def __call__(self) -> Any:
        """Zeroes the gradients, computes the mean loss, calls backward and returns the loss."""

    def __len__(self) -> int:
        """How many samples it holds."""

    def losses(self) -> Tensor:
        """The loss of each sample at the current weights, without gradients."""

    def subset(self, indices: Tensor) -> Batch:
        """Some of its samples.

        Args:
            indices: which.
        """

    def split(self, m: int) -> Sequence[Batch]:
        """All of its samples in chunks.

        Args:
            m: samples in a chunk; the last may have fewer.
        """


class Samples:
    """A `Batch` made of tensors and a function that gives the loss of each sample.

    Args:
        zero_grad: clears the gradients: `opt.zero_grad`.
        losses_of: the tensors -> one loss for each sample, with gradients.
        *tensors: the data, each with the samples along its first dimension.

    Example:
        >>> w = torch.tensor(2.0, requires_grad=True)
        >>> opt = torch.optim.SGD([w], lr=0.1)
        >>> batch = Samples(opt.zero_grad, lambda x: w * x, torch.arange(4.0))
        >>> len(batch), batch().item(), w.grad.item()
        (4, 3.0, 1.5)
        >>> batch.subset(torch.tensor([3])).losses()
        tensor([6.])
    """

    def __init__(
        self, zero_grad: Callable[[], None], losses_of: Callable[..., Tensor], *tensors: Tensor
    ) -> None:
        self.zero_grad, self.losses_of, self.tensors = zero_grad, losses_of, tensors
        sizes = {len(tensor) for tensor in tensors}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"tensors of a batch must have one length above 0, got {sizes}")

    def __call__(self) -> Tensor:
        self.zero_grad()
        losses = self.losses_of(*self.tensors)
        if losses.shape != (len(self),):
            raise ValueError(
                f"losses_of must give one loss for each of {len(self)} samples, got shape "
                f'{tuple(losses.shape)}: use reduction="none"'
            )
        loss = losses.mean()
        torch.autograd.backward(loss)
        return loss

    def __len__(self) -> int:
        return len(self.tensors[0])

    @torch.no_grad()
    def losses(self) -> Tensor:
        """The loss of each sample at the current weights."""
        return self.losses_of(*self.tensors)

    def subset(self, indices: Tensor) -> Samples:
        """Some of the samples.

        Args:
            indices: which.

        Returns:
            A batch of them.
        """
        return Samples(self.zero_grad, self.losses_of, *(t[indices] for t in self.tensors))

    def split(self, m: int) -> list[Samples]:
        """All samples in chunks.

        Args:
            m: samples in a chunk; the last may have fewer.

        Returns:
            The chunks in order.
        """
        columns = [torch.split(tensor, m) for tensor in self.tensors]
        return [Samples(self.zero_grad, self.losses_of, *row) for row in zip(*columns, strict=True)]


class Source(Protocol):
    """Where methods get data from that are not in the batch at hand."""

    def full(self) -> Any:
        """Zeroes the gradients and leaves those of the whole training set; returns the loss."""

    def fresh(self) -> Data:
        """The closure of a batch that has not been used yet."""


@dataclass(frozen=True)
class Share:
    """A part of a step's data.

    Attributes:
        up: what the adversary is found with.
        down: what its gradient is taken of.
        weight: how much it counts in the mean; the weights of a step add up to 1.
    """

    up: Data
    down: Data
    weight: float = 1.0


@dataclass(frozen=True)
class Plan(Part):
    """Which data where?

    Attributes:
        needs_batch: a closure is not enough: the plan wants to see samples.
    """

    needs_batch: ClassVar[bool] = False

    def __call__(self, batch: Any, step: int) -> list[Share]:
        """The shares of one step.

        Args:
            batch: the descent data, a `Batch` if the plan needs one.
            step: how many steps have been completed before.

        Returns:
            At least one share.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Same(Plan):
    """The adversary and its gradient come from the same batch."""

    def __call__(self, batch: Any, step: int) -> list[Share]:
        return [Share(batch, batch)]
