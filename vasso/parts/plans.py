"""Plans: which data the perturbation and its gradient are computed from.

| plan        | perturbation from       | gradient from                     | needs a `Batch` |
|-------------|-------------------------|-----------------------------------|-----------------|
| `Same`      | the batch               | the batch                         | no              |
| `Fraction`  | a half of the batch     | that half                         | yes             |
| `Chunks`    | each chunk of m samples | that chunk                        | yes             |
| `SubSample` | m samples of the batch  | the batch                         | yes             |
| `SelectTop` | the batch               | the samples whose loss rises most | yes             |

A plan divides the data of a step into shares; the step is the mean of the algorithm over them. A
perturbation from another batch needs no plan: `step(closure, ascent_closure=...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from vasso import validation
from vasso.numerics.rng import mix_seed
from vasso.parts.part import Part, Range

FORWARD = 1 / 3
"""Cost of a forward pass without backward, in gradients."""

Data: TypeAlias = Callable[[], Any]
"""A closure: zeroes the gradients, computes the loss, calls backward and returns the loss."""


@runtime_checkable
class Batch(Protocol):
    """A closure that gives access to single samples of its data."""

    def __call__(self) -> Any:
        """Zeroes the gradients, computes the mean loss, calls backward and returns the loss."""

    def __len__(self) -> int:
        """Number of samples."""

    def losses(self) -> Tensor:
        """The loss of each sample at the current weights, without gradients."""

    def subset(self, indices: Tensor) -> Batch:
        """The samples with these indices."""

    def split(self, m: int) -> Sequence[Batch]:
        """All samples in chunks of m; the last may have fewer."""


class Samples:
    """A `Batch` of tensors and a function that computes the loss of each sample.

    Args:
        zero_grad: clears the gradients: `opt.zero_grad`.
        losses_of: the tensors -> one loss for each sample, with gradients.
        *tensors: the data, each with the samples along its first dimension.

    Attributes:
        noted: the loss of each sample in the last call, so that no extra pass is needed for it.

    Raises:
        TypeError: one of the functions or all tensors are missing.
        ValueError: the tensors do not all have the same number of samples.

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
        """The samples with these indices."""
        return Samples(self.zero_grad, self.losses_of, *(t[indices] for t in self.tensors))

    def split(self, m: int) -> list[Samples]:
        """All samples in chunks of m; the last may have fewer."""
        columns = [torch.split(tensor, m) for tensor in self.tensors]
        return [Samples(self.zero_grad, self.losses_of, *row) for row in zip(*columns, strict=True)]


class Source(Protocol):
    """Gives methods data beyond the current batch."""

    def full(self) -> Data:
        """The closure of the whole training set."""

    def fresh(self) -> Data:
        """The closure of a new batch."""


@dataclass(frozen=True)
class PassData:
    """The data of one share of a step.

    Attributes:
        ascent: data for the perturbation.
        descent: data for the gradient at the perturbed weights.
        weight: weight of the share in the mean; the weights of a step sum to 1.
        alike: ascent and descent are different objects with the same data at w.
        partial: both are of the same batch, but the ascent gives only some of the gradients, and
            its forward pass serves the descent.
    """

    ascent: Data
    descent: Data
    weight: float = 1.0
    alike: bool = False
    partial: bool = False

    @property
    def same(self) -> bool:
        """Whether both are the same data at w."""
        return self.ascent is self.descent or self.alike

    @property
    def others(self) -> bool:
        """Whether the perturbation comes from data of its own."""
        return not (self.same or self.partial)


@dataclass(frozen=True)
class Plan(Part):
    """The data of a step.

    Attributes:
        needs_batch: a closure is not enough: the plan needs a `Batch`.
        takes: what `step` has to be given then.
        one_batch: perturbation and gradient belong to one batch, `ascent_closure` is refused.
        divides: there may be several shares.
        compares: the losses of a step are those of the same samples, at w and at w + epsilon.
    """

    needs_batch: ClassVar[bool] = False
    takes: ClassVar[type] = Batch
    one_batch: ClassVar[bool] = False
    divides: ClassVar[bool] = False
    compares: ClassVar[bool] = True

    def __call__(self, batch: Any, step: int) -> list[PassData]:
        """The shares of one step, at least one.

        Args:
            batch: the data of `step`, a `Batch` if the plan needs one.
            step: number of steps completed before.

        Returns:
            The shares.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Same(Plan):
    """The perturbation and its gradient come from the same batch."""

    def __call__(self, batch: Any, step: int) -> list[PassData]:
        return [PassData(batch, batch)]


@dataclass(frozen=True)
class Fraction(Plan):
    """Both passes are over the same random fraction of the batch; the rest is not used.

    Half of each batch makes a step of two passes cost as much as a plain one. A fraction of 1 is
    SAM. Without an adversary (rho = 0) the base gets the whole batch.

    Args:
        fraction: in (0, 1]; at least one sample is drawn.
        seed: seed of the choice, which is a function of seed, step and rank.
    """

    fraction: float = 0.5
    seed: int = 0

    needs_batch: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(above=0, most=1).check("fraction", self.fraction)

    def __call__(self, batch: Any, step: int) -> list[PassData]:
        count = max(1, round(self.fraction * len(batch)))
        if count < len(batch):
            rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
            batch = batch.subset(drawn(len(batch), count, self.seed, step, rank))
        return [PassData(batch, batch)]


@dataclass(frozen=True)
class Chunks(Plan):
    """A perturbation for each chunk of m samples; u is the mean over the chunks.

    m-sharpness, Foret et al., 2021; Andriushchenko and Flammarion, 2022. m = the batch is SAM.

    Args:
        m: samples in a chunk.
    """

    m: int = 32

    needs_batch: ClassVar[bool] = True
    divides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.count("m", self.m)

    def __call__(self, batch: Any, step: int) -> list[PassData]:
        chunks = batch.split(self.m)
        return [PassData(chunk, chunk, len(chunk) / len(batch)) for chunk in chunks]


@dataclass(frozen=True)
class SubSample(Plan):
    """The perturbation comes from m samples of the batch, its gradient from all of them.

    Args:
        m: number of samples, at most the size of the batch.
        seed: seed of the choice, which is a function of seed and step.
    """

    m: int = 32
    seed: int = 0

    needs_batch: ClassVar[bool] = True
    compares: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.count("m", self.m)

    def __call__(self, batch: Any, step: int) -> list[PassData]:
        if self.m >= len(batch):
            return [PassData(batch, batch)]
        return [PassData(batch.subset(drawn(len(batch), self.m, self.seed, step)), batch)]


def drawn(size: int, count: int, *seeds: int) -> Tensor:
    """`count` of `size` numbers in ascending order, a function of the seeds."""
    generator = torch.Generator().manual_seed(mix_seed(*seeds))
    return torch.randperm(size, generator=generator)[:count].sort().values


@dataclass(frozen=True)
class SelectTop(Plan):
    """Descends by the samples whose loss rises most at the perturbed weights.

    The sharpness-sensitive data selection of ESAM, Du et al., ICLR 2022: a share gamma of the batch
    by l_i(w + epsilon) - l_i(w). gamma = 1 is SAM.

    Args:
        gamma: share of the batch, in (0, 1].
    """

    gamma: float = 0.5

    needs_batch: ClassVar[bool] = True
    needs_clean: ClassVar[bool] = True  # for the losses at w
    compares: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(above=0, most=1).check("gamma", self.gamma)

    def __call__(self, batch: Any, step: int) -> list[PassData]:
        if self.gamma == 1:
            return [PassData(batch, batch)]
        top = _TopSamples(batch, self.gamma)
        return [PassData(top.at_w, top, alike=True)]


class _TopSamples:
    """The descent data: the samples whose loss rose most since `at_w` recorded it."""

    def __init__(self, batch: Any, gamma: float) -> None:
        self.batch, self.gamma = batch, gamma
        self.at_w = _LossRecorder(batch)
        self.count = max(1, round(gamma * len(batch)))
        self.cost = FORWARD + self.count / len(batch)

    def __call__(self) -> Any:
        rise = self.batch.losses() - self.at_w.losses
        return self.batch.subset(rise.topk(self.count).indices.sort().values)()


class _LossRecorder:
    """The ascent data: a batch that keeps the loss of each sample at w."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.losses: Any = None
        self.cost = 1.0

    def __len__(self) -> int:
        return len(self.batch)

    def subset(self, indices: Tensor) -> Any:
        """The samples with these indices."""
        return self.batch.subset(indices)

    def __call__(self) -> Any:
        return self.batch()

    def note(self) -> None:
        """Keeps the losses of the first pass; later passes are at other weights."""
        if self.losses is not None:
            return
        self.losses = getattr(self.batch, "noted", None)
        if self.losses is None:
            self.losses = self.batch.losses()
            self.cost = 1.0 + FORWARD
