"""Equations that hold exactly: each method is another one at some setting.

Where nothing is said of a tolerance, equality is bit for bit.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.contract.marks import Preset, each_preset, each_way
from tests.support import problems
from tests.support.compare import assert_near, assert_same, flat, records_of
from vasso import SAM, Ema, SharpnessAware, VaSSO

each_base = pytest.mark.parametrize("base", problems.BASES)


def trained(
    method: Any, base: str, way: problems.Way = "closure", task: problems.Task | None = None
) -> Tensor:
    task = task or problems.mlp()
    return problems.train(task, method(problems.BASES[base](task.params())), way=way)


@pytest.mark.parametrize("make", [problems.conv_bn, problems.dropout_net])
def test_a_ball_of_radius_zero_draws_and_counts_batches_once(make: Any) -> None:
    def run(method: Any) -> Tensor:
        torch.manual_seed(1)
        task = make()
        path = trained(partial(method, task), "momentum", task=task)
        return torch.cat((path[-1], *(b.flatten().float() for b in task.model.buffers())))

    wrapped = run(lambda task, base: VaSSO(base, rho=0.0, model=task.model))
    assert_same(wrapped, run(lambda task, base: base))


@each_way
def test_a_radius_scheduled_at_zero_still_observes_the_gradient(way: problems.Way) -> None:
    x = problems.parameter(1.0, -2.0)
    base = SGD([x], lr=0.5)
    opt = VaSSO(base, rho=lambda step, lr: 0.1 if step == 2 else 0.0, theta=0.25)
    records = records_of(opt)
    for _ in range(3):
        problems.take_step(opt, problems.quadratic(torch.eye(2, dtype=torch.float64), x), way)
    # gradients x, x/2, x/4 at (1, -2); all binary fractions, so the sum by hand is exact
    weight = 0.75 * (0.75 * 1 + 0.25 * 0.5) + 0.25 * 0.25
    assert_same(records[2].d[0], weight * torch.tensor([1.0, -2.0], dtype=torch.float64))


def test_a_radius_that_was_the_number_zero_starts_from_the_gradient_of_the_day() -> None:
    x = problems.parameter(1.0, -2.0)
    opt = VaSSO(SGD([x], lr=0.5), rho=0.1, theta=0.25)
    records = records_of(opt)
    for rho in (0.1, 0.0, 0.1):
        opt.param_groups[0]["rho"] = rho
        problems.take_step(opt, problems.quadratic(torch.eye(2, dtype=torch.float64), x))
    assert_same(records[2].d[0], records[2].g[0])


@each_way
@each_base
def test_vasso_that_trusts_only_the_newest_gradient_is_sam(way: problems.Way, base: str) -> None:
    vasso, sam = partial(VaSSO, rho=0.1, theta=1.0), partial(SAM, rho=0.1)
    assert_same(trained(vasso, base, way), trained(sam, base, way))


@pytest.mark.parametrize(("method", "theta"), [(VaSSO, 0.3), (SharpnessAware, None)])
@each_base
def test_vasso_and_parts_chosen_by_nobody_are_sam(method: Any, theta: Any, base: str) -> None:
    settings = {"rho": 0.1} if theta is None else {"rho": 0.1, "theta": theta}
    ours, sam = partial(method, **settings), partial(SAM, **settings)
    assert_same(trained(ours, base), trained(sam, base))


@each_way
def test_a_slope_that_is_told_to_forget_is_that_of_sam(way: problems.Way) -> None:
    """theta falls below 1 for a while, with a slope remembered, and comes back to 1."""

    def run(*thetas: float) -> Tensor:
        task = problems.mlp()
        opt = SAM(SGD(task.params(), lr=0.0), rho=0.1)
        for t, theta in enumerate(thetas):
            opt.param_groups[0]["theta"] = theta
            problems.take_step(opt, partial(task.loss, t), way)
        opt.param_groups[0].update(theta=1.0, lr=0.1)
        return problems.train(task, opt, way=way)

    assert_same(run(0.4, 0.2, 0.4), run())


@each_way
def test_a_slope_told_to_remember_starts_from_the_newest_gradient(way: problems.Way) -> None:
    task = problems.mlp()
    opt = SAM(SGD(task.params(), lr=0.1), rho=0.1, theta=lambda step, lr: 1.0 if step < 3 else 0.2)
    records = records_of(opt)
    problems.train(task, opt, steps=4, way=way)
    assert_same(flat(records[3].d), flat(records[3].g))


@pytest.mark.parametrize("theta", [0.01, 0.4, 0.9])
def test_the_same_batch_at_the_same_weights_keeps_the_slope(theta: float) -> None:
    task = problems.mlp()
    opt = VaSSO(SGD(task.params(), lr=0.0), rho=0.1, theta=theta)
    records = records_of(opt)
    for _ in range(5):
        problems.take_step(opt, partial(task.loss, 0))
    assert_same(flat(records[4].d), flat(records[0].g))


def epsilons(init: str, steps: int = 8) -> Tensor:
    task = problems.mlp(torch.float64)
    base = SGD(task.params(), lr=0.0)
    opt = SharpnessAware(base, rho=0.1, direction=Ema(0.3, init=init))  # type: ignore[arg-type]
    records = records_of(opt)
    for t in range(steps):
        problems.take_step(opt, partial(task.loss, t))
    return torch.stack([flat(record.epsilon or []) for record in records])


def test_a_slope_that_starts_at_zero_points_where_its_bias_correction_does() -> None:
    """m_t = (1 - theta) m_{t-1} + theta g_t from m_0 = 0; m_t / (1 - (1 - theta)^t) is parallel."""
    task, theta = problems.mlp(torch.float64), 0.3
    mean, expected = torch.zeros(()), []
    for t in range(8):
        task.model.zero_grad()
        task.loss(t).backward()
        mean = (1 - theta) * mean + theta * flat([p.grad for p in task.params()])
        corrected = mean / (1 - (1 - theta) ** (t + 1))
        expected.append(0.1 * corrected / corrected.norm())
    # epsilon is the difference of two weights of size 1: error 2e-16 and some roundings of its own
    assert_near(epsilons("zero"), torch.stack(expected), rtol=1e-12, atol=1e-15)


def test_the_first_gradient_weighs_more_when_the_slope_starts_from_it() -> None:
    """With g_1 = (1, 0), g_2 = (0, 1): d = (1 - theta, theta), or (theta (1 - theta), theta)."""
    slopes = {}
    for init in ("first", "zero"):
        x = problems.parameter(0.0, 0.0)
        opt = SharpnessAware(SGD([x], lr=0.0), rho=0.1, direction=Ema(0.25, init=init))
        for g in torch.eye(2, dtype=torch.float64):
            problems.by_hand(opt, [g])
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
        problems.by_hand(opt, [torch.randn(n, generator=generator)])
    now = opt.state[x]["vasso_d"]
    correlation = torch.corrcoef(torch.stack((before, now)))[0, 1]
    v = theta / (2 - theta)
    assert (now.var().item(), correlation.item()) == (
        pytest.approx(v, abs=5 * v * (2 / n) ** 0.5),
        pytest.approx(1 - theta, abs=5 / n**0.5),
    )


@each_preset
def test_both_ways_lead_the_same_way_through_schedules_that_touch_zero(preset: Preset) -> None:
    rho = {0: 0.0, 1: 0.1, 2: 0.0, 3: 0.2}
    method = partial(preset, rho=lambda step, lr: rho.get(step, 0.05))
    assert_same(trained(method, "adamw", "ascended"), trained(method, "adamw", "closure"))
