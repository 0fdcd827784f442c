"""Errors of slopes: stationary values of an average, and the paper's delta-stability."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import batches, net
from tests.diagnostics.noisy import Point, generator, noise, quadratic, share_within
from vasso.diagnostics.adversary.radius import spacing
from vasso.diagnostics.adversary.slope_error import ErrorMeter, slope_errors, warm_up
from vasso.diagnostics.adversary.sphere import steps_to_forget
from vasso.diagnostics.passes import gradient_of

THETAS = (1.0, 0.9, 0.4, 0.2)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(warm_up, [0, 2, 6, 16]), (spacing, [1, 1, 5, 11]), (steps_to_forget, [0, 3, 14, 31])],
)
def test_numbers_of_batches_to_wait_for_each_theta(count: Any, expected: list[int]) -> None:
    assert [count(theta) for theta in THETAS] == expected


def in_high_dimension(snr: float, count: int = 400, size: int = 1000) -> Any:
    """||grad f|| = 1 and noise of power 1 / snr, nearly orthogonal to it and to itself."""
    w = torch.zeros(size, dtype=torch.float64)
    w[0] = 1
    some = noise(count, size, (1 / snr / size) ** 0.5, seed=0)
    return slope_errors(Point(w), quadratic(torch.eye(size, dtype=torch.float64)), some, [w])


@pytest.mark.parametrize("snr", [0.01, 1.0])
def test_errors_are_those_of_a_stationary_average(snr: float) -> None:
    for found in in_high_dimension(snr):
        v = found.theta / (2 - found.theta)
        assert found.mse.value == pytest.approx(v / snr, rel=0.04)
        assert found.cosine.value == pytest.approx(math.sqrt(snr / (snr + v)), abs=0.01)
        delta = found.stability(0.1).delta.value
        assert delta == pytest.approx(0.1 * (math.sqrt(1 + v / snr) - 1), rel=0.04)


def test_delta_never_exceeds_its_bound_and_does_not_see_directions() -> None:
    full = [torch.tensor([1.0, 0.0])]
    meter = ErrorMeter(full, 1.0)
    for angle in range(5):
        meter.add([torch.tensor([math.cos(angle), math.sin(angle)])])
    found = meter.result().stability(0.5)
    assert found.delta.value == pytest.approx(0, abs=1e-7)
    assert found.bound.value > 0.5
    assert found.row()["delta"] == found.delta.value


@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_intervals_hold_the_truth_as_often_as_they_say(theta: float) -> None:
    full, size, v = torch.zeros(20, dtype=torch.float64), 20, theta / (2 - theta)
    full[0] = 1
    hits = []
    for seed in range(200):
        meter = ErrorMeter([full], theta)
        noise_rows = torch.randn(60, size, generator=generator(seed), dtype=torch.float64)
        for row in noise_rows:
            meter.add([full + row])
        mse = meter.result().mse
        hits.append(mse.low <= v * size <= mse.high)
    share_within(hits, 0.95)


def test_of_a_model_it_is_that_of_its_gradients() -> None:
    model, some = net(torch.float64), batches(4, dtype=torch.float64)
    settings: dict[str, Any] = {"batchnorm": "running", "dropout": False}
    full = gradient_of(model, cross_entropy, some, **settings)
    (found,) = slope_errors(model, cross_entropy, some, full, [1.0], **settings)
    gradients = [gradient_of(model, cross_entropy, [batch], **settings) for batch in some]
    errors = [sum((x - y).square().sum() for x, y in zip(g, full, strict=True)) for g in gradients]
    assert found.mse.value == pytest.approx(float(np.mean(errors)), rel=1e-12)
    assert found.full_norm**2 + found.mse.value == pytest.approx(
        float(np.mean([sum(x.square().sum() for x in g) for g in gradients])), rel=1e-12
    )  # the full gradient is the mean of the four
    assert found.slopes == 4


def test_the_interval_of_a_cosine_holds_cosines_alone() -> None:
    meter = ErrorMeter([torch.tensor([1.0, 0.0])], theta=1.0)
    for x in (-9.0, 9.0):
        meter.add([torch.tensor([x, 1.0])])
    cosine = meter.result().cosine
    assert (cosine.low, cosine.high) == (-1, 1)


def test_a_theta_that_has_no_effect_in_a_float_is_refused() -> None:
    with pytest.raises(ValueError, match="theta 1e-320 is too small"):
        warm_up(1e-320)
