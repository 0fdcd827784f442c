"""Sharpness: the worst-case and the average rise of the loss in a ball around the weights.

    worst case    max over ||delta / c||_p <= rho of  f_B(w + delta) - f_B(w)
    average case  mean over delta ~ N(0, rho^2 c^2), or uniform in the cube for p = infinity

with c = 1, or c = |w| (adaptive), and p = 2 or infinity. With `m` it is the m-sharpness: the mean
over disjoint pieces of m samples, each with its own maximum. All computations are in z = delta / c,
where the ball is round and its projection exact.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from vasso import validation
from vasso.diagnostics.batches import batch_list, rows_of, samples_in
from vasso.diagnostics.estimates import Estimate, mean_of, row_of
from vasso.diagnostics.passes import BatchNorm, LossFn, Objective, OfModel, objective
from vasso.numerics.vectors import Vector, full_precision, measured

Norm: TypeAlias = Literal["l2", "linf"]
Search: TypeAlias = Literal["one-step", "ascent", "apgd"]


@dataclass(frozen=True)
class Sharpness:
    """The rise of the loss in a ball.

    Attributes:
        sharpness: mean over pieces or draws; with a single one the interval is infinite.
        rho: radius of the ball.
        norm: "l2" or "linf".
        adaptive: whether the ball is scaled by |w|.
        search: the search for the maximum; "average" for the mean.
        m: samples in each piece; None if all samples have one maximum.
        pieces: number of pieces, or of draws.
        passes: number of losses and gradients computed.
    """

    sharpness: Estimate
    rho: float
    norm: Norm
    adaptive: bool
    search: str
    m: int | None
    pieces: int
    passes: int

    def row(self) -> dict[str, Any]:
        """One row of a table: column -> value."""
        return row_of(self)


@dataclass(frozen=True)
class Ball:
    """The ball ||delta / c||_p <= rho around w in z = delta / c; a c of None is 1 everywhere."""

    rho: float
    norm: Norm
    c: Vector | None = None

    def scaled(self, z: Vector) -> Vector:
        """c z: the displacement of z, or the gradient by z from the gradient by w."""
        return z if self.c is None else list(torch._foreach_mul(z, self.c))

    def steepest(self, g: Vector) -> Vector:
        """The z of length rho that maximises <z, g>."""
        if self.norm == "linf":
            return [x.sign() * self.rho for x in g]
        length = measured(g)[1]
        return [x * (self.rho / length) if length else torch.zeros_like(x) for x in g]

    def projected(self, z: Vector) -> Vector:
        """The nearest point of the ball."""
        if self.norm == "linf":
            return [x.clamp(-self.rho, self.rho) for x in z]
        length = measured(z)[1]
        return [x * (self.rho / length) for x in z] if length > self.rho else z

    def sample(self, like: Vector, generator: torch.Generator) -> Vector:
        """A random z: standard normal times rho, or uniform in the cube."""
        draw = torch.randn if self.norm == "l2" else torch.rand
        z = [draw(x.shape, generator=generator, dtype=x.dtype) for x in like]
        if self.norm == "linf":
            z = [2 * x - 1 for x in z]
        return [(x * self.rho).to(y.device) for x, y in zip(z, like, strict=True)]


class BallLoss:
    """The mean loss over some batches as a function of z, with a count of its evaluations."""

    def __init__(self, f: Objective, batches: list[Any], ball: Ball) -> None:
        self.f, self.batches, self.ball = f, batches, ball
        self.weights = [samples_in(batch) for batch in batches]
        self.passes = 0

    def value(self, z: Vector | None) -> float:
        """The loss."""
        self.passes += len(self.batches)
        epsilon = None if z is None else self.ball.scaled(z)
        values = [self.f.loss(batch, epsilon) for batch in self.batches]
        return sum(map(float.__mul__, values, map(float, self.weights))) / sum(self.weights)

    def slope(self, z: Vector | None) -> tuple[float, Vector]:
        """The loss and its gradient by z."""
        self.passes += len(self.batches)
        epsilon = None if z is None else self.ball.scaled(z)
        total, mean, value = sum(self.weights), None, 0.0
        for batch, weight in zip(self.batches, self.weights, strict=True):
            loss, g = self.f.loss_and_gradient(batch, epsilon)
            part = [full_precision(x) * (weight / total) for x in g]
            value += loss * weight / total
            mean = part if mean is None else list(torch._foreach_add(mean, part))
        return value, self.ball.scaled(mean or [])


def one_step(loss: BallLoss, steps: int) -> float:
    """The rise at SAM's adversary, rho c^2 g / ||c g||; below 0 where it overshoots."""
    at_w, g = loss.slope(None)
    return loss.value(loss.ball.steepest(g)) - at_w


def ascent(loss: BallLoss, steps: int) -> float:
    """The highest rise, at least 0, along projected steps of 2.5 rho / steps from w."""
    at_w, g = loss.slope(None)
    z: Vector = [torch.zeros_like(x) for x in g]
    best = at_w
    for _ in range(steps):
        d = loss.ball.steepest(g)
        z = loss.ball.projected(list(torch._foreach_add(z, d, alpha=min(1.0, 2.5 / steps))))
        value, g = loss.slope(z)
        best = max(best, value)
    return best - at_w


def checkpoints(steps: int) -> list[int]:
    """The steps at which APGD may halve its step: gaps of 0.22 to 0.06 of all steps, by 0.03."""
    at, gap, chosen = 0.0, 0.22, []
    while at + gap < 1:
        at += gap
        chosen.append(math.ceil(round(at * steps, 6)))
        gap = max(gap - 0.03, 0.06)
    return sorted(set(chosen))


def apgd(loss: BallLoss, steps: int) -> float:
    """Projected ascent with momentum and adaptive steps (APGD; Croce & Hein); at least 0."""
    # Steps start at 2 rho. At each checkpoint the step is halved and the search continues from the
    # best point, if fewer than 3 in 4 steps increased the loss or neither step nor best changed.
    ball = loss.ball
    at_w, g = loss.slope(None)
    z: Vector = [torch.zeros_like(x) for x in g]
    before, value, size = z, at_w, 2.0
    best, z_best, g_best = at_w, z, g
    halvings, increases, since = checkpoints(steps), 0, 0
    last_size, last_best = 0.0, -math.inf
    for k in range(1, steps + 1):
        d = ball.steepest(g)
        ahead = ball.projected(list(torch._foreach_add(z, d, alpha=size)))
        if k > 1:
            mixed = [
                x + 0.75 * (a - x) + 0.25 * (x - b)
                for x, a, b in zip(z, ahead, before, strict=True)
            ]
            ahead = ball.projected(mixed)
        before, z = z, ahead
        new, g = loss.slope(z)
        increases, since, value = increases + (new > value), since + 1, new
        if value > best:
            best, z_best, g_best = value, z, g
        if k in halvings:
            stuck = last_size == size and last_best == best
            last_size, last_best = size, best
            if increases < 0.75 * since or stuck:
                size, z, before, g, value = size / 2, z_best, z_best, g_best, best
            increases = since = 0
    return best - at_w


SEARCHES = {"one-step": one_step, "ascent": ascent, "apgd": apgd}


def pieces_of(batches: Iterable[Any], m: int | None) -> Iterator[list[Any]]:
    """All batches together, or pieces of m samples; remainders of batches are left out."""
    if m is None:
        yield batch_list(batches, "sharpness")
        return
    is_empty = True
    for batch in batches:
        for start in range(0, samples_in(batch) - m + 1, m):
            is_empty = False
            yield [rows_of(batch, slice(start, start + m))]
    if is_empty:
        raise ValueError(f"no batch has {m} samples: m must be at most the size of a batch")


def _ball(f: Objective, rho: float, norm: Norm, adaptive: bool) -> Ball:
    return Ball(rho, norm, [full_precision(x).abs() for x in f.values] if adaptive else None)


def _check(rho: float, norm: str, m: int | None) -> None:
    validation.one_of("norm", norm, "l2", "linf")
    if not 0 <= rho < math.inf:
        raise ValueError(f"rho must be at least 0 and finite, got {rho}")
    if m is not None and m < 1:
        raise ValueError(f"m must be at least 1, or None for all samples together, got {m}")


def sharpness(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    rho: float,
    *,
    norm: Norm = "l2",
    adaptive: bool = False,
    search: Search = "apgd",
    steps: int = 20,
    m: int | None = None,
    batchnorm: BatchNorm = "running",
    level: float = 0.95,
) -> Sharpness:
    """The largest rise of the loss in a ball that a search finds; the model is restored.

    The result is a lower bound. On a trained network of two layers and rho from 0.05 to 1, 20 steps
    of "apgd" agree with 400 to four digits in every ball. "ascent" finds 94 to 100 % of it,
    "one-step" 70 to 100 %. A maximum well inside the ball needs more steps: at a distance of 1/60
    of rho, 100 steps for an error of 5 %.

    Args:
        batches: the data, without augmentation; they are stored during the search.
        rho: radius of the ball.
        norm: "l2" or "linf".
        adaptive: whether the ball is scaled by |w|.
        search: "one-step" (SAM's adversary), "ascent" (projected steps) or "apgd".
        steps: number of steps of the search.
        m: samples that share a maximum (m-sharpness); None for all.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 1.0)
        >>> loss = lambda out, y: out.square().mean() / 2
        >>> result = sharpness(model, loss, [(torch.eye(2) * 2**0.5, torch.zeros(2))], rho=0.5)
        >>> round(result.sharpness.value, 4)  # rho ||w|| + rho^2 / 2
        0.8321
    """
    _check(rho, norm, m)
    validation.one_of("search", search, *SEARCHES)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    find, rises, passes = partial(SEARCHES[search], steps=steps), [], 0
    with objective(model, loss_fn, batches, batchnorm=batchnorm) as f:
        ball = _ball(f, rho, norm, adaptive)
        for piece in pieces_of(batches, m):
            loss = BallLoss(f, piece, ball)
            rises.append(find(loss))
            passes += loss.passes
    mean = mean_of(rises, level=level)
    return Sharpness(mean, rho, norm, adaptive, search, m, len(rises), passes)


def average_sharpness(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    rho: float,
    *,
    norm: Norm = "l2",
    adaptive: bool = False,
    draws: int = 100,
    batchnorm: BatchNorm = "running",
    seed: int = 0,
    level: float = 0.95,
) -> Sharpness:
    """The mean rise of the loss at random weights in a ball; the model is restored.

    Args:
        batches: the data, without augmentation; they are stored during the measurement.
        rho: standard deviation of each weight ("l2"), or half the side of the cube ("linf").
        norm: "l2" for normal, "linf" for uniform displacements.
        adaptive: whether displacements are multiplied by |w|.
        draws: number of random displacements.

    Example:
        >>> model = nn.Linear(3, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> batches = [(torch.eye(3) * 3**0.5, torch.zeros(3, 1))]  # ||w||^2, mean rise 3 rho^2
        >>> mean = average_sharpness(model, nn.MSELoss(), batches, rho=0.5).sharpness
        >>> mean.low < 0.75 < mean.high
        True
    """
    _check(rho, norm, None)
    if draws < 2:
        raise ValueError(f"draws must be at least 2, got {draws}")
    generator = torch.Generator().manual_seed(seed)
    with objective(model, loss_fn, batches, batchnorm=batchnorm) as f:
        ball = _ball(f, rho, norm, adaptive)
        loss = BallLoss(f, next(pieces_of(batches, None)), ball)
        like = [full_precision(x) for x in f.values]
        at_w = loss.value(None)
        rises = [loss.value(ball.sample(like, generator)) - at_w for _ in range(draws)]
    mean = mean_of(rises, level=level)
    return Sharpness(mean, rho, norm, adaptive, "average", None, draws, loss.passes)
