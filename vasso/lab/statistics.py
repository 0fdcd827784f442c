"""Is one method better than another? Paired differences, a second opinion, many comparisons.

    d_s = a_s - b_s                          over the seeds s that both have
    mean(d) +- t sd(d) / sqrt(n)             Student's interval with n - 1 degrees of freedom
    p       = P(|T_{n-1}| >= |t|)            Student's test, on which verdicts rest
    p_flip  = share of the 2^n signs with |mean(+-d)| >= |mean(d)|      the second opinion
    Holm    : p_(i) (m - i), made monotone: P(any false verdict among m) <= 5 %

A seed fixes initial weights, order, split and wrong labels, so runs of one seed are pairs. The
flips need no normal errors but are coarse: with n seeds p_flip is never below 2 / 2^n.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from scipy.special import stdtr  # type: ignore[import-untyped]

from vasso.diagnostics.estimates import Array, Estimate, mean_of, student

LEVEL = 0.95
ALPHA = 0.05
LEAST = 3
"""Seeds below which there is no verdict."""
EXACT = 16
"""Seeds up to which every sign is tried; beyond, as many signs are drawn."""

Verdict = Literal["agrees", "disagrees", "cannot tell", "no verdict"]
Standing = Literal["ahead", "behind", "cannot tell", "no verdict"]
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Paired:
    """The difference of two methods over the seeds they share.

    Attributes:
        difference: its mean and interval.
        n: seeds that both have.
        p: of Student's paired test, two-sided; 1 below two seeds.
        p_flip: of the test by flipping signs.
    """

    difference: Estimate
    n: int
    p: float
    p_flip: float


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
    return Paired(_difference(d), len(seeds), student_p(d), sign_flip_p(d))


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


def standing(compared: Paired | None, adjusted: float) -> Standing:
    """Who is ahead, if that can be told.

    Args:
        compared: the difference.
        adjusted: its p-value after Holm.

    Returns:
        A word; no verdict below three shared seeds.
    """
    if compared is None or compared.n < LEAST:
        return "no verdict"
    if adjusted >= ALPHA:
        return "cannot tell"
    return "ahead" if compared.difference.value > 0 else "behind"


def verdict(stands: Standing, published: float) -> Verdict:
    """Whether a comparison of ours agrees with a published difference.

    Args:
        stands: our own.
        published: the difference; only its sign counts.

    Returns:
        A word.

    Example:
        >>> verdict("behind", published=9.7)
        'disagrees'
    """
    if stands == "cannot tell" or stands == "no verdict":
        return stands
    return "agrees" if (stands == "ahead") == (published > 0) else "disagrees"


def chosen(validation: Mapping[float, Sequence[float]]) -> float | None:
    """The radius with the highest mean validation accuracy over seeds.

    Args:
        validation: rho -> accuracies on validation images, one for each seed.

    Returns:
        The radius, the smaller one if two are equal; None if there is nothing to choose by. Once a
        radius has three seeds those with fewer are passed over.

    Example:
        >>> chosen({0.1: [50.0, 52.0, 51.0], 0.2: [53.0, 51.0, 55.0], 0.3: [60.0]})
        0.2
    """
    known = {rho: values for rho, values in validation.items() if len(values)}
    enough = {rho: values for rho, values in known.items() if len(values) >= LEAST} or known
    if not enough:
        return None
    return max(sorted(enough), key=lambda rho: math.fsum(enough[rho]) / len(enough[rho]))
