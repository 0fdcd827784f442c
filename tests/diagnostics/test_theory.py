"""Tests of the paper's theorems on problems with known L, sigma and optimum."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import vasso
from tests.support.problems import take_step
from vasso.diagnostics.theory import (
    Problem,
    convergence,
    m_sharpness,
    rate,
    resting_slope,
    run,
    separation,
    slope_quality,
    valley,
)

CURVATURES = tuple(np.geomspace(0.1, 2, 20).tolist())
METHODS = {
    "SAM": {},
    "VaSSO 0.4": {"theta": 0.4},
    "VaSSO 0.2": {"theta": 0.2},
    "random": {"adversary": "random"},
}


def starts(runs: int) -> np.ndarray:
    return np.full((runs, len(CURVATURES)), 0.5)


@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_the_runs_are_those_of_the_optimizer(theta: float) -> None:
    """The same noise through vasso.VaSSO on torch.optim.SGD, float64."""
    problem, steps, eta, rho = Problem(CURVATURES, shape="waves"), 20, 0.1, 0.3
    found = run(problem, starts(1), steps=steps, eta=eta, rho=rho, theta=theta, seed=3)
    x = torch.tensor(starts(1)[0], requires_grad=True)
    opt = vasso.SAM(torch.optim.SGD([x], lr=eta), rho=rho, theta=theta)
    generator, curvatures = np.random.default_rng(3), torch.tensor(CURVATURES, dtype=x.dtype)
    for _ in range(steps):
        zeta = torch.tensor(problem.noise(generator, starts(1))[0])
        take_step(opt, lambda zeta=zeta: ((1 - x.cos()) * curvatures).sum() + zeta @ x)
    np.testing.assert_allclose(found.x[0], x.detach().numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", ["bowl", "waves"])
@pytest.mark.parametrize("method", METHODS)
def test_theorem_1_any_adversary_on_the_sphere_converges_at_the_rate(shape, method: str) -> None:
    problem = Problem(CURVATURES, shape=shape)
    rows = [
        convergence(problem, starts(20), T, eta0=1.0, rho0=1.0, **METHODS[method])
        for T in (100, 400, 1600)
    ]
    for row in rows:
        assert row.gradient.high <= row.gradient_bound
        assert row.perturbed.high <= row.perturbed_bound
    assert rate(rows) == pytest.approx(-0.5, abs=0.03)


def test_a_radius_that_does_not_shrink_does_not_converge() -> None:
    """At x + epsilon; so that the test of the rate can fail: rho0 grows with sqrt(T)."""
    rows = [
        convergence(Problem(CURVATURES), starts(5), T, eta0=1.0, rho0=0.5 * T**0.5)
        for T in (100, 400, 1600)
    ]
    assert rows[-1].perturbed.low > rows[0].perturbed.value / 3  # the rate would make it a quarter


@pytest.mark.parametrize("theta", [1.0, 0.9, 0.4, 0.2])
def test_theorem_2_while_x_stands_still_the_error_is_exact(theta: float) -> None:
    found = slope_quality(Problem(CURVATURES), starts(100), 300, eta0=0.0, rho0=1.0, theta=theta)
    half = (found.mse.high - found.mse.low) / 2
    assert abs(found.mse.value - found.stationary) < 1.7 * half  # 3.3 standard errors
    assert half < 0.02 * found.stationary


@pytest.mark.parametrize("theta", [0.9, 0.4, 0.2])
def test_theorem_2_along_a_run_the_error_keeps_its_bound(theta: float) -> None:
    short, long = (
        slope_quality(Problem(CURVATURES), starts(50), T, eta0=1.0, rho0=1.0, theta=theta)
        for T in (100, 1600)
    )
    for found in (short, long):
        assert found.mse.high <= found.bound
    assert long.mse.high < long.leading
    assert long.mse.value / long.stationary < 1.15


def test_theorem_2_leaves_out_that_the_slope_starts_as_noisy_as_a_gradient() -> None:
    found = slope_quality(Problem(CURVATURES), starts(200), 100, eta0=1.0, rho0=1.0, theta=0.2)
    assert found.first.low > found.leading
    assert found.first.low <= 1.0 <= found.first.high


@pytest.mark.parametrize("theta", [1.0, 0.9, 0.4, 0.2])
def test_theorem_3_stability(theta: float) -> None:
    found = slope_quality(Problem(CURVATURES), starts(50), 1600, eta0=1.0, rho0=1.0, theta=theta)
    assert found.stability.high <= found.leading_stability


def test_the_slope_at_rest_has_its_closed_form() -> None:
    for curvature in (10.0, 0.1):
        for theta in (1.0, 0.4, 0.05):
            found = valley(curvature, theta=theta, runs=20, steps=300)
            expected = resting_slope(curvature, 0.05, theta) ** 0.5
            assert found.length.value == pytest.approx(expected, rel=0.02)  # a root of a mean


def test_the_remark_at_rest_slopes_are_shorter_in_the_sharp_valley_gradients_longer() -> None:
    """The remark says longer: gradients of successive steps are taken to add up; they cancel."""
    apart = {}
    for theta in (1.0, 0.2):
        sharp = valley(10.0, theta=theta)
        flat = valley(0.1, theta=theta, seed=1)
        apart[theta] = separation(sharp.lengths, flat.lengths)
        assert (sharp.length.low > flat.length.high) == (theta == 1.0)
        assert (sharp.length.high < flat.length.low) == (theta == 0.2)
    assert apart[1.0] > 0.85
    assert apart[0.2] < 0.1
    assert separation(np.array([2.0, 3.0]), np.array([1.0, 3.0])) == 0.625  # a tie is half


def test_the_remark_before_rest_slopes_tell_valleys_apart_better_than_gradients() -> None:
    """Held at one distance from the optimum, where noise hides the gradient of both valleys."""
    held = {"eta": 0.0, "distance": 0.03, "steps": 200}
    apart = {}
    for theta in (1.0, 0.2):
        sharp, flat = valley(10.0, theta=theta, **held), valley(0.1, theta=theta, seed=1, **held)
        apart[theta] = separation(sharp.lengths, flat.lengths)
        assert sharp.cosine.low > flat.cosine.high
    assert apart[0.2] > apart[1.0] + 0.1


GRID = [Fraction(i, 20) for i in range(-40, 41)]


def test_m_sharpness_is_zero_everywhere_or_has_one_minimum_as_the_data_are_cut() -> None:
    rho = Fraction(1, 10)
    assert {m_sharpness(w, rho, [[1, 2], [3, 4]]) for w in GRID} == {0}
    for half, cut in ((Fraction(1, 2), [[1, 3], [2, 4]]), (Fraction(-1, 2), [[1, 4], [2, 3]])):
        for w in GRID:
            u = abs(w - half)
            assert m_sharpness(w, rho, cut) == (4 * u * rho if u >= rho else (u + rho) ** 2)
        assert min(GRID, key=lambda w: m_sharpness(w, rho, cut)) == half
