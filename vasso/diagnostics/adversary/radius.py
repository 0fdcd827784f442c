"""The rise of the loss at adversaries, as curves over rho: the effective radius.

    own(rho)    = E f_B(w + rho v / ||v||) - f_B(w)      on the batch B that v comes from last
    others(rho) = E f_B'(w + rho v / ||v||) - f_B'(w)    on batches that v has never seen

Methods differ in both, so a comparison at equal rho compares radii rather than directions.
`RiseCurve.radius_at` gives the rho of equal effect.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from torch import Tensor, nn

from vasso import validation
from vasso.diagnostics.adversary.slope_error import check_theta, update_slope, warm_up
from vasso.diagnostics.estimates import Array, Estimate, crossed_mean, mean_of
from vasso.diagnostics.passes import BatchNorm, LossFn, Objective, OfModel, objective
from vasso.numerics.vectors import Vector, measured

FIRST_OTHER_KEY = 1 << 32
"""Keys of other batches start here: their dropout masks differ from those of adversaries."""


@dataclass(frozen=True)
class Adversary:
    """A direction and the batch it comes from.

    Attributes:
        v: the direction, of any length.
        batch: the newest batch in it.
        key: of that batch, for dropout masks.
    """

    v: Vector
    batch: Any
    key: int = 0


@dataclass(frozen=True)
class Rises:
    """The loss at adversaries minus the loss at w.

    Attributes:
        rhos: the radii.
        own: rise of adversary i on its own batch at radius r, as own[i, r].
        others: rise of adversary i on other batch j at radius r, as others[i, j, r].
    """

    rhos: tuple[float, ...]
    own: Array
    others: Array


def spacing(theta: float) -> int:
    """The smallest number of batches n at which two slopes correlate by (1 - theta)^n <= 0.1."""
    check_theta(theta)
    return 1 if theta == 1 else math.ceil(math.log(0.1) / math.log(1 - theta) - 1e-9)


def adversaries_of(
    f: Objective, batches: Iterable[Any], theta: float = 1.0, most: int = 8
) -> Iterator[Adversary]:
    """At most `most` adversaries of a slope at fixed weights, far enough apart to be independent.

    The slope is made of the gradients of `batches`; each adversary has a copy of it.
    """
    first, every = warm_up(theta), spacing(theta)
    d: Vector = []
    count = 0
    for key, batch in enumerate(batches):
        with torch.no_grad():
            d = update_slope(d, f.gradient(batch, key=key), theta)
        if key >= first and (key - first) % every == 0:
            count += 1
            yield Adversary([x.clone() for x in d], batch, key)
        if count == most:
            return
    if not count:
        raise ValueError(f"theta {theta} needs more than {first} batches for an adversary")


def rises_of(
    f: Objective, adversaries: Iterable[Adversary], others: Iterable[Any], rhos: Sequence[float]
) -> Rises:
    """The rise of the loss at each adversary, for each radius, on its own and on other batches."""
    if not rhos or any(not 0 <= rho < math.inf for rho in rhos):
        raise ValueError(f"rhos must be one or more numbers, at least 0, got {list(rhos)}")
    keyed = list(enumerate(others, FIRST_OTHER_KEY))
    if not keyed:
        raise ValueError("others is empty: pass at least one batch that no adversary has seen")
    before = np.array([f.loss(batch, key=key) for key, batch in keyed])
    own, other = [], []
    for adversary in adversaries:
        unit = _unit(adversary.v)
        at_w = f.loss(adversary.batch, key=adversary.key)
        row, table = [], []
        for rho in rhos:
            epsilon = [x * rho for x in unit]
            row.append(f.loss(adversary.batch, epsilon, key=adversary.key) - at_w)
            table.append([f.loss(b, epsilon, key=k) for k, b in keyed] - before)
        own.append(row)
        other.append(np.array(table).T)
    if not own:
        raise ValueError("there are no adversaries to measure at")
    return Rises(tuple(rhos), np.array(own), np.array(other))


def _unit(v: Vector) -> Vector:
    """v / ||v||, or zeros."""
    length = measured(v)[1]
    return [x / length if length else torch.zeros_like(x) for x in v]


@dataclass(frozen=True)
class RiseCurve:
    """The rise of the loss at the adversary, over the radius.

    Attributes:
        rhos: the radii, in increasing order.
        own: mean rise on the batch the adversary comes from.
        others: mean rise on batches it has not seen.
        theta: of the slope; None for directions that the caller passes.
        adversaries: number of adversaries.
        batches: number of other batches.
    """

    rhos: tuple[float, ...]
    own: tuple[Estimate, ...]
    others: tuple[Estimate, ...]
    theta: float | None
    adversaries: int
    batches: int

    def rows(self) -> list[dict[str, Any]]:
        """One row of a table for each radius: column -> value."""
        counts = {"theta": self.theta, "adversaries": self.adversaries, "batches": self.batches}
        points = zip(self.rhos, self.own, self.others, strict=True)
        return [
            {"rho": rho, **own.row("own_rise"), **others.row("others_rise"), **counts}
            for rho, own, others in points
        ]

    def rise_at(self, rho: float, on: Literal["own", "others"] = "others") -> float:
        """The rise at a radius within the curve, interpolated by a monotone cubic from (0, 0)."""
        if not 0 <= rho <= self.rhos[-1]:
            raise ValueError(f"rho must be between 0 and {self.rhos[-1]:g}, got {rho}")
        return float(_curve(self.rhos, [e.value for e in self._of(on)])(rho))

    def radius_at(self, rise: float, on: Literal["own", "others"] = "others") -> Estimate:
        """The smallest radius at which the loss rises by a given amount: the inverse of the curve.

        Its interval ends where the ends of the curve's intervals reach the rise, and is infinite if
        they do not. It is an error if the curve itself does not reach the rise.
        """
        points = self._of(on)
        value = first_crossing(self.rhos, [e.value for e in points], rise)
        if not math.isfinite(value):
            highest = max(e.value for e in points)
            raise ValueError(
                f"the loss rises by at most {highest:.4g} up to rho {self.rhos[-1]:g}, not by "
                f"{rise:.4g}: measure at larger radii"
            )
        low = first_crossing(self.rhos, [e.high for e in points], rise)
        high = first_crossing(self.rhos, [e.low for e in points], rise)
        return Estimate(value, low, high, points[0].level, points[0].n)

    def _of(self, on: str) -> tuple[Estimate, ...]:
        validation.one_of("on", on, "own", "others")
        return self.own if on == "own" else self.others


def _curve(rhos: Sequence[float], values: Sequence[float]) -> Any:
    points = [(r, v) for r, v in zip(rhos, values, strict=True) if r > 0]
    return PchipInterpolator([0.0, *(r for r, _ in points)], [0.0, *(v for _, v in points)])


def first_crossing(rhos: Sequence[float], values: Sequence[float], rise: float) -> float:
    """The radius where a curve from (0, 0) first reaches a rise; infinite if it does not."""
    if not rise > 0:
        raise ValueError(f"rise must be above 0, got {rise}")
    if not all(math.isfinite(v) for v in values):
        return math.inf
    curve, before = _curve(rhos, values), 0.0
    for rho, value in zip(rhos, values, strict=True):
        if value >= rise and rho > 0:
            return float(brentq(lambda x: float(curve(x)) - rise, before, rho))
        before = rho
    return math.inf


def curve_of(rises: Rises, theta: float | None = None, level: float = 0.95) -> RiseCurve:
    """The mean rises at each radius, with intervals; theta is for the results."""
    order = np.argsort(rises.rhos)
    adversaries, batches, _ = rises.others.shape
    return RiseCurve(
        tuple(rises.rhos[r] for r in order),
        tuple(mean_of(rises.own[:, r], level=level) for r in order),
        tuple(crossed_mean(rises.others[:, :, r], level=level) for r in order),
        theta,
        adversaries,
        batches,
    )


def rise_curve(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    others: Iterable[Any],
    rhos: Sequence[float],
    *,
    theta: float = 1.0,
    adversaries: int = 8,
    batchnorm: BatchNorm = "batch",
    dropout: bool = True,
    level: float = 0.95,
) -> RiseCurve:
    """The effective radius of a slope at the weights of a model; the model is restored.

    The cost is one forward pass for each adversary, radius and other batch.

    Args:
        batches: the slope is made of their gradients; theta < 1 needs many.
        others: batches that are not among them.
        theta: of the slope; 1 is SAM's.
        adversaries: largest number of adversaries.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 1.0)
        >>> batches = [(torch.ones(1, 1), torch.zeros(1, 1))] * 3  # the loss is w^2
        >>> curve = rise_curve(model, nn.MSELoss(), batches, batches, [0.25, 0.5])
        >>> [round(rise.value, 4) for rise in curve.own]  # 2 rho + rho^2
        [0.5625, 1.25]
        >>> round(curve.radius_at(1.25).value, 4)
        0.5
    """
    with objective(model, loss_fn, batches, others, batchnorm=batchnorm, dropout=dropout) as f:
        directions = adversaries_of(f, batches, theta, adversaries)
        return curve_of(rises_of(f, directions, others, rhos), theta, level)


def rise_along(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    directions: Iterable[tuple[Sequence[Tensor], Any]],
    others: Iterable[Any],
    rhos: Sequence[float],
    *,
    params: Sequence[Tensor] | None = None,
    batchnorm: BatchNorm = "batch",
    dropout: bool = True,
    level: float = 0.95,
) -> RiseCurve:
    """The effective radius of given directions, such as the slopes of an optimizer.

    Args:
        directions: pairs of a direction and its own batch.
        others: batches that no direction comes from.
        params: the weights of the directions; None for all that require a gradient.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 1.0)
        >>> batch = torch.ones(1, 1), torch.zeros(1, 1)  # the loss is w^2
        >>> downhill = [([torch.tensor([[-3.0]])], batch)]
        >>> rise_along(model, nn.MSELoss(), downhill, [batch], [0.5]).own[0].value
        -0.75
    """
    settings: dict[str, Any] = {"params": params, "batchnorm": batchnorm, "dropout": dropout}
    with objective(model, loss_fn, others, **settings) as f:
        keyed = (Adversary(list(v), batch, key) for key, (v, batch) in enumerate(directions))
        return curve_of(rises_of(f, keyed, others, rhos), None, level)
