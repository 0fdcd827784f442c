"""Radii: rules that set rho from the numbers of a step, and the radius that follows the gap."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.contract.training import PRESETS, CatalogueRun, X, Y
from tests.reference import trajectories as twins
from tests.support import slopes
from tests.support.compare import assert_near, assert_same, flat
from tests.support.problems import (
    Task,
    conv_bn,
    dropout_net,
    mlp,
    parameter,
    quadratic,
    take_step,
    train,
)
from vasso import (
    ASAM,
    LESAM,
    MSAM,
    SAM,
    SSSAM,
    FromGap,
    LossBudget,
    ReusedSAM,
    SubSampledSAM,
    VaSSO,
    schedules,
)
from vasso.numerics.vectors import Vector
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState
from vasso.parts.radii import Radius

H = torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64))


@dataclass(frozen=True)
class Rule(Radius):
    """The radius is a function of the length of the gradient."""

    of: Callable[[float], float] = lambda length: 0.3 / length

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> float:
        return self.of(context.norm(context.g).item())


def held_out(task: Task, t: int = 3) -> Callable[[], Tensor]:
    return lambda: task.loss(t)


def steered(task: Task, **settings: Any) -> SAM:
    rule = FromGap(held_out(task), **{"total": 20, "start": 0.2, **settings})
    return VaSSO(SGD(task.params(), lr=0.1, momentum=0.9), rho=rule, model=task.model)


# -- any rule -------------------------------------------------------------------------------------


def test_a_rule_sees_the_gradient() -> None:
    """rho = 0.3 / ||g||: epsilon = 0.3 g / ||g||^2, whose linear rise is 0.3."""
    x = parameter(1.0, 1.0)
    take_step(SAM(SGD([x], lr=0.0), rho=Rule()), quadratic(H, x))
    assert_near(x.grad, [3 * (1 + 0.3 * 3 / 25), 4 * (1 + 0.3 * 4 / 25)], 1e-15)


def test_rho_of_a_group_is_a_factor() -> None:
    a, b, c = parameter(3.0), parameter(4.0), parameter(5.0)
    groups = [{"params": [a]}, {"params": [b], "rho": 0.5}, {"params": [c], "rho": 0.0}]
    opt = SAM(SGD(groups, lr=0.0), rho=Rule(of=lambda length: length))
    take_step(opt, lambda: 0.5 * (a.square() + b.square() + c.square()).sum())
    assert_near(flat([p.grad for p in (a, b, c)]), [3 + 3, 4 + 0.5 * 4, 5.0], 1e-15)
    shown = opt.metrics()
    assert [shown[f"rho/{i}"] for i in range(3)] == [5.0, 2.5, 0.0]


def test_a_schedule_of_factors() -> None:
    x = parameter(1.0, 1.0)
    opt = SAM(SGD([x], lr=0.0), rho=Rule(factor=lambda step, lr: 2.0 if step else 1.0))
    seen = []
    for _ in range(2):
        take_step(opt, quadratic(H, x))
        seen.append(opt.metrics()["rho"])
    assert seen == [0.3 / 5, 2 * 0.3 / 5]


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_a_radius_of_0_is_a_step_of_the_base(way: Any) -> None:
    ours, plain = mlp(), mlp()
    opt = SAM(SGD(ours.params(), lr=0.1), rho=Rule(of=lambda length: 0.0))
    assert_same(train(ours, opt, way=way), train(plain, SGD(plain.params(), lr=0.1), way="plain"))
    assert (opt.last.climbed, opt.cost) == (False, 6.0)


@pytest.mark.parametrize("radius", [math.nan, math.inf, -1.0])
def test_a_radius_that_is_none_is_an_error_and_weights_return(radius: float) -> None:
    x = parameter(1.0, 1.0)
    opt = SAM(SGD([x], lr=0.1), rho=Rule(of=lambda length: radius))
    with pytest.raises(ValueError, match=r"Rule\(\) must give a finite radius"):
        take_step(opt, quadratic(H, x))
    assert_same(x, torch.ones(2).double())


def test_a_constant_rule_is_its_number() -> None:
    one, other = mlp(), mlp()
    rule = VaSSO(SGD(one.params(), lr=0.1), rho=Rule(of=lambda length: 0.1))
    number = VaSSO(SGD(other.params(), lr=0.1), rho=0.1)
    assert_same(train(one, rule), train(other, number))


def test_a_rule_that_sees_losses_shows_the_factor_of_its_own_step() -> None:
    """Losses are told after the step is counted, when a schedule would give the next factor."""
    x = parameter(1.0, 1.0)
    rule = FromGap(lambda: 2.0, total=50, factor=lambda step, lr: step + 1.0)
    opt = SAM(SGD([x], lr=0.0), rho=rule)
    for step in range(3):
        take_step(opt, quadratic(H, x))
        assert opt.metrics()["rho"] == (step + 1) * opt.last.radius["rho"]


# -- the radius that follows the gap --------------------------------------------------------------


def twin(steps: int, kappa: float, total: int, start: float) -> tuple[Tensor, list[float]]:
    """Plain SAM on a quadratic whose held-out loss has its minimum elsewhere; means by hand."""
    x, shift = torch.ones(2).double(), torch.tensor([0.5, -0.5]).double()
    rho, losses, rises, gaps, radii = start, [], [], [], []
    loss_of = lambda x: (0.5 * x @ H @ x).item()  # noqa: E731
    new, new_gap = 1 / (0.1 * total), 1 / max(1, 0.1 * 10)

    def mean(values: list[float], new: float) -> float:
        weights = [(1 - new) ** age for age in range(len(values))][::-1]
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    for t in range(steps):
        radii.append(rho)
        g = H @ x
        above = x + rho * g / g.norm()
        losses.append(loss_of(x))
        rises.append(loss_of(above) - loss_of(x))
        x = x - 0.1 * H @ above
        if t % (total // 10) == 0:  # after the step of the base
            gaps.append(loss_of(x - shift) - mean(losses, new))
        gap = max(mean(gaps, new_gap), 0.002 * losses[0])
        error = math.log(kappa * gap / mean(rises, new))
        rho = rho * math.exp(5 / total * min(max(error, -1), 1))
        rho = min(max(rho, start / 50), 20 * start)
    return x, radii


@pytest.mark.parametrize("kappa", [0.1, 3.0])
def test_rho_is_that_of_a_plain_loop(kappa: float) -> None:
    x, shift = parameter(1.0, 1.0), torch.tensor([0.5, -0.5]).double()
    rule = FromGap(
        lambda: quadratic(H, x - shift)(), total=40, kappa=kappa, speed=5.0, memory=0.1, checks=10
    )
    opt = SAM(SGD([x], lr=0.1), rho=rule)
    seen = []
    for _ in range(60):
        take_step(opt, quadratic(H, x))
        seen.append(opt.last.radius["rho"])
    weights, radii = twin(60, kappa, 40, 0.05)
    # sums of 60 terms in another order, carried through 60 steps
    assert_near(seen, radii, rtol=1e-10)
    assert_near(x, weights, rtol=1e-9)
    assert max(radii) / min(radii) > 2  # it has moved


def test_the_rise_becomes_kappa_times_the_gap() -> None:
    """With a constant gap of 0.02, on a loss whose rise is rho + 2 rho^2 exactly."""
    x = parameter(1.0)
    rule = FromGap(lambda: quadratic(H[:1, :1], x)() + 0.02, total=200, kappa=1.5)
    opt = SAM(SGD([x], lr=0.0), rho=rule)
    for _ in range(200):
        take_step(opt, quadratic(H[:1, :1], x))
    rho = opt.last.radius["rho"]
    assert 3 * rho + 1.5 * rho**2 == pytest.approx(1.5 * 0.02, rel=0.02)


def test_speed_is_a_share_of_the_training() -> None:
    """Ten times the steps: the same way of the radius, at a tenth of the speed."""

    def way(total: int) -> list[float]:
        x = parameter(1.0)
        rule = FromGap(lambda: quadratic(H[:1, :1], x)() + 0.5, total=total)
        opt, seen = SAM(SGD([x], lr=0.0), rho=rule), []
        for _ in range(total):
            take_step(opt, quadratic(H[:1, :1], x))
            seen.append(opt.last.radius["rho"])
        return seen[total // 10 :: total // 10]

    assert_near(way(200), way(2000), rtol=0.2)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_validation_that_is_not_finite_changes_nothing(bad: float) -> None:
    task = mlp()
    opt = steered(task)
    train(task, opt, steps=4)
    before = opt.state_dict()["param_groups"][0]["vasso_rho_gap"]
    object.__setattr__(opt.parts.radius, "validation", lambda: bad)
    train(task, opt, steps=8)
    assert opt.param_groups[0]["vasso_rho_gap"] == before
    assert math.isfinite(opt.last.radius["rho"])


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    task = mlp()
    opt = steered(task)
    train(task, opt, steps=4)
    numbers = opt._groups.numbers()

    def infinite() -> Tensor:
        opt.zero_grad()
        task.loss(0).backward()  # gradients are finite, the loss is not
        return torch.tensor(math.inf)

    opt.step(infinite)
    assert (opt._groups.numbers(), opt.skipped) == (numbers, 0)


def test_it_goes_on_from_a_checkpoint_bit_for_bit() -> None:
    whole, first, second = dropout_net(), dropout_net(), dropout_net()
    torch.manual_seed(5)
    expected = train(whole, opt := steered(whole), steps=14)
    torch.manual_seed(5)
    train(first, old := steered(first), steps=7)
    file = io.BytesIO()
    torch.save([first.model.state_dict(), old.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    second.model.load_state_dict(weights)
    (new := steered(second)).load_state_dict(state)
    second.batches = [second.batches[(t + 7) % 4] for t in range(4)]
    assert_same(train(second, new, steps=7)[-1], expected[-1])
    assert new.last.radius == opt.last.radius


def test_a_copy_goes_on_alike() -> None:
    task = mlp()
    train(task, opt := steered(task), steps=5)
    there, theirs = copy.deepcopy((task, opt))
    object.__setattr__(theirs.parts.radius, "validation", held_out(there))
    assert_same(train(task, opt, steps=5), train(there, theirs, steps=5))


def test_a_loop_that_notes_its_losses_is_a_closure() -> None:
    a, b = mlp(), mlp()
    one, other = steered(a), steered(b)
    for t in range(9):
        take_step(one, partial(a.loss, t))
        other.zero_grad()
        (loss := b.loss(t)).backward()
        with other.ascended():
            (above := b.loss(t)).backward()
        other.step()
        other.note_losses(loss, above)
    assert_same(flat(a.params()), flat(b.params()))
    assert one.last.radius == other.last.radius


def test_a_loop_owes_no_losses_of_steps_without_a_gradient_at_w() -> None:
    a, b = mlp(), mlp()
    one, other = (
        ReusedSAM(SGD(x.params(), lr=0.05), rho=FromGap(held_out(x), total=40)) for x in (a, b)
    )
    for t in range(9):
        take_step(one, partial(a.loss, t))
        other.zero_grad()
        if wanted := other.wants_clean:
            (loss := b.loss(t)).backward()
        with other.ascended():
            (above := b.loss(t)).backward()
        other.step()
        if wanted:
            other.note_losses(loss, above)
    assert_same(flat(a.params()), flat(b.params()))
    assert one.skipped == other.skipped == 0


@pytest.mark.parametrize("early", [False, True], ids=["noted after the step", "noted before it"])
def test_a_loop_owes_no_losses_of_a_skipped_step(early: bool) -> None:
    opt = steered(task := mlp())
    for t in range(6):
        opt.zero_grad()
        (loss := task.loss(t)).backward()
        with opt.ascended():
            (above := task.loss(t) * (math.nan if t == 2 else 1)).backward()
        if early:
            opt.note_losses(loss, above)
        opt.step()
        if not early:
            opt.note_losses(loss, above)
    assert opt.skipped == 1


def test_a_loop_that_does_not_is_an_error() -> None:
    task = mlp()
    with pytest.raises(RuntimeError, match=r"call opt\.note_losses\(loss, perturbed_loss\) once"):
        train(task, steered(task), way="ascended", steps=2)


def test_losses_are_not_noted_at_the_perturbed_weights() -> None:
    task = mlp()
    opt = steered(task)
    (loss := task.loss(0)).backward()
    with opt.ascended():
        (above := task.loss(0)).backward()
        with pytest.raises(RuntimeError, match=r"note_losses\(\) was called while"):
            opt.note_losses(loss, above)


def test_validation_is_in_evaluation_mode_without_gradients_and_costs_a_forward_pass() -> None:
    task, seen = conv_bn(), []
    plain = copy.deepcopy(task)

    def validation() -> Tensor:
        seen.append((task.model.training, torch.is_grad_enabled()))
        return task.model(task.batches[0][0]).mean()

    rule = FromGap(validation, total=10, checks=5, speed=1e-9)
    opt = SAM(SGD(task.params(), lr=0.1), rho=rule, model=task.model)
    train(task, opt, steps=10)
    assert seen == [(False, False)] * 5
    assert task.model.training
    assert opt.cost == pytest.approx(20 + 5 / 3)
    sam = SAM(SGD(plain.params(), lr=0.1), rho=0.05, model=plain.model)
    train(plain, sam, steps=10)
    assert_near(flat(task.model.buffers()), flat(plain.model.buffers()), rtol=1e-4)


def test_steps_that_do_not_perturb_leave_the_rise_alone() -> None:
    task = mlp()
    opt = SSSAM(SGD(task.params(), lr=0.1), rho=FromGap(held_out(task), total=20), p=0.0)
    train(task, opt, steps=3)
    numbers = opt._groups.numbers()
    assert (numbers["rho_rise_weight"], numbers["rho_log"]) == (0.0, 0.0)
    assert numbers["rho_loss_weight"] > 0


def test_a_base_that_maximizes_has_minus_its_objective_as_loss() -> None:
    down, up = mlp(), mlp()
    one = steered(down)
    rule = FromGap(lambda: -up.loss(3), total=20, start=0.2)
    other = VaSSO(SGD(up.params(), lr=0.1, momentum=0.9, maximize=True), rho=rule)
    for t in range(9):
        take_step(one, partial(down.loss, t))
        take_step(other, lambda t=t: -up.loss(t))
    assert_near(other.last.radius["rho"], one.last.radius["rho"], rtol=1e-4)


REFUSED = {
    "ESAM", "Momentum-SAM", "S2-SAM", "SAM-db", "SAM-db-m/2", "m-SAM (subsample)",
    "random adversary", "Functional-SAM", "Functional-SAM, preconditioned", "VaSSO+Functional-SAM",
}  # fmt: skip
"""Methods that do not take both losses of the same data. LE-SAM and LightSAM-I have rules."""


@pytest.mark.parametrize("name", sorted(PRESETS.keys() - {"LE-SAM", "LightSAM-I"}))
def test_every_method_that_takes_both_losses_sets_its_radius(name: str) -> None:
    rho = CatalogueRun(name).opt.param_groups[0]["rho"]
    rule = FromGap(lambda: run.loss_of(X[:24], Y[:24]).mean(), total=60, start=rho)
    if name in REFUSED:
        with pytest.raises(ValueError, match="loss"):
            CatalogueRun(name, rho=rule).train(1)
        return
    run = CatalogueRun(name, rho=rule)
    run.train(12)
    assert set(run.opt.last.radius) <= {"rho", "R", "G"}
    numbers = run.opt._groups.numbers()
    assert numbers["rho_rise_weight"] > 0
    assert numbers["rho_log"] != 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: SAM(f, rho="auto"), r"rho=FromGap\(validation, total=steps\)"),
        (lambda f: SAM(f, rho=FromGap(3.0, total=9)), "validation must be a function"),
        (lambda f: SAM(f, rho=FromGap(len, total=0)), "total must be a whole number"),
        (lambda f: SAM(f, rho=FromGap(len, total=9, kappa=0)), "kappa must be above 0"),
        (lambda f: SAM(f, rho=FromGap(len, total=9, memory=2)), "memory must be"),
        (lambda f: ASAM(f, rho=-1.0), "rho must be at least 0"),
        (lambda f: MSAM(f, rho=FromGap(len, total=9)), "give rho a number"),
        (lambda f: SubSampledSAM(f, rho=FromGap(len, total=9)), "the same samples"),
    ],
)
def test_what_is_refused(make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(SGD([parameter(1.0)], lr=0.1, momentum=0.9))


# -- a budget of loss -----------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_the_radius_of_a_budget_is_that_of_a_plain_loop(theta: float) -> None:
    """With and without the cap: 0.2 is reached in some steps and not in others."""
    rule = LossBudget(sigma=0.1, most=0.2)
    ours = slopes.ours(partial(SAM, rho=rule, theta=theta))
    assert torch.equal(ours, slopes.ours(partial(LESAM, sigma=0.1, most=0.2, theta=theta)))
    twin = slopes.path_of(twins.loss_budget, sigma=0.1, most=0.2, theta=theta)
    slopes.assert_near(ours, twin)
    radii = [r.summary.radius["rho"] for r, _, _ in slopes.records(partial(SAM, rho=rule))]
    assert min(radii) < 0.2


def test_the_loss_of_a_plane_rises_by_the_budget_whatever_the_slope() -> None:
    """f = 2 x + y: along d = (1, 1) the rise is rho 3 / sqrt(2)."""
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    opt = VaSSO(SGD([x], lr=0.0), rho=LossBudget(0.3, most=9.0), theta=0.5)
    plane = torch.tensor([2.0, 1.0], dtype=torch.float64)
    for first in (torch.tensor([0.0, 1.0], dtype=torch.float64), plane):
        x.grad = first.clone()
        with opt.ascended():
            rise = float(plane @ x.detach())
            x.grad = plane.clone()
        opt.step()
    assert rise == pytest.approx(0.3, rel=1e-12)


@pytest.mark.parametrize("g", [(-1.0, 0.0), (0.0, 0.0)], ids=["the slope points down", "no slope"])
def test_the_cap_holds_where_there_is_no_rise(g: tuple[float, float]) -> None:
    x = torch.zeros(2, requires_grad=True)
    opt = VaSSO(SGD([x], lr=0.0), rho=LossBudget(0.3, most=0.7), theta=0.1)
    for gradient in ((1.0, 0.0), g):
        x.grad = torch.tensor(gradient)
        with opt.ascended():
            x.grad = torch.ones(2)
        opt.step()
    assert opt.last.radius["rho"] == 0.7


def test_a_budget_that_falls_to_nothing_ends_in_steps_of_the_base() -> None:
    sigma = schedules.cosine(0.35, 0.0, steps=4, after=6)
    assert [sigma(t, 0.1) for t in (0, 6, 10, 99)] == [0.35, 0.35, 0.0, 0.0]
    assert sigma(8, 0.1) == pytest.approx(0.175)
    x = parameter(1.0, 2.0)
    opt = SAM(SGD([x], lr=0.1), rho=LossBudget(lambda step, lr: 0.0))
    x.grad = torch.ones_like(x)
    with opt.ascended() as up:
        assert not up
    opt.step()
    assert x.tolist() == pytest.approx([0.9, 1.9])


def test_a_budget_needs_a_gradient_at_w() -> None:
    base = SGD([parameter(1.0, 2.0)], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match="needs the gradient at w, but BaseMomentum"):
        MSAM(base, rho=LossBudget())
    with pytest.raises(ValueError, match="most must be above 0"):
        LossBudget(most=0.0)
