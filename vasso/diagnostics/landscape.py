"""The loss landscape around a solution, and on the straight line between two solutions.

Directions are Gaussian and depend only on a seed and on the index and shape of each tensor, so
networks of one architecture share them. Each filter is then scaled to the length of the filter of
the weights (Li et al., 2018): otherwise a network with large weights would look flat. BatchNorm is
in evaluation mode.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vasso.diagnostics.batches import batch_list, samples_in
from vasso.diagnostics.estimates import Array
from vasso.diagnostics.passes import LossFn, OfModel, loss_of, untouched, unwrapped
from vasso.numerics.rng import mix_seed
from vasso.numerics.vectors import Vector


@dataclass(frozen=True)
class Slice:
    """Losses along a line.

    Attributes:
        at: positions in units of the direction; 0 is the solution, or the first of two.
        losses: mean losses at these.
        errors: standard errors over batches, as a sample of all data; NaN for a single batch.
        samples: number of samples in each mean.
    """

    at: Array
    losses: Array
    errors: Array
    samples: int

    @property
    def barrier(self) -> float:
        """The largest height of the loss above the straight line between its ends; at least 0."""
        first, last = self.at[0], self.at[-1]
        share = (self.at - first) / (last - first)
        line = (1 - share) * self.losses[0] + share * self.losses[-1]
        return float(np.max(self.losses - line))

    def row(self) -> dict[str, float]:
        """One row of a table: column -> value."""
        named = {"first": self.losses[0], "last": self.losses[-1], "lowest": self.losses.min()}
        named |= {"highest": self.losses.max(), "largest_error": self.errors.max()}
        numbers = {name: float(value) for name, value in named.items()}
        return {**numbers, "barrier": self.barrier, "samples": self.samples}


@dataclass(frozen=True)
class Surface:
    """Losses over a plane.

    Attributes:
        across: positions along the first direction.
        along: positions along the second direction.
        losses: mean losses, (across, along).
        errors: their standard errors over batches.
        samples: number of samples in each mean.
    """

    across: Array
    along: Array
    losses: Array
    errors: Array
    samples: int

    def row(self) -> dict[str, float]:
        """One row of a table: column -> value."""
        ends = {"lowest": float(self.losses.min()), "highest": float(self.losses.max())}
        return {**ends, "largest_error": float(self.errors.max()), "samples": self.samples}


def direction(model: nn.Module, seed: int) -> Vector:
    """A random direction with filters as long as those of w: d_j <- d_j ||w_j|| / ||d_j||.

    A filter is a row of a tensor, the weights of one output. Tensors of one dimension, biases and
    scales of norms, have direction 0.

    Args:
        seed: with the same seed, networks of one architecture have the same unscaled direction.

    Returns:
        A tensor for each parameter.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> d, none = direction(model, seed=0)
        >>> torch.allclose(d.norm(dim=1), model.weight.norm(dim=1)), none.tolist()
        (True, [0.0, 0.0])
    """
    return [
        _filters(p.detach(), mix_seed(seed, i)) for i, p in enumerate(unwrapped(model).parameters())
    ]


def _filters(w: Tensor, seed: int) -> Tensor:
    if w.dim() < 2:
        return torch.zeros_like(w)
    generator = torch.Generator().manual_seed(seed)
    d = torch.randn(w.shape, generator=generator, dtype=torch.float32).to(w)
    shape = (-1, *[1] * (w.dim() - 1))
    lengths, target = d.flatten(1).norm(dim=1), w.flatten(1).norm(dim=1)
    scaled: Tensor = d * (target / lengths.clamp_min(1e-10)).view(shape)
    return scaled


def slice_1d(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    *,
    seed: int = 0,
    at: Sequence[float] | Array | None = None,
) -> Slice:
    """f(w + a d) along a direction; the model is restored.

    Args:
        batches: read once.
        at: values of a; None: 51 from -1 to 1.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 1.0)
        >>> batches = [(torch.ones(1, 1), torch.zeros(1, 1))]  # the loss is w^2, and |d| = |w|
        >>> slice_1d(model, nn.MSELoss(), batches, at=[-1, 0, 1]).losses.round(4).tolist()
        [4.0, 1.0, 0.0]
    """
    steps = _steps("at", at)
    weights, d = _weights(model), direction(model, seed)
    rows = _losses(model, loss_fn, batches, [partial(_displaced, weights, [(a, d)]) for a in steps])
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
    """f(w + a d + b e) over two directions; the model is restored.

    Args:
        batches: read once.
        seeds: of the two directions.
        across: values of a; None: 51 from -1 to 1.
        along: values of b; None: the same.

    Example:
        >>> model = nn.Linear(4, 2)
        >>> batches = [(torch.ones(3, 4), torch.zeros(3, 2))]
        >>> surface = slice_2d(model, nn.MSELoss(), batches, across=[-1, 0, 1], along=[0, 1])
        >>> surface.losses.shape, surface.samples
        ((3, 2), 3)
    """
    if seeds[0] == seeds[1]:
        raise ValueError(f"seeds must differ, or the plane is a line, got {seeds}")
    a, b = _steps("across", across), _steps("along", along)
    weights, d, e = _weights(model), direction(model, seeds[0]), direction(model, seeds[1])
    points = [partial(_displaced, weights, [(i, d), (j, e)]) for i in a for j in b]
    losses, errors, samples = _losses(model, loss_fn, batches, points)
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
    """f((1 - a) w_start + a w_end) between two solutions; the model is restored.

    BatchNorm's running statistics are interpolated like weights; integer counters stay.

    Args:
        model: a network of their architecture.
        start: its `state_dict` at one solution.
        end: at the other.
        batches: read once.
        at: values of a; None: 51 from 0 to 1.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> start, end = {"weight": -torch.ones(1, 1)}, {"weight": torch.ones(1, 1)}
        >>> def loss(out, y):  # minima at w = -1 and w = 1
        ...     return (out.square() - 1).square().mean()
        >>> line = interpolation(model, start, end, loss, [(torch.ones(1, 1), torch.zeros(1))])
        >>> round(line.barrier, 4)
        1.0
    """
    ours = unwrapped(model).state_dict()
    for name, state in (("start", start), ("end", end)):
        misfits = sorted(
            k for k in ours.keys() | state.keys() if _shape(ours, k) != _shape(state, k)
        )
        if misfits:
            raise ValueError(
                f"{name} does not fit the model at {misfits[0]!r}: pass its state_dict()"
            )
    steps = np.linspace(0, 1, 51) if at is None else _steps("at", at)

    def between(a: float) -> list[tuple[Tensor, Tensor]]:
        mixable = [key for key in ours if ours[key].is_floating_point()]
        return [(ours[key], torch.lerp(start[key], end[key], float(a))) for key in mixable]

    points = [partial(between, a) for a in steps]
    return Slice(steps, *_losses(model, loss_fn, batches, points))


def _shape(state: Mapping[str, Tensor], key: str) -> tuple[int, ...] | None:
    return tuple(state[key].shape) if key in state else None


def _steps(name: str, at: Sequence[float] | Array | None) -> Array:
    steps = np.linspace(-1, 1, 51) if at is None else np.asarray(at, dtype=np.float64)
    if steps.ndim != 1 or len(steps) < 2:
        raise ValueError(f"{name} must hold at least two numbers, got {at}")
    return steps


def _weights(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The weights' storage, and copies of their values."""
    return [(p.data, p.data.clone()) for p in unwrapped(model).parameters()]


def _displaced(
    weights: list[tuple[Tensor, Tensor]], steps: list[tuple[float, Vector]]
) -> list[tuple[Tensor, Tensor]]:
    """The weights' storage, and the values at w + the sum of the steps along their directions."""
    values = [value.clone() for _, value in weights]
    for step, d in steps:
        torch._foreach_add_(values, d, alpha=float(step))
    return [(tensor, value) for (tensor, _), value in zip(weights, values, strict=True)]


def _losses(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    points: Sequence[Callable[[], list[tuple[Tensor, Tensor]]]],
) -> tuple[Array, Array, int]:
    """Mean loss and its standard error at each point, and the number of samples."""
    model, batches = unwrapped(model), batch_list(batches, "a landscape")
    sizes = np.array([samples_in(batch) for batch in batches], dtype=np.float64)
    losses = []
    for point in points:
        with untouched(model), torch.no_grad():
            model.eval()
            for tensor, value in point():
                tensor.copy_(value)
            torch.clear_autocast_cache()
            losses.append([float(loss_of(model, loss_fn, batch)) for batch in batches])
    return *_weighted(np.array(losses), sizes), int(sizes.sum())


def _weighted(each: Array, sizes: Array) -> tuple[Array, Array]:
    share = sizes / sizes.sum()
    means = each @ share
    if len(sizes) == 1:
        return means, np.full_like(means, math.nan)
    spread = ((each - means[:, None]) ** 2) @ share**2
    return means, np.sqrt(spread * len(sizes) / (len(sizes) - 1))
