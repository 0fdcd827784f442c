"""SAMPa and Entropy-SGD: what is not the one step of `SharpnessAware`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from tests.reference import entropy_sgd, sampa
from tests.reference.digits import batch, flat, gradient, net
from vasso import methods
from vasso.randomness import mixed
from vasso.steppers import EntropySGD, SAMPa
from vasso.steppers.stepper import Stepper

STEPS = 50
NEAR = 1e-12  # fifty steps of float64 on weights of order 1; measured: 2e-15
BASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum and decay": {"momentum": 0.9, "weight_decay": 1e-2},
    "dampening": {"momentum": 0.9, "dampening": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
}
each_base = pytest.mark.parametrize("settings", BASES.values(), ids=BASES)


class Digits:
    """A model, its closures, and a source of batches that are not used yet.

    Args:
        norm: whether it has BatchNorm.
        dropout: how much of the middle is dropped.
        model: another model.
    """

    def __init__(
        self, norm: bool = False, dropout: float = 0.0, model: nn.Module | None = None
    ) -> None:
        self.model = net(norm, dropout) if model is None else model
        self.t = 0

    def closure(self, t: int, before_backward: Callable[[], None] = lambda: None) -> Any:
        def run() -> Tensor:
            self.model.zero_grad()
            inputs, labels = batch(t)
            loss = cross_entropy(self.model(inputs), labels)
            before_backward()
            loss.backward()
            return loss

        return run

    def fresh(self) -> Any:
        self.t += 1
        return self.closure(self.t - 1)

    def full(self) -> Any:
        raise AssertionError("nobody asks for all of the data")


def sampa_on(task: Digits, settings: dict[str, Any] | None = None, **options: Any) -> SAMPa:
    base = SGD(task.model.parameters(), **{"lr": 0.1, "momentum": 0.9} | (settings or {}))
    return SAMPa(base, model=task.model, **options)


def entropy_on(task: Digits, base: Optimizer | None = None, **options: Any) -> EntropySGD:
    base = base or SGD(task.model.parameters(), lr=0.7, momentum=0.5)
    return EntropySGD(base, **{"model": task.model, "source": task, "L": 3} | options)


METHODS: dict[str, Callable[..., Stepper]] = {
    "SAMPa": sampa_on,
    "EntropySGD": partial(entropy_on, noise=1e-2),
}
each_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)


def train(task: Digits, opt: Any, steps: int = 6, scheduler: Any = None) -> Tensor:
    """The weights after each step, one row per step; batches go on where they were left."""
    path = []
    for _ in range(steps):
        opt.step(task.fresh())
        if scheduler is not None:
            scheduler.step()
        path.append(flat(task.model))
    return torch.stack(path)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def assert_near(ours: Tensor, theirs: Tensor, atol: float = NEAR) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def snapshot(task: Digits, opt: Stepper) -> dict[str, Any]:
    """All that a step may change, but for counters."""
    buffers = {f"buffer {name}": x.clone() for name, x in task.model.named_buffers()}
    state = {
        f"{i} {key}": value.clone()
        for i, entry in opt.state_dict()["state"].items()
        for key, value in entry.items()
        if isinstance(value, Tensor)
    }
    return {"weights": flat(task.model), **buffers, **state}


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=0, msg=name)


# -- SAMPa: the method ----------------------------------------------------------------------------


@each_base
@pytest.mark.parametrize("lam", [0.0, 0.2, 1.0])
def test_sampa_is_the_plain_loop_whose_adversary_lags_by_a_batch(
    settings: dict[str, Any], lam: float
) -> None:
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

    def closure() -> Tensor:
        opt.zero_grad()
        loss = 0.5 * (h * w.square()).sum()
        loss.backward()
        return loss

    opt.step(closure)
    x1 = x0 - lr * h * x0
    assert_near(w.detach(), x1)
    opt.step(closure)
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


def test_sampa_with_lam_1_does_not_depend_on_rho() -> None:
    one, other = Digits(), Digits()
    assert_same(
        train(one, sampa_on(one, lam=1.0, rho=0.1)), train(other, sampa_on(other, lam=1.0, rho=9.0))
    )


@pytest.mark.parametrize(
    "settings",
    [*BASES.values(), {"foreach": True, "nesterov": True}, {"maximize": True}, {"fused": True}],
    ids=str,
)
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_sampa_knows_to_the_last_bit_where_the_base_will_go(
    settings: dict[str, Any], clip_norm: float | None
) -> None:
    task, seen = Digits(), []
    opt = sampa_on(task, settings, rho=lambda step, lr: 0.0, clip_norm=clip_norm)
    for t in range(4):
        opt.step(task.closure(t, lambda: seen.append(flat(task.model))))
        assert_same(flat(task.model), seen[-1])


def test_what_sampa_clips_is_clipped_on_the_way_to_y_too() -> None:
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    opt, seen = SAMPa(SGD([w], lr=1.0), clip_norm=1.0), []

    def closure() -> Tensor:
        opt.zero_grad()
        seen.append(w.detach().clone())
        loss = w @ torch.tensor([30.0, 40.0], dtype=torch.float64)
        loss.backward()
        return loss

    opt.step(closure)
    opt.step(closure)
    # torch divides by the norm + 1e-6
    assert_near(seen[2], 2 * torch.tensor([-0.6, -0.8], dtype=torch.float64), 1e-6)


def test_the_settings_of_sampa_live_in_the_groups() -> None:
    first, second = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "rho": 0.4, "lam": 0.5}]
    opt, seen = SAMPa(SGD(groups, lr=0.0), rho=0.2, lam=0.1), []

    def closure() -> Tensor:
        opt.zero_grad()
        seen.append([first.detach() - 1, second.detach() - 1])
        loss = first.sum() + second.sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert [group["lam"] for group in opt.param_groups] == [0.1, 0.5]
    # the slope is (1, 1, 1, 1) / 2 over both groups, and lr is 0
    assert_near(seen[1][0], torch.full((2,), 0.1, dtype=torch.float64), 1e-15)
    assert_near(seen[1][1], torch.full((2,), 0.2, dtype=torch.float64), 1e-15)
    opt.param_groups[0]["lam"] = 2.0
    with pytest.raises(ValueError, match="lam must be at least 0 and at most 1, got 2"):
        opt.step(closure)


def test_a_group_with_rho_0_goes_down_by_the_current_gradient_and_may_be_sparse() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    w = torch.ones(2, requires_grad=True)
    base = SGD([{"params": [w]}, {"params": embedding.parameters(), "rho": 0.0}], lr=0.1)
    opt, before, seen = SAMPa(base), embedding.weight.detach().clone(), []

    def closure(row: int) -> Tensor:
        opt.zero_grad()
        seen.append(embedding.weight.detach().clone())
        loss = embedding(torch.tensor([row])).sum() + w.square().sum()
        loss.backward()
        return loss

    opt.step(partial(closure, 1))
    expected = before.clone()
    expected[1] -= 0.1
    assert_same(embedding.weight.detach(), expected)
    assert_same(seen[0], before)
    assert_same(seen[1], expected)  # x~_1 is x_1 there
    opt.step(partial(closure, 3))
    expected[3] -= 0.1
    assert_same(embedding.weight.detach(), expected)


def test_a_tensor_without_gradient_counts_as_0_and_without_any_is_left_to_the_base() -> None:
    always, odd, never = (torch.ones(1, requires_grad=True) for _ in range(3))
    opt = SAMPa(SGD([always, odd, never], lr=0.1, weight_decay=0.5), rho=0.1, lam=0.25)

    def closure(odd_too: bool) -> Tensor:
        opt.zero_grad()
        loss = always.square().sum() + (odd.sum() if odd_too else 0.0)
        loss.backward()
        return loss

    opt.step(partial(closure, False))
    assert odd.item() == 1.0
    opt.step(partial(closure, True))
    assert odd.grad.item() == 0.25  # lam of this batch, 1 - lam of nothing
    opt.step(partial(closure, False))
    assert odd.grad.item() == 0.75  # 1 - lam of the batch before, lam of nothing
    before = odd.item()
    opt.step(partial(closure, False))
    assert odd.item() == before
    assert odd.grad is None
    assert never.item() == 1.0


def test_a_group_that_comes_later_joins_in() -> None:
    task, late = Digits(), torch.ones(3, dtype=torch.float64, requires_grad=True)
    opt = sampa_on(task, {"momentum": 0.0}, lam=0.25)
    train(task, opt, 2)
    opt.add_param_group({"params": [late]})

    def closure() -> Tensor:
        loss = task.closure(3)()
        late.grad = None
        (late.sum()).backward()
        return loss

    opt.step(closure)
    assert_near(late.detach(), torch.full((3,), 1 - 0.1 * 0.25, dtype=torch.float64))
    opt.step(closure)
    assert_near(late.detach(), torch.full((3,), 1 - 0.1 * 1.25, dtype=torch.float64))


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

    def closure() -> Tensor:
        loss = embedding(torch.tensor([1])).sum()
        loss.backward()
        return loss

    with pytest.raises(TypeError, match=r"sparse gradient.*give its group rho=0"):
        opt.step(closure)
    assert_same(embedding.weight.detach(), before)


# -- Entropy-SGD: the method ----------------------------------------------------------------------


def normal_of(model: nn.Module, seed: int) -> Callable[[int, int], Tensor]:
    """The noise of ours, which is a function of seed, step, place in the walk and tensor."""

    def normal(t: int, k: int) -> Tensor:
        drawn = []
        for i, p in enumerate(model.parameters()):
            luck = torch.Generator().manual_seed(mixed(mixed(seed, k), t, i))
            drawn.append(torch.randn(p.shape, generator=luck, dtype=p.dtype).flatten())
        return torch.cat(drawn)

    return normal


@pytest.mark.parametrize(
    "walk",
    [
        entropy_sgd.Walk(L=5),
        entropy_sgd.Walk(L=4, lr=0.3, gamma=0.5, scoping=0.02, noise=0.05, alpha=0.6),
        entropy_sgd.Walk(L=3, momentum=0.0, decay=0.1, noise=0.0),
    ],
    ids=["as published", "large", "no momentum, no noise"],
)
def test_entropy_sgd_is_the_plain_loop(walk: entropy_sgd.Walk) -> None:
    task = Digits()
    start = flat(task.model)
    opt = entropy_on(
        task,
        SGD(task.model.parameters(), lr=0.7),
        L=walk.L,
        inner_lr=walk.lr,
        gamma=walk.gamma,
        scoping=walk.scoping,
        noise=walk.noise,
        alpha=walk.alpha,
        inner_momentum=walk.momentum,
        inner_weight_decay=walk.decay,
        seed=7,
    )
    ours = train(task, opt, STEPS)
    theirs = entropy_sgd.train(start, gradient, normal_of(task.model, 7), STEPS, walk, 0.7)
    assert_near(ours, torch.stack(theirs))
    assert opt.cost == walk.L * STEPS


def test_the_defaults_of_entropy_sgd_are_those_of_the_paper_and_its_code() -> None:
    opt = EntropySGD(SGD([torch.ones(1, requires_grad=True)]), source=lambda: None)
    walk = entropy_sgd.Walk()
    (group,) = opt.param_groups
    assert (opt.langevin.L, opt.langevin.scoping) == (walk.L, walk.scoping) == (20, 1e-3)
    assert (group["inner_lr"], group["gamma"]) == (walk.lr, walk.gamma) == (0.1, 0.03)
    assert (group["noise"], group["alpha"]) == (walk.noise, walk.alpha) == (1e-4, 0.25)
    assert group["inner_momentum"] == walk.momentum == 0.9


@pytest.mark.parametrize("base", [SGD, AdamW])
def test_entropy_sgd_without_a_walk_is_the_base(base: Callable[..., Optimizer]) -> None:
    task, plain = Digits(), Digits()
    opt = entropy_on(task, base(task.model.parameters(), lr=0.01), L=0, source=None)
    assert_same(train(task, opt), train(plain, base(plain.model.parameters(), lr=0.01)))
    assert opt.cost == 6


def test_one_quiet_step_of_the_walk_is_a_shorter_gradient() -> None:
    task, plain = Digits(), Digits()
    options = {"L": 1, "noise": 0.0, "inner_momentum": 0.0, "inner_lr": 0.2, "alpha": 0.25}
    opt = entropy_on(task, SGD(task.model.parameters(), lr=2.0), source=None, **options)
    theirs = train(plain, SGD(plain.model.parameters(), lr=2.0 * 0.25 * 0.2))
    assert_near(train(task, opt), theirs, 1e-14)


def test_a_walk_in_a_quadratic_by_hand_and_gamma_that_really_grows() -> None:
    h, lr, alpha, gamma, scoping, L = 2.0, 0.1, 0.25, 0.5, 0.1, 4
    w = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)

    def closure() -> Tensor:
        w.grad = None
        loss = 0.5 * h * w.square().sum()
        loss.backward()
        return loss

    opt = EntropySGD(
        SGD([w], lr=1.0),
        L=L,
        inner_lr=lr,
        gamma=gamma,
        scoping=scoping,
        noise=0.0,
        inner_momentum=0.0,
        source=lambda: closure,
    )
    x = 3.0
    for t in range(5):
        opt.step(closure)
        place = mean = 1.0  # in units of x: all is linear
        for _ in range(L):
            place -= lr * (h * place - gamma * (1 + scoping) ** t * (1 - place))
            mean += alpha * (place - mean)
        x *= mean
        assert w.item() == pytest.approx(x, rel=1e-14)


def test_the_noise_of_a_walk_has_its_temperature() -> None:
    w = torch.zeros(100_000, dtype=torch.float64, requires_grad=True)

    def closure() -> Tensor:
        w.grad = torch.zeros_like(w)
        return torch.zeros(())

    options = {"inner_lr": 0.08, "noise": 0.5, "alpha": 1.0, "gamma": 0.0, "inner_momentum": 0.0}
    EntropySGD(SGD([w], lr=1.0), L=4, source=lambda: closure, **options).step(closure)
    # 4 steps of noise sqrt(2 inner_lr) each; 1e5 numbers tell their width up to 0.2 %
    assert w.std().item() == pytest.approx(0.5 * math.sqrt(2 * 0.08) * math.sqrt(4), rel=0.01)
    assert abs(w.mean().item()) < 4 * 0.4 / math.sqrt(1e5)


def test_the_noise_is_a_function_of_the_seed() -> None:
    def path(seed: int) -> Tensor:
        task = Digits()
        return train(task, entropy_on(task, noise=0.1, seed=seed), 2)

    assert_same(path(1), path(1))
    assert not torch.equal(path(1), path(2))


def test_entropy_sgd_leaves_the_generators_of_torch_alone() -> None:
    task = Digits()
    before = torch.get_rng_state()
    train(task, entropy_on(task), 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_loss_of_entropy_sgd_is_the_one_at_w_on_the_batch_given() -> None:
    task = Digits()
    opt = entropy_on(task, noise=0.1)
    train(task, opt, 2)
    with torch.no_grad():
        expected = cross_entropy(task.model(batch(40)[0]), batch(40)[1])
    assert_same(opt.step(task.closure(40)), expected)
    assert_same(opt.last.loss, expected)
    assert opt.last.loss_at == "w"


def test_a_source_may_be_an_object_or_a_function() -> None:
    one, other = Digits(), Digits()
    theirs = train(other, entropy_on(other, source=other.fresh))
    assert_same(train(one, entropy_on(one, source=one)), theirs)


def test_any_base_goes_down_by_the_way_home() -> None:
    task, seen = Digits(), []
    opt = entropy_on(task, AdamW(task.model.parameters(), lr=0.01))
    opt.observe(lambda record: seen.append([d.clone() for d in record.d]))
    train(task, opt, 2)
    for p, d in zip(task.model.parameters(), seen[-1], strict=True):
        assert_same(p.grad, d)


def test_a_tensor_that_gets_no_gradient_in_the_walk_is_left_to_the_base() -> None:
    used, unused = (torch.ones(1, requires_grad=True) for _ in range(2))

    def closure() -> Tensor:
        used.grad = None
        loss = used.square().sum()
        loss.backward()
        return loss

    base = SGD([used, unused], lr=0.5, weight_decay=0.1)
    EntropySGD(base, L=3, noise=1.0, source=lambda: closure).step(closure)
    assert unused.item() == 1.0
    assert unused.grad is None


def test_steps_of_a_walk_below_an_ulp_of_the_weights_add_up() -> None:
    w = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)

    def closure() -> Tensor:
        w.grad = torch.ones_like(w)
        return torch.zeros(())

    options = {"noise": 0.0, "inner_momentum": 0.0, "gamma": 0.0, "alpha": 1.0}
    opt = EntropySGD(SGD([w], lr=0.0), L=8, inner_lr=1e-3, source=lambda: closure, **options)
    opt.step(closure)
    assert w.grad.item() == pytest.approx(8e-3, rel=2**-8)  # an ulp of bfloat16


def test_the_settings_of_a_walk_live_in_the_groups_and_rho_does_not() -> None:
    one, other = (torch.ones(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    base = SGD([{"params": [one]}, {"params": [other], "alpha": 1.0}], lr=1.0)
    opt = EntropySGD(base, L=1, inner_lr=0.1, noise=0.0, inner_momentum=0.0)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = one.sum() + other.sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert one.item() == pytest.approx(1 - 0.1 * 0.25, rel=1e-15)
    assert other.item() == pytest.approx(1 - 0.1, rel=1e-15)
    assert not any("rho" in key for group in opt.param_groups for key in group)
    opt.add_param_group({"params": [torch.ones(1, requires_grad=True)]})
    assert opt.param_groups[2]["inner_lr"] == 0.1
    assert not any("rho" in key for group in opt.param_groups for key in group)


def test_a_walk_without_fresh_batches() -> None:
    base = SGD([torch.ones(1, requires_grad=True)])
    with pytest.raises(TypeError, match=r"L=20 takes 19 fresh batches per step.*pass source="):
        EntropySGD(base)
    with pytest.raises(TypeError, match=r"not 3"):
        EntropySGD(base, source=3)
    assert "alpha" not in base.param_groups[0]


def test_a_source_that_gives_no_closure() -> None:
    task = Digits()
    opt = entropy_on(task, source=lambda: None)
    before = flat(task.model)
    with pytest.raises(TypeError, match=r"the source gave None: fresh\(\) has to give a closure"):
        opt.step(task.closure(0))
    assert_same(flat(task.model), before)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("L", -1, "L must be a whole number of at least 0, got -1"),
        ("L", 2.5, "L must be a whole number of at least 0, got 2.5"),
        ("inner_lr", 0.0, "inner_lr must be above 0, got 0"),
        ("gamma", -1.0, "gamma must be at least 0, got -1"),
        ("scoping", -1.0, "scoping must be at least 0, got -1"),
        ("noise", math.nan, "noise must be at least 0, got nan"),
        ("alpha", 0.0, "alpha must be above 0 and at most 1, got 0"),
        ("inner_momentum", 1.5, "inner_momentum must be at least 0 and at most 1, got 1.5"),
    ],
)
def test_settings_of_a_walk_out_of_range(name: str, value: float, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        EntropySGD(SGD([torch.ones(1, requires_grad=True)]), source=lambda: None, **{name: value})


def test_a_gamma_under_which_the_walk_would_fly_apart() -> None:
    task = Digits()
    opt = entropy_on(task, gamma=1.0, scoping=1.0, inner_lr=0.6)
    train(task, opt, 2)  # gamma is 1, then 2
    before = flat(task.model)
    with pytest.raises(ValueError, match=r"gamma has grown to 4 at step 2: .* Lower scoping"):
        opt.step(task.closure(0))
    assert_same(flat(task.model), before)


def test_entropy_sgd_refuses_sparse_gradients() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)

    def closure() -> Tensor:
        loss = embedding(torch.tensor([1])).sum()
        loss.backward()
        return loss

    with pytest.raises(TypeError, match=r"shape \(5, 2\) has a sparse gradient, which EntropySGD"):
        EntropySGD(SGD(embedding.parameters()), L=1).step(closure)


# -- both: promises beyond those of tests/contract ------------------------------------------------


def test_no_stepper_of_the_catalogue_is_left_out() -> None:
    made = {type(make(Digits())) for make in METHODS.values()}
    assert made == {method.build for method in methods().values() if method.kind == "stepper"}


@each_method
def test_a_run_resumed_through_torchs_distributed_getters_goes_on_bit_for_bit(
    make: Callable[..., Stepper],
) -> None:
    straight = Digits()
    expected = train(straight, make(straight), 5)[3:]
    task = Digits()
    opt = make(task)
    train(task, opt, 3)
    saved = copy.deepcopy(get_optimizer_state_dict(task.model, opt))
    other = Digits(model=copy.deepcopy(task.model))
    other.t = task.t
    fresh = make(other)
    get_optimizer_state_dict(other.model, fresh)  # as a loader of checkpoints does first
    set_optimizer_state_dict(other.model, fresh, saved)
    assert_same(train(other, fresh, 2), expected)


def spoiled(task: Digits, t: int) -> Callable[[], Tensor]:
    """A closure with a gradient that is not a number."""

    def run() -> Tensor:
        loss = task.closure(t)()
        list(task.model.parameters())[-1].grad[0] = math.nan
        return loss

    return run


@each_method
def test_nonfinite_may_raise_instead(make: Callable[..., Stepper]) -> None:
    task = Digits()
    opt = make(task, nonfinite="raise")
    train(task, opt, 2)
    before = snapshot(task, opt)
    with pytest.raises(FloatingPointError, match="weights, slope and base are as before"):
        opt.step(spoiled(task, 0))
    assert_unchanged(before, snapshot(task, opt))


@each_method
def test_unchecked_gradients_give_the_same_steps(make: Callable[..., Stepper]) -> None:
    one, other = Digits(), Digits()
    assert_same(train(one, make(one, nonfinite="ignore")), train(other, make(other)))


@each_method
def test_weights_are_borrowed_in_place_and_come_home(make: Callable[..., Stepper]) -> None:
    task = Digits()
    opt = make(task, settings={"lr": 0.0}) if make is sampa_on else None
    opt = opt or make(task, SGD(task.model.parameters(), lr=0.0))
    before, where = flat(task.model), [p.data_ptr() for p in task.model.parameters()]
    seen = []
    for t in range(2):
        closure = task.closure(t, lambda: seen.append((opt.perturbed, flat(task.model))))
        if isinstance(opt, EntropySGD):
            opt.fresh = lambda closure=closure: closure
        opt.step(closure)
    assert_same(flat(task.model), before)
    assert [p.data_ptr() for p in task.model.parameters()] == where
    away = [not torch.equal(weights, before) for _, weights in seen]
    if isinstance(opt, EntropySGD):
        assert away == [perturbed for perturbed, _ in seen] == [False, True, True] * 2
    else:  # y is x where lr is 0, but borrowed
        assert [perturbed for perturbed, _ in seen] == [False, True, True, True]
        assert away == [False, True, False, True]


@each_method
def test_what_may_not_be_done_while_weights_are_away(make: Callable[..., Stepper]) -> None:
    task = Digits()
    opt = make(task)
    train(task, opt, 1)
    before = flat(task.model)

    def closure() -> Tensor:
        loss = task.closure(9)()
        if opt.perturbed:
            opt.state_dict()
        return loss

    if isinstance(opt, EntropySGD):
        opt.fresh = lambda: closure
    with pytest.raises(RuntimeError, match=r"state_dict\(\).* the weights are not at home"):
        opt.step(closure)
    assert_same(flat(task.model), before)


@each_method
@pytest.mark.parametrize("mode", ["clean", "perturbed", "both"])
def test_batchnorm_is_moved_by_the_first_pass_or_the_last_or_by_all(
    make: Callable[..., Stepper], mode: str
) -> None:
    task = Digits(norm=True)
    opt = make(task, batchnorm=mode)
    twin = copy.deepcopy(task.model)
    seen: list[tuple[Tensor, list[Tensor]]] = []

    def note(module: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
        seen.append((args[0], [p.detach().clone() for p in module.parameters()]))

    handle = task.model.register_forward_hook(note)
    train(task, opt, 1)
    handle.remove()
    chosen = {"clean": seen[:1], "perturbed": seen[-1:], "both": seen}[mode]
    for inputs, weights in chosen:
        with torch.no_grad():
            for p, x in zip(twin.parameters(), weights, strict=True):
                p.copy_(x)
        twin(inputs)
    for ours, theirs in zip(task.model.buffers(), twin.buffers(), strict=True):
        assert_same(ours, theirs)


@each_method
def test_batchnorm_that_nobody_looks_after_is_a_warning(make: Callable[..., Stepper]) -> None:
    task = Digits(norm=True)
    opt = make(task, model=None) if make is not sampa_on else SAMPa(SGD(task.model.parameters()))
    with pytest.warns(UserWarning, match="pass model="):
        opt.step(task.fresh())


@each_method
def test_step_without_closure_is_a_plain_step(make: Callable[..., Stepper]) -> None:
    task = Digits()
    opt = make(task)
    train(task, opt, 2)
    before = snapshot(task, opt)
    base = copy.deepcopy(opt.base)
    task.closure(5)()
    for p, q in zip(task.model.parameters(), base.param_groups[0]["params"], strict=True):
        q.grad = p.grad.clone()
    cost = opt.cost
    opt.step()
    base.step()
    theirs = torch.cat([q.detach().flatten() for q in base.param_groups[0]["params"]])
    assert_same(flat(task.model), theirs)
    assert opt.cost == cost + 1
    after = snapshot(task, opt)
    for name in [name for name in before if "vasso_" in name]:
        assert_same(after[name], before[name])


@each_method
def test_unwrap_gives_the_base_back_clean(make: Callable[..., Stepper]) -> None:
    task = Digits()
    keys = set(SGD(task.model.parameters()).param_groups[0])
    opt = make(task)
    train(task, opt, 2)
    base = opt.unwrap()
    assert set(base.param_groups[0]) == keys
    assert set(base.state[base.param_groups[0]["params"][0]]) == {"momentum_buffer"}
    with pytest.raises(RuntimeError, match="has given its base back"):
        opt.step(task.fresh())
    make(task)


@each_method
def test_a_checkpoint_of_the_plain_base_and_of_other_parts(make: Callable[..., Stepper]) -> None:
    task, plain = Digits(), Digits()
    opt = make(task)
    base = SGD(plain.model.parameters(), lr=opt.param_groups[0]["lr"], momentum=0.9)
    train(plain, base, 2)
    opt.load_state_dict(base.state_dict())
    buffers = [s["momentum_buffer"] for s in base.state.values()]
    ours = [opt.base.state[p]["momentum_buffer"] for p in task.model.parameters()]
    assert_same(torch.cat([b.flatten() for b in ours]), torch.cat([b.flatten() for b in buffers]))
    other = Digits()
    wrong = entropy_on(other) if isinstance(opt, SAMPa) else sampa_on(other)
    with pytest.raises(ValueError, match="the checkpoint is of other parts"):
        wrong.load_state_dict(opt.state_dict())


@each_method
def test_weights_of_low_precision_come_home_too(make: Callable[..., Stepper]) -> None:
    model = nn.Linear(4, 2).to(torch.bfloat16)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    task = Digits(model=model)
    opt = make(task, {"lr": 0.0}) if make is sampa_on else None
    opt = opt or make(task, SGD(model.parameters(), lr=0.0))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    if isinstance(opt, EntropySGD):
        opt.fresh = lambda: closure
    before = flat(model)
    for _ in range(3):
        opt.step(closure)
    assert_same(flat(model), before)
    assert opt.cost in (6, 9)
    assert all(p.grad.dtype == torch.bfloat16 for p in model.parameters())


@each_method
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("batchnorm", "clen", "Did you mean 'clean'"),
        ("nonfinite", "skp", "Did you mean 'skip'"),
        ("clip_norm", -1.0, "clip_norm must be above 0"),
    ],
)
def test_an_unknown_option(
    make: Callable[..., Stepper], option: str, value: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        make(Digits(), **{option: value})


@each_method
def test_a_closure_without_loss_or_gradient(make: Callable[..., Stepper]) -> None:
    task = Digits()
    opt = make(task)
    with pytest.raises(TypeError, match="the closure returned None"):
        opt.step(lambda: task.closure(0)() and None)
    with pytest.raises(RuntimeError, match="left no gradient on any parameter"):
        opt.step(lambda: (opt.zero_grad(), 0.0)[1])
