"""How sure are we of a number? Estimates that carry their interval.

Means have Student's interval, shares Wilson's, anything else of two crossed sets of batches a
bootstrap that draws both again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number and where the truth may be.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end.
        level: how often such intervals hold the truth.
        n: of how many independent observations it is made.

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
        """Three columns: the value, and the interval's ends.

        Args:
            name: of the quantity.

        Returns:
            ``name``, ``name_low``, ``name_high``.
        """
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def times(self, factor: float) -> Estimate:
        """The estimate of a multiple.

        Args:
            factor: a number, at least 0.

        Returns:
            Value and interval multiplied.
        """
        ends = (self.value * factor, self.low * factor, self.high * factor)
        return Estimate(*ends, self.level, self.n)

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def check_level(level: float) -> None:
    """Raises unless a level is a probability.

    Args:
        level: how often an interval is to hold the truth.

    Raises:
        ValueError: it is not strictly between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level}")


def student(value: float, error: float, dof: float, level: float = 0.95) -> Estimate:
    """value ± t error, with Student's t.

    Args:
        value: the estimate.
        error: its standard error.
        dof: degrees of freedom; with none the interval is infinite.
        level: how often it is to hold the truth.

    Returns:
        The estimate.
    """
    check_level(level)
    reach = float(stats.t.ppf(0.5 + level / 2, dof)) * error if dof > 0 else math.inf
    return Estimate(value, value - reach, value + reach, level, dof + 1)


def mean_of(
    values: Sequence[float] | Array, *, level: float = 0.95, autocorrelation: float = 0.0
) -> Estimate:
    """The mean of observations, with Student's interval.

    Args:
        values: the observations.
        level: how often the interval is to hold the truth.
        autocorrelation: r, if the correlation of two observations k apart is r^k; n of them then
            count as n (1 - r) / (1 + r).

    Returns:
        The estimate.

    Raises:
        ValueError: there are no values.

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


def share_of(hits: int, n: int, *, level: float = 0.95) -> Estimate:
    """A share of n independent trials, with Wilson's interval.

    Args:
        hits: how many.
        n: of how many.
        level: how often the interval is to hold the truth.

    Returns:
        The estimate.

    Raises:
        ValueError: it is no share.

    Example:
        >>> print(share_of(0, 10))
        0 [0, 0.2775]
    """
    check_level(level)
    if not 0 <= hits <= n or n == 0:
        raise ValueError(f"{hits} of {n} is no share: give 0 <= hits <= n and n > 0")
    z2 = float(stats.norm.ppf(0.5 + level / 2)) ** 2
    p, whole = hits / n, 1 + z2 / n
    middle = (p + z2 / (2 * n)) / whole
    reach = math.sqrt(z2 * (p * (1 - p) + z2 / (4 * n)) / n) / whole
    low = 0.0 if hits == 0 else middle - reach
    high = 1.0 if hits == n else middle + reach
    return Estimate(p, low, high, level, n)
