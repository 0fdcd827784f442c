"""Intervals hold the truth as often as they state."""

import math

import numpy as np
import pytest

from tests.diagnostics.noisy import share_within
from vasso.diagnostics.estimates import (
    crossed_mean,
    crossed_ratio,
    crossed_share,
    mean_of,
    share_of,
)


def table(luck: np.random.Generator, A: int, B: int) -> np.ndarray:
    """Adversaries and batches each with an effect of their own."""
    a, b = luck.normal(size=(A, 1)), luck.normal(size=(1, B))
    return a + b + 0.5 * luck.normal(size=(A, B))


@pytest.mark.parametrize("shape", [(8, 16), (5, 5), (1, 12)])
def test_means_of_crossed_samples(shape: tuple[int, int]) -> None:
    luck = np.random.default_rng(0)
    hits = []
    for _ in range(600):  # of one adversary, the mean over batches for this adversary
        found = crossed_mean(table(luck, *shape) if shape[0] > 1 else luck.normal(size=shape))
        hits.append(found.low <= 0 <= found.high)
    share_within(hits, 0.95)


def test_an_interval_that_forgets_the_crossing_would_not_hold() -> None:
    luck = np.random.default_rng(0)
    found = [mean_of(table(luck, 8, 16).ravel()) for _ in range(200)]
    assert sum(x.low <= 0 <= x.high for x in found) < 150


def test_ratios_of_crossed_samples() -> None:
    luck = np.random.default_rng(1)
    hits = []
    for _ in range(600):
        own = 5 + luck.normal(size=12)  # its spread is in both and cancels
        found = crossed_ratio(0.5 * own[:, None] + 0.1 * table(luck, 12, 16), own)
        hits.append(found.low <= 0.5 <= found.high)
    share_within(hits, 0.95)


def test_shares_of_crossed_samples() -> None:
    luck = np.random.default_rng(2)
    truth = 0.5 * math.erfc(1 / math.sqrt(2 * 2.25))  # P(a + b + e / 2 < -1), variance 9 / 4
    hits = []
    for _ in range(600):
        found = crossed_share((table(luck, 20, 20) < -1).astype(float))
        hits.append(found.low <= truth <= found.high)
    assert 0.9 < np.mean(hits) < 0.99


def test_means_of_correlated_observations() -> None:
    luck = np.random.default_rng(3)
    r, hits = 0.6, []
    for _ in range(600):
        x = [luck.normal()]
        for e in luck.normal(size=99):
            x.append(r * x[-1] + math.sqrt(1 - r * r) * e)
        found = mean_of(x, autocorrelation=r)
        hits.append(found.low <= 0 <= found.high)
    share_within(hits, 0.95)


def test_wilson_at_the_edge_and_in_the_middle() -> None:
    found = share_of(5, 10)
    assert (found.low, found.high) == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert share_of(10, 10).high == 1.0
    assert crossed_share(np.ones((8, 16))).low == share_of(8, 8).low


def test_what_is_no_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_of([])
    with pytest.raises(ValueError, match="3 of 2 is no share"):
        share_of(3, 2)
    with pytest.raises(ValueError, match=r"such as 0\.95, got 95"):
        mean_of([1.0, 2.0], level=95)
    assert mean_of([1.0]).high == math.inf
