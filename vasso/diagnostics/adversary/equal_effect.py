"""The rho of equal effect: the radius at which a slope raises the loss as much as a reference.

    find r with  E rise of theta at r  =  E rise of SAM at rho

on the batch that each adversary comes from, or on batches that none has seen. The interval is by
the delta method: both curves are uncertain through their adversaries and their shared batches.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.interpolate import PchipInterpolator

from vasso import validation
from vasso.diagnostics.adversary.radius import Rises, first_crossing
from vasso.diagnostics.estimates import Array, Estimate, mean_of, row_of, student

Side: TypeAlias = Literal["own", "others"]


@dataclass(frozen=True)
class EqualEffect:
    """The radius at which a slope raises the loss as much as the reference does at its radius.

    Attributes:
        on: "own", the batch of the adversary, or "others", batches it has not seen.
        theta: of the slope; None if unknown.
        reference_rho: radius of the reference.
        rise: rise of the reference at this radius.
        rho: radius of equal effect; infinite if the slope does not reach the rise within its
            measured radii, NaN if the reference does not raise the loss at all.
    """

    on: Side
    theta: float | None
    reference_rho: float
    rise: Estimate
    rho: Estimate

    def row(self) -> dict[str, Any]:
        """One row of a table: column -> value."""
        return row_of(self)


def equal_effect(
    reference: Rises,
    slope: Rises,
    rho: float,
    *,
    on: Side = "own",
    theta: float | None = None,
    level: float = 0.95,
) -> EqualEffect:
    """The radius at which a slope raises the loss as much as the reference does at rho.

    Both are measured on the same other batches, and rho is one of the reference's radii. `theta` is
    that of the other slope, for the result.
    """
    validation.one_of("on", on, "own", "others")
    if rho not in reference.rhos:
        raise ValueError(f"rho {rho:g} is not among the reference's radii {list(reference.rhos)}")
    tops = _table(reference, on)[:, :, reference.rhos.index(rho)]
    rise = float(tops.mean())
    reached = mean_of(tops.mean(1), level=level)
    if rise <= 0:
        undefined = Estimate(math.nan, 0.0, math.inf, level, 0)
        return EqualEffect(on, theta, rho, reached, undefined)
    rhos, table = _sorted(slope, on)
    radius = first_crossing(rhos, table.mean((0, 1)).tolist(), rise)
    if math.isinf(radius):
        beyond = Estimate(math.inf, rhos[-1], math.inf, level, 0)
        return EqualEffect(on, theta, rho, reached, beyond)
    return EqualEffect(on, theta, rho, reached, _with_interval(radius, tops, rhos, table, level))


def _table(rises: Rises, on: Side) -> Array:
    """Rises as (adversary, batch, radius); the own batch of each is one column."""
    return rises.own[:, None, :] if on == "own" else rises.others


def _sorted(rises: Rises, on: Side) -> tuple[list[float], Array]:
    """Radii above 0 in increasing order, and the rises at them."""
    order = [r for r in np.argsort(rises.rhos) if rises.rhos[r] > 0]
    return [rises.rhos[r] for r in order], _table(rises, on)[:, :, order]


def _with_interval(
    radius: float, tops: Array, radii: list[float], table: Array, level: float
) -> Estimate:
    """var(log r) = var(difference of the two mean rises) / (r * slope of the curve)^2."""
    rhos = [0.0, *radii]
    padded = np.concatenate([np.zeros((*table.shape[:2], 1)), table], axis=2)
    at_radius = PchipInterpolator(rhos, padded, axis=2)(radius)
    steepness = float(PchipInterpolator(rhos, padded.mean((0, 1))).derivative()(radius))
    if steepness <= 0:
        return Estimate(radius, 0.0, math.inf, level, 0)
    variance, dof = _difference(at_radius, tops)
    error = math.sqrt(variance) / (radius * steepness)
    log_radius = student(math.log(radius), error, dof, level)
    low, high = (math.exp(min(x, 700.0)) for x in (log_radius.low, log_radius.high))
    return Estimate(radius, low, high, level, dof + 1)


def _difference(a: Array, b: Array) -> tuple[float, float]:
    """Variance of mean(a) - mean(b), and its degrees of freedom (Satterthwaite)."""
    # rows are adversaries, each table has its own; columns are batches that both share
    parts = [(float(x.mean(1).var(ddof=1)) / len(x), len(x) - 1) for x in (a, b) if len(x) > 1]
    if len(parts) < 2:
        return math.inf, 0
    if a.shape[1] > 1:
        columns = a.mean(0) - b.mean(0)
        parts.append((float(columns.var(ddof=1)) / len(columns), len(columns) - 1))
    variance = sum(v for v, _ in parts)
    if variance == 0:
        return 0.0, min(n for _, n in parts)
    return variance, variance**2 / sum(v * v / n for v, n in parts)
