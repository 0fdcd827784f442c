"""Schedules: each by its closed form, at its ends, and through the optimizer as rho and theta.

Closed forms are computed in another order than ours, so numbers of size 1 agree to a few roundings
of 1e-16; where nothing is said, equality is exact.
"""

import copy
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.problems import closure_of
from vasso import SAM, LookSAM, SharpnessAware, VaSSO
from vasso.parts.part import Schedule
from vasso.schedules import cosine, frank_wolfe, linear, piecewise, proportional_to_lr, warmed_up

ROUNDING = 1e-15

ALL: dict[str, Schedule] = {
    "proportional": proportional_to_lr(0.7, 0.1, lr_high=0.3, lr_low=0.02),
    "linear": linear(0.9, 0.2, 7),
    "cosine": cosine(0.3, 0.8, 9),
    "warmed up": warmed_up(0.4, 5),
    "warmed up from another": warmed_up(linear(0.9, 0.2, 7), 5),
    "piecewise": piecewise(0.3, 0.6, 4),
    "Frank-Wolfe": frank_wolfe,
}
each = pytest.mark.parametrize("name", ALL)


@pytest.mark.parametrize("lr", [0.02, 0.05, 0.1, 0.2999, 0.3])
def test_proportional_to_lr_is_as_far_between_its_bounds_as_lr_is(lr: float) -> None:
    value = proportional_to_lr(0.7, 0.1, lr_high=0.3, lr_low=0.02)(3, lr)
    weight = (lr - 0.02) / 0.28
    assert value == pytest.approx(0.1 * (1 - weight) + 0.7 * weight, abs=ROUNDING)


@pytest.mark.parametrize(
    ("bounds", "lrs", "expected"),
    [
        ((0.6, 0.0, 0.1, 0.0), (0.1, 0.05, 0.001), (0.6, 0.3, 0.006)),  # from zero on
        # the line through (0.1, 0.1) and (0.3, 0.43) crosses 0 at lr = 0.0394
        ((0.43, 0.1, 0.3, 0.1), (0.0, 0.01, 0.039), (0.0, 0.0, 0.0)),
        ((0.4, 0.1, 0.3, 0.1), (0.5, 0.05), (0.7, 0.025)),  # beyond its bounds
        ((0.4, 0.1, 0.3, 0.3), (0.3, 0.1), (0.4, 0.4)),  # an lr that never changes
    ],
)
def test_proportional_to_lr_outside_of_its_bounds(
    bounds: tuple[float, ...], lrs: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    high, low, lr_high, lr_low = bounds
    rho = proportional_to_lr(high, low, lr_high=lr_high, lr_low=lr_low)
    assert [rho(9, lr) for lr in lrs] == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize("step", range(13))
def test_a_line_goes_from_start_to_end_and_stays(step: int) -> None:
    share = min(step, 8) / 8
    value = linear(0.9, 0.2, 8)(step, 0.1)
    assert value == pytest.approx(0.9 * (1 - share) + 0.2 * share, abs=ROUNDING)


@pytest.mark.parametrize("step", range(13))
def test_half_a_cosine_goes_from_start_to_end_and_stays(step: int) -> None:
    value = cosine(0.9, 0.2, 8)(step, 0.1)
    whole = 0.55 + 0.35 * math.cos(math.pi * min(step, 8) / 8)
    assert value == pytest.approx(whole, abs=ROUNDING)


@pytest.mark.parametrize("make", [linear, cosine])
@pytest.mark.parametrize(
    "ends",
    [
        (1.0, 0.2),  # 1 + (0.2 - 1) is not 0.2 in float64
        (0.1, 0.7),
        (0.3, 0.0),
        (0.0, 0.9),
    ],
)
def test_a_ramp_ends_at_its_end(make: Callable[..., Schedule], ends: tuple[float, float]) -> None:
    ramp = make(*ends, 7)
    assert [ramp(step, 0.1) for step in (0, 7, 8, 10**9)] == [ends[0], *[ends[1]] * 3]


@pytest.mark.parametrize("step", range(13))
@pytest.mark.parametrize("then", [0.4, linear(0.9, 0.2, 20)], ids=["number", "schedule"])
def test_a_warm_up_comes_up_from_zero(step: int, then: Any) -> None:
    value = then(step, 0.1) if callable(then) else then
    expected = value * min(step, 5) / 5
    assert warmed_up(then, 5)(step, 0.1) == pytest.approx(expected, abs=ROUNDING)


def test_piecewise_changes_once_at_its_step() -> None:
    assert [piecewise(0.3, 0.6, 3)(t, 0.1) for t in range(6)] == [0.3] * 3 + [0.6] * 3


@pytest.mark.parametrize("step", [0, 1, 19, 56, 992])
def test_frank_wolfe_weights_by_hand(step: int) -> None:
    """(t + 8)^2 is the cube of what 4 is divided by."""
    assert (4 / frank_wolfe(step, 0.1)) ** 3 == pytest.approx((step + 8) ** 2, rel=1e-14)


def test_frank_wolfe_starts_at_one_and_falls_within_the_range_of_theta() -> None:
    weights = [frank_wolfe(t, 0.1) for t in range(2000)]
    assert weights == sorted(set(weights), reverse=True)
    assert (weights[0], weights[-1] > 0) == (1.0, True)


@each
def test_only_the_schedule_of_lr_looks_at_lr(name: str) -> None:
    values = {ALL[name](3, lr) for lr in (0.1, 0.2)}
    assert len(values) == (2 if name == "proportional" else 1)


@pytest.mark.parametrize("steps", [0, -3])
@pytest.mark.parametrize(
    "make", [partial(linear, 0, 1), partial(cosine, 0, 1), partial(warmed_up, 0.1)]
)
def test_a_ramp_of_no_steps(make: Any, steps: int) -> None:
    with pytest.raises(ValueError, match=f"steps must be at least 1, got {steps}"):
        make(steps)


class Hill:
    """A slope that turns from step to step, under a weight of length 5."""

    def __init__(self, make: Callable[..., SharpnessAware], lr: float = 0.1) -> None:
        self.model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.model.weight.copy_(torch.tensor([[3.0, 4.0]]))
        self.opt = make(torch.optim.SGD(self.model.parameters(), lr=lr), model=self.model)
        self.t = 0
        self.seen: list[Any] = []
        self.opt.observe(lambda r: self.seen.append(copy.deepcopy((r.g, r.d, r.epsilon))))

    def closure(self) -> Tensor:
        self.opt.zero_grad()
        w = self.model.weight
        turned = w @ torch.tensor([[math.cos(self.t)], [math.sin(self.t)]], dtype=torch.float64)
        loss = w.square().sum() + 3 * turned.sum()
        loss.backward()
        return loss

    def step(self) -> None:
        self.opt.step(self.closure)
        self.t += 1


@each
def test_a_scheduled_rho_is_the_length_of_epsilon(name: str) -> None:
    hill = Hill(lambda base, **options: SAM(base, rho=ALL[name], **options))
    for t in range(12):
        lr = hill.opt.param_groups[0]["lr"] = 0.3 / (t + 1)
        hill.step()
        *_, epsilon = hill.seen[-1]
        length = 0.0 if epsilon is None else torch.linalg.vector_norm(epsilon[0]).item()
        assert length == pytest.approx(ALL[name](t, lr), rel=1e-13)  # x + e - x, x of size 5
        assert hill.opt.param_groups[0]["rho"] == ALL[name](t, lr)


@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith("warmed")])
def test_a_scheduled_theta_is_the_weight_of_the_newest_gradient(name: str) -> None:
    hill = Hill(lambda base, **options: VaSSO(base, theta=ALL[name], **options))
    average = None
    for t in range(12):
        lr = hill.opt.param_groups[0]["lr"] = 0.3 / (t + 1)
        hill.step()
        (g,), (d,), _ = hill.seen[-1]
        theta = ALL[name](t, lr)
        average = g if average is None else (1 - theta) * average + theta * g
        if theta == 1:  # remembers nothing: the average begins with the first theta below 1
            average = None
            continue
        torch.testing.assert_close(d, average, rtol=0, atol=1e-14)  # numbers up to 20


def test_the_first_step_of_a_warm_up_is_plain_and_paid_as_such() -> None:
    hill = Hill(lambda base, **options: SAM(base, rho=warmed_up(0.1, 4), **options))
    costs = []
    for _ in range(3):
        hill.step()
        costs.append(hill.opt.cost)
    assert costs == [1.0, 3.0, 5.0]


def test_other_settings_may_be_scheduled_too() -> None:
    hill = Hill(lambda base, **options: LookSAM(base, alpha=linear(0.7, 0.1, 3), **options))
    recorded = []
    for _ in range(5):
        hill.step()
        recorded.append(hill.opt.param_groups[0]["alpha"])
    assert recorded == pytest.approx([0.7, 0.5, 0.3, 0.1, 0.1], abs=ROUNDING)


def test_a_theta_that_warms_up_from_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="theta must be above 0 and at most 1, got 0"):
        Hill(lambda base, **options: VaSSO(base, theta=warmed_up(0.4, 5), **options))


def test_a_schedule_that_leaves_its_range_stops_the_step_before_anything_moves() -> None:
    hill = Hill(lambda base, **options: VaSSO(base, theta=linear(0.5, -0.5, 4), **options))
    for _ in range(2):
        hill.step()
    before = hill.model.weight.detach().clone()
    with pytest.raises(ValueError, match="theta must be above 0 and at most 1, got 0"):
        hill.step()
    assert torch.equal(hill.model.weight, before)


@each
def test_a_pickled_optimizer_goes_on_along_its_schedule(name: str) -> None:
    hill = Hill(lambda base, **options: SAM(base, rho=ALL[name], **options))
    for _ in range(3):
        hill.step()
    opt = pickle.loads(pickle.dumps(hill.opt))
    (w,) = opt.param_groups[0]["params"]
    closure = closure_of(opt, lambda: w.square().sum())
    recorded = []
    for _ in range(6):
        opt.step(closure)
        recorded.append(opt.param_groups[0]["rho"])
    assert recorded == [ALL[name](t, 0.1) for t in range(3, 9)]


@each
def test_a_checkpoint_goes_on_along_the_schedule_of_the_optimizer_that_loads_it(name: str) -> None:
    def make(base: Any, **options: Any) -> SharpnessAware:
        return SAM(base, rho=ALL[name], **options)

    whole, first, second = Hill(make), Hill(make), Hill(make)
    for _ in range(4):
        first.step()
    second.opt.load_state_dict(first.opt.state_dict())
    second.model.load_state_dict(first.model.state_dict())
    second.t = 4
    for _ in range(4):
        second.step()
    for _ in range(8):
        whole.step()
    assert torch.equal(second.model.weight, whole.model.weight)
