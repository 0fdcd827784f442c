"""What does the loss look like around a solution, and between two of them?

Directions are Gaussian and depend on a seed, the place and the shape of each tensor alone, so
networks of one architecture share them whatever trained them. Each filter is then given the length
of the weights' own (Li et al., 2018): otherwise a network with large weights would look flat.
BatchNorm is in evaluation mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vasso.diagnostics.batches import samples_in
from vasso.diagnostics.passes import LossFn, OfModel, loss_of, plain, untouched
from vasso.diagnostics.products import Array
from vasso.randomness import mixed
from vasso.vectors import Vector


@dataclass(frozen=True)
class Slice:
    """Losses along a line.

    Attributes:
        at: how far, in units of the direction; 0 is the solution, or the first of two.
        losses: the mean loss there.
        errors: standard error of that mean, the batches taken as a sample of all data; NaN for one.
        samples: how many samples each mean is over.
    """

    at: Array
    losses: Array
    errors: Array
    samples: int

    @property
    def barrier(self) -> float:
        """The most by which the loss exceeds the straight line between its ends; at least 0."""
        first, last = self.at[0], self.at[-1]
        share = (self.at - first) / (last - first)
        line = (1 - share) * self.losses[0] + share * self.losses[-1]
        return float(np.max(self.losses - line))

    def row(self) -> dict[str, float]:
        """One line of a table.

        Returns:
            Ends, lowest, highest and barrier.
        """
        named = {"first": self.losses[0], "last": self.losses[-1], "lowest": self.losses.min()}
        named |= {"highest": self.losses.max(), "largest_error": self.errors.max()}
        told = {name: float(value) for name, value in named.items()}
        return {**told, "barrier": self.barrier, "samples": self.samples}


@dataclass(frozen=True)
class Surface:
    """Losses over a plane.

    Attributes:
        across: how far along the first direction.
        along: how far along the second.
        losses: (across, along), the mean loss there.
        errors: standard errors of these, over batches.
        samples: how many samples each mean is over.
    """

    across: Array
    along: Array
    losses: Array
    errors: Array
    samples: int

    def row(self) -> dict[str, float]:
        """One line of a table.

        Returns:
            Lowest and highest loss, the largest error, samples.
        """
        told = {"lowest": float(self.losses.min()), "highest": float(self.losses.max())}
        return {**told, "largest_error": float(self.errors.max()), "samples": self.samples}


def direction(model: nn.Module, seed: int) -> Vector:
    """A random direction, filter by filter as long as the weights: d_j <- d_j ||w_j|| / ||d_j||.

    A filter is what makes one output: a row of the tensor. Biases and scales of norms, which have
    one dimension, stay at 0.

    Args:
        model: the network at its solution.
        seed: the same seed gives networks of one architecture the same direction, before lengths.

    Returns:
        A tensor for each parameter.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> d, none = direction(model, seed=0)
        >>> torch.allclose(d.norm(dim=1), model.weight.norm(dim=1)), none.tolist()
        (True, [0.0, 0.0])
    """
    return [_filters(p.detach(), mixed(seed, i)) for i, p in enumerate(plain(model).parameters())]


def _filters(w: Tensor, seed: int) -> Tensor:
    if w.dim() < 2:
        return torch.zeros_like(w)
    luck = torch.Generator().manual_seed(seed)
    d = torch.randn(w.shape, generator=luck, dtype=torch.float32).to(w)
    shape = (-1, *[1] * (w.dim() - 1))
    lengths, wanted = d.flatten(1).norm(dim=1), w.flatten(1).norm(dim=1)
    scaled: Tensor = d * (wanted / lengths.clamp_min(1e-10)).view(shape)
    return scaled


def slice_1d(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    *,
    seed: int = 0,
    at: Sequence[float] | Array | None = None,
) -> Slice:
    """f(w + a d) along a direction; nothing is touched.

    Args:
        model: the network at its solution.
        loss_fn: its loss, the mean over samples.
        batches: read once.
        seed: of the direction.
        at: values of a; None: 51 from -1 to 1.

    Returns:
        Losses with their errors.

    Raises:
        ValueError: there are fewer than two values, or no batches.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> nn.init.constant_(model.weight, 1.0) is model.weight
        True
        >>> batches = [(torch.ones(1, 1), torch.zeros(1, 1))]  # the loss is w^2, and |d| = |w|
        >>> slice_1d(model, nn.MSELoss(), batches, at=[-1, 0, 1]).losses.round(4).tolist()
        [4.0, 1.0, 0.0]
    """
    steps = _steps("at", at)
    home, d = _home(model), direction(model, seed)
    rows = _losses(model, loss_fn, batches, [partial(_moved, home, [(a, d)]) for a in steps])
    return Slice(steps, *rows)


def slice_2d(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    *,
    seeds: tuple[int, int] = (0, 1),
    across: Sequence[float] | Array | None = None,
    along: Sequence[float] | Array | None = None,
) -> Surface:
    """f(w + a d + b e) over two directions; nothing is touched.

    Args:
        model: the network at its solution.
        loss_fn: its loss, the mean over samples.
        batches: read once.
        seeds: of the two directions.
        across: values of a; None: 51 from -1 to 1.
        along: values of b; None: the same.

    Returns:
        Losses with their errors.

    Raises:
        ValueError: the seeds are equal, there are fewer than two values, or no batches.

    Example:
        >>> model = nn.Linear(4, 2)
        >>> batches = [(torch.ones(3, 4), torch.zeros(3, 2))]
        >>> found = slice_2d(model, nn.MSELoss(), batches, across=[-1, 0, 1], along=[0, 1])
        >>> found.losses.shape, found.samples
        ((3, 2), 3)
    """
    if seeds[0] == seeds[1]:
        raise ValueError(f"seeds must differ, or the plane is a line, got {seeds}")
    a, b = _steps("across", across), _steps("along", along)
    home, d, e = _home(model), direction(model, seeds[0]), direction(model, seeds[1])
    places = [partial(_moved, home, [(i, d), (j, e)]) for i in a for j in b]
    losses, errors, samples = _losses(model, loss_fn, batches, places)
    shape = (len(a), len(b))
    return Surface(a, b, losses.reshape(shape), errors.reshape(shape), samples)


def interpolation(
    model: nn.Module,
    start: Mapping[str, Tensor],
    end: Mapping[str, Tensor],
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    *,
    at: Sequence[float] | Array | None = None,
) -> Slice:
    """f((1 - a) w_start + a w_end) between two solutions; nothing is touched.

    BatchNorm's running statistics are interpolated like weights; counters are those of the start.

    Args:
        model: a network of their architecture.
        start: its `state_dict` at one solution.
        end: at the other.
        loss_fn: its loss, the mean over samples.
        batches: read once.
        at: values of a; None: 51 from 0 to 1.

    Returns:
        Losses with their errors; `barrier` is what is asked of it most.

    Raises:
        ValueError: the two differ in names or shapes, there are fewer than two values, or no
            batches.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> start, end = {"weight": -torch.ones(1, 1)}, {"weight": torch.ones(1, 1)}
        >>> def loss(out, y):  # minima at w = -1 and w = 1
        ...     return (out.square() - 1).square().mean()
        >>> found = interpolation(model, start, end, loss, [(torch.ones(1, 1), torch.zeros(1))])
        >>> round(found.barrier, 4)
        1.0
    """
    mine = plain(model).state_dict()
    for name, state in (("start", start), ("end", end)):
        odd = sorted(k for k in mine.keys() | state.keys() if _shape(mine, k) != _shape(state, k))
        if odd:
            raise ValueError(f"{name} does not fit the model at {odd[0]!r}: pass its state_dict()")
    steps = np.linspace(0, 1, 51) if at is None else _steps("at", at)

    def between(a: float) -> list[tuple[Tensor, Tensor]]:
        mixable = [key for key in mine if mine[key].is_floating_point()]
        return [(mine[key], torch.lerp(start[key], end[key], float(a))) for key in mixable]

    places = [partial(between, a) for a in steps]
    return Slice(steps, *_losses(model, loss_fn, batches, places))


def _shape(state: Mapping[str, Tensor], key: str) -> tuple[int, ...] | None:
    return tuple(state[key].shape) if key in state else None


def _steps(name: str, at: Sequence[float] | Array | None) -> Array:
    steps = np.linspace(-1, 1, 51) if at is None else np.asarray(at, dtype=np.float64)
    if steps.ndim != 1 or len(steps) < 2:
        raise ValueError(f"{name} must hold at least two numbers, got {at}")
    return steps


def _home(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(p.data, p.data.clone()) for p in plain(model).parameters()]


def _moved(
    home: list[tuple[Tensor, Tensor]], ways: list[tuple[float, Vector]]
) -> list[tuple[Tensor, Tensor]]:
    """Each tensor, and what it is to hold at home + sum of steps along the ways."""
    values = [value.clone() for _, value in home]
    for step, way in ways:
        torch._foreach_add_(values, way, alpha=float(step))
    return [(tensor, value) for (tensor, _), value in zip(home, values, strict=True)]


def _losses(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    places: Sequence[Callable[[], list[tuple[Tensor, Tensor]]]],
) -> tuple[Array, Array, int]:
    """Mean loss and its standard error at each place, and the number of samples."""
    model, kept = plain(model), list(batches)
    if not kept:
        raise ValueError("batches is empty: a landscape needs at least one batch")
    sizes = np.array([samples_in(batch) for batch in kept], dtype=np.float64)
    found = []
    for place in places:
        with untouched(model), torch.no_grad():
            model.eval()
            for tensor, value in place():
                tensor.copy_(value)
            torch.clear_autocast_cache()
            found.append([float(loss_of(model, loss_fn, batch)) for batch in kept])
    return *_weighted(np.array(found), sizes), int(sizes.sum())


def _weighted(each: Array, sizes: Array) -> tuple[Array, Array]:
    share = sizes / sizes.sum()
    means = each @ share
    if len(sizes) == 1:
        return means, np.full_like(means, math.nan)
    spread = ((each - means[:, None]) ** 2) @ share**2
    return means, np.sqrt(spread * len(sizes) / (len(sizes) - 1))
