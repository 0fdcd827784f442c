"""Rise curves over rho and friendliness: closed forms, and intervals that hold the truth."""

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import batches, net
from tests.diagnostics.noisy import Point, noise, quadratic, share_within
from vasso.diagnostics.adversary.friendliness import friendliness, friendliness_of
from vasso.diagnostics.adversary.radius import (
    RiseCurve,
    adversaries_of,
    rise_along,
    rise_curve,
    rises_of,
)
from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.passes import gradient_of, objective

H = torch.diag(torch.tensor([4.0, 1.0], dtype=torch.float64))
W = torch.tensor([0.5, 1.0], dtype=torch.float64)
RHOS = [0.05, 0.1, 0.2, 0.4, 0.8]
still = [torch.zeros(1, 2, dtype=torch.float64)]


def test_the_rise_on_a_quadratic_is_its_closed_form() -> None:
    g = H @ W
    u = g / g.norm()
    curve = rise_along(Point(W), quadratic(H), [([g * 7], still[0])], still, RHOS)
    for rho, own, others in zip(RHOS, curve.own, curve.others, strict=True):
        truth = (rho * g @ u + 0.5 * rho**2 * u @ H @ u).item()
        assert own.value == pytest.approx(truth, rel=1e-12)
        assert others.value == pytest.approx(truth, rel=1e-12)


def test_a_curve_is_inverted_where_it_reaches_the_rise() -> None:
    g = H @ W
    curve = rise_along(Point(W), quadratic(H), [([g], still[0])], still * 3, RHOS)
    a, b = (g / g.norm()) @ H @ (g / g.norm()) / 2, g.norm()
    for rise in (0.1, 0.5, 2.0):
        truth = ((-b + (b * b + 4 * a * rise).sqrt()) / (2 * a)).item()
        found = curve.radius_at(rise)
        assert found.value == pytest.approx(truth, rel=0.01)  # a cubic between five points
        assert curve.rise_at(found.value) == pytest.approx(rise, rel=1e-9)
        assert found.low <= found.value <= found.high
    with pytest.raises(ValueError, match="measure at larger radii"):
        curve.radius_at(10.0)
    with pytest.raises(ValueError, match="rise must be above 0"):
        curve.radius_at(0.0)
    with pytest.raises(ValueError, match="Did you mean 'others'"):
        curve.radius_at(0.1, "other")  # type: ignore[arg-type]


def test_the_interval_of_a_radius_is_where_the_ends_of_the_curve_reach_the_rise() -> None:
    rhos = (0.1, 0.4, 0.8)
    line = tuple(Estimate(rho, rho / 2, rho * 2, 0.95, 9) for rho in rhos)
    steep = RiseCurve(rhos, line, line, 1.0, 9, 9)
    found = steep.radius_at(0.2, "own")
    assert (found.low, found.value, found.high) == pytest.approx((0.1, 0.2, 0.4))
    assert steep.radius_at(0.6).high == math.inf


def test_an_averaged_slope_carries_more_of_its_rise_to_other_batches_and_has_less_of_it() -> None:
    """On a linear loss: own <g, v>, others <grad f, v>; SNR 0.1, so that 1 / 11 is carried."""
    size = 500
    true = torch.zeros(size, dtype=torch.float64)
    true[0] = 1
    zero = torch.zeros(size, size, dtype=torch.float64)
    some = [true + x for x in noise(300, size, (10 / size) ** 0.5, seed=1)]
    model, carried = Point(true), {}
    for theta in (1.0, 0.2):
        found = friendliness(
            model, quadratic(zero), some, some[250:], rho=0.1, theta=theta, adversaries=12
        )
        carried[theta] = found
    v = 0.2 / 1.8
    expected = {1.0: 1 / 11, 0.2: 1 / (1 + 0.2 * 10)}  # <d, g> = s + theta noise
    for theta, found in carried.items():
        assert found.carried.low < expected[theta] < found.carried.high
    cosine = math.sqrt(0.1 / (0.1 + v))
    assert carried[0.2].cross_gain.low < cosine < carried[0.2].cross_gain.high
    assert carried[0.2].own_gain.high < carried[1.0].own_gain.low
    assert carried[0.2].rate.value < carried[1.0].rate.value


def test_intervals_of_gain_and_rate_hold_the_truth() -> None:
    """On a linear loss the gain at g + noise on other batches is <grad f, v> on average."""
    size, n = 30, 40_000
    true = torch.full((size,), 0.1, dtype=torch.float64)
    zero = torch.zeros(size, size, dtype=torch.float64)
    v = torch.stack(noise(n, size, 1.0, seed=2))[:, 0] + true
    gain = (v / v.norm(dim=1, keepdim=True) @ true).mean().item()
    hits = []
    with objective(Point(true), quadratic(zero)) as f:
        for seed in range(80):
            some = [true + x for x in noise(24, size, 1.0, seed=100 + seed)]
            (found,) = friendliness_of(rises_of(f, adversaries_of(f, some[:8]), some[8:], [0.5]))
            hits.append(found.cross_gain.low <= gain <= found.cross_gain.high)
    share_within(hits, 0.95)


def test_the_rate_counts_batches_whose_loss_falls() -> None:
    others = [-H @ W, -2 * H @ W, H @ W, 0.5 * H @ W]
    flat = torch.zeros(2, 2, dtype=torch.float64)
    with objective(Point(W), quadratic(flat)) as f:
        (adversary,) = adversaries_of(f, [(H @ W)[None]], most=1)
        rises = rises_of(f, [adversary], [x[None] for x in others], [0.1])
    u = (H @ W) / (H @ W).norm()
    expected = [0.1 * (x @ u).item() for x in others]
    assert rises.others[0, :, 0].tolist() == pytest.approx(expected, rel=1e-9)
    (found,) = friendliness_of(rises)
    assert found.rate.value == 0.5
    assert found.rate.n == 4
    assert found.row()["friendliness"] == 0.5


def test_dropout_masks_are_the_same_at_w_and_at_the_adversary() -> None:
    """With rho 0 nothing rises, though dropout is on."""
    curve = rise_curve(net(), cross_entropy, batches(3), batches(5)[3:], [0.0, 0.1], adversaries=2)
    assert curve.own[0].value == curve.others[0].value == 0.0
    assert curve.own[1].value > 0
    assert [row["rho"] for row in curve.rows()] == [0.0, 0.1]


def test_own_batches_rise_at_small_rho_by_the_norm_of_their_gradient() -> None:
    model, some = net(torch.float64), batches(3, dtype=torch.float64)
    settings: dict[str, Any] = {"batchnorm": "batch", "dropout": False}
    curve = rise_curve(model, cross_entropy, some, some[2:], [1e-6], **settings)
    gradients = [gradient_of(model, cross_entropy, [batch], **settings) for batch in some]
    norms = [math.sqrt(sum(x.square().sum() for x in g)) for g in gradients]
    assert curve.own[0].value / 1e-6 == pytest.approx(sum(norms) / 3, rel=1e-3)
