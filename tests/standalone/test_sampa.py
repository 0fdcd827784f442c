"""SAMPa: the plain loop, closed forms, settings, refusals."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from tests.reference import sampa
from tests.reference.digits import flat, gradient
from tests.standalone.task import STEPS, Digits, assert_near, sampa_on, train
from tests.support.compare import assert_same
from tests.support.problems import take_step
from vasso.standalone import SAMPa

BASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum and decay": {"momentum": 0.9, "weight_decay": 1e-2},
    "dampening": {"momentum": 0.9, "dampening": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
}
each_base = pytest.mark.parametrize("settings", BASES.values(), ids=BASES)


@each_base
@pytest.mark.parametrize("lam", [0.0, 0.2, 1.0])
def test_sampa_is_the_plain_loop_that_lags_by_a_batch(settings: dict[str, Any], lam: float) -> None:
    task = Digits()
    start = flat(task.model)
    opt = sampa_on(task, {"momentum": 0.0, **settings}, rho=0.3, lam=lam)

    def factor(t: int) -> float:
        return 0.55 + 0.45 * math.cos(math.pi * t / STEPS)

    ours = train(task, opt, STEPS, LambdaLR(opt, factor))
    theirs = sampa.train(
        start, gradient, STEPS, sampa.Sgd(**settings), 0.3, lam, lambda t: 0.1 * factor(t)
    )
    assert_near(ours, torch.stack(theirs))
    assert opt.cost == 2 * STEPS


def test_sampa_on_a_quadratic_by_hand() -> None:
    h, lr, rho, lam = torch.tensor([1.0, 3.0], dtype=torch.float64), 0.1, 0.5, 0.25
    x0 = torch.tensor([2.0, -1.0], dtype=torch.float64)
    w = x0.clone().requires_grad_()
    opt = SAMPa(SGD([w], lr=lr), rho=rho, lam=lam)
    take_step(opt, lambda: 0.5 * (h * w.square()).sum())
    x1 = x0 - lr * h * x0
    assert_near(w.detach(), x1)
    take_step(opt, lambda: 0.5 * (h * w.square()).sum())
    g = h * x0  # at y_1 = x_0
    u = (1 - lam) * h * (x1 + rho * g / g.norm()) + lam * h * (x1 - lr * g)
    assert_near(w.detach(), x1 - lr * u)


@each_base
def test_the_first_step_of_sampa_is_the_bases_own(settings: dict[str, Any]) -> None:
    task, plain = Digits(), Digits()
    ours = train(task, sampa_on(task, settings), 1)
    theirs = train(plain, SGD(plain.model.parameters(), **{"lr": 0.1, "momentum": 0.9, **settings}))
    assert_same(ours[0], theirs[0])


@each_base
def test_sampa_with_rho_0_is_the_base_at_one_evaluation(settings: dict[str, Any]) -> None:
    task, plain = Digits(), Digits()
    opt = sampa_on(task, settings, rho=0.0)
    theirs = train(plain, SGD(plain.model.parameters(), **{"lr": 0.1, "momentum": 0.9, **settings}))
    assert_same(train(task, opt), theirs)
    assert opt.cost == 6
    assert not any("vasso_q" in entry for entry in opt.state_dict()["state"].values())


def test_sampa_with_a_rho_that_is_0_for_a_while_follows_its_equations() -> None:
    task, start = Digits(), flat(Digits().model)
    opt = sampa_on(task, {"momentum": 0.0}, rho=lambda step, lr: 0.0)
    theirs = sampa.train(start, gradient, 10, sampa.Sgd(), 0.0, 0.2, lambda t: 0.1)
    assert_near(train(task, opt, 10), torch.stack(theirs))
    assert opt.cost == 20


@pytest.mark.parametrize(
    "settings",
    [*BASES.values(), {"foreach": True, "nesterov": True}, {"maximize": True}, {"fused": True}],
    ids=str,
)
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_sampa_knows_the_next_weights(settings: dict[str, Any], clip_norm: float | None) -> None:
    task, seen = Digits(), []
    opt = sampa_on(task, settings, rho=lambda step, lr: 0.0, clip_norm=clip_norm)
    for t in range(4):
        opt.step(task.closure(t, lambda: seen.append(flat(task.model))))
        assert_same(flat(task.model), seen[-1])


def test_what_sampa_clips_is_clipped_on_the_way_to_y_too() -> None:
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    opt, seen, g = SAMPa(SGD([w], lr=1.0), clip_norm=1.0), [], w.new_tensor([30.0, 40.0])
    for _ in range(2):
        take_step(opt, lambda: seen.append(w.detach().clone()) or w @ g)
    # torch divides by the norm + 1e-6
    assert_near(seen[2], 2 * torch.tensor([-0.6, -0.8], dtype=torch.float64), 1e-6)


def test_the_settings_of_sampa_live_in_the_groups() -> None:
    first, second = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "rho": 0.4, "lam": 0.5}]
    opt, seen = SAMPa(SGD(groups, lr=0.0), rho=0.2, lam=0.1), []

    def loss() -> Tensor:
        seen.append([first.detach() - 1, second.detach() - 1])
        return first.sum() + second.sum()

    take_step(opt, loss)
    assert [group["lam"] for group in opt.param_groups] == [0.1, 0.5]
    # the slope is (1, 1, 1, 1) / 2 over both groups, and lr is 0
    assert_near(seen[1][0], torch.full((2,), 0.1, dtype=torch.float64), 1e-15)
    assert_near(seen[1][1], torch.full((2,), 0.2, dtype=torch.float64), 1e-15)
    opt.param_groups[0]["lam"] = 2.0
    with pytest.raises(ValueError, match="lam must be at least 0 and at most 1, got 2"):
        take_step(opt, loss)


def test_a_group_with_rho_0_goes_down_by_the_current_gradient_and_may_be_sparse() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    w = torch.ones(2, requires_grad=True)
    base = SGD([{"params": [w]}, {"params": embedding.parameters(), "rho": 0.0}], lr=0.1)
    opt, before, seen = SAMPa(base), embedding.weight.detach().clone(), []

    def loss(row: int) -> Tensor:
        seen.append(embedding.weight.detach().clone())
        return embedding(torch.tensor([row])).sum() + w.square().sum()

    take_step(opt, partial(loss, 1))
    expected = before.clone()
    expected[1] -= 0.1
    assert_same(embedding.weight.detach(), expected)
    assert_same(seen[0], before)
    assert_same(seen[1], expected)  # x~_1 is x_1 there
    take_step(opt, partial(loss, 3))
    expected[3] -= 0.1
    assert_same(embedding.weight.detach(), expected)


def test_a_tensor_without_gradient_counts_as_0_and_without_any_is_left_to_the_base() -> None:
    always, odd, never = (torch.ones(1, requires_grad=True) for _ in range(3))
    opt = SAMPa(SGD([always, odd, never], lr=0.1, weight_decay=0.5), rho=0.1, lam=0.25)

    def step(odd_too: bool) -> None:
        take_step(opt, lambda: always.square().sum() + (odd.sum() if odd_too else 0.0))

    step(odd_too=False)
    assert odd.item() == 1.0
    step(odd_too=True)
    assert odd.grad.item() == 0.25  # lam of this batch, 1 - lam of nothing
    step(odd_too=False)
    assert odd.grad.item() == 0.75  # 1 - lam of the batch before, lam of nothing
    before = odd.item()
    step(odd_too=False)
    assert odd.item() == before
    assert odd.grad is None
    assert never.item() == 1.0


def test_both_passes_of_sampa_may_draw_the_same_dropout() -> None:
    def masks(same_rng: bool) -> list[Tensor]:
        task, found = Digits(dropout=0.5), []
        dropout = task.model[1]
        dropout.register_forward_hook(lambda module, args, out: found.append(out != 0))
        train(task, sampa_on(task, same_rng=same_rng), 2)
        return found

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one, two, three, four = masks(same_rng=True)
        assert torch.equal(one, two)
        assert torch.equal(three, four)
        assert not torch.equal(one, three)
        one, two, *_ = masks(same_rng=False)
        assert not torch.equal(one, two)


def test_an_observer_of_sampa_sees_gradient_slope_adversary() -> None:
    task, records = Digits(), []
    opt = sampa_on(task, rho=0.3)
    opt.observe(lambda r: records.append((torch.cat([e.flatten() for e in r.epsilon]), r)))
    train(task, opt, 2)
    (epsilon, record) = records[1]
    v = torch.cat([g.flatten() for g in record.g])
    assert_near(epsilon, 0.3 * v / v.norm(), 1e-14)
    assert record.h is not None
    assert record.step == 1
    assert opt.last.climbed
    assert opt.last.loss_at == "w + epsilon"
    assert_near(opt.last.g_norm, v.norm(), 1e-14)


@pytest.mark.parametrize("wrong", [Adam, AdamW, torch.optim.RMSprop])
def test_sampa_around_another_base_than_sgd(wrong: Callable[..., Optimizer]) -> None:
    base = wrong([torch.ones(1, requires_grad=True)])
    with pytest.raises(TypeError, match=r"knows it of torch.optim.SGD only, not of .*: use SGD"):
        SAMPa(base)
    assert "rho" not in base.param_groups[0]


def test_sampa_around_an_sgd_with_a_step_of_its_own() -> None:
    class Changed(SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)

    class Named(SGD):
        """The same step."""

    with pytest.raises(TypeError, match="not of Changed"):
        SAMPa(Changed([torch.ones(1, requires_grad=True)]))
    SAMPa(Named([torch.ones(1, requires_grad=True)]))


@pytest.mark.parametrize("lam", [-0.1, 1.1, math.nan])
def test_lam_out_of_range(lam: float) -> None:
    with pytest.raises(ValueError, match=rf"lam must be at least 0 and at most 1, got {lam:g}"):
        SAMPa(SGD([torch.ones(1, requires_grad=True)]), lam=lam)


def test_sampa_refuses_a_sparse_gradient_that_it_would_climb() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    opt, before = SAMPa(SGD(embedding.parameters(), lr=0.1)), embedding.weight.detach().clone()
    with pytest.raises(TypeError, match=r"sparse gradient.*give its group rho=0"):
        take_step(opt, lambda: embedding(torch.tensor([1])).sum())
    assert_same(embedding.weight.detach(), before)
