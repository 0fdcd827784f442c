"""Late, reused, one-gradient, variance-reduced, many-step and sparse methods against the equations.

Where nothing is said of a tolerance, equality is bit for bit. A twin differs in the order of its
sums only: a rounding of 1e-16 per operation. This training contracts: after 40 steps no twin was
further away than 5e-16, and NEAR leaves a factor of 200.
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.reference import family_b as twins
from vasso import (
    AWP,
    L2,
    MSAM,
    PGN,
    S2SAM,
    SAM,
    SARAHSAM,
    SVRGSAM,
    Adaptive,
    After,
    Bernoulli,
    Chunks,
    DynamicMask,
    Ema,
    EveryK,
    FisherMask,
    FrankWolfe,
    FrankWolfeSAM,
    FriendlySAM,
    GradientNormPenalty,
    LateSAM,
    LayerRelative,
    Linf,
    LinfSAM,
    MeanOfPath,
    MultiStep,
    MultiStepSAM,
    RefreshAdaptive,
    RefreshEveryK,
    RefreshRandomly,
    ReusedSAM,
    Samples,
    Sarah,
    SelectTop,
    SharpnessAware,
    SparseSAM,
    StepRecord,
    Storm,
    StormSAM,
    Svrg,
    VaSSO,
)
from vasso.directions import BaseMomentum, LastGradient
from vasso.randomness import mixed

STEPS = 40
NEAR = 1e-13
BATCH, BATCHES = 16, 5
EXAMPLES = BATCH * BATCHES
SIZE = 64 * 6 + 6 + 6 * 10 + 10

Vector = list[Tensor]


# -- the problem ----------------------------------------------------------------------------------


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Eighty handwritten digits, rotated at random so that no input is always 0: no scores tie."""
    data = load_digits()
    luck = torch.Generator().manual_seed(7)
    square = torch.randn(64, 64, dtype=torch.float64, generator=luck)
    x = torch.from_numpy(data.data[:EXAMPLES] / 16.0) @ torch.linalg.qr(square).Q
    return x, torch.from_numpy(data.target[:EXAMPLES]).long()


def rows_of(t: int | None) -> slice:
    """The samples of the batch of step t, or all."""
    return slice(None) if t is None else slice(t % BATCHES * BATCH, (t % BATCHES + 1) * BATCH)


class Task:
    """A network of two layers and its batches; `evaluations` counts gradients by their samples."""

    def __init__(self, dtype: torch.dtype = torch.float64, middle: nn.Module | None = None) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(20230926)
            layers = [nn.Linear(64, 6), middle or nn.Identity(), nn.Tanh(), nn.Linear(6, 10)]
            self.model = nn.Sequential(*layers).to(dtype)
        self.dtype = dtype
        self.evaluations = 0.0

    def params(self) -> Vector:
        return list(self.model.parameters())

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.evaluations += len(x) / BATCH
        return cross_entropy(self.model(x), y, reduction="none")

    def samples(self, opt: Any, t: int | None) -> Samples:
        x, y = digits()
        rows = rows_of(t)
        return Samples(opt.zero_grad, self.losses, x[rows].to(self.dtype), y[rows])

    def flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.params()])


class Everything:
    """The source of a task: all of its samples."""

    def __init__(self, task: Task, base: Any) -> None:
        self.task, self.base = task, base

    def full(self) -> Samples:
        return self.task.samples(self.base, None)

    def fresh(self) -> Samples:
        raise AssertionError("nobody asks for a fresh batch")


def momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-2)


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-2, weight_decay=1e-1)


def frozen(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.0, momentum=0.9)


BASES = {
    momentum: lambda: twins.Momentum(lr=0.05, mu=0.9, wd=1e-2),
    adamw: lambda: twins.AdamW(lr=1e-2, wd=1e-1),
}

Make = Callable[..., Any]
"""A base, with `model=` and, where a method needs one, `data=` -> the optimizer."""


def with_data(task: Task, make: Make, base: Any) -> Any:
    data = {"data": Everything(task, base)} if getattr(make, "func", make) in SOURCED else {}
    return make(base, model=task.model, **data)


SOURCED = (SVRGSAM, SARAHSAM)


def train(
    make: Make, base: Make = momentum, *, steps: int = 8, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The weights after each step, one row per step."""
    task = Task(dtype)
    opt = with_data(task, make, base(task.params()))
    path = []
    for t in range(steps):
        opt.step(task.samples(opt, t))
        path.append(task.flat())
    return torch.stack(path)


def plain(base: Any, **_: Any) -> Any:
    """No sharpness at all."""
    return base


def copied(record: StepRecord) -> StepRecord:
    def copy(vectors: Any) -> Any:
        return vectors and [None if x is None else x.detach().clone() for x in vectors]

    vectors = (copy(v) for v in (record.g, record.d, record.epsilon, record.h))
    return StepRecord(record.step, list(record.params), *vectors, record.summary)


def records(
    make: Make,
    base: Make = momentum,
    *,
    steps: int = 8,
    dtype: torch.dtype = torch.float64,
    middle: nn.Module | None = None,
) -> Iterator[tuple[StepRecord, Vector, Any]]:
    """Each step's record, the weights it began with and the optimizer after it."""
    task = Task(dtype, middle)
    opt = with_data(task, make, base(task.params()))
    seen: list[StepRecord] = []
    opt.observe(lambda record: seen.append(copied(record)))
    for t in range(steps):
        home = [p.detach().clone() for p in task.params()]
        opt.step(task.samples(opt, t))
        yield seen[-1], home, opt


def norm(x: Vector) -> float:
    return math.sqrt(sum(float(a.square().sum()) for a in x))


def flat(x: Vector) -> Tensor:
    return torch.cat([a.flatten() for a in x])


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def assert_near(ours: Tensor, theirs: Tensor, atol: float = NEAR) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


# -- the twin's side ------------------------------------------------------------------------------


class Oracle:
    """Gradients of the same problem by autograd on weights in a list; counts by samples."""

    def __init__(self) -> None:
        self.evaluations = 0.0

    def on(self, x: Vector, rows: slice) -> Vector:
        inputs, labels = digits()
        w = [a.detach().requires_grad_() for a in x]
        hidden = torch.tanh(inputs[rows] @ w[0].T + w[1])
        scores = hidden @ w[2].T + w[3]
        right = scores[torch.arange(len(scores)), labels[rows]]
        loss = (scores.logsumexp(1) - right).mean()
        self.evaluations += len(scores) / BATCH
        return list(torch.autograd.grad(loss, w))

    def gradient(self, x: Vector, t: int) -> Vector:
        return self.on(x, rows_of(t))

    def full(self, x: Vector) -> Vector:
        return self.on(x, rows_of(None))

    def singles(self, x: Vector, t: int, how_many: int = 16) -> list[Vector]:
        first = rows_of(t).start
        return [self.on(x, slice(first + i, first + i + 1)) for i in range(how_many)]


def path_of(
    twin: Callable[..., Iterator[Vector]], base: Make = momentum, **settings: Any
) -> Tensor:
    """The weights of a twin after each step."""
    start = [p.detach().clone() for p in Task().params()]
    steps = twin(start, settings.pop("gradient", Oracle().gradient), BASES[base](), **settings)
    return torch.stack([flat(x) for x in itertools.islice(steps, STEPS)])


def ours(make: Make, base: Make = momentum) -> Tensor:
    return train(make, base, steps=STEPS, dtype=torch.float64)


def uniform(seed: int, t: int) -> Vector:
    """The documented luck: a function of seed, step and place alone."""
    return [
        torch.rand(
            p.shape,
            generator=torch.Generator().manual_seed(mixed(seed, t, i)),
            dtype=torch.float64,
        )
        for i, p in enumerate(Task().params())
    ]


def coin(seed: int, t: int) -> float:
    """The documented coin: a function of seed and step alone."""
    return random.Random(mixed(seed, t)).random()


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


SPARING: dict[str, tuple[Make, list[bool]]] = {
    "late": (partial(LateSAM, start=4), [True] * 8),
    "late, reused": (
        partial(LateSAM, start=3, then=RefreshEveryK(4)),
        [True, True, True, False, True, False, False, False],
    ),
    "every third": (
        partial(ReusedSAM, refresh=RefreshEveryK(3)),
        [t % 3 == 0 for t in range(8)],
    ),
    "follows": (
        partial(ReusedSAM, refresh=RefreshEveryK(3), stale="follow"),
        [t % 3 == 0 for t in range(8)],
    ),
    "by a coin": (
        partial(ReusedSAM, refresh=RefreshRandomly(p=0.5, seed=3)),
        [t == 0 or coin(3, t) < 0.5 for t in range(8)],
    ),
    "warm-up": (
        partial(ReusedSAM, refresh=RefreshAdaptive("flat", z=100.0, warm_up=5)),
        [t < 5 for t in range(8)],
    ),
    "momentum": (MSAM, [False] * 8),
    "last gradient": (S2SAM, [False] * 8),
}
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


# -- one gradient per step ------------------------------------------------------------------------


def falling(t: int) -> float:
    """A radius that is 0 in a warm-up and falls later."""
    return 0.0 if t < 5 else 2.0 / (t + 1)


@pytest.mark.parametrize("twin", [twins.msam, twins.msam_shifted])
@pytest.mark.parametrize("base", BASES)
def test_msam_is_its_explicit_and_its_shifted_form(twin: Any, base: Make) -> None:
    assert_near(ours(partial(MSAM, rho=0.5), base), path_of(twin, base, rho=lambda t: 0.5))


@pytest.mark.parametrize("twin", [twins.msam, twins.msam_shifted])
def test_msam_with_a_radius_that_changes_is_both_of_its_forms(twin: Any) -> None:
    make = partial(MSAM, rho=lambda step, lr: falling(step))
    assert_near(ours(make), path_of(twin, rho=falling))


@pytest.mark.parametrize(("base", "buffer"), [(momentum, "momentum_buffer"), (adamw, "exp_avg")])
def test_msam_goes_on_against_the_momentum_from_before_the_step(base: Make, buffer: str) -> None:
    steps = records(partial(MSAM, rho=0.7), base)
    first, _, opt = next(steps)
    assert not flat(first.epsilon).any()
    v = [opt.base.state[p][buffer].clone() for p in first.params]
    for record, _, opt in steps:
        assert_near(flat(record.epsilon), flat(v) * (-0.7 / norm(v)), atol=1e-14)  # x + e - x
        v = [opt.base.state[p][buffer].clone() for p in record.params]


@pytest.mark.parametrize("base", BASES)
def test_s2sam_climbs_along_the_gradient_of_the_step_before(base: Make) -> None:
    assert_near(ours(partial(S2SAM, rho=0.1), base), path_of(twins.s2sam, base, rho=0.1))


@pytest.mark.parametrize("method", [MSAM, S2SAM])
def test_the_first_step_of_a_method_with_one_gradient_is_the_bases(method: Any) -> None:
    assert_same(train(method)[0], train(plain)[0])


# -- friendly adversaries -------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["new", "old"])
@pytest.mark.parametrize(("sigma", "base"), [(1.0, momentum), (0.5, momentum), (0.5, adamw)])
def test_friendly_sam_takes_the_average_out(use: str, sigma: float, base: Make) -> None:
    settings = {"rho": 0.1, "sigma": sigma, "lam": 0.6, "use": use}
    twin = path_of(twins.friendly, base, **settings)
    assert_near(ours(partial(FriendlySAM, **settings), base), twin)


def test_both_forms_of_friendly_sam_point_the_same_way_at_sigma_one() -> None:
    new, old = (ours(partial(FriendlySAM, use=use)) for use in ("new", "old"))
    assert_near(new, old)


def test_both_forms_of_friendly_sam_differ_at_other_sigmas() -> None:
    new, old = (ours(partial(FriendlySAM, sigma=0.5, use=use)) for use in ("new", "old"))
    assert (new - old).abs().max() > 1e-3


# -- variance reduction ---------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("a", [0.1, 0.7])
def test_storm_corrects_for_the_way_gone(a: float, base: Make) -> None:
    twin = path_of(twins.storm, base, rho=0.1, a=a)
    assert_near(ours(partial(StormSAM, rho=0.1, a=a), base), twin)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("method", "twin"), [(SVRGSAM, twins.svrg), (SARAHSAM, twins.sarah)])
def test_svrg_and_sarah_start_from_full_gradients(method: Any, twin: Any, base: Make) -> None:
    settings = {"rho": 0.1, "every": 7}
    theirs = path_of(twin, base, full=Oracle().full, **settings)
    assert_near(ours(partial(method, **settings), base), theirs)


@pytest.mark.parametrize("method", [SVRGSAM, SARAHSAM])
def test_with_a_snapshot_at_every_step_the_slope_is_the_full_gradient(method: Any) -> None:
    for record, home, _ in records(partial(method, every=1)):
        full = flat(Oracle().full(home))
        assert_near(flat(record.d), full, atol=1e-15)  # sums of 80 numbers below 0.1


@pytest.mark.parametrize("method", [SVRGSAM, SARAHSAM])
def test_with_a_snapshot_at_every_step_the_adversary_is_that_of_all_data(method: Any) -> None:
    task = Task(torch.float32)
    opt = SAM(momentum(task.params()), rho=0.1, model=task.model)
    path = []
    for t in range(8):
        opt.step(task.samples(opt, t), ascent_closure=task.samples(opt, None))
        path.append(task.flat())
    assert_same(train(partial(method, rho=0.1, every=1)), torch.stack(path))


@pytest.mark.parametrize(
    "make",
    [partial(StormSAM, a=0.1), partial(SVRGSAM, every=5), partial(SARAHSAM, every=5)],
)
def test_without_noise_every_correction_gives_the_gradient_itself(make: Make) -> None:
    """One batch again and again: d_{t-1} = g(x_{t-1}) cancels, up to a sum of roundings."""
    task = Task()
    base = momentum(task.params())
    data = {"data": One(task, base)} if make.func in SOURCED else {}
    opt = make(base, model=task.model, **data)
    errors = []
    opt.observe(lambda r: errors.append((flat(r.d) - flat(r.g)).abs().max().item()))
    for _ in range(30):
        opt.step(task.samples(opt, 0))
    assert max(errors) < 1e-14


def test_a_correction_sees_the_dropout_of_the_gradient_it_corrects() -> None:
    """At weights that do not move, d_t = g_t + (1 - a) (d_{t-1} - g_t), whatever was dropped."""
    make = partial(StormSAM, a=0.2)
    taken = [record for record, *_ in records(make, frozen, middle=nn.Dropout(0.5))]
    assert not torch.equal(flat(taken[0].g), flat(taken[BATCHES].g))  # the same batch
    for before, now in itertools.pairwise(taken):
        g = flat(now.g)
        assert_near(flat(now.d), g + 0.8 * (flat(before.d) - g), atol=1e-15)  # numbers below 1


@pytest.mark.parametrize("name", ["storm that trusts the newest gradient", "a Fisher mask of ones"])
def test_gradients_on_the_side_use_up_no_random_numbers(name: str) -> None:
    make = {
        "storm that trusts the newest gradient": partial(StormSAM, a=1.0),
        "a Fisher mask of ones": partial(SparseSAM, rho=0.05, sparsity=0.0, every=2),
    }[name]

    def path(make: Make) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            steps = records(make, middle=nn.Dropout(0.5))
            return torch.stack([flat(record.h) for record, *_ in steps])

    assert_same(path(make), path(SAM))


class One(Everything):
    """All data are one batch."""

    def full(self) -> Samples:
        return self.task.samples(self.base, 0)


# -- the norm of the gradient as a penalty --------------------------------------------------------


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize(("alpha", "theta"), [(0.8, 1.0), (1.4, 1.0), (0.3, 0.4)])
def test_pgn_mixes_the_gradients_below_and_above(unit: bool, alpha: float, theta: float) -> None:
    settings = {"rho": 0.1, "alpha": alpha, "unit": unit, "theta": theta}
    assert_near(ours(partial(PGN, **settings)), path_of(twins.pgn, **settings))


def test_pgn_goes_down_with_adamw() -> None:
    settings = {"rho": 0.1, "alpha": 0.8}
    assert_near(ours(partial(PGN, **settings), adamw), path_of(twins.pgn, adamw, **settings))


# -- many steps up --------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("stride", ["rho", "rho/n"])
def test_many_steps_up_each_with_its_own_slope(stride: str, mean: bool, theta: float) -> None:
    settings = {"rho": 0.2, "n": 3, "mean": mean, "theta": theta}
    length = 0.2 if stride == "rho" else 0.2 / 3
    twin = path_of(twins.multi_step, stride=length, **settings)
    assert_near(ours(partial(MultiStepSAM, stride=stride, **settings)), twin)


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("faded", [False, True])
@pytest.mark.parametrize("K", [2, 4])
def test_frank_wolfe_goes_part_of_the_way_to_each_top(K: int, faded: bool, theta: float) -> None:
    settings = {"rho": 0.2, "K": K, "momentum": faded, "theta": theta}
    assert_near(ours(partial(FrankWolfeSAM, **settings)), path_of(twins.frank_wolfe, **settings))


@pytest.mark.parametrize("method", [MultiStepSAM, FrankWolfeSAM])
def test_many_steps_up_with_adamw(method: Any) -> None:
    if method is MultiStepSAM:
        twin = path_of(twins.multi_step, adamw, rho=0.2, n=2, stride=0.2)
    else:
        twin = path_of(twins.frank_wolfe, adamw, rho=0.2, K=2)
    assert_near(ours(partial(method, rho=0.2), adamw), twin)


@pytest.mark.parametrize("ascent", [MultiStep(3), MultiStep(4, "rho/n"), FrankWolfe(3)])
def test_points_between_do_not_enter_the_memory(ascent: Any) -> None:
    """d_t is the average of the gradients at w, however many points were visited above."""
    average = None
    make = partial(SharpnessAware, rho=0.2, direction=Ema(0.3), ascent=ascent)
    for record, _, opt in records(make):
        g = flat(record.g)
        average = g if average is None else 0.7 * average + 0.3 * g
        kept = flat([opt._memories[p]["d"] for p in record.params])
        assert_near(kept, average, atol=1e-15)  # convex combinations of numbers below 1


BALLS = {
    "the Euclidean ball": (L2(), lambda e, x: norm(e)),
    "the cube": (Linf(), lambda e, x: flat(e).abs().max().item()),
    "the ball of ASAM": (
        Adaptive(),
        lambda e, x: norm([
            a / (w.abs() + 0.01) if w.dim() > 1 else a for a, w in zip(e, x, strict=True)
        ]),
    ),
    "the balls of the layers": (
        LayerRelative(),
        lambda e, x: max(norm([a]) / norm([w]) for a, w in zip(e, x, strict=True) if w.dim() > 1),
    ),
}


@pytest.mark.parametrize("ball", BALLS)
@pytest.mark.parametrize("ascent", [MultiStep(3), MultiStep(3, "rho/n"), FrankWolfe(3)])
def test_many_steps_up_end_inside_the_ball(ascent: Any, ball: str) -> None:
    geometry, length = BALLS[ball]
    make = partial(SharpnessAware, rho=0.3, geometry=geometry, ascent=ascent)
    lengths = [length(record.epsilon, home) for record, home, _ in records(make)]
    assert min(lengths) > 0.1
    assert max(lengths) <= 0.3 * (1 + 1e-12)  # x + e - x rounds


def test_a_long_stride_ends_on_the_surface_and_a_short_one_or_frank_wolfe_inside() -> None:
    def gap(ascent: Any) -> float:
        make = partial(SharpnessAware, rho=0.3, ascent=ascent)
        return 0.3 - max(norm(record.epsilon) for record, *_ in records(make))

    gaps = [gap(ascent) for ascent in (MultiStep(3), MultiStep(3, "rho/n"), FrankWolfe(3))]
    assert [gap > 1e-5 for gap in gaps] == [False, True, True]
    assert abs(gaps[0]) < 1e-13  # x + e - x rounds


@pytest.mark.parametrize("ascent", [MultiStep(3), FrankWolfe(3)])
def test_the_ball_of_many_steps_may_differ_by_group(ascent: Any) -> None:
    """|| (e_1 / rho_1, e_2 / rho_2) || <= 1."""
    task = Task()
    first, second, third, fourth = task.params()
    groups = [{"params": [first, second], "rho": 0.2}, {"params": [third, fourth], "rho": 0.8}]
    opt = SharpnessAware(momentum(groups), ascent=ascent, model=task.model)
    lengths = []

    def look(record: StepRecord) -> None:
        a, b, c, d = record.epsilon
        lengths.append(norm([a / 0.2, b / 0.2, c / 0.8, d / 0.8]))

    opt.observe(look)
    for t in range(8):
        opt.step(task.samples(opt, t))
    assert min(lengths) > 0.9
    assert max(lengths) <= 1 + 1e-12  # x + e - x rounds


# -- sparse climbs --------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1.0, 0.3])
def test_only_weights_with_much_fisher_information_climb(theta: float) -> None:
    make = partial(SparseSAM, rho=0.2, sparsity=0.7, every=10, theta=theta)
    twin = path_of(
        twins.sparse_fisher,
        rho=0.2,
        live=round(0.3 * SIZE),
        every=10,
        singles=Oracle().singles,
        theta=theta,
    )
    assert_near(ours(make), twin)


@pytest.mark.parametrize("total", [None, 40])
def test_a_dynamic_mask_drops_the_flattest_and_grows_by_luck(total: int | None) -> None:
    def share(t: int) -> float:
        return 0.4 if total is None else 0.4 * (1 + math.cos(math.pi * min(t / total, 1))) / 2

    mask = DynamicMask(sparsity=0.6, every=6, seed=9, drop=0.4, total=total)
    settings = {"rho": 0.2, "live": round(0.4 * SIZE), "every": 6}
    twin = path_of(twins.sparse_dynamic, luck=partial(uniform, 9), drop=share, **settings)
    assert_near(ours(partial(SharpnessAware, rho=0.2, geometry=mask)), twin)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_dynamic_preset_is_its_twin(seed: int) -> None:
    make = partial(SparseSAM, rho=0.2, sparsity=0.5, mask="dynamic", every=8, seed=seed)
    settings = {"rho": 0.2, "live": SIZE // 2, "every": 8, "drop": lambda t: 0.5}
    twin = path_of(twins.sparse_dynamic, luck=partial(uniform, seed), **settings)
    assert_near(ours(make), twin)


@pytest.mark.parametrize(
    ("mask", "sparsity"),
    [
        ("fisher", 0.1),
        ("fisher", 0.5),
        ("fisher", 0.95),
        ("dynamic", 0.1),
        ("dynamic", 0.5),
        ("dynamic", 0.95),
    ],
)
def test_exactly_the_share_that_is_asked_for_climbs(mask: Any, sparsity: float) -> None:
    make = partial(SparseSAM, rho=0.2, sparsity=sparsity, mask=mask, every=3)
    live = {int((flat(record.epsilon) != 0).sum()) for record, *_ in records(make)}
    assert live == {round((1 - sparsity) * SIZE)}


@pytest.mark.parametrize("mask", ["fisher", "dynamic"])
def test_the_norm_of_a_sparse_climb_is_taken_before_the_mask(mask: Any) -> None:
    for record, *_ in records(partial(SparseSAM, rho=0.2, mask=mask, every=3)):
        e, whole = flat(record.epsilon), flat(record.g) * (0.2 / norm(record.g))
        live = e != 0
        assert_near(e[live], whole[live], atol=1e-15)  # x + e - x, with x and e below 1


@pytest.mark.parametrize(("mask", "every"), [("fisher", 4), ("dynamic", 4)])
def test_a_mask_is_kept_until_it_is_time(mask: Any, every: int) -> None:
    make = partial(SparseSAM, rho=0.2, mask=mask, every=every)
    live = [flat(record.epsilon) != 0 for record, *_ in records(make, steps=9)]
    changes = [not torch.equal(a, b) for a, b in itertools.pairwise(live)]
    assert [t + 1 for t, changed in enumerate(changes) if changed] == [4, 8]


def test_the_samples_of_the_fisher_mask_leave_no_trace() -> None:
    """BatchNorm has seen one batch per step and no sample by itself, and is in training again."""
    steps = records(partial(SparseSAM, every=2), steps=4, middle=nn.BatchNorm1d(6))
    norms = [opt.model[1] for _, _, opt in steps]
    assert (norms[-1].num_batches_tracked, norms[-1].training) == (4, True)


# -- other balls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("base", BASES)
def test_awp_moves_each_layer_by_a_share_of_its_size(theta: float, base: Make) -> None:
    twin = path_of(twins.in_ball, base, rho=0.05, ball=twins.layers, theta=theta)
    assert_near(ours(partial(AWP, rho=0.05, theta=theta), base), twin)


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("base", BASES)
def test_linf_goes_to_a_corner_of_the_cube(theta: float, base: Make) -> None:
    twin = path_of(twins.in_ball, base, rho=0.01, ball=twins.linf, theta=theta)
    assert_near(ours(partial(LinfSAM, rho=0.01, theta=theta), base), twin)


def test_awp_leaves_biases_and_norms_alone() -> None:
    for record, home, _ in records(partial(AWP, rho=0.05), middle=nn.BatchNorm1d(6)):
        lengths = [norm([e]) for e in record.epsilon]
        expected = [0.05 * norm([x]) if x.dim() > 1 else 0.0 for x in home]
        assert lengths == pytest.approx(expected, rel=1e-13, abs=0)  # x + e - x rounds


def test_every_weight_goes_to_the_face_of_the_cube() -> None:
    for record, *_ in records(partial(LinfSAM, rho=0.01)):
        corner = 0.01 * flat(record.d).sign()
        assert_near(flat(record.epsilon), corner, atol=1e-16)  # x + e - x, with x below 1


ROUND: dict[str, Make] = {
    "late": partial(LateSAM, start=1),
    "reused": partial(ReusedSAM, refresh=RefreshEveryK(3)),
    "following": partial(ReusedSAM, refresh=RefreshEveryK(3), stale="follow"),
    "momentum": MSAM,
    "last gradient": S2SAM,
    "friendly": FriendlySAM,
    "storm": StormSAM,
    "svrg": partial(SVRGSAM, every=3),
    "sarah": partial(SARAHSAM, every=3),
    "penalty": PGN,
}


@pytest.mark.parametrize("name", ROUND)
def test_one_step_up_ends_on_the_sphere(name: str) -> None:
    steps = records(partial(ROUND[name], rho=0.3))
    next(steps)  # some have nothing to climb along yet
    for record, *_ in steps:
        assert norm(record.epsilon) == pytest.approx(0.3, rel=1e-13)  # x + e - x rounds


# -- identities -----------------------------------------------------------------------------------

AVERAGED = partial(VaSSO, theta=0.3)
IDENTITIES: dict[str, tuple[Make, Make]] = {
    "late from the start": (partial(LateSAM, start=0), SAM),
    "late, averaged, from the start": (partial(LateSAM, start=0, theta=0.3), AVERAGED),
    "late, at every step": (partial(LateSAM, start=0, then=EveryK(1)), SAM),
    "never late enough": (partial(LateSAM, start=100), plain),
    "refreshed at every step": (partial(ReusedSAM, theta=0.3, refresh=RefreshEveryK(1)), AVERAGED),
    "a coin that always says yes": (
        partial(ReusedSAM, theta=0.3, refresh=RefreshRandomly(p=1.0)),
        AVERAGED,
    ),
    "always warming up": (
        partial(ReusedSAM, theta=0.3, refresh=RefreshAdaptive(warm_up=100)),
        AVERAGED,
    ),
    "refreshed, with a slope that could follow": (
        partial(ReusedSAM, theta=0.3, refresh=RefreshEveryK(1), stale="follow"),
        AVERAGED,
    ),
    "refreshed and trusting the newest gradient": (
        partial(ReusedSAM, theta=1.0, refresh=RefreshEveryK(1)),
        SAM,
    ),
    "friendly, with nothing taken out": (partial(FriendlySAM, sigma=0.0), partial(SAM, rho=0.2)),
    "friendly, old, with nothing taken out": (
        partial(FriendlySAM, sigma=0.0, use="old"),
        partial(SAM, rho=0.2),
    ),
    "storm that trusts the newest gradient": (partial(StormSAM, a=1.0), SAM),
    "all of the penalty": (partial(PGN, rho=0.05, alpha=1.0), SAM),
    "nothing of the penalty": (partial(PGN, alpha=0.0), plain),
    "one step": (partial(MultiStepSAM, n=1), SAM),
    "one step of rho/n": (partial(MultiStepSAM, n=1, stride="rho/n"), SAM),
    "the mean of one step": (partial(MultiStepSAM, n=1, mean=True), SAM),
    "one step, averaged": (partial(MultiStepSAM, n=1, theta=0.3), AVERAGED),
    "one step of Frank-Wolfe": (partial(FrankWolfeSAM, K=1), SAM),
    "one step of Frank-Wolfe with momentum": (partial(FrankWolfeSAM, K=1, momentum=True), SAM),
    "a Fisher mask without zeros": (partial(SparseSAM, rho=0.05, sparsity=0.0), SAM),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", IDENTITIES)
def test_at_some_setting_each_method_is_another(name: str, base: Make) -> None:
    one, other = IDENTITIES[name]
    assert_same(train(one, base), train(other, base))


@pytest.mark.parametrize("base", BASES)
def test_a_dynamic_mask_without_zeros_is_no_mask(base: Make) -> None:
    make = partial(SparseSAM, rho=0.05, sparsity=0.0, mask="dynamic", every=2)
    assert_same(train(make, base), train(SAM, base))


EVERY: dict[str, Make] = {
    **ROUND,
    "late, every third": partial(LateSAM, start=1, then=EveryK(3)),
    "drift": partial(ReusedSAM, refresh=RefreshAdaptive("ratio", warm_up=2)),
    "many steps": partial(MultiStepSAM, n=3),
    "the mean of many steps": partial(MultiStepSAM, n=3, mean=True),
    "Frank-Wolfe": partial(FrankWolfeSAM, K=3),
    "Fisher mask": partial(SparseSAM, every=3),
    "dynamic mask": partial(SparseSAM, mask="dynamic", every=3),
    "layers": AWP,
    "cube": LinfSAM,
}
each = pytest.mark.parametrize("name", EVERY)


@each
def test_a_ball_of_radius_zero_leaves_the_base_and_its_price(name: str) -> None:
    assert_same(train(partial(EVERY[name], rho=0.0)), train(plain))
    *_, (_, _, opt) = records(partial(EVERY[name], rho=0.0))
    assert opt.cost == 8


@each
def test_weights_come_home_bit_for_bit(name: str) -> None:
    task = Task(torch.float32)
    before = task.flat()
    opt = with_data(task, partial(EVERY[name], rho=0.3), frozen(task.params()))
    for t in range(8):
        opt.step(task.samples(opt, t))
    assert_same(task.flat(), before)


@pytest.mark.parametrize("name", ROUND)
def test_weights_that_are_recomputed_come_home_up_to_rounding(name: str) -> None:
    task = Task()
    before = task.flat()
    make = partial(ROUND[name], rho=0.3, restore="recompute")
    opt = with_data(task, make, frozen(task.params()))
    for t in range(8):
        opt.step(task.samples(opt, t))
    assert_near(task.flat(), before, atol=1e-15)  # eight times x + e - e, with numbers below 1


@each
def test_batchnorm_counts_one_batch_per_step(name: str) -> None:
    *_, (_, _, opt) = records(EVERY[name], middle=nn.BatchNorm1d(6))
    assert opt.model[1].num_batches_tracked == 8


# -- prices ---------------------------------------------------------------------------------------

PRICES: dict[str, tuple[Make, float]] = {
    "late": (partial(LateSAM, start=5), 8 + 3),
    "late, every third": (partial(LateSAM, start=5, then=EveryK(3)), 8 + 1),
    "late, reused": (partial(LateSAM, start=5, then=RefreshEveryK(3)), 8 + 1),
    "reused": (partial(ReusedSAM, refresh=RefreshEveryK(3)), 8 + 3),
    "reused by default": (ReusedSAM, 8 + 2),
    "following": (partial(ReusedSAM, refresh=RefreshEveryK(3), stale="follow"), 8 + 3),
    "by a coin": (
        partial(ReusedSAM, refresh=RefreshRandomly(p=0.5, seed=3)),
        8 + sum(SPARING["by a coin"][1]),
    ),
    "warm-up": (partial(ReusedSAM, refresh=RefreshAdaptive(z=100.0, warm_up=5)), 8 + 5),
    "momentum": (MSAM, 8),
    "last gradient": (S2SAM, 8),
    "friendly": (FriendlySAM, 16),
    "storm": (StormSAM, 24 - 1),  # nothing to correct in the first step
    "svrg": (partial(SVRGSAM, every=3), 24 + 3 * (BATCHES - 1)),
    "sarah": (partial(SARAHSAM, every=3), 24 + 3 * (BATCHES - 1)),
    "penalty": (PGN, 16),
    "many steps": (partial(MultiStepSAM, n=3), 32),
    "the mean of many steps": (partial(MultiStepSAM, n=3, mean=True), 32),
    "Frank-Wolfe": (partial(FrankWolfeSAM, K=4), 40),
    "Fisher mask": (partial(SparseSAM, every=3), 16 + 3 * 16 / BATCH),
    "fewer samples": (
        partial(SharpnessAware, geometry=FisherMask(every=3, samples=4)),
        16 + 3 * 4 / BATCH,
    ),
    "dynamic mask": (partial(SparseSAM, mask="dynamic"), 16),
    "layers": (AWP, 16),
    "cube": (LinfSAM, 16),
}


@pytest.mark.parametrize("name", PRICES)
def test_every_gradient_is_counted_and_none_is_wasted(name: str) -> None:
    make, price = PRICES[name]
    task = Task(torch.float32)
    opt = with_data(task, make, momentum(task.params()))
    for t in range(8):
        opt.step(task.samples(opt, t))
    assert (opt.cost, task.evaluations) == (price, price)


def test_a_full_gradient_by_a_plain_closure_may_tell_its_price() -> None:
    task = Task(torch.float32)
    base = momentum(task.params())

    class Told:
        cost = 12.5

        def __call__(self) -> Tensor:
            return task.samples(base, None)()

    class Source(Everything):
        def full(self) -> Any:
            return Told()

    opt = SVRGSAM(base, data=Source(task, base), every=100, model=task.model)
    opt.step(task.samples(opt, 0))
    assert opt.cost == 2 + 12.5


# -- errors ---------------------------------------------------------------------------------------


def build(**parts: Any) -> SharpnessAware:
    task = Task(torch.float32)
    return SharpnessAware(momentum(task.params()), model=task.model, **parts)


@pytest.mark.parametrize(
    "policy", [RefreshEveryK(3), RefreshRandomly(), RefreshAdaptive(), After(3, RefreshEveryK(3))]
)
def test_a_policy_that_spares_gradients_needs_a_slope_that_can_wait(policy: Any) -> None:
    with pytest.raises(ValueError, match=r"Refresh\w+\(.*spares gradients at w.*stale=\"stay\""):
        build(direction=Ema(0.4), policy=policy)


@pytest.mark.parametrize("direction", [BaseMomentum(), LastGradient()])
@pytest.mark.parametrize(
    "part",
    [
        {"descent": GradientNormPenalty()},
        {"geometry": DynamicMask()},
    ],
    ids=str,
)
def test_parts_that_need_the_gradient_at_w_refuse_methods_without(
    direction: Any, part: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"needs the gradient at w, but \w+\(\) never takes one"):
        build(direction=direction, **part)


@pytest.mark.parametrize("part", [{"descent": GradientNormPenalty()}, {"geometry": DynamicMask()}])
def test_parts_that_need_the_gradient_at_w_refuse_to_be_spared(part: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"in every step, but RefreshEveryK\(k=5\) spares some"):
        build(direction=Ema(0.4, stale="stay"), policy=RefreshEveryK(), **part)


@pytest.mark.parametrize("ascent", [MultiStep(2), FrankWolfe(2)])
@pytest.mark.parametrize("direction", [BaseMomentum(), LastGradient()])
def test_slopes_that_ignore_gradients_refuse_several_points(ascent: Any, direction: Any) -> None:
    with pytest.raises(ValueError, match=r"looks at the slope of each point, but .* OneStep\(\)"):
        build(ascent=ascent, direction=direction)


@pytest.mark.parametrize("ascent", [MultiStep(2), FrankWolfe(2)])
@pytest.mark.parametrize(
    "part",
    [
        {"direction": Storm()},
        {"direction": Svrg()},
        {"direction": Sarah()},
        {"geometry": FisherMask()},
    ],
    ids=str,
)
def test_parts_that_take_gradients_of_their_own_refuse_several_points(
    ascent: Any, part: dict[str, Any]
) -> None:
    with pytest.raises(
        ValueError, match=r"takes gradients of its own only at w, .* climbs further"
    ):
        build(ascent=ascent, **part)


@pytest.mark.parametrize("ascent", [MultiStep(2), FrankWolfe(2)])
def test_the_way_home_of_several_points_cannot_be_recomputed(ascent: Any) -> None:
    with pytest.raises(ValueError, match=r"recompute.* cannot be used with .*sum of several.*copy"):
        build(ascent=ascent, restore="recompute")


@pytest.mark.parametrize("geometry", [LayerRelative(), DynamicMask(), FisherMask()])
def test_the_way_home_in_a_ball_of_the_weights_cannot_be_recomputed(geometry: Any) -> None:
    with pytest.raises(
        ValueError, match=r"recompute.* cannot be used with .*depends on the weights"
    ):
        build(geometry=geometry, restore="recompute")


@pytest.mark.parametrize("direction", [Svrg(), Sarah()])
def test_a_full_gradient_without_a_source(direction: Any) -> None:
    task = Task(torch.float32)
    before = task.flat()
    opt = SharpnessAware(momentum(task.params()), direction=direction, model=task.model)
    with pytest.raises(TypeError, match=r"(Svrg|Sarah)\(every=50\) needs .*pass source="):
        opt.step(task.samples(opt, 0))
    assert_same(task.flat(), before)


@pytest.mark.parametrize(
    "base",
    [
        partial(torch.optim.SGD, lr=0.1),
        partial(torch.optim.Adagrad, lr=0.1),
        partial(torch.optim.RMSprop, lr=0.1),
    ],
)
def test_msam_needs_a_base_with_momentum(base: Any) -> None:
    with pytest.raises(ValueError, match=rf"{base.func.__name__} has no momentum to climb along"):
        MSAM(base(Task().params()))


def test_msam_needs_momentum_in_every_group() -> None:
    first, *rest = Task().params()
    with pytest.raises(ValueError, match="SGD has no momentum"):
        MSAM(momentum([{"params": [first], "momentum": 0.0}, {"params": rest}]))


def test_the_fisher_mask_needs_to_see_samples() -> None:
    with pytest.raises(TypeError, match=r"FisherMask\(.* has to see samples: pass a vasso.Batch"):
        build(geometry=FisherMask()).step(lambda: None)


@pytest.mark.parametrize(
    "parts",
    [
        {"direction": Storm()},
        {"direction": Svrg()},
        {"direction": Sarah()},
        {"geometry": FisherMask()},
        {"ascent": MultiStep(2)},
        {"ascent": FrankWolfe(2)},
    ],
    ids=str,
)
def test_a_loop_of_ones_own_cannot_give_further_gradients(parts: dict[str, Any]) -> None:
    opt = build(**parts)
    opt.param_groups[0]["params"][0].sum().backward()
    with (
        pytest.raises(RuntimeError, match=r"needs passes of its own, .*use step\(closure\)"),
        opt.ascended(),
    ):
        pass


@pytest.mark.parametrize("method", [MSAM, S2SAM, FriendlySAM, StormSAM])
def test_methods_with_a_slope_of_their_own_take_no_theta(method: Any) -> None:
    with pytest.raises(TypeError, match=rf"{method.__name__} takes no theta: its slope is"):
        method(momentum(Task().params()), theta=0.4)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (partial(After, -1), "start must be at least 0, got -1"),
        (partial(RefreshEveryK, 0), "k must be at least 1, got 0"),
        (partial(RefreshRandomly, 1.5), "p must be at least 0 and at most 1, got 1.5"),
        (partial(RefreshAdaptive, "flatt"), 'rule must be "flat", "sharp" or "ratio", got'),
        (partial(RefreshAdaptive, z=1.0), "z must be above 1, got 1"),
        (partial(RefreshAdaptive, lam=1.5), "lam must be at least 0 and at most 1, got 1.5"),
        (partial(Ema, stale="wait"), 'stale must be "stay", "follow" or None, got'),
        (partial(MultiStep, 0), "n must be at least 1, got 0"),
        (partial(MultiStep, 2, "n"), 'stride must be "rho" or "rho/n", got'),
        (partial(FrankWolfe, 0), "K must be at least 1, got 0"),
        (partial(Storm, 0.0), "a must be above 0 and at most 1, got 0"),
        (partial(Svrg, 0), "every must be at least 1, got 0"),
        (partial(Sarah, 0), "every must be at least 1, got 0"),
        (partial(DynamicMask, sparsity=1.0), "sparsity must be below 1"),
        (partial(DynamicMask, every=0), "every at least 1, got 0.5, 0"),
        (partial(FisherMask, sparsity=-0.1), "sparsity must be at least 0, got -0.1"),
        (partial(DynamicMask, drop=1.5), "drop must be at least 0 and at most 1, got 1.5"),
        (partial(FriendlySAM, None, lam=1.0), "lam must be at least 0 and below 1, got 1"),
        (partial(FriendlySAM, None, use="newest"), 'use must be "new" or "old", got'),
        (partial(SparseSAM, None, mask="fish"), "mask must be one of .* Did you mean 'fisher'"),
    ],
)
def test_settings_out_of_range_are_named(make: Make, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


def test_the_mean_of_the_path_needs_nothing_at_w() -> None:
    """So it may go with a slope that is spared; with one point it is what SAM descends by."""
    settings = {"direction": Ema(0.3, stale="stay"), "policy": RefreshEveryK(3)}
    mean = train(partial(SharpnessAware, descent=MeanOfPath(), **settings))
    assert_same(mean, train(partial(SharpnessAware, **settings)))


# -- parts that have to know of each other --------------------------------------------------------


def test_a_dynamic_mask_is_exchanged_once_however_many_points_are_visited() -> None:
    def masks(ascent: Any) -> list[Tensor]:
        geometry = DynamicMask(sparsity=0.5, every=3, drop=0.5)
        make = partial(SharpnessAware, geometry=geometry, ascent=ascent, rho=0.2)
        taken = records(make, frozen, steps=4)
        return [flat([opt._memories[p]["mask"] for p in r.params]) for r, _, opt in taken]

    for one, many in zip(masks(MultiStep(1)), masks(MultiStep(3)), strict=True):
        assert_same(many, one)


def test_chunks_with_a_kept_mask_are_refused() -> None:
    base = momentum(Task().params())
    with pytest.raises(ValueError, match="keeps a mask, which has no mean over"):
        SharpnessAware(base, geometry=DynamicMask(sparsity=0.5, every=2), plan=Chunks(8))


def test_many_steps_up_by_layers_may_pass_a_layer_of_zeros() -> None:
    task = Task()
    nn.init.zeros_(task.model[3].weight)
    opt = SharpnessAware(
        momentum(task.params()), geometry=LayerRelative(), ascent=MultiStep(2), model=task.model
    )
    for t in range(3):
        opt.step(task.samples(opt, t))
    assert opt.skipped == 0


@pytest.mark.parametrize("direction", [Storm(0.1), Sarah(50), Svrg(5)], ids=str)
def test_a_correction_goes_back_with_all_weights_also_those_that_are_not_climbed(
    direction: Any,
) -> None:
    """One batch again and again, so that d has to be g; biases have rho = 0."""
    task = Task()
    weights = [p for p in task.params() if p.dim() > 1]
    biases = [p for p in task.params() if p.dim() == 1]
    base = momentum([{"params": weights}, {"params": biases, "rho": 0.0}])
    opt = SharpnessAware(base, direction=direction, source=One(task, base), model=task.model)
    errors = []
    opt.observe(lambda r: errors.append((flat(r.d) - flat(r.g)).abs().max().item()))
    for _ in range(8):
        opt.step(task.samples(opt, 0))
    assert max(errors) < 1e-14


@pytest.mark.parametrize("direction", [Storm(0.1), Sarah(50)], ids=str)
def test_a_skipped_step_does_not_make_a_correction_count_twice(direction: Any) -> None:
    """One batch again and again, so that d has to be g; the last pass of step 3 is not finite."""
    task = Task()
    base = momentum(task.params())
    opt = SharpnessAware(base, direction=direction, source=One(task, base), model=task.model)
    errors, passes = [], []
    opt.observe(lambda r: errors.append((flat(r.d) - flat(r.g)).abs().max().item()))

    class Broken(Samples):
        def __call__(self) -> Tensor:
            loss = super().__call__()
            passes.append(len(errors))
            if passes.count(3) == 3:  # at w, at the weights before, and this one above w
                for p in task.params():
                    p.grad.mul_(math.nan)
            return loss

    batch = task.samples(opt, 0)
    for _ in range(8):
        opt.step(Broken(batch.zero_grad, batch.losses_of, *batch.tensors))
    assert opt.skipped == 1
    assert max(errors) < 1e-14


def test_samples_are_chosen_by_their_rise_above_w_whatever_a_slope_has_asked_since() -> None:
    task = Task()
    opt = SharpnessAware(
        momentum(task.params()),
        direction=Storm(0.1),
        plan=SelectTop(0.5),
        rho=0.2,
        model=task.model,
    )
    used = []

    class Watched(Samples):
        def subset(self, indices: Tensor) -> Samples:
            used.append(indices.tolist())
            return super().subset(indices)

    for t in range(6):
        batch = task.samples(opt, t)
        at_w = batch.losses()
        up = {}
        handle = opt.observe(lambda r, up=up: up.update(zip(r.params, r.epsilon, strict=True)))
        home = [p.detach().clone() for p in task.params()]
        opt.step(Watched(batch.zero_grad, batch.losses_of, *batch.tensors))
        handle.remove()
        above = Task()
        with torch.no_grad():
            for p, x, ours in zip(above.params(), home, task.params(), strict=True):
                p.copy_(x + up[ours])
        rise = above.samples(opt, t).losses() - at_w
        assert used[-1] == sorted(rise.topk(BATCH // 2).indices.tolist())


@pytest.mark.parametrize("stale", ["stay", "follow"])
def test_a_slope_of_any_size_is_climbed_also_in_a_spared_step(stale: Any) -> None:
    model = nn.Linear(2, 1, bias=False)
    base = torch.optim.SGD(model.parameters(), lr=0.0)
    opt = ReusedSAM(base, rho=0.5, refresh=RefreshEveryK(3), stale=stale, model=model)
    lengths = []
    opt.observe(lambda r: lengths.append(norm(r.epsilon)))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = 1e-25 * model.weight.sum()
        loss.backward()
        return loss

    for _ in range(3):
        opt.step(closure)
    assert lengths == pytest.approx([0.5] * 3, rel=1e-6)  # float32


@pytest.mark.parametrize("other", [0.7, lambda step, lr: 0.7], ids=["number", "schedule"])
def test_the_p_of_a_late_coin_does_not_bind_a_checkpoint(other: Any) -> None:
    def late(p: Any) -> LateSAM:
        task = Task()
        return LateSAM(momentum(task.params()), start=2, then=Bernoulli(p), model=task.model)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checkpoint's p wins
        late(other).load_state_dict(late(0.5).state_dict())


def test_a_fisher_mask_and_a_choice_of_samples_go_together() -> None:
    task = Task(torch.float32)
    opt = SharpnessAware(
        momentum(task.params()), geometry=FisherMask(), plan=SelectTop(0.5), model=task.model
    )
    opt.step(task.samples(opt, 0))
    assert opt.last.climbed


def test_a_fisher_mask_needs_to_see_samples_of_other_ascent_data_too() -> None:
    task = Task(torch.float32)
    opt = SparseSAM(momentum(task.params()), model=task.model)
    batch = task.samples(opt, 0)
    with pytest.raises(TypeError, match=r"FisherMask\(.* has to see samples: pass a vasso.Batch"):
        opt.step(batch, ascent_closure=lambda: batch())
