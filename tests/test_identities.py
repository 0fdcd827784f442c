"""Equations that hold exactly: each method is another one at some setting (ALGORITHMS, section 10).

Where nothing is said of a tolerance, equality is bit for bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.contract.presets import PRESETS
from tests.problems import (
    BASES,
    Task,
    Way,
    assert_near,
    assert_same,
    by_hand,
    closure_of,
    conv_bn,
    dropout_net,
    flat,
    mlp,
    parameter,
    quadratic,
    records_of,
    take_step,
    train,
)
from vasso import SAM, Ema, SharpnessAware, VaSSO

WAYS: tuple[Way, ...] = ("closure", "ascended")

each_base = pytest.mark.parametrize("base", BASES)
each_preset = pytest.mark.parametrize("preset", PRESETS)
each_way = pytest.mark.parametrize("way", WAYS)


def trained(method: Any, base: str, way: Way = "closure", task: Task | None = None) -> Tensor:
    task = task or mlp()
    return train(task, method(BASES[base](task.params())), way=way)


# -- rho = 0 --------------------------------------------------------------------------------------


@each_preset
@each_way
@each_base
def test_a_ball_of_radius_zero_leaves_the_base(preset: str, way: Way, base: str) -> None:
    method = partial(PRESETS[preset].make, rho=0.0)
    assert_same(trained(method, base, way), trained(lambda base: base, base, "plain"))


@pytest.mark.parametrize("make", [conv_bn, dropout_net])
def test_a_ball_of_radius_zero_draws_and_counts_batches_once(make: Any) -> None:
    def run(method: Any) -> Tensor:
        torch.manual_seed(1)
        task = make()
        path = trained(partial(method, task), "momentum", task=task)
        return torch.cat((path[-1], *(b.flatten().float() for b in task.model.buffers())))

    wrapped = run(lambda task, base: VaSSO(base, rho=0.0, model=task.model))
    assert_same(wrapped, run(lambda task, base: base))


@each_preset
@each_base
def test_a_ball_of_radius_zero_asks_for_one_gradient(preset: str, base: str) -> None:
    task, calls = mlp(), []
    opt = PRESETS[preset].make(BASES[base](task.params()), rho=0.0)
    for t in range(3):
        opt.step(closure_of(opt, lambda t=t: calls.append(t) or task.loss(t)))
    assert (calls, opt.cost) == ([0, 1, 2], 3.0)


@each_way
def test_a_radius_scheduled_at_zero_leaves_the_base_too(way: Way) -> None:
    method = partial(VaSSO, rho=lambda step, lr: 0.0)
    assert_same(trained(method, "momentum", way), trained(lambda base: base, "momentum", "plain"))


@each_way
def test_a_radius_scheduled_at_zero_still_observes_the_gradient(way: Way) -> None:
    x = parameter(1.0, -2.0)
    base = SGD([x], lr=0.5)
    opt = VaSSO(base, rho=lambda step, lr: 0.1 if step == 2 else 0.0, theta=0.25)
    records = records_of(opt)
    for _ in range(3):
        take_step(opt, quadratic(torch.eye(2, dtype=torch.float64), x), way)
    # gradients x, x/2, x/4 at (1, -2); all binary fractions, so the sum by hand is exact
    weight = 0.75 * (0.75 * 1 + 0.25 * 0.5) + 0.25 * 0.25
    assert_same(records[2].d[0], weight * torch.tensor([1.0, -2.0], dtype=torch.float64))


def test_a_radius_that_was_the_number_zero_starts_from_the_gradient_of_the_day() -> None:
    x = parameter(1.0, -2.0)
    opt = VaSSO(SGD([x], lr=0.5), rho=0.1, theta=0.25)
    records = records_of(opt)
    for rho in (0.1, 0.0, 0.1):
        opt.param_groups[0]["rho"] = rho
        take_step(opt, quadratic(torch.eye(2, dtype=torch.float64), x))
    assert_same(records[2].d[0], records[2].g[0])


# -- theta = 1 ------------------------------------------------------------------------------------


@each_way
@each_base
def test_vasso_that_trusts_only_the_newest_gradient_is_sam(way: Way, base: str) -> None:
    vasso, sam = partial(VaSSO, rho=0.1, theta=1.0), partial(SAM, rho=0.1)
    assert_same(trained(vasso, base, way), trained(sam, base, way))


@each_base
def test_vasso_is_sam_with_theta(base: str) -> None:
    vasso, sam = partial(VaSSO, rho=0.1, theta=0.3), partial(SAM, rho=0.1, theta=0.3)
    assert_same(trained(vasso, base), trained(sam, base))


@each_base
def test_parts_chosen_by_nobody_are_those_of_sam(base: str) -> None:
    assert_same(
        trained(partial(SharpnessAware, rho=0.1), base), trained(partial(SAM, rho=0.1), base)
    )


@each_way
def test_a_slope_that_is_told_to_forget_is_that_of_sam(way: Way) -> None:
    """theta falls below 1 for a while, with a slope remembered, and comes back to 1."""

    def run(*thetas: float) -> Tensor:
        task = mlp()
        opt = SAM(SGD(task.params(), lr=0.0), rho=0.1)
        for t, theta in enumerate(thetas):
            opt.param_groups[0]["theta"] = theta
            take_step(opt, partial(task.loss, t), way)
        opt.param_groups[0].update(theta=1.0, lr=0.1)
        return train(task, opt, way=way)

    assert_same(run(0.4, 0.2, 0.4), run())


@each_way
def test_a_slope_that_is_told_to_remember_starts_from_the_gradient_of_the_day(way: Way) -> None:
    task = mlp()
    opt = SAM(SGD(task.params(), lr=0.1), rho=0.1, theta=lambda step, lr: 1.0 if step < 3 else 0.2)
    records = records_of(opt)
    train(task, opt, steps=4, way=way)
    assert_same(flat(records[3].d), flat(records[3].g))


# -- the slope ------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [0.01, 0.4, 0.9])
def test_a_batch_seen_again_from_the_same_weights_leaves_the_slope_at_its_gradient(
    theta: float,
) -> None:
    task = mlp()
    opt = VaSSO(SGD(task.params(), lr=0.0), rho=0.1, theta=theta)
    records = records_of(opt)
    for _ in range(5):
        take_step(opt, partial(task.loss, 0))
    assert_same(flat(records[4].d), flat(records[0].g))


@each_way
def test_the_average_is_of_gradients_at_the_weights_and_never_above_them(way: Way) -> None:
    task = mlp(torch.float64)
    opt = VaSSO(SGD(task.params(), lr=0.1), rho=0.5, theta=0.25)
    records = records_of(opt)
    train(task, opt, steps=4, way=way)
    g = [flat(record.g) for record in records]
    expected = 0.75**3 * g[0] + 0.25 * (0.75**2 * g[1] + 0.75 * g[2] + g[3])
    # four roundings of numbers of size 1: a few 1e-16
    assert_near(flat(records[3].d), expected, rtol=1e-13, atol=1e-15)


def test_the_slope_shares_no_memory_with_the_gradient() -> None:
    task = mlp()
    opt = VaSSO(SGD(task.params(), lr=0.1), rho=0.1)
    shared = []
    for t in range(3):
        take_step(opt, partial(task.loss, t))
        slopes = {opt.state[p]["vasso_d"].data_ptr() for p in task.params()}
        shared += [p.grad.data_ptr() in slopes for p in task.params()]
    assert not any(shared)


def epsilons(factor: float, init: str = "first", steps: int = 8) -> Tensor:
    """The adversaries on successive batches at the same weights, of a loss times this factor."""
    task = mlp(torch.float64)
    base = SGD(task.params(), lr=0.0)
    opt = SharpnessAware(base, rho=0.1, direction=Ema(0.3, init=init))  # type: ignore[arg-type]
    records = records_of(opt)
    for t in range(steps):
        take_step(opt, lambda t=t: factor * task.loss(t))
    return torch.stack([flat(record.epsilon or []) for record in records])


@pytest.mark.parametrize("factor", [2.0**-20, 2.0, 2.0**30])
def test_a_loss_times_a_power_of_two_has_the_same_adversary(factor: float) -> None:
    assert_same(epsilons(factor), epsilons(1.0))


def test_a_loss_times_ten_has_the_same_adversary() -> None:
    # epsilon is the difference of two weights of size 1 (error 2e-16); backward rounds anew
    assert_near(epsilons(10.0), epsilons(1.0), rtol=1e-12, atol=1e-15)


def test_a_slope_that_starts_at_zero_points_where_its_bias_correction_does() -> None:
    """m_t = (1 - theta) m_{t-1} + theta g_t from m_0 = 0; m_t / (1 - (1 - theta)^t) is parallel."""
    task, theta = mlp(torch.float64), 0.3
    mean, expected = torch.zeros(()), []
    for t in range(8):
        task.model.zero_grad()
        task.loss(t).backward()
        mean = (1 - theta) * mean + theta * flat([p.grad for p in task.params()])
        corrected = mean / (1 - (1 - theta) ** (t + 1))
        expected.append(0.1 * corrected / corrected.norm())
    # epsilon is the difference of two weights of size 1: error 2e-16 and some roundings of its own
    assert_near(epsilons(1.0, init="zero"), torch.stack(expected), rtol=1e-12, atol=1e-15)


def test_the_first_gradient_weighs_more_when_the_slope_starts_from_it() -> None:
    """With g_1 = (1, 0), g_2 = (0, 1): d = (1 - theta, theta), or (theta (1 - theta), theta)."""
    slopes = {}
    for init in ("first", "zero"):
        x = parameter(0.0, 0.0)
        opt = SharpnessAware(SGD([x], lr=0.0), rho=0.1, direction=Ema(0.25, init=init))
        for g in torch.eye(2, dtype=torch.float64):
            by_hand(opt, [g])
        slopes[init] = opt.state[x]["vasso_d"].tolist()
    assert slopes == {"first": [0.75, 0.25], "zero": [0.1875, 0.25]}


@pytest.mark.parametrize("theta", [0.2, 0.4, 0.9])
def test_the_slope_of_white_noise_has_variance_theta_over_two_minus_theta(theta: float) -> None:
    """Var = theta / (2 - theta) and lag-1 correlation 1 - theta, over many independent chains.

    The standard errors over n chains are v sqrt(2 / n) and at most 1 / sqrt(n); five of them are
    allowed. After 100 steps the start has weight 0.8^100 = 2e-10.
    """
    n = 40_000
    generator = torch.Generator().manual_seed(9)
    x = torch.zeros(n, requires_grad=True)
    opt = VaSSO(SGD([x], lr=0.0), rho=0.1, theta=theta)
    before = torch.zeros(n)
    for _ in range(100):
        before.copy_(opt.state[x]["vasso_d"] if opt.state else before)
        by_hand(opt, [torch.randn(n, generator=generator)])
    now = opt.state[x]["vasso_d"]
    correlation = torch.corrcoef(torch.stack((before, now)))[0, 1]
    v = theta / (2 - theta)
    assert (now.var().item(), correlation.item()) == (
        pytest.approx(v, abs=5 * v * (2 / n) ** 0.5),
        pytest.approx(1 - theta, abs=5 / n**0.5),
    )


# -- two ways in, one algorithm -------------------------------------------------------------------


@each_preset
@each_base
def test_a_closure_and_passes_of_ones_own_lead_the_same_way(preset: str, base: str) -> None:
    method = partial(PRESETS[preset].make, rho=0.1)
    assert_same(trained(method, base, "ascended"), trained(method, base, "closure"))


@each_preset
def test_both_ways_lead_the_same_way_through_schedules_that_touch_zero(preset: str) -> None:
    rho = {0: 0.0, 1: 0.1, 2: 0.0, 3: 0.2}
    method = partial(PRESETS[preset].make, rho=lambda step, lr: rho.get(step, 0.05))
    assert_same(trained(method, "adamw", "ascended"), trained(method, "adamw", "closure"))


@each_preset
def test_both_ways_hold_batchnorm_still(preset: str) -> None:
    def run(way: Way) -> Tensor:
        task = conv_bn()
        trained(lambda base: PRESETS[preset].make(base, model=task.model), "momentum", way, task)
        return flat([b.float() for b in task.model.buffers()])

    assert_same(run("ascended"), run("closure"))


@each_preset
def test_an_adversary_from_the_same_data_by_a_closure_of_its_own_is_the_same(preset: str) -> None:
    def run(twice: bool) -> Tensor:
        task = mlp()
        opt = PRESETS[preset].make(BASES["adamw"](task.params()), rho=0.1)
        for t in range(4):
            closure = closure_of(opt, partial(task.loss, t))
            opt.step(closure, ascent_closure=closure if twice else None)
        return flat(task.params())

    assert_same(run(True), run(False))
