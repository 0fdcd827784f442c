"""The spread of adversaries under gradient noise, for a toy gradient of three numbers.

    g_t = grad f + xi_t,  xi_t ~ N(0, Sigma),  tr Sigma = ||grad f||^2 / SNR
    d_t = (1 - theta) d_{t-1} + theta g_t,     epsilon_t = d_t / ||d_t||

The weights are fixed, so averaging leaves theta / (2 - theta) of the noise: VaSSO's adversaries are
those of SAM at an SNR that is (2 - theta) / theta times as large. This is the paper's Figure 2 (a)
to (d), with numbers for the spread.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vasso.diagnostics.adversary.slope_error import check_theta
from vasso.diagnostics.estimates import Array, Estimate, mean_of, share_of, student

GRADIENT = (0.2, -0.1, 0.6)
VARIANCES = (0.2, 1.0, 2.0)
"""The paper's gradient, and the proportions of the variances of its noise."""


@dataclass(frozen=True)
class Cloud:
    """Independent adversaries of one slope.

    Attributes:
        snr: ||grad f||^2 / E||g - grad f||^2.
        theta: weight of the newest gradient; 1 is SAM.
        gradient: the true gradient.
        slopes: d of each adversary, (adversaries, dimensions).
    """

    snr: float
    theta: float
    gradient: Array
    slopes: Array

    @property
    def points(self) -> Array:
        """The adversaries on the sphere of radius 1, one to a row."""
        lengths = np.linalg.norm(self.slopes, axis=1, keepdims=True)
        return self.slopes / np.where(lengths == 0, 1.0, lengths)

    @property
    def cosines(self) -> Array:
        """The cosine of each adversary to the true gradient."""
        length = float(np.linalg.norm(self.gradient))
        along: Array = self.points @ (self.gradient / length)
        return along

    def cosine(self, level: float = 0.95) -> Estimate:
        """The mean cosine to the true gradient: 1 without noise, about 0 for noise alone."""
        return mean_of(self.cosines, level=level).within(-1, 1)

    def friends(self, level: float = 0.95) -> Estimate:
        """The share of adversaries along which the true loss falls; 1/2 for noise alone."""
        return share_of(float((self.cosines < 0).sum()), len(self.slopes), level=level)

    def resultant(self, level: float = 0.95) -> Estimate:
        """The mean resultant length ||E epsilon||: 1 if all agree, 0 if they spread evenly.

        ||mean||^2 of n points counts 1 / n of their spread as agreement; (n ||mean||^2 - 1) /
        (n - 1) does not. The interval is that of the square, by the jackknife over points.
        """
        points, n = self.points, len(self.slopes)
        total = points.sum(axis=0)
        square = _agreement(float(total @ total), n)
        rest = total - points
        without = _agreement(np.einsum("ij,ij->i", rest, rest), n - 1)
        error = math.sqrt((n - 1) * float(np.var(without)))
        squared = student(square, error, n - 1, level)
        ends = (squared.value, squared.low, squared.high)
        value, low, high = (math.sqrt(max(x, 0.0)) for x in ends)
        return Estimate(value, low, high, level, n)

    def row(self) -> dict[str, Any]:
        """One row of a table: column -> value."""
        return {
            "snr": self.snr,
            "theta": self.theta,
            **self.cosine().row("cosine"),
            **self.resultant().row("resultant"),
            **self.friends().row("friends"),
            "adversaries": len(self.slopes),
        }


def _agreement(squared_sum: Any, n: int) -> Any:
    """The mean inner product of two different points, of n."""
    return (squared_sum - n) / (n * (n - 1))


def cloud(
    snr: float,
    theta: float = 1.0,
    *,
    gradient: Sequence[float] = GRADIENT,
    variances: Sequence[float] = VARIANCES,
    adversaries: int = 100,
    seed: int = 0,
) -> Cloud:
    """Adversaries at one SNR, each with independent noise.

    With the same seed and SNR the newest gradients are the same for every theta, so two clouds
    differ in the averaging only.

    Args:
        snr: ||grad f||^2 over the sum of the variances.
        theta: weight of the newest gradient; 1 is SAM.
        gradient: the true gradient.
        variances: of the noise, up to a factor that the SNR determines.
        adversaries: number of adversaries.

    Example:
        >>> sam, vasso = cloud(0.1), cloud(0.1, theta=0.2)
        >>> print(sam.cosine(), "|", vasso.cosine())
        0.2545 [0.1245, 0.3845] | 0.7329 [0.6579, 0.8079]
    """
    check_theta(theta)
    g, spread = np.asarray(gradient, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    _check(snr, g, spread, adversaries)
    deviations = np.sqrt(spread / spread.sum() * (g @ g) / snr)
    generator = np.random.default_rng(seed)
    newest = g + deviations * generator.standard_normal((adversaries, len(g)))
    shape, count = (adversaries, len(g)), steps_to_forget(theta)
    past = [g + deviations * generator.standard_normal(shape) for _ in range(count)]
    d = past[0] if past else newest  # d_0 = g_0
    for batch in [*past[1:], newest]:
        d = (1 - theta) * d + theta * batch
    return Cloud(float(snr), float(theta), g, d)


def steps_to_forget(theta: float) -> int:
    """Number of steps n after which the first gradient's weight (1 - theta)^n is at most 0.001."""
    return 0 if theta == 1 else math.ceil(math.log(1e-3) / math.log(1 - theta) - 1e-9)


def _check(snr: float, gradient: Array, variances: Array, adversaries: int) -> None:
    if not 0 < snr < math.inf:
        raise ValueError(f"snr must be above 0 and finite, got {snr}")
    if gradient.ndim != 1 or gradient.shape != variances.shape or len(gradient) < 2:
        raise ValueError(
            "gradient and variances must have the same length of at least 2, got "
            f"{gradient.tolist()} and {variances.tolist()}"
        )
    if not gradient.any() or (variances < 0).any() or not variances.any():
        raise ValueError(
            "the gradient must not be 0, and variances must be at least 0 and not all 0, got "
            f"{gradient.tolist()} and {variances.tolist()}"
        )
    if adversaries < 3:
        raise ValueError(f"adversaries must be at least 3 for an interval, got {adversaries}")
