"""Methods with one gradient a step, and those that take the average out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.family.steps import (
    BASES,
    Make,
    adamw,
    assert_near,
    assert_same,
    flat,
    momentum,
    norm,
    ours,
    path_of,
    plain,
    records,
    train,
)
from tests.reference import family_b as twins
from vasso import MSAM, S2SAM, FriendlySAM

# -- one gradient per step ------------------------------------------------------------------------


def falling(t: int) -> float:
    """A radius that is 0 in a warm-up and falls later."""
    return 0.0 if t < 5 else 2.0 / (t + 1)


@pytest.mark.parametrize("twin", [twins.msam, twins.msam_shifted])
@pytest.mark.parametrize("base", BASES)
def test_msam_is_its_explicit_and_its_shifted_form(twin: Any, base: Make) -> None:
    assert_near(ours(partial(MSAM, rho=0.5), base), path_of(twin, base, rho=lambda t: 0.5))


@pytest.mark.parametrize("twin", [twins.msam, twins.msam_shifted])
def test_msam_with_a_radius_that_changes_is_both_of_its_forms(twin: Any) -> None:
    make = partial(MSAM, rho=lambda step, lr: falling(step))
    assert_near(ours(make), path_of(twin, rho=falling))


@pytest.mark.parametrize(("base", "buffer"), [(momentum, "momentum_buffer"), (adamw, "exp_avg")])
def test_msam_goes_on_against_the_momentum_from_before_the_step(base: Make, buffer: str) -> None:
    steps = records(partial(MSAM, rho=0.7), base)
    first, _, opt = next(steps)
    assert not flat(first.epsilon).any()
    v = [opt.base.state[p][buffer].clone() for p in first.params]
    for record, _, opt in steps:
        assert_near(flat(record.epsilon), flat(v) * (-0.7 / norm(v)), atol=1e-14)  # x + e - x
        v = [opt.base.state[p][buffer].clone() for p in record.params]


@pytest.mark.parametrize("base", BASES)
def test_s2sam_climbs_along_the_gradient_of_the_step_before(base: Make) -> None:
    assert_near(ours(partial(S2SAM, rho=0.1), base), path_of(twins.s2sam, base, rho=0.1))


@pytest.mark.parametrize("method", [MSAM, S2SAM])
def test_the_first_step_of_a_method_with_one_gradient_is_the_bases(method: Any) -> None:
    assert_same(train(method)[0], train(plain)[0])


# -- friendly adversaries -------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["new", "old"])
@pytest.mark.parametrize(("sigma", "base"), [(1.0, momentum), (0.5, momentum), (0.5, adamw)])
def test_friendly_sam_takes_the_average_out(use: str, sigma: float, base: Make) -> None:
    settings = {"rho": 0.1, "sigma": sigma, "lam": 0.6, "use": use}
    twin = path_of(twins.friendly, base, **settings)
    assert_near(ours(partial(FriendlySAM, **settings), base), twin)


def test_both_forms_of_friendly_sam_point_the_same_way_at_sigma_one() -> None:
    new, old = (ours(partial(FriendlySAM, use=use)) for use in ("new", "old"))
    assert_near(new, old)


def test_both_forms_of_friendly_sam_differ_at_other_sigmas() -> None:
    new, old = (ours(partial(FriendlySAM, sigma=0.5, use=use)) for use in ("new", "old"))
    assert (new - old).abs().max() > 1e-3
