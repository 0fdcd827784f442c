"""Policies: late phases and reused slopes, whose steps leave a gradient out."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import vasso
from tests.reference import trajectories as twins
from tests.support.compare import assert_same, flat
from tests.support.problems import take_step
from tests.support.slopes import (
    BASES,
    SPARING,
    Make,
    Task,
    Vector,
    assert_near,
    coin,
    data,
    momentum,
    ours,
    path_of,
    records,
    rows_of,
)


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("base", BASES)
def test_a_late_climber_takes_plain_steps_and_then_its_twins(theta: float, base: Make) -> None:
    twin = path_of(twins.late, base, rho=0.1, theta=theta, climbs=lambda t: t >= 20)
    assert_near(ours(partial(vasso.LateSAM, start=20, rho=0.1, theta=theta), base), twin)


def every_fourth(t: int, norms: list[float]) -> bool:
    return t % 4 == 0


def drifted(t: int, norms: list[float]) -> bool:
    return not norms or twins.drifted(norms, "ratio", 0.8, 1.2)


late, suppressed = partial(vasso.LateSAM, rho=0.1), {"rho": 0.1, "theta": 0.3}
reused = partial(path_of, twins.reused, **suppressed)
DRIFT = vasso.RefreshAdaptive("ratio", lam=0.8, z=1.2, warm_up=0)
# fmt: off
LATE: dict[str, tuple[Make, Callable[[], Tensor]]] = {
    "every third step": (partial(late, start=10, then=vasso.EveryK(3), theta=0.3),
        partial(path_of, twins.late, climbs=lambda t: t >= 10 and t % 3 == 0, **suppressed)),
    "reused": (partial(late, start=11, then=vasso.RefreshEveryK(4), theta=0.3),
        partial(reused, refreshes=every_fourth, stale="stay", start=11)),
    "reused, no average": (partial(late, start=11, then=vasso.RefreshEveryK(4), theta=1.0),
        partial(reused, refreshes=every_fourth, stale="stay", start=11, theta=1.0)),
    "following": (partial(vasso.SharpnessAware, rho=0.1, direction=vasso.Ema(0.3, stale="follow"),
        policy=vasso.After(12, vasso.RefreshEveryK(4))),
        partial(reused, refreshes=every_fourth, stale="follow", start=12)),
    "waiting for drift": (partial(late, start=13, then=DRIFT, theta=0.3),
        partial(reused, refreshes=drifted, stale="stay", start=13)),
    "in the ball of ASAM": (partial(vasso.SharpnessAware, rho=0.5, direction=vasso.Ema(0.3),
        geometry=vasso.Adaptive(), policy=vasso.After(10)),
        partial(path_of, twins.late, climbs=lambda t: t >= 10, rho=0.5, theta=0.3,
        ball=twins.asam)),
}
# fmt: on


@pytest.mark.parametrize("name", LATE)
def test_a_late_climber_may_climb_otherwise(name: str) -> None:
    make, twin = LATE[name]
    assert_near(ours(make), twin())


@pytest.mark.parametrize("stale", ["stay", "follow"])
@pytest.mark.parametrize("base", BASES)
def test_a_slope_that_is_refreshed_every_fourth_step(stale: str, base: Make) -> None:
    make = partial(vasso.ReusedSAM, rho=0.1, theta=0.4, refresh=vasso.RefreshEveryK(4), stale=stale)
    settings = {"rho": 0.1, "theta": 0.4, "stale": stale}
    twin = path_of(twins.reused, base, refreshes=every_fourth, **settings)
    assert_near(ours(make, base), twin)


@pytest.mark.parametrize("stale", ["stay", "follow"])
def test_a_slope_that_is_refreshed_by_a_coin(stale: str) -> None:
    make = partial(
        vasso.ReusedSAM, rho=0.1, refresh=vasso.RefreshRandomly(p=0.3, seed=5), stale=stale
    )
    settings = {"rho": 0.1, "theta": 0.4, "stale": stale}
    twin = path_of(twins.reused, refreshes=lambda t, norms: coin(5, t) < 0.3, **settings)
    assert_near(ours(make), twin)


@pytest.mark.parametrize("stale", ["stay", "follow"])
@pytest.mark.parametrize("rule", ["flat", "sharp", "ratio"])
def test_a_slope_is_refreshed_when_the_gradient_above_has_drifted(rule: Any, stale: str) -> None:
    refresh = vasso.RefreshAdaptive(rule, lam=0.8, z=1.3, warm_up=6)
    make = partial(vasso.ReusedSAM, rho=0.1, refresh=refresh, stale=stale)
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
    policy = vasso.RefreshAdaptive(rule, lam=0.5, z=2.0, warm_up=0)

    def decision(h: float) -> bool:
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        slopes = iter([1.0, 4.0, h])
        opt = vasso.ReusedSAM(torch.optim.SGD(model.parameters()), refresh=policy, model=model)

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
    recorded, passes = [], []

    class Watched(vasso.Samples):
        def __call__(self) -> Tensor:
            passes[-1].append(opt.perturbed)
            return super().__call__()

    for t in range(8):
        recorded.append(opt.wants_clean)
        passes.append([])
        batch = task.samples(opt, t)
        opt.step(Watched(batch.zero_grad, batch.losses_of, *batch.tensors))
    climbs = [name != "late" or t >= 4 for t in range(8)]
    if name == "late, reused":
        climbs[:3] = [False] * 3
    expected = [[False] * w + [True] * c for w, c in zip(wanted, climbs, strict=True)]
    assert (recorded, passes) == (wanted, expected)


@each_sparing
def test_a_loop_of_ones_own_may_leave_the_spared_backward_out(name: str) -> None:
    make, _ = SPARING[name]
    task = Task(torch.float32, nn.BatchNorm1d(6))
    opt = make(momentum(task.params()), model=task.model)
    path = []
    for t in range(8):
        opt.zero_grad()
        x, y = data()
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
    x, _ = data()
    inputs = x[rows_of(1)] @ (home[0] + record.epsilon[0]).T + home[1] + record.epsilon[1]
    moved = 0.9 * before + 0.1 * inputs.mean(0)
    assert_near(opt.model[1].running_mean, moved, atol=1e-15)  # numbers below 1


def test_the_loss_of_a_spared_step_is_said_to_be_above_w() -> None:
    make = partial(vasso.ReusedSAM, refresh=vasso.RefreshEveryK(2))
    where = [record.summary.loss_at for record, *_ in records(make, steps=4)]
    assert where == ["w", "w + epsilon"] * 2


def test_a_stale_slope_stays_and_a_following_one_moves() -> None:
    def slopes(stale: str) -> list[Tensor]:
        make = partial(vasso.ReusedSAM, refresh=vasso.RefreshEveryK(3), stale=stale)
        return [flat(record.d) for record, *_ in records(make, steps=5)]

    stay, follow = slopes("stay"), slopes("follow")
    same = [torch.equal(a, b) for a, b in itertools.pairwise(stay)]
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(follow)]
    assert (same, moved) == ([True, True, False, True], [True] * 4)


def test_following_at_theta_one_climbs_along_the_last_gradient_above() -> None:
    make = partial(vasso.ReusedSAM, theta=1.0, refresh=vasso.RefreshEveryK(100), stale="follow")
    taken = [record for record, *_ in records(make)]
    for before, now in itertools.pairwise(taken):
        assert_same(flat(now.d), flat(before.h))


@pytest.mark.parametrize("start", [0, 3])
def test_a_plain_start_leaves_a_point_where_sam_stalls(start: int) -> None:
    """sin at pi / 2 - rho: the gradient is not 0 there, but at w + epsilon it is."""
    rho = 0.5
    x = torch.tensor([torch.pi / 2 - rho], dtype=torch.float64, requires_grad=True)
    opt = vasso.LateSAM(torch.optim.SGD([x], lr=0.3), rho=rho, start=start)
    for _ in range(60):
        loss = take_step(opt, lambda: x.sin().sum())
    assert loss == pytest.approx(0.8775825618903728 if start == 0 else -1.0, abs=0.13)
