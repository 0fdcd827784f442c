"""Which data where? A plan divides the data of a step into shares, each climbed by itself.

| plan        | adversary from          | gradient from                     | needs a `Batch` |
|-------------|-------------------------|-----------------------------------|-----------------|
| `Same`      | the batch               | the batch                         | no              |
| `Chunks`    | each chunk of m samples | that chunk                        | yes             |
| `SubSample` | m samples of the batch  | the batch                         | yes             |
| `SelectTop` | the batch               | the samples whose loss rises most | yes             |

An adversary from a batch of its own needs no plan: `step(closure, ascent_closure=...)`.

The step is the mean of the algorithm over the shares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from vasso import checks
from vasso.parts import Part, Range
from vasso.randomness import mixed

FORWARD = 1 / 3
"""What a forward pass without backward costs, in gradients."""

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

    Attributes:
        noted: the loss of each sample in the last call, which saves a pass to who wants to know.

    Raises:
        TypeError: one of the functions or all tensors are missing.
        ValueError: the tensors have not all the same number of samples.

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
        self.noted: Tensor | None = None
        if not (callable(zero_grad) and callable(losses_of) and tensors):
            given = ", ".join(type(x).__name__ for x in (zero_grad, losses_of, *tensors))
            raise TypeError(
                "Samples takes zero_grad, losses_of and tensors, for example "
                f"Samples(opt.zero_grad, losses_of, x, y), got ({given})"
            )
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
        self.noted = losses.detach()
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

    def full(self) -> Data:
        """The closure of the whole training set."""

    def fresh(self) -> Data:
        """The closure of a batch that has not been used yet."""


@dataclass(frozen=True)
class Share:
    """A part of a step's data.

    Attributes:
        up: what the adversary is found with.
        down: what its gradient is taken of.
        weight: how much it counts in the mean; the weights of a step add up to 1.
        alike: though other objects, they are the same data at w.
    """

    up: Data
    down: Data
    weight: float = 1.0
    alike: bool = False

    @property
    def same(self) -> bool:
        """Whether at w both are the same data."""
        return self.up is self.down or self.alike


@dataclass(frozen=True)
class Plan(Part):
    """Which data where?

    Attributes:
        needs_batch: a closure is not enough: the plan wants to see samples.
        divides: there may be several shares.
    """

    needs_batch: ClassVar[bool] = False
    divides: ClassVar[bool] = False

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


@dataclass(frozen=True)
class Chunks(Plan):
    """Every chunk of m samples has an adversary of its own: u is the mean over the chunks.

    m-sharpness, Foret et al., 2021; Andriushchenko and Flammarion, 2022. m = the batch is SAM.

    Args:
        m: samples in a chunk.
    """

    m: int = 32

    needs_batch: ClassVar[bool] = True
    divides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("m", self.m)

    def __call__(self, batch: Any, step: int) -> list[Share]:
        chunks = batch.split(self.m)
        return [Share(chunk, chunk, len(chunk) / len(batch)) for chunk in chunks]


@dataclass(frozen=True)
class SubSample(Plan):
    """The adversary comes from m samples of the batch, its gradient from all: another m-sharpness.

    Args:
        m: how many, at most the batch has.
        seed: of the choice, which is a function of seed and step.
    """

    m: int = 32
    seed: int = 0

    needs_batch: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("m", self.m)

    def __call__(self, batch: Any, step: int) -> list[Share]:
        if self.m >= len(batch):
            return [Share(batch, batch)]
        luck = torch.Generator().manual_seed(mixed(self.seed, step))
        chosen = torch.randperm(len(batch), generator=luck)[: self.m]
        return [Share(batch.subset(chosen.sort().values), batch)]


@dataclass(frozen=True)
class SelectTop(Plan):
    """Descends by the samples whose loss rises most at the adversary.

    The sharpness-sensitive data selection of ESAM, Du et al., ICLR 2022: a share gamma of the batch
    by l_i(w + epsilon) - l_i(w). gamma = 1 is SAM.

    Args:
        gamma: share of the batch, in (0, 1].
    """

    gamma: float = 0.5

    needs_batch: ClassVar[bool] = True
    needs_clean: ClassVar[bool] = True  # rises are counted from the losses at w

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(above=0, most=1).check("gamma", self.gamma)

    def __call__(self, batch: Any, step: int) -> list[Share]:
        if self.gamma == 1:
            return [Share(batch, batch)]
        top = _Top(batch, self.gamma)
        return [Share(top.at_w, top, alike=True)]


class _Top:
    """A batch whose losses at w are noted, then its top samples at w + epsilon."""

    def __init__(self, batch: Any, gamma: float) -> None:
        self.batch, self.gamma = batch, gamma
        self.at_w = _Noted(batch)
        self.count = max(1, round(gamma * len(batch)))
        self.cost = FORWARD + self.count / len(batch)

    def __call__(self) -> Any:
        rise = self.batch.losses() - self.at_w.losses
        return self.batch.subset(rise.topk(self.count).indices.sort().values)()


class _Noted:
    """A batch that notes the loss of each sample where it is called."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.losses: Any = None
        self.cost = 1.0

    def __len__(self) -> int:
        return len(self.batch)

    def subset(self, indices: Tensor) -> Any:
        """Some of the samples."""
        return self.batch.subset(indices)

    def __call__(self) -> Any:
        return self.batch()

    def note(self) -> None:
        """Notes the losses of the pass just made; a later pass is one at other weights."""
        if self.losses is not None:
            return
        self.losses = getattr(self.batch, "noted", None)
        if self.losses is None:
            self.losses = self.batch.losses()
            self.cost = 1.0 + FORWARD
