"""Whatever happens in a closure: weights come home, nothing bad is remembered, training goes on."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests import faults
from tests.faults import FAULTS, METHODS, NONFINITE, WAYS, Fault, Learner, Setup, Way, batches
from tests.support import THOROUGH
from tests.support.problems import closure_of
from vasso import SAM, LookSAM, SharpnessAware, VaSSO

EXACT = [Setup(m, b, way) for m in METHODS for b in ("SGD", "AdamW") for way in WAYS]
ROUNDED = [
    Setup(m, b, way, "recompute")
    for m, b in (("SAM", "AdamW"), ("VaSSO", "SGD"))
    for way in ("closure", "ascended")
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("setup", EXACT + ROUNDED, ids=str)
def test_a_fault_leaves_what_a_plain_loop_leaves(setup: Setup, fault: Fault) -> None:
    faults.check_faults(setup, {0: fault, 3: fault}, steps=6)


@pytest.mark.parametrize("setup", EXACT + ROUNDED, ids=str)
def test_faults_at_random_steps_and_in_a_row_leave_no_trace(setup: Setup) -> None:
    faults.check_faults(setup, faults.random_faults(setup, 30, seed=5), steps=30)


@pytest.mark.parametrize("way", WAYS)
def test_any_two_faults_in_a_row_leave_no_trace(way: Way) -> None:
    found: dict[int, Fault] = {}
    for t, (one, other) in enumerate(product(FAULTS, FAULTS)):
        # a first pass of the caller's own that raises before `ascended` is one we never hear of
        if way == "closure" or not one.unseen:
            found |= {3 * t: one, 3 * t + 1: other}  # then a sound step
    faults.check_faults(Setup(way=way), found, steps=3 * len(FAULTS) ** 2)


@pytest.mark.parametrize("rho_of_first", [0.0, 0.3])
@pytest.mark.parametrize("bad", [math.nan, None])
def test_a_step_that_fails_drops_no_slope_of_a_group_with_rho_0(
    bad: float | None, rho_of_first: float
) -> None:
    groups = [torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)]
    opt = VaSSO(SGD([{"params": p} for p in groups], lr=0.1), rho=0.3)
    opt.step(closure_of(opt, lambda: sum(p.square().sum() for p in groups)))
    before = [opt.state[p]["vasso_d"].clone() for p in groups]
    for group, rho in zip(opt.param_groups, (rho_of_first, 0.0), strict=True):
        group["rho"] = rho
    calls = iter([1.0, bad] if rho_of_first else [bad])

    def fails() -> Tensor:
        opt.zero_grad()
        factor = next(calls)
        if factor is None:
            raise ArithmeticError
        loss = sum(p.sum() for p in groups) * factor
        loss.backward()
        return loss

    if bad is None:
        with pytest.raises(ArithmeticError):
            opt.step(fails)
    else:
        opt.step(fails)
    assert torch.equal(opt.state[groups[1]]["vasso_d"], before[1])


@pytest.mark.parametrize("what", NONFINITE)
@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_nonfinite_raise_leaves_what_a_skip_leaves(way: Way, where: Any, what: Any) -> None:
    setup = Setup("VaSSO", "AdamW", way, nonfinite="raise")
    faults.check_faults(setup, {0: Fault(where, what), 3: Fault(where, what)}, steps=6)


@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_nonfinite_raise_says_where_and_what_to_do(way: Way, where: Any) -> None:
    ours = Learner(Setup(way=way, nonfinite="raise"))
    error = ours.step(batches(1)[0], Fault(where, "inf loss"))
    place = "at w has" if where == 1 else r"at w + epsilon has"
    assert place in str(error)
    assert 'nonfinite="skip"' in str(error)
    assert ("weights, slope and base are as before" in str(error)) == (where == 1)


@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_nonfinite_ignore_does_not_look(way: Way, where: Any) -> None:
    ours = Learner(Setup(way=way, nonfinite="ignore"))
    assert ours.step(batches(1)[0], Fault(where, "inf loss")) is None
    slope = torch.cat([entry["d"].flatten() for entry in faults.slopes(ours.opt).values()])
    weights = torch.cat([x.flatten() for x in faults.weights(ours.model).values()])
    seen = (ours.opt.skipped, bool(weights.isfinite().all()), bool(slope.isfinite().all()))
    assert seen == (0, False, where == 2)


@pytest.mark.parametrize("nonfinite", ["raise", "ignore"])
@pytest.mark.parametrize("way", WAYS)
def test_without_faults_nonfinite_makes_no_difference(way: Way, nonfinite: Any) -> None:
    faults.check_faults(Setup(way=way, nonfinite=nonfinite), {}, steps=4)


def test_a_skipped_step_is_not_a_completed_one() -> None:
    ours = Learner(Setup())
    first, second = batches(2)
    ours.step(first, Fault(2, "inf loss"))
    result = ours.opt.last.skipped
    ours.step(second)
    group = ours.opt.param_groups[0]
    assert (result, ours.opt.last.skipped, group["vasso_step"], group["vasso_skipped"]) == (
        True,
        False,
        1,
        1,
    )


@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_an_exception_in_the_middle_of_backward_is_like_any_other(way: Way, where: int) -> None:
    ours, twin = Learner(Setup(way=way)), faults.Twin(Setup(way=way))
    first, second, third = batches(3)
    ours.step(first)
    twin.step(first)
    passes = []

    def stumble(gradient: Tensor) -> None:
        passes.append(gradient)
        if len(passes) == where:
            raise faults.MishapError

    hook = ours.model.norm.weight.register_hook(stumble)
    error = ours.step(second)
    hook.remove()
    twin.step(second, Fault(where, faults.MishapError))
    ours.step(third)
    twin.step(third)
    assert isinstance(error, faults.MishapError)
    faults.assert_same(ours.everything(), twin.everything())


def test_a_group_that_is_not_climbed_is_watched_too() -> None:
    climbed, still = (torch.ones(2, requires_grad=True) for _ in range(2))
    opt = SAM(SGD([{"params": [climbed]}, {"params": [still], "rho": 0.0}], lr=0.1))
    closure = closure_of(opt, lambda: climbed.square().sum() + math.inf * still.sum())
    opt.step(closure)
    assert (opt.skipped, climbed.tolist(), still.tolist()) == (1, [1.0, 1.0], [1.0, 1.0])


def test_an_exception_in_an_observer_leaves_weights_at_home_and_the_base_alone() -> None:
    ours = Learner(Setup())
    before = faults.weights(ours.model)

    def stumble(record: Any) -> None:
        raise faults.MishapError

    ours.opt.observe(stumble)
    error = ours.step(batches(1)[0])
    assert isinstance(error, faults.MishapError)
    assert not ours.opt.base.state
    faults.assert_same(faults.weights(ours.model), before)


def test_an_exception_in_a_schedule_leaves_all_as_it_was() -> None:
    def rho(step: int, lr: float) -> float:
        if step == 1:
            raise faults.MishapError
        return 0.1

    ours, (batch,) = Learner(Setup(), rho=rho), batches(1)
    ours.step(batch)
    before = ours.everything()
    assert isinstance(ours.step(batch), faults.MishapError)
    faults.assert_same(ours.everything(), before)


def steep(opt: SharpnessAware, w: Tensor, scale: float) -> Any:
    """A closure whose gradient is (1, 2, 3, 4) times a scale that squares cannot hold."""
    closure = closure_of(opt, lambda: (w * torch.tensor([1.0, 2.0, 3.0, 4.0]) * scale).sum())
    return closure


@pytest.mark.parametrize("scale", [1e30, 1e37, 1e-30, 1e-36])
@pytest.mark.parametrize("method", ["SAM", "VaSSO"])
@pytest.mark.parametrize("restore", ["copy", "recompute"])
def test_a_norm_out_of_range_is_taken_all_the_same(method: str, scale: float, restore: Any) -> None:
    w = torch.zeros(4, requires_grad=True)
    opt = METHODS[method](SGD([w], lr=0.5 / scale), restore=restore)
    lengths = []
    opt.observe(lambda record: lengths.append(record.epsilon[0].double().norm().item()))
    for _ in range(3):
        opt.step(steep(opt, w, scale))
    assert opt.skipped == 0
    # float32: w is of order 6, epsilon is what is left of 0.1 after w + epsilon was rounded
    assert lengths == pytest.approx([faults.RHO] * 3, rel=1e-5)
    # and the base descends: three steps of lr times the gradient
    assert w.tolist() == pytest.approx([-1.5, -3.0, -4.5, -6.0], rel=1e-5)


def test_a_slope_may_leave_the_range_of_its_squares_in_a_step_without_perturbation() -> None:
    w = torch.zeros(4, requires_grad=True)
    opt = LookSAM(SGD([w], lr=0.0), rho=0.1, theta=0.4, k=3)
    lengths = []
    opt.observe(lambda record: lengths.append(record.epsilon and record.epsilon[0].norm().item()))
    for scale in (1.0, 1e30, 1.0, 1.0):
        opt.step(steep(opt, w, scale))
    # float32; the slope of the last step is still of order 1e29
    assert lengths == [pytest.approx(0.1, rel=1e-6), None, None, pytest.approx(0.1, rel=1e-6)]


@pytest.mark.parametrize("restore", ["copy", "recompute"])
def test_rho_times_a_gradient_may_overflow_where_epsilon_does_not(restore: Any) -> None:
    w = torch.zeros(4, requires_grad=True)
    opt = SAM(SGD([w], lr=0.0), rho=100.0, restore=restore)
    lengths = []
    opt.observe(lambda record: lengths.append(record.epsilon[0].double().norm().item()))
    opt.step(steep(opt, w, 1e37))
    assert (lengths, opt.skipped) == ([pytest.approx(100.0, rel=1e-6)], 0)  # float32
    assert w.tolist() == pytest.approx([0.0] * 4, abs=1e-5)  # at home, an ulp of 100 away


def test_zero_is_finite_and_nothing_to_climb() -> None:
    w = torch.ones(4, requires_grad=True)
    opt = VaSSO(SGD([w], lr=0.5))
    losses = [opt.step(steep(opt, w, scale)) for scale in (0.0, 1.0)]
    assert (opt.skipped, losses[0].item()) == (0, 0.0)
    assert w.tolist() == [0.5, 0.0, -0.5, -1.0]


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_an_interrupt_at_any_instant_of_a_step_leaves_weights_at_home(way: Way) -> None:
    every = 1 if THOROUGH or way == "closure" else 3
    faults.check_interrupts(Setup(base="SGD in one call", way=way), every)


@pytest.mark.thorough
def test_an_interrupt_does_not_add_or_subtract_epsilon_twice() -> None:
    every = 1 if THOROUGH else 3
    faults.check_interrupts(Setup(base="SGD in one call", restore="recompute"), every)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["closure", "ascended"])
@pytest.mark.parametrize("base", ["SGD in one call", "AdamW in one call"])
def test_a_real_sigint_at_random_instants_leaves_weights_at_home(base: str, way: Way) -> None:
    faults.check_sigint_at_any_time(Setup(base=base, way=way), steps=200)
