"""Late phases and reused slopes: steps that leave a gradient out."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.family.steps import (
    BASES,
    SPARING,
    Make,
    Task,
    Vector,
    assert_near,
    assert_same,
    coin,
    digits,
    flat,
    momentum,
    ours,
    path_of,
    records,
    rows_of,
)
from tests.reference import family_b as twins
from vasso import (
    Adaptive,
    After,
    Ema,
    EveryK,
    LateSAM,
    RefreshAdaptive,
    RefreshEveryK,
    RefreshRandomly,
    ReusedSAM,
    Samples,
    SharpnessAware,
)

# -- late phase -----------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("base", BASES)
def test_a_late_climber_takes_plain_steps_and_then_its_twins(theta: float, base: Make) -> None:
    twin = path_of(twins.late, base, rho=0.1, theta=theta, climbs=lambda t: t >= 20)
    assert_near(ours(partial(LateSAM, start=20, rho=0.1, theta=theta), base), twin)


def test_a_late_climber_may_climb_every_third_step_only() -> None:
    make = partial(LateSAM, start=10, rho=0.1, then=EveryK(3), theta=0.3)
    twin = path_of(twins.late, rho=0.1, theta=0.3, climbs=lambda t: t >= 10 and t % 3 == 0)
    assert_near(ours(make), twin)


@pytest.mark.parametrize("theta", [1.0, 0.3])
def test_a_late_climber_may_reuse_its_slope(theta: float) -> None:
    make = partial(LateSAM, start=11, rho=0.1, then=RefreshEveryK(4), theta=theta)
    settings = {"rho": 0.1, "theta": theta, "stale": "stay", "start": 11}
    twin = path_of(twins.reused, refreshes=lambda t, norms: t % 4 == 0, **settings)
    assert_near(ours(make), twin)


def test_a_late_climber_may_let_its_slope_follow() -> None:
    make = partial(
        SharpnessAware,
        rho=0.1,
        direction=Ema(0.3, stale="follow"),
        policy=After(12, RefreshEveryK(4)),
    )
    settings = {"rho": 0.1, "theta": 0.3, "stale": "follow", "start": 12}
    twin = path_of(twins.reused, refreshes=lambda t, norms: t % 4 == 0, **settings)
    assert_near(ours(make), twin)


def test_a_late_climber_may_wait_for_drift() -> None:
    then = RefreshAdaptive("ratio", lam=0.8, z=1.2, warm_up=0)
    make = partial(LateSAM, start=13, rho=0.1, then=then, theta=0.3)
    twin = path_of(
        twins.reused,
        rho=0.1,
        theta=0.3,
        stale="stay",
        start=13,
        refreshes=lambda t, norms: not norms or twins.drifted(norms, "ratio", 0.8, 1.2),
    )
    assert_near(ours(make), twin)


def test_a_late_vasso_in_the_ball_of_asam_is_one_line() -> None:
    make = partial(
        SharpnessAware, rho=0.5, direction=Ema(0.3), geometry=Adaptive(), policy=After(10)
    )
    settings = {"rho": 0.5, "theta": 0.3, "ball": twins.asam}
    assert_near(ours(make), path_of(twins.late, climbs=lambda t: t >= 10, **settings))


# -- reused slopes --------------------------------------------------------------------------------


@pytest.mark.parametrize("stale", ["stay", "follow"])
@pytest.mark.parametrize("base", BASES)
def test_a_slope_that_is_refreshed_every_fourth_step(stale: str, base: Make) -> None:
    make = partial(ReusedSAM, rho=0.1, theta=0.4, refresh=RefreshEveryK(4), stale=stale)
    settings = {"rho": 0.1, "theta": 0.4, "stale": stale}
    twin = path_of(twins.reused, base, refreshes=lambda t, norms: t % 4 == 0, **settings)
    assert_near(ours(make, base), twin)


@pytest.mark.parametrize("stale", ["stay", "follow"])
def test_a_slope_that_is_refreshed_by_a_coin(stale: str) -> None:
    make = partial(ReusedSAM, rho=0.1, refresh=RefreshRandomly(p=0.3, seed=5), stale=stale)
    settings = {"rho": 0.1, "theta": 0.4, "stale": stale}
    twin = path_of(twins.reused, refreshes=lambda t, norms: coin(5, t) < 0.3, **settings)
    assert_near(ours(make), twin)


@pytest.mark.parametrize("stale", ["stay", "follow"])
@pytest.mark.parametrize("rule", ["flat", "sharp", "ratio"])
def test_a_slope_that_is_refreshed_when_the_gradient_above_has_drifted(
    rule: Any, stale: str
) -> None:
    refresh = RefreshAdaptive(rule, lam=0.8, z=1.3, warm_up=6)
    make = partial(ReusedSAM, rho=0.1, refresh=refresh, stale=stale)
    decisions = []

    def refreshes(t: int, norms: list[float]) -> bool:
        decisions.append(t < 6 or twins.drifted(norms, rule, 0.8, 1.3))
        return decisions[-1]

    settings = {"rho": 0.1, "theta": 0.4, "stale": stale, "refreshes": refreshes}
    twin = path_of(twins.reused, **settings)
    assert len({*decisions[6:]}) == 2  # else the rule is not tried
    assert_near(ours(make), twin)


@pytest.mark.parametrize("rule", ["flat", "sharp", "ratio"])
def test_the_rules_of_drift_by_hand(rule: Any) -> None:
    """tau = 2 + h / 2 after h; flat if tau > 1.5 h, so h < 2; sharp if tau < 0.75 h, so h > 8."""
    policy = RefreshAdaptive(rule, lam=0.5, z=2.0, warm_up=0)

    def decision(h: float) -> bool:
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        slopes = iter([1.0, 4.0, h])
        opt = ReusedSAM(torch.optim.SGD(model.parameters()), refresh=policy, model=model)

        def closure() -> Tensor:
            model.weight.grad = torch.full((1, 1), next(slopes), dtype=torch.float64)
            return torch.zeros(())

        for _ in range(2):
            opt.step(closure)
        return opt.wants_clean

    # the second step spares its gradient at w: tau = ||h|| = 4 is neither flat nor sharp
    assert [decision(h) for h in (1.99, 2.01, 7.99, 8.01)] == {
        "flat": [True, False, False, False],
        "sharp": [False, False, False, True],
        "ratio": [True, False, False, True],
    }[rule]


each_sparing = pytest.mark.parametrize("name", SPARING)


@each_sparing
def test_a_spared_step_takes_its_only_gradient_above_w(name: str) -> None:
    make, wanted = SPARING[name]
    task = Task(torch.float32)
    opt = make(momentum(task.params()), model=task.model)
    told, passes = [], []

    class Watched(Samples):
        def __call__(self) -> Tensor:
            passes[-1].append(opt.perturbed)
            return super().__call__()

    for t in range(8):
        told.append(opt.wants_clean)
        passes.append([])
        batch = task.samples(opt, t)
        opt.step(Watched(batch.zero_grad, batch.losses_of, *batch.tensors))
    climbs = [name != "late" or t >= 4 for t in range(8)]
    if name == "late, reused":
        climbs[:3] = [False] * 3
    expected = [[False] * w + [True] * c for w, c in zip(wanted, climbs, strict=True)]
    assert (told, passes) == (wanted, expected)


@each_sparing
def test_a_loop_of_ones_own_may_leave_the_spared_backward_out(name: str) -> None:
    make, _ = SPARING[name]
    task = Task(torch.float32, nn.BatchNorm1d(6))
    opt = make(momentum(task.params()), model=task.model)
    path = []
    for t in range(8):
        opt.zero_grad()
        x, y = digits()
        x, y = x[rows_of(t)].float(), y[rows_of(t)]
        if opt.wants_clean:
            cross_entropy(task.model(x), y).backward()
        with opt.ascended() as up:
            if up:
                cross_entropy(task.model(x), y).backward()
        opt.step()
        path.append(torch.cat([task.flat(), *buffers(task)]))

    again = Task(torch.float32, nn.BatchNorm1d(6))
    other = make(momentum(again.params()), model=again.model)
    for t in range(8):
        other.step(again.samples(other, t))
        assert_same(path[t], torch.cat([again.flat(), *buffers(again)]))
    assert opt.cost == other.cost


def buffers(task: Task) -> Vector:
    return [b.detach().flatten().to(task.dtype) for b in task.model.buffers()]


@pytest.mark.parametrize("name", ["momentum", "last gradient", "every third"])
def test_batchnorm_moves_in_the_only_pass_there_is(name: str) -> None:
    make, _ = SPARING[name]
    steps = records(make, steps=3, middle=nn.BatchNorm1d(6))
    _, _, opt = next(steps)
    before = opt.model[1].running_mean.clone()
    record, home, opt = next(steps)  # the second step spares its gradient at w
    x, _ = digits()
    inputs = x[rows_of(1)] @ (home[0] + record.epsilon[0]).T + home[1] + record.epsilon[1]
    moved = 0.9 * before + 0.1 * inputs.mean(0)
    assert_near(opt.model[1].running_mean, moved, atol=1e-15)  # numbers below 1


def test_the_loss_of_a_spared_step_is_said_to_be_above_w() -> None:
    make = partial(ReusedSAM, refresh=RefreshEveryK(2))
    where = [record.summary.loss_at for record, *_ in records(make, steps=4)]
    assert where == ["w", "w + epsilon"] * 2


def test_a_stale_slope_stays_and_a_following_one_moves() -> None:
    def slopes(stale: str) -> list[Tensor]:
        make = partial(ReusedSAM, refresh=RefreshEveryK(3), stale=stale)
        return [flat(record.d) for record, *_ in records(make, steps=5)]

    stay, follow = slopes("stay"), slopes("follow")
    same = [torch.equal(a, b) for a, b in itertools.pairwise(stay)]
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(follow)]
    assert (same, moved) == ([True, True, False, True], [True] * 4)


def test_following_at_theta_one_climbs_along_the_last_gradient_above() -> None:
    make = partial(ReusedSAM, theta=1.0, refresh=RefreshEveryK(100), stale="follow")
    taken = [record for record, *_ in records(make)]
    for before, now in itertools.pairwise(taken):
        assert_same(flat(now.d), flat(before.h))
