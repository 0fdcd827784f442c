"""Adversaries on a sphere against known numbers and the theory of averages."""

import math

import numpy as np
import pytest

from vasso.diagnostics.adversary.sphere import GRADIENT, VARIANCES, Cloud, cloud

MANY = 40_000
KNOWN = {5.0: (0.943, 0.001), 1.0: (0.702, 0.09), 0.1: (0.271, 0.34), 0.01: (0.086, 0.45)}
"""SNR -> mean resultant length and share of friends, from a simulation apart from this one."""


@pytest.mark.parametrize("snr", KNOWN)
def test_sam_spreads_as_an_independent_simulation_says(snr: float) -> None:
    found = cloud(snr, adversaries=MANY, seed=1)
    resultant, friends = KNOWN[snr]
    assert found.resultant().value == pytest.approx(resultant, abs=0.012)
    assert found.friends().value == pytest.approx(friends, abs=0.007)


@pytest.mark.parametrize("theta", [1.0, 0.9, 0.4, 0.2])
def test_averaging_leaves_theta_over_two_minus_theta_of_the_noise(theta: float) -> None:
    found = cloud(0.1, theta, adversaries=MANY)
    power = sum(x**2 for x in GRADIENT)
    share = np.array(VARIANCES) / sum(VARIANCES)
    expected = theta / (2 - theta) * share * power / 0.1
    # the variance of n normal numbers is known to sqrt(2 / n); four of these
    assert found.slopes.var(axis=0) == pytest.approx(expected, rel=4 * math.sqrt(2 / MANY))
    assert found.slopes.mean(axis=0) == pytest.approx(
        GRADIENT, abs=4 * math.sqrt(expected.max() / MANY)
    )


def test_the_same_newest_gradients_for_every_theta() -> None:
    sam, almost = cloud(0.1, seed=5), cloud(0.1, 0.999999, seed=5)
    assert almost.slopes == pytest.approx(sam.slopes, abs=1e-4)


def test_points_are_on_the_sphere_and_a_slope_of_zero_stays() -> None:
    found = Cloud(1.0, 1.0, np.array([1.0, 0.0]), np.array([[3.0, 4.0], [0.0, 0.0], [-1.0, 0.0]]))
    assert found.points.tolist() == [[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]]
    assert found.cosines.tolist() == [0.6, 0.0, -1.0]
    assert found.friends().value == pytest.approx(1 / 3)


def test_points_that_agree_have_length_one_and_opposite_ones_none() -> None:
    g = np.array([1.0, 0.0])
    agree = Cloud(1.0, 1.0, g, np.tile([0.0, 2.0], (5, 1)))
    opposite = Cloud(1.0, 1.0, g, np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]]))
    assert agree.resultant().value == pytest.approx(1)
    assert opposite.resultant().value == 0  # its square is estimated as -1/3


def test_the_square_of_the_resultant_is_unbiased_and_its_interval_holds_it() -> None:
    clouds = [cloud(0.1, adversaries=30, seed=seed) for seed in range(400)]
    squares = [c.resultant().value ** 2 for c in clouds]
    naive = [np.linalg.norm(c.points.mean(axis=0)) ** 2 for c in clouds]
    truth = cloud(0.1, adversaries=400_000, seed=7).resultant().value ** 2
    error = np.std(squares) / 20
    assert abs(np.mean(squares) - truth) < 3 * error + 0.004  # cut off at 0, so a little high
    assert np.mean(naive) - truth > 0.02  # a 30th
    held = np.mean([c.resultant().low ** 2 <= truth <= c.resultant().high ** 2 for c in clouds])
    assert 0.9 < held <= 1


def test_a_row_tells_all() -> None:
    row = cloud(5.0, 0.4, adversaries=10).row()
    assert (row["snr"], row["theta"], row["adversaries"]) == (5.0, 0.4, 10)
    assert row["cosine_low"] <= row["cosine"] <= row["cosine_high"]
    assert {"resultant", "resultant_low", "friends", "friends_high"} <= row.keys()
