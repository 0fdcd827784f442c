"""Intervals hold the truth as often as they state."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.diagnostics.noisy import share_within
from vasso.diagnostics.estimates import (
    Estimate,
    crossed_mean,
    crossed_ratio,
    crossed_share,
    mean_of,
    share_of,
)


def table(generator: np.random.Generator, A: int, B: int) -> np.ndarray:
    """Adversaries and batches each with an effect of their own."""
    a, b = generator.normal(size=(A, 1)), generator.normal(size=(1, B))
    return a + b + 0.5 * generator.normal(size=(A, B))


def covered(draw: Callable[[np.random.Generator], Estimate], truth: float, seed: int) -> list[bool]:
    generator = np.random.default_rng(seed)
    return [x.low <= truth <= x.high for x in (draw(generator) for _ in range(600))]


@pytest.mark.parametrize("shape", [(8, 16), (5, 5)])
def test_means_of_crossed_samples(shape: tuple[int, int]) -> None:
    share_within(covered(lambda generator: crossed_mean(table(generator, *shape)), 0, 0), 0.95)


def test_the_mean_of_one_adversary_is_that_over_batches() -> None:
    share_within(
        covered(lambda generator: crossed_mean(generator.normal(size=(1, 12))), 0, 0), 0.95
    )


def test_an_interval_that_forgets_the_crossing_would_not_hold() -> None:
    assert sum(covered(lambda generator: mean_of(table(generator, 8, 16).ravel()), 0, 0)) < 450


def test_ratios_of_crossed_samples() -> None:
    def draw(generator: np.random.Generator) -> Estimate:
        own = 5 + generator.normal(size=12)  # its spread is in both and cancels
        return crossed_ratio(0.5 * own[:, None] + 0.1 * table(generator, 12, 16), own)

    share_within(covered(draw, 0.5, 1), 0.95)


def test_shares_of_crossed_samples() -> None:
    truth = 0.5 * math.erfc(1 / math.sqrt(2 * 2.25))  # P(a + b + e / 2 < -1), variance 9 / 4

    def draw(generator: np.random.Generator) -> Estimate:
        return crossed_share((table(generator, 20, 20) < -1).astype(float))

    assert 0.9 < np.mean(covered(draw, truth, 2)) < 0.99


def test_means_of_correlated_observations() -> None:
    r = 0.6

    def draw(generator: np.random.Generator) -> Estimate:
        x = [generator.normal()]
        for e in generator.normal(size=99):
            x.append(r * x[-1] + math.sqrt(1 - r * r) * e)
        return mean_of(x, autocorrelation=r)

    share_within(covered(draw, 0, 3), 0.95)


def test_wilson_at_the_edge_and_in_the_middle() -> None:
    found = share_of(5, 10)
    assert (found.low, found.high) == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert share_of(10, 10).high == 1.0
    assert mean_of([1.0]).high == math.inf
    assert crossed_share(np.ones((8, 16))).low == share_of(8, 8).low
