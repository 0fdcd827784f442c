"""The rho of equal effect: closed forms, and intervals that hold the truth."""

import math

import numpy as np
import pytest

from tests.diagnostics.noisy import share_within
from vasso.diagnostics.adversary.equal_effect import equal_effect
from vasso.diagnostics.adversary.radius import Rises

RHOS = (0.05, 0.1, 0.2, 0.4)


def straight(own: np.ndarray, others: np.ndarray) -> Rises:
    """Rises that grow with rho: own[i] rho on the own batch, others[i, j] rho on other j."""
    return Rises(RHOS, own[:, None] * np.array(RHOS), others[:, :, None] * np.array(RHOS))


def constant(own: float, others: float, adversaries: int = 3) -> Rises:
    return straight(np.full(adversaries, own), np.full((adversaries, 2), others))


def test_half_the_gain_takes_twice_the_radius() -> None:
    sam, vasso = constant(4.0, 1.0), constant(2.0, 2.5)
    own = equal_effect(sam, vasso, 0.1, on="own", theta=0.4)
    others = equal_effect(sam, vasso, 0.1, on="others")
    assert own.rho.value == pytest.approx(0.2, rel=1e-9)
    assert others.rho.value == pytest.approx(0.04, rel=1e-9)
    assert (own.rise.value, others.rise.value) == pytest.approx((0.4, 0.1))
    assert (own.rho.low, own.rho.high) == pytest.approx((0.2, 0.2))  # no spread, no doubt
    assert own.row()["theta"] == 0.4
    assert own.row()["rho_high"] == own.rho.high


def test_a_slope_is_its_own_equal() -> None:
    generator = np.random.default_rng(0)
    rises = straight(3 + generator.normal(size=6), 1 + 0.1 * generator.normal(size=(6, 5)))
    for on in ("own", "others"):
        found = equal_effect(rises, rises, 0.2, on=on)
        assert found.rho.value == pytest.approx(0.2, rel=1e-9)
        assert found.rho.low < 0.2 < found.rho.high


def test_what_is_not_reached_is_beyond_and_no_rise_has_no_equal() -> None:
    beyond = equal_effect(constant(4.0, 1.0), constant(0.5, 1.0), 0.1).rho
    assert (beyond.value, beyond.low) == (math.inf, 0.4)
    assert math.isnan(equal_effect(constant(4.0, -1.0), constant(1, 1), 0.1, on="others").rho.value)


def test_one_adversary_has_no_interval() -> None:
    one = constant(4.0, 1.0, adversaries=1)
    found = equal_effect(one, constant(2.0, 1.0), 0.1).rho
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == (0.0, pytest.approx(math.exp(700)))


@pytest.mark.parametrize("on", ["own", "others"])
def test_intervals_hold_the_truth(on: str) -> None:
    """Gains 2 and 1.5: the radius of equal effect is 4/3 of rho."""
    generator, hits = np.random.default_rng(1), []
    for _ in range(400):
        shared = 0.3 * generator.normal(size=(1, 8))
        sam, vasso = (
            straight(
                mean + 0.3 * generator.normal(size=8),
                mean
                + shared
                + 0.3 * generator.normal(size=(8, 1))
                + 0.2 * generator.normal(size=(8, 8)),
            )
            for mean in (2.0, 1.5)
        )
        found = equal_effect(sam, vasso, 0.1, on=on).rho
        hits.append(found.low <= 0.1 * 4 / 3 <= found.high)
    share_within(hits, 0.95)
