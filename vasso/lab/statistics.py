"""Statistics of methods over seeds: paired tests, Holm's correction, seeds to decide.

    d_s = a_s - b_s                          over the seeds s that both have
    mean(d) +- t sd(d) / sqrt(n)             Student's interval with n - 1 degrees of freedom
    p       = P(|T_{n-1}| >= |t|)            Student's test, on which verdicts rest
    p_flip  = share of the 2^n signs with |mean(+-d)| >= |mean(d)|      the second opinion
    Holm    : p_(i) (m - i), made monotone: P(any false verdict among m) <= 5 %
    seeds to decide a difference D at the spread sd(d) that was seen: the smallest n with
        P(|T'_{n-1}(sqrt(n) D / sd(d))| >= t) >= 80 %               T' is noncentral

A seed fixes initial weights, order, split and wrong labels, so runs of one seed are pairs. The
flips need no normal errors but are coarse: with n seeds p_flip is never below 2 / 2^n.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from vasso.optional import needs_extra

with needs_extra("lab"):
    import numpy as np
    from scipy.special import nctdtr, stdtr, stdtrit

from vasso.diagnostics.estimates import Array, Estimate, mean_of, student

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8
"""Power of the test, for the number of seeds that a difference needs."""
LEAST = 3
"""With fewer seeds nothing is tested."""
EXACT = 16
"""Up to this many seeds all 2^n sign patterns are tried; with more, 2^16 are drawn."""

Verdict = Literal["agrees", "disagrees", "inconclusive", "too few seeds"]
Standing = Literal[
    "ahead", "behind", "larger", "smaller", "no significant difference", "too few seeds"
]
Better = Literal["more", "less", "neither"]
Name = TypeVar("Name", bound=Hashable)
WORDS: Mapping[Better, tuple[Standing, Standing]] = {
    "more": ("ahead", "behind"),
    "less": ("behind", "ahead"),
    "neither": ("larger", "smaller"),
}
"""The words for a difference above 0 and for one below, by which direction is better."""


@dataclass(frozen=True)
class Paired:
    """The difference of two methods over the `n` seeds that both have.

    `p` is that of Student's paired test, two-sided, 1 below two seeds; `p_flip` that of the test by
    flipping signs. `spread` is the standard deviation of the differences, NaN below two seeds.
    """

    difference: Estimate
    n: int
    p: float
    p_flip: float
    spread: float


def mean(values: Sequence[float]) -> Estimate:
    """The mean over seeds with Student's interval, which is infinite for one value."""
    return mean_of(values, level=LEVEL)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Compares two methods seed by seed: ours less theirs; None if they share no seed.

    Example:
        >>> compared = paired({0: 3.0, 1: 4.0, 2: 5.0}, {0: 1.0, 1: 2.0, 2: 2.0, 3: 9.0})
        >>> print(compared.difference, compared.n, compared.p_flip)
        2.333 [0.8991, 3.768] 3 0.25
    """
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    d = np.array([ours[seed] - theirs[seed] for seed in seeds])
    spread = float(d.std(ddof=1)) if len(d) > 1 else math.nan
    return Paired(_difference(d), len(seeds), student_p(d), sign_flip_p(d), spread)


def _difference(d: Array) -> Estimate:
    if len(d) < 2:
        return student(float(d.mean()), math.inf, 0, LEVEL)
    return student(float(d.mean()), float(d.std(ddof=1)) / math.sqrt(len(d)), len(d) - 1, LEVEL)


def student_p(differences: Sequence[float] | Array) -> float:
    """The p-value of Student's two-sided test that the mean is 0.

    Equal differences have no spread: p is 0, or 1 if they are all 0.
    """
    d = np.asarray(differences, dtype=np.float64)
    if len(d) < 2:
        return 1.0
    error = float(d.std(ddof=1)) / math.sqrt(len(d))
    if error <= 1e-12 * float(np.abs(d).max()):
        return float(not d.any())
    return float(2 * stdtr(len(d) - 1, -abs(float(d.mean())) / error))


def sign_flip_p(differences: Sequence[float] | Array) -> float:
    """The share of sign patterns whose mean is at least as far from 0.

    It is exact up to 16 seeds. Beyond, 65,536 patterns are drawn, the same every time.
    """
    d = np.asarray(differences, dtype=np.float64)
    if len(d) <= EXACT:
        bits = np.arange(2 ** len(d))[:, None] >> np.arange(len(d)) & 1
    else:
        bits = np.random.default_rng(0).integers(0, 2, (2**EXACT, len(d)))
        bits[0] = 0  # the pattern that was seen is one of them
    reached = np.abs((1 - 2 * bits) @ d)
    return float(np.mean(reached >= abs(d.sum()) * (1 - 1e-12)))


def holm(p: Mapping[Name, float]) -> dict[Name, float]:
    """p-values after Holm's correction, in the same order."""
    ranked = sorted(p, key=lambda name: p[name])
    found: dict[Name, float] = {}
    largest = 0.0
    for rank, name in enumerate(ranked):
        largest = max(largest, min(1.0, p[name] * (len(p) - rank)))
        found[name] = largest
    return {name: found[name] for name in p}


def seeds_to_decide(difference: float, spread: float, *, power: float = POWER) -> int:
    """The smallest number of seeds, at least three, that decides a difference (Student, 5 %).

    Args:
        difference: the true one, either sign, not 0.
        spread: standard deviation of the paired differences, at least 0.
        power: probability that the test finds it, between 0 and 1.

    Example:
        >>> seeds_to_decide(0.15, spread=0.15), seeds_to_decide(0.15, spread=0.3)
        (10, 34)
    """
    if not difference or not math.isfinite(difference):
        raise ValueError(f"difference must be a number other than 0, got {difference}")
    if not 0 <= spread < math.inf:
        raise ValueError(f"spread must be a number, at least 0, got {spread}")
    if not 0 < power < 1:
        raise ValueError(f"power must be between 0 and 1, such as 0.8, got {power}")
    high = LEAST
    while _power(difference, spread, high) < power:
        high *= 2
    low = max(LEAST, high // 2)
    while low < high:
        middle = (low + high) // 2
        enough = _power(difference, spread, middle) >= power
        low, high = (low, middle) if enough else (middle + 1, high)
    return high


def _power(difference: float, spread: float, n: int) -> float:
    """The power of Student's test of n seeds on the right side of the difference."""
    if spread == 0:
        return 1.0
    away = math.sqrt(n) * abs(difference) / spread
    if away > 30:  # the power is 1 and nctdtr does not converge
        return 1.0
    return float(1 - nctdtr(n - 1, away, stdtrit(n - 1, 1 - ALPHA / 2)))


def standing(compared: Paired | None, adjusted: float, better: Better = "more") -> Standing:
    """Who is ahead, or which is larger; `adjusted` is the p-value after Holm's correction.

    Without a significant difference the answer says so. Below three shared seeds it is "too few
    seeds".
    """
    if compared is None or compared.n < LEAST:
        return "too few seeds"
    if adjusted >= ALPHA:
        return "no significant difference"
    return _word(compared.difference.value, better)


def verdict(stands: Standing, published: float, better: Better = "more") -> Verdict:
    """Whether a comparison of ours agrees with a published difference, of which the sign counts.

    Example:
        >>> verdict("behind", published=9.7), verdict("smaller", published=-3.1, better="neither")
        ('disagrees', 'agrees')
    """
    if stands == "too few seeds":
        return "too few seeds"
    if stands == "no significant difference":
        return "inconclusive"
    return "agrees" if stands == _word(published, better) else "disagrees"


def _word(difference: float, better: Better) -> Standing:
    above, below = WORDS[better]
    return above if difference > 0 else below


def chosen(
    validation: Mapping[float, Sequence[float]], better: Literal["more", "less"] = "more"
) -> float | None:
    """The radius with the best mean over seeds in validation, which maps rho to one value per seed.

    Of equal radii it is the smaller; None if there are no values. Once a radius has three seeds,
    those with fewer are ignored.
    """
    known = {rho: values for rho, values in validation.items() if len(values)}
    enough = {rho: values for rho, values in known.items() if len(values) >= LEAST} or known
    if not enough:
        return None
    sign = 1 if better == "more" else -1
    return max(sorted(enough), key=lambda rho: sign * math.fsum(enough[rho]) / len(enough[rho]))
