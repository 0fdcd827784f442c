"""Is one method better than another? Paired differences, a second opinion, many comparisons.

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

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from vasso.extras import brought_by

with brought_by("lab"):
    import numpy as np
    from scipy.special import nctdtr, stdtr, stdtrit

from vasso.diagnostics.estimates import Array, Estimate, mean_of, student

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8
"""How often a difference that is there is to be found, where seeds are counted in advance."""
LEAST = 3
"""Seeds below which there is no verdict."""
EXACT = 16
"""Seeds up to which every sign is tried; beyond, as many signs are drawn."""

Verdict = Literal["agrees", "disagrees", "cannot tell", "no verdict"]
Standing = Literal["ahead", "behind", "larger", "smaller", "cannot tell", "no verdict"]
Better = Literal["more", "less", "neither"]
Name = TypeVar("Name", bound=Hashable)
WORDS: Mapping[Better, tuple[Standing, Standing]] = {
    "more": ("ahead", "behind"),
    "less": ("behind", "ahead"),
    "neither": ("larger", "smaller"),
}
"""What is said of a difference above 0 and of one below; where neither is better, just that."""


@dataclass(frozen=True)
class Paired:
    """The difference of two methods over the seeds they share.

    Attributes:
        difference: its mean and interval.
        n: seeds that both have.
        p: of Student's paired test, two-sided; 1 below two seeds.
        p_flip: of the test by flipping signs.
        spread: standard deviation of the differences; NaN below two seeds.
    """

    difference: Estimate
    n: int
    p: float
    p_flip: float
    spread: float


def mean(values: Sequence[float]) -> Estimate:
    """The mean of runs that differ in nothing but the seed, with Student's interval.

    Args:
        values: one for each seed.

    Returns:
        The estimate; of one value the interval is infinite.

    Example:
        >>> print(mean([30.1, 29.5, 30.6]))
        30.07 [28.7, 31.43]
    """
    return mean_of(values, level=LEVEL)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Compares two methods seed by seed.

    Args:
        ours: seed -> value.
        theirs: seed -> value.

    Returns:
        ours less theirs; None if they share no seed.

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
    """Student's two-sided test of whether the mean is 0.

    Args:
        differences: one for each seed.

    Returns:
        The p-value; differences that are all alike have no spread: 0, or 1 if they are all 0.
    """
    d = np.asarray(differences, dtype=np.float64)
    if len(d) < 2:
        return 1.0
    error = float(d.std(ddof=1)) / math.sqrt(len(d))
    if error <= 1e-12 * float(np.abs(d).max()):
        return float(not d.any())
    return float(2 * stdtr(len(d) - 1, -abs(float(d.mean())) / error))


def sign_flip_p(differences: Sequence[float] | Array) -> float:
    """The share of sign patterns that bring the mean at least as far from 0.

    Args:
        differences: one for each seed.

    Returns:
        Exact up to 16 seeds; beyond from 65,536 patterns, drawn the same every time.

    Example:
        >>> sign_flip_p([1.0, 2.0, 3.0, 4.0])
        0.125
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
    """p-values that may be read side by side.

    Args:
        p: comparison -> its own p-value.

    Returns:
        comparison -> adjusted p-value, in the same order.

    Example:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    ranked = sorted(p, key=lambda name: p[name])
    found: dict[Name, float] = {}
    largest = 0.0
    for rank, name in enumerate(ranked):
        largest = max(largest, min(1.0, p[name] * (len(p) - rank)))
        found[name] = largest
    return {name: found[name] for name in p}


def seeds_to_decide(difference: float, spread: float, *, power: float = POWER) -> int:
    """How many seeds would decide a difference: Student's paired test, two-sided, at 5 %.

    Args:
        difference: the true one, either sign, not 0.
        spread: standard deviation of the paired differences, at least 0.
        power: how often the test is to find it, between 0 and 1.

    Returns:
        The smallest number of seeds; three at least, below which there is no verdict.

    Raises:
        ValueError: the difference is 0, the spread is negative or not finite, or power is no share.

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
    """How often Student's test of n seeds finds the difference, on its right side."""
    if spread == 0:
        return 1.0
    away = math.sqrt(n) * abs(difference) / spread
    if away > 30:  # beyond any doubt, where the series of the distribution gives up
        return 1.0
    return float(1 - nctdtr(n - 1, away, stdtrit(n - 1, 1 - ALPHA / 2)))


def standing(compared: Paired | None, adjusted: float, better: Better = "more") -> Standing:
    """Who is ahead, or which is larger, if that can be told.

    Args:
        compared: the difference.
        adjusted: its p-value after Holm.
        better: which way is better; where neither is, the difference is larger or smaller.

    Returns:
        A word; no verdict below three shared seeds.
    """
    if compared is None or compared.n < LEAST:
        return "no verdict"
    if adjusted >= ALPHA:
        return "cannot tell"
    return _word(compared.difference.value, better)


def verdict(stands: Standing, published: float, better: Better = "more") -> Verdict:
    """Whether a comparison of ours agrees with a published difference.

    Args:
        stands: our own.
        published: the difference; only its sign counts.
        better: which way is better, as for `stands`.

    Returns:
        A word.

    Example:
        >>> verdict("behind", published=9.7), verdict("smaller", published=-3.1, better="neither")
        ('disagrees', 'agrees')
    """
    if stands == "cannot tell" or stands == "no verdict":
        return stands
    return "agrees" if stands == _word(published, better) else "disagrees"


def _word(difference: float, better: Better) -> Standing:
    above, below = WORDS[better]
    return above if difference > 0 else below


def chosen(
    validation: Mapping[float, Sequence[float]], better: Literal["more", "less"] = "more"
) -> float | None:
    """The radius with the best mean over seeds in validation.

    Args:
        validation: rho -> what validation gave, one number for each seed.
        better: "more" for accuracies, "less" for perplexities.

    Returns:
        The radius, the smaller one if two are equal; None if there is nothing to choose by. Once a
        radius has three seeds those with fewer are passed over.

    Example:
        >>> chosen({0.1: [50.0, 52.0, 51.0], 0.2: [53.0, 51.0, 55.0], 0.3: [60.0]})
        0.2
        >>> chosen({0.1: [5.1, 5.2], 0.2: [4.9, 5.0]}, better="less")
        0.2
    """
    known = {rho: values for rho, values in validation.items() if len(values)}
    enough = {rho: values for rho, values in known.items() if len(values) >= LEAST} or known
    if not enough:
        return None
    sign = 1 if better == "more" else -1
    return max(sorted(enough), key=lambda rho: sign * math.fsum(enough[rho]) / len(enough[rho]))
