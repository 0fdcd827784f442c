"""Estimates with confidence intervals: means, shares, and means over two crossed samples.

Means have Student's interval, shares have Wilson's. A table of every adversary on every batch is
uncertain through both its rows and its columns; its mean has an interval for two crossed samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end.
        level: confidence level, the share of such intervals that contain the true value.
        n: number of independent observations.

    Example:
        >>> print(Estimate(0.5, 0.25, 0.75, 0.95, 12))
        0.5 [0.25, 0.75]
    """

    value: float
    low: float
    high: float
    level: float
    n: float

    def row(self, name: str) -> dict[str, float]:
        """Three columns of a table: ``name``, ``name_low`` and ``name_high``."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def times(self, factor: float) -> Estimate:
        """Value and interval multiplied by a factor of at least 0."""
        ends = (self.value * factor, self.low * factor, self.high * factor)
        return Estimate(*ends, self.level, self.n)

    def within(self, low: float, high: float) -> Estimate:
        """The interval without what is impossible: a mean of cosines lies between -1 and 1."""
        ends = (max(self.low, low), min(self.high, high))
        return Estimate(self.value, *ends, self.level, self.n)

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def row_of(result: Any) -> dict[str, Any]:
    """The fields of a result as columns of a table; an `Estimate` has three."""
    row: dict[str, Any] = {}
    for field in fields(result):
        value = getattr(result, field.name)
        row |= value.row(field.name) if isinstance(value, Estimate) else {field.name: value}
    return row


def check_level(level: float) -> None:
    """Raises unless the confidence level is strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level}")


def student(value: float, error: float, dof: float, level: float = 0.95) -> Estimate:
    """value ± t error with Student's t; without degrees of freedom the interval is infinite."""
    check_level(level)
    half = float(stdtrit(dof, 0.5 + level / 2)) * error if dof > 0 else math.inf
    return Estimate(value, value - half, value + half, level, dof + 1)


def mean_of(
    values: Sequence[float] | Array, *, level: float = 0.95, autocorrelation: float = 0.0
) -> Estimate:
    """The mean of observations, with Student's interval.

    Args:
        values: the observations.
        autocorrelation: r, if the correlation of two observations k apart is r^k; n of them then
            count as n (1 - r) / (1 + r).

    Example:
        >>> print(mean_of([1.0, 2.0, 3.0]))
        2 [-0.4841, 4.484]
    """
    x = np.asarray(values, dtype=np.float64)
    if not x.size:
        raise ValueError("no values to take the mean of")
    n = x.size * (1 - autocorrelation) / (1 + autocorrelation)
    if n <= 1:
        return student(float(x.mean()), math.inf, 0, level)
    variance = float(np.square(x - x.mean()).sum()) / x.size * n / (n - 1)
    return student(float(x.mean()), math.sqrt(variance / n), n - 1, level)


def share_of(hits: float, n: float, *, level: float = 0.95) -> Estimate:
    """A share of n independent trials, with Wilson's interval.

    Args:
        hits: number of successes; a fraction where trials count as less than one.
        n: number of trials.

    Example:
        >>> print(share_of(0, 10))
        0 [0, 0.2775]
    """
    check_level(level)
    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"{hits} of {n} is not a share: pass 0 <= hits <= n and n > 0")
    z2 = float(ndtri(0.5 + level / 2)) ** 2
    p, whole = hits / n, 1 + z2 / n
    middle = (p + z2 / (2 * n)) / whole
    half = math.sqrt(z2 * (p * (1 - p) + z2 / (4 * n)) / n) / whole
    low = 0.0 if hits == 0 else middle - half
    high = 1.0 if hits == n else middle + half
    return Estimate(p, low, high, level, n)


def _crossed_error(x: Array) -> tuple[float, float]:
    """The standard error of the mean of a table, and its degrees of freedom."""
    # With x_ij = m + a_i + b_j + e_ij the means of rows vary by a and e, those of columns by b and
    # e; their sum counts e twice, so it is subtracted once.
    A, B = x.shape
    if A == 1 or B == 1:
        return (
            (float(x.std(ddof=1)) / math.sqrt(x.size), x.size - 1) if x.size > 1 else (math.inf, 0)
        )
    rows, columns = x.mean(1), x.mean(0)
    rest = x - rows[:, None] - columns + x.mean()
    by_rows, by_columns = float(rows.var(ddof=1)) / A, float(columns.var(ddof=1)) / B
    by_rest = float(np.square(rest).sum()) / ((A - 1) * (B - 1)) / (A * B)
    variance = max(by_rows + by_columns - by_rest, by_rows, by_columns)
    if variance == 0:
        return 0.0, min(A, B) - 1
    dof = variance**2 / (by_rows**2 / (A - 1) + by_columns**2 / (B - 1))
    return math.sqrt(variance), dof


def crossed_mean(table: Array, *, level: float = 0.95) -> Estimate:
    """The mean of a table x_ij, adversary i on batch j, where rows and columns are both samples."""
    error, dof = _crossed_error(table)
    return student(float(table.mean()), error, dof, level)


def crossed_ratio(table: Array, by: Array, *, level: float = 0.95) -> Estimate:
    """mean(table) / mean(by) with one `by` for each row, by the delta method; NaN if that is 0."""
    if by.mean() == 0:
        return Estimate(math.nan, -math.inf, math.inf, level, 0)
    ratio = float(table.mean() / by.mean())
    error, dof = _crossed_error((table - ratio * by[:, None]) / by.mean())
    return student(ratio, error, dof, level)


def crossed_share(table: Array, *, level: float = 0.95) -> Estimate:
    """The share of ones in a table of zeros and ones whose rows and columns are both samples.

    Wilson's interval for as many independent trials as would have the same standard error. A table
    of equal values has no standard error and counts as its shorter side, so its interval is wider
    than that of a table with a single hit.
    """
    p = float(table.mean())
    if min(table.shape) == 1:
        return share_of(float(table.sum()), table.size, level=level)
    error, _ = _crossed_error(table)
    n = p * (1 - p) / error**2 if error > 0 else min(table.shape)
    n = min(n, table.size)
    return share_of(p * n, n, level=level)
