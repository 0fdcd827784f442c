"""Entropy-SGD: the plain loop, its walk and its noise, settings, refusals."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW

from tests.reference import entropy_sgd
from tests.reference.digits import batch, flat, gradient
from tests.standalone.task import STEPS, Digits, assert_near, entropy_on, train
from tests.support.compare import assert_same
from tests.support.problems import closure_of, take_step
from vasso.numerics.rng import mix_seed
from vasso.standalone import EntropySGD


def normal_of(model: nn.Module, seed: int) -> Callable[[int, int], Tensor]:
    """The noise of ours, which is a function of seed, step, place in the walk and tensor."""

    def normal(t: int, k: int) -> Tensor:
        drawn = []
        for i, p in enumerate(model.parameters()):
            luck = torch.Generator().manual_seed(mix_seed(mix_seed(seed, k), t, i))
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


def test_one_quiet_step_of_the_walk_is_a_shorter_gradient() -> None:
    task, plain = Digits(), Digits()
    options = {"L": 1, "noise": 0.0, "inner_momentum": 0.0, "inner_lr": 0.2, "alpha": 0.25}
    opt = entropy_on(task, SGD(task.model.parameters(), lr=2.0), source=None, **options)
    theirs = train(plain, SGD(plain.model.parameters(), lr=2.0 * 0.25 * 0.2))
    assert_near(train(task, opt), theirs, 1e-14)


def test_a_walk_in_a_quadratic_by_hand_and_gamma_that_really_grows() -> None:
    h, lr, alpha, gamma, scoping, L = 2.0, 0.1, 0.25, 0.5, 0.1, 4
    w = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
    base = SGD([w], lr=1.0)
    closure = closure_of(base, lambda: 0.5 * h * w.square().sum())
    opt = EntropySGD(
        base,
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


def pulled(w: Tensor, gradient: float) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        w.grad = torch.full_like(w, gradient)
        return torch.zeros(())

    return closure


def test_the_noise_of_a_walk_has_its_temperature() -> None:
    w = torch.zeros(100_000, dtype=torch.float64, requires_grad=True)
    closure = pulled(w, 0.0)
    options = {"inner_lr": 0.08, "noise": 0.5, "alpha": 1.0, "gamma": 0.0, "inner_momentum": 0.0}
    EntropySGD(SGD([w], lr=1.0), L=4, source=lambda: closure, **options).step(closure)
    # 4 steps of noise sqrt(2 inner_lr) each; 1e5 numbers tell their width up to 0.2 %
    assert w.std().item() == pytest.approx(0.5 * math.sqrt(2 * 0.08) * math.sqrt(4), rel=0.01)
    assert abs(w.mean().item()) < 4 * 0.4 / math.sqrt(1e5)


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
    base = SGD([used, unused], lr=0.5, weight_decay=0.1)
    closure = closure_of(base, lambda: used.square().sum())
    EntropySGD(base, L=3, noise=1.0, source=lambda: closure).step(closure)
    assert unused.item() == 1.0
    assert unused.grad is None


def test_steps_of_a_walk_below_an_ulp_of_the_weights_add_up() -> None:
    w = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    closure = pulled(w, 1.0)
    options = {"noise": 0.0, "inner_momentum": 0.0, "gamma": 0.0, "alpha": 1.0}
    opt = EntropySGD(SGD([w], lr=0.0), L=8, inner_lr=1e-3, source=lambda: closure, **options)
    opt.step(closure)
    assert w.grad.item() == pytest.approx(8e-3, rel=2**-8)  # an ulp of bfloat16


def test_the_settings_of_a_walk_live_in_the_groups_and_rho_does_not() -> None:
    one, other = (torch.ones(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    base = SGD([{"params": [one]}, {"params": [other], "alpha": 1.0}], lr=1.0)
    opt = EntropySGD(base, L=1, inner_lr=0.1, noise=0.0, inner_momentum=0.0)
    closure = closure_of(opt, lambda: one.sum() + other.sum())
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
    ("name", "value", "message"),
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
def test_settings_of_a_walk_out_of_range(name: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
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
    opt = EntropySGD(SGD(embedding.parameters()), L=1)
    with pytest.raises(TypeError, match=r"shape \(5, 2\) has a sparse gradient, which EntropySGD"):
        take_step(opt, lambda: embedding(torch.tensor([1])).sum())
