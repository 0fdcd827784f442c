"""Ours against the slow, plain twins of `tests/reference`, in float64.

The problem is convex with lr * curvature < 1, so a rounding (1e-16) shrinks from step to step; the
noise of the batches keeps the slope at size 1, where its direction is well conditioned. Sixty steps
therefore stay within 1e-13, a thousand roundings (measured: 6e-16).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from tests.problems import BASES, assert_near, flat
from tests.reference import sam, vasso
from tests.reference.sam import Gradients, Group
from vasso import SAM, SharpnessAware, VaSSO

STEPS = 60
TOLERANCE = 1e-13
SHAPES = ((3,), (2, 3), (), (4,), (1, 2))
SIZES = [math.prod(shape) for shape in SHAPES]

Present = Callable[[int, int], list[int]]
"""Step and pass -> the tensors that get a gradient."""

each_method = pytest.mark.parametrize("method", [SAM, VaSSO])


class Batches:
    """A convex problem whose batches differ: z'H_t z / 2 + b_t z + sum of log cosh z.

    Args:
        present: a tensor that is not takes part, but as a constant.
    """

    def __init__(self, present: Present = lambda t, k: list(range(len(SHAPES)))) -> None:
        random = torch.Generator().manual_seed(4)
        n = sum(SIZES)
        A = torch.randn(STEPS, n, n, dtype=torch.float64, generator=random) / n
        self.H = A @ A.mT + torch.eye(n, dtype=torch.float64) / 4
        self.b = torch.randn(STEPS, n, dtype=torch.float64, generator=random)
        self.start = torch.randn(n, dtype=torch.float64, generator=random)
        self.present = present

    def weights(self) -> list[Tensor]:
        parts = self.start.split(SIZES)
        return [part.reshape(shape).clone() for part, shape in zip(parts, SHAPES, strict=True)]

    def loss(self, x: list[Tensor], t: int, k: int) -> Tensor:
        here = self.present(t, k)
        z = torch.cat([(w if i in here else w.detach()).flatten() for i, w in enumerate(x)])
        return z @ self.H[t] @ z / 2 + self.b[t] @ z + z.cosh().log().sum()

    def gradient(self, x: list[Tensor], t: int, k: int) -> Gradients:
        x = [w.detach().requires_grad_() for w in x]
        self.loss(x, t, k).backward()
        return {i: w.grad for i, w in enumerate(x) if w.grad is not None}


def some(seed: int) -> Present:
    """Each tensor is there in two thirds of the passes, and at least one of the first two is."""

    def present(t: int, k: int) -> list[int]:
        random = torch.Generator().manual_seed(10_000 * seed + 2 * t + k)
        coins = torch.rand(len(SHAPES), generator=random) < 2 / 3
        coins[t % 2] = True
        return coins.nonzero().flatten().tolist()

    return present


def groups() -> list[Group]:
    return [
        Group([0, 1], lr=0.05, rho=0.1, theta=0.4),
        Group([2], lr=0.02, rho=0.5, theta=0.1),
        Group([3, 4], lr=0.1, rho=0.2, theta=0.9),
    ]


Settings = Callable[[int], list[Group]]
"""Step -> the settings of the twin at that step."""


def path_of_twin(method: type, batches: Batches, settings: Settings) -> Tensor:
    x, d, path = batches.weights(), {}, []
    for t in range(STEPS):

        def gradient(x: list[Tensor], k: int, t: int = t) -> Gradients:
            return batches.gradient(x, t, k)

        if method is SAM:
            x = sam.step(x, gradient, settings(t))
        else:
            x, d = vasso.step(x, d, gradient, settings(t))
        path.append(flat(x))
    return torch.stack(path)


def walk(
    opt: SharpnessAware,
    x: list[Tensor],
    batches: Batches,
    each_step: Any = None,
    steps: int = STEPS,
) -> Tensor:
    path = []
    for t in range(steps):
        passes = iter(range(2))

        def closure(t: int = t, passes: Any = passes) -> Tensor:
            opt.zero_grad()
            loss = batches.loss(x, t, next(passes))
            loss.backward()
            return loss

        opt.step(closure)
        if each_step is not None:
            each_step(t)
        path.append(flat(x))
    return torch.stack(path)


def ours(
    method: type, batches: Batches, only: int | None = None, **settings: Any
) -> tuple[SharpnessAware, list[Tensor]]:
    """Our optimizer over the groups above; settings given here are for all of them, or one."""
    x = [w.requires_grad_() for w in batches.weights()]
    given = []
    for index, g in enumerate(groups()):
        group = {"params": [x[i] for i in g.rows], "lr": g.lr, "rho": g.rho}
        given.append(group | ({"theta": g.theta} if method is VaSSO else {}))
        given[-1].update(settings if only in (None, index) else {})
    return method(SGD(given)), x


@each_method
def test_groups_of_their_own_rho_theta_and_lr_follow_the_twin(method: type) -> None:
    batches = Batches()
    found = walk(*ours(method, batches), batches)
    assert_near(found, path_of_twin(method, batches, lambda t: groups()), TOLERANCE, TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
@each_method
def test_gradients_that_come_and_go_follow_the_twin(method: type, seed: int) -> None:
    batches = Batches(some(seed))
    found = walk(*ours(method, batches), batches)
    assert_near(found, path_of_twin(method, batches, lambda t: groups()), TOLERANCE, TOLERANCE)


@each_method
def test_a_group_that_is_never_climbed_follows_the_twin(method: type) -> None:
    batches = Batches(some(7))
    opt, x = ours(method, batches)
    opt.param_groups[2]["rho"] = 0.0

    def settings(t: int) -> list[Group]:
        still = groups()
        still[2].rho = 0.0
        return still

    assert_near(
        walk(opt, x, batches), path_of_twin(method, batches, settings), TOLERANCE, TOLERANCE
    )


# -- schedules ------------------------------------------------------------------------------------


@each_method
def test_a_radius_in_proportion_to_lr_follows_the_twin(method: type) -> None:
    batches = Batches()
    opt, x = ours(method, batches, rho=lambda step, lr: 3 * lr / (1 + step))

    def settings(t: int) -> list[Group]:
        return [Group(g.rows, g.lr, 3 * g.lr / (1 + t), g.theta, True) for g in groups()]

    assert_near(
        walk(opt, x, batches), path_of_twin(method, batches, settings), TOLERANCE, TOLERANCE
    )


def falling(t: int) -> float:
    """4 / (t + 8)^(2/3), from 1 down; at t = 0 it rounds to just above 1."""
    return min(1.0, 4 / (t + 8) ** (2 / 3))


def test_a_theta_that_falls_with_time_follows_the_twin() -> None:
    batches = Batches(some(2))
    opt, x = ours(VaSSO, batches, theta=lambda step, lr: falling(step))

    def settings(t: int) -> list[Group]:
        return [Group(g.rows, g.lr, g.rho, falling(t)) for g in groups()]

    assert_near(walk(opt, x, batches), path_of_twin(VaSSO, batches, settings), TOLERANCE, TOLERANCE)


@each_method
def test_a_radius_that_is_zero_every_third_step_follows_the_twin(method: type) -> None:
    batches = Batches(some(3))
    opt, x = ours(method, batches, rho=lambda step, lr: 0.1 * (step % 3))

    def settings(t: int) -> list[Group]:
        return [Group(g.rows, g.lr, 0.1 * (t % 3), g.theta, True) for g in groups()]

    assert_near(
        walk(opt, x, batches), path_of_twin(method, batches, settings), TOLERANCE, TOLERANCE
    )


def test_one_group_with_a_radius_scheduled_at_zero_follows_the_twin() -> None:
    """The others are climbed meanwhile, and its slope goes on observing."""
    batches = Batches()
    opt, x = ours(VaSSO, batches, only=1, rho=lambda step, lr: 0.5 * (step % 2))

    def settings(t: int) -> list[Group]:
        moving = groups()
        moving[1].rho, moving[1].scheduled = 0.5 * (t % 2), True
        return moving

    assert_near(walk(opt, x, batches), path_of_twin(VaSSO, batches, settings), TOLERANCE, TOLERANCE)


@each_method
def test_settings_changed_in_the_groups_follow_the_twin(method: type) -> None:
    """By hand, as a user would, to zero and back, which forgets the slope."""
    batches = Batches(some(5))
    opt, x = ours(method, batches)

    def settings(t: int) -> list[Group]:
        changed = groups()
        changed[0].rho = 0.1 * ((t // 5) % 3)
        changed[1].theta = 1.0 if t % 10 == 9 else 0.3
        return changed

    def change(t: int) -> None:
        for group, g in zip(opt.param_groups, settings(t + 1), strict=True):
            group["rho"] = g.rho
            if method is VaSSO:
                group["theta"] = g.theta

    change(-1)
    assert_near(
        walk(opt, x, batches, change), path_of_twin(method, batches, settings), TOLERANCE, TOLERANCE
    )


def one_cycle(t: int, peak: float) -> float:
    """Up from peak / 25 over the first 30 %, down to peak / 250,000, both along a cosine."""

    def along(start: float, end: float, share: float) -> float:
        return end + (start - end) * (1 + math.cos(math.pi * share)) / 2

    top = 0.3 * (STEPS + 1) - 1
    if t <= top:
        return along(peak / 25, peak, t / top)
    return along(peak, peak / 25e4, (t - top) / (STEPS - top))


SCHEDULERS: dict[str, tuple[Callable[..., Any], Callable[[int, float], float]]] = {
    "LambdaLR": (lambda opt: LambdaLR(opt, lambda t: 0.97**t), lambda t, lr: lr * 0.97**t),
    "CosineAnnealingLR": (
        lambda opt: CosineAnnealingLR(opt, T_max=STEPS),
        lambda t, lr: lr * (1 + math.cos(math.pi * t / STEPS)) / 2,
    ),
    "OneCycleLR": (
        lambda opt: OneCycleLR(
            opt,
            max_lr=[g["lr"] for g in opt.param_groups],
            total_steps=STEPS + 1,
            cycle_momentum=False,
        ),
        one_cycle,
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@each_method
def test_a_scheduler_of_torch_drives_lr_and_through_it_the_radius(method: type, name: str) -> None:
    make, lr_at = SCHEDULERS[name]
    batches = Batches()
    opt, x = ours(method, batches, rho=lambda step, lr: 2 * lr)
    scheduler = make(opt)

    def settings(t: int) -> list[Group]:
        lrs = [lr_at(t, g.lr) for g in groups()]
        return [
            Group(g.rows, lr, 2 * lr, g.theta, True) for g, lr in zip(groups(), lrs, strict=True)
        ]

    found = walk(opt, x, batches, lambda t: scheduler.step())
    assert_near(found, path_of_twin(method, batches, settings), TOLERANCE, TOLERANCE)


# -- other bases ----------------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
@each_method
def test_any_base_gets_the_gradient_of_the_twin(method: type, base: str) -> None:
    """The twin finds u, a base of its own takes the step; one that maximizes, minus the loss."""
    batches = Batches(some(6))
    x = [w.requires_grad_() for w in batches.weights()]
    found = walk(method(BASES[base](x), rho=0.2), x, batches, steps=25)

    x, d = [w.requires_grad_() for w in batches.weights()], {}
    alone, path = BASES[base](x), []
    way = -1 if alone.param_groups[0].get("maximize") else 1
    group = Group(list(range(len(SHAPES))), lr=0.0, rho=0.2, theta=0.4)
    for t in range(25):
        w = [p.detach().clone() for p in x]

        def gradient(x: list[Tensor], k: int, t: int = t) -> Gradients:
            return {i: way * g for i, g in batches.gradient(x, t, k).items()}

        if method is SAM:
            u = sam.adversary(w, gradient, [group])
        else:
            u, d = vasso.adversary(w, d, gradient, [group])
        for i, p in enumerate(x):
            p.grad = way * u[i] if i in u else None
        alone.step()
        path.append(flat(x))
    assert_near(found, torch.stack(path), TOLERANCE, TOLERANCE)
