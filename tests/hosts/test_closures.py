"""What hosts do with closures, without a host: climb inside, pass empty ones, leave batches out."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.support.compare import assert_same
from tests.support.problems import parameter
from vasso import AESAM, MSAM, SAM, MultiStepSAM, SharpnessAware, VaSSO


def gradient(w: Tensor) -> Tensor:
    loss = (w.square() * torch.tensor([1.0, 3.0])).sum()
    loss.backward()
    return loss


def loop(opt: SharpnessAware, w: Tensor) -> None:
    for _ in range(6):
        opt.zero_grad()
        gradient(w)
        with opt.ascended() as up:
            if up:
                gradient(w)
        opt.step()


def adaptive(w: Tensor) -> SharpnessAware:
    return AESAM(SGD([w], lr=0.1), rho=0.1, total=6)


def test_a_closure_that_climbs_by_itself_leaves_the_numbers_of_the_step_behind() -> None:
    w, theirs = parameter(1.0, 2.0), parameter(1.0, 2.0)
    opt, plain = adaptive(w), adaptive(theirs)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = gradient(w)
        with opt.ascended() as up:
            if up:
                gradient(w)
        return loss

    for _ in range(6):
        opt.step(closure)
    loop(plain, theirs)
    assert_same(w, theirs)
    assert opt.state_dict() == plain.state_dict()
    assert opt.param_groups[0]["vasso_mu"] > 0


@pytest.mark.parametrize("method", [VaSSO, MSAM])
def test_an_empty_closure_ends_what_ascended_has_begun(method: type[SharpnessAware]) -> None:
    w, theirs = parameter(1.0, 2.0), parameter(1.0, 2.0)
    opt, plain = (method(SGD([p], lr=0.1, momentum=0.9), rho=0.1) for p in (w, theirs))
    step, calls = opt.step, []
    opt.step = lambda: step(lambda: calls.append(torch.is_grad_enabled()))  # type: ignore
    loop(opt, w)
    loop(plain, theirs)
    assert_same(w, theirs)
    assert opt.cost == plain.cost
    assert calls == 6 * [True]


def test_an_empty_closure_ends_a_skipped_step() -> None:
    w = parameter(1.0, 2.0)
    opt = SAM(SGD([w], lr=0.1), rho=0.1)
    w.grad = torch.full_like(w, torch.inf)
    with opt.ascended() as up:
        assert not up
    opt.step(lambda: None)
    assert_same(w, parameter(1.0, 2.0))
    assert opt.skipped == 1


@pytest.mark.parametrize("method", [SAM, MSAM])
def test_a_closure_may_leave_its_step_out(method: type[SharpnessAware]) -> None:
    w = parameter(1.0, 2.0)
    opt = method(SGD([w], lr=0.1, momentum=0.9), rho=0.1)

    def closure(out: bool) -> Tensor | None:
        opt.zero_grad()
        if out:
            return opt.leave_out()
        return gradient(w)

    opt.step(lambda: closure(False))
    before, cost = w.detach().clone(), opt.cost
    assert opt.step(lambda: closure(True)) is None
    assert_same(w.detach(), before)
    assert (opt.cost, opt.skipped, opt.param_groups[0]["vasso_step"]) == (cost, 0, 1)
    opt.step(lambda: closure(False))
    assert opt.param_groups[0]["vasso_step"] == 2


def test_a_method_says_what_it_needs_its_own_passes_for() -> None:
    w = parameter(1.0, 2.0)
    assert SAM(SGD([w], lr=0.1)).needs_own_passes is None
    assert SAM(SGD([w], lr=0.1), same_rng=True).needs_own_passes == "same_rng=True"
    assert "MultiStep" in (MultiStepSAM(SGD([w], lr=0.1), n=2).needs_own_passes or "")


def nested(depth: int, call: Callable[[], Any]) -> Any:
    return nested(depth - 1, call) if depth else call()


@pytest.mark.parametrize("between", [0, 50])
def test_a_host_far_up_the_stack_does_not_make_the_step(between: int) -> None:
    """A loop of the user's own may run inside of one: in a callback, or in a search."""
    w = parameter(1.0, 2.0)
    opt = SAM(SGD([w], lr=0.1), rho=0.1)
    gradient(w)
    host = FunctionType(nested.__code__, {"__name__": "transformers.trainer", "nested": nested})
    if between:
        host(1, lambda: nested(between, opt.step))
        assert w.tolist() == pytest.approx([0.8, 0.8])
        return
    with pytest.raises(RuntimeError, match="Trainer makes plain steps"):
        host(1, opt.step)
