"""Ours against the slow, plain twins of `tests/reference`, in float64.

The problem is convex with lr * curvature < 1, so a rounding (1e-16) shrinks from step to step; the
noise of the batches keeps the slope at size 1, where its direction is well conditioned. Sixty steps
therefore stay within 1e-13, a thousand roundings (measured: 6e-16).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.reference import sam, vasso
from tests.reference.sam import Gradients, Group
from tests.support.compare import assert_near, flat
from tests.support.problems import BASES, closure_of
from vasso import SAM, SharpnessAware, VaSSO

STEPS = 60
TOLERANCE = 1e-13
SHAPES = ((3,), (2, 3), (), (4,), (1, 2))
SIZES = [math.prod(shape) for shape in SHAPES]

Present = Callable[[int, int], list[int]]
"""Step and pass -> the tensors that get a gradient."""

each_method = pytest.mark.parametrize("method", [SAM, VaSSO])


class Batches:
    """A convex problem whose batches differ: z'H_t z / 2 + b_t z + sum of log cosh z."""

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
        # a pass at w may be made twice: where gradients come and go beside a group with rho = 0
        closure = closure_of(opt, lambda t=t: batches.loss(x, t, int(opt.perturbed)))
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


@pytest.mark.parametrize("seed", [None, *range(4)])
@each_method
def test_groups_of_their_own_and_gradients_that_come_and_go(method: type, seed: int | None) -> None:
    batches = Batches() if seed is None else Batches(some(seed))
    found = walk(*ours(method, batches), batches)
    assert_near(found, path_of_twin(method, batches, lambda t: groups()), TOLERANCE, TOLERANCE)


def falling(t: int) -> float:
    """4 / (t + 8)^(2/3), from 1 down; at t = 0 it rounds to just above 1."""
    return min(1.0, 4 / (t + 8) ** (2 / 3))


def with_group(index: int, **changed: Any) -> list[Group]:
    found = groups()
    found[index] = replace(found[index], **changed)
    return found


SCHEDULED: dict[str, tuple[int | None, int | None, dict[str, Any], Settings]] = {
    "a group that is never climbed": (
        7, 2, {"rho": 0.0}, lambda t: with_group(2, rho=0.0)
    ),
    "a radius in proportion to lr": (
        None, None, {"rho": lambda step, lr: 3 * lr / (1 + step)},
        lambda t: [replace(g, rho=3 * g.lr / (1 + t), scheduled=True) for g in groups()],
    ),
    "a radius that is zero every third step": (
        3, None, {"rho": lambda step, lr: 0.1 * (step % 3)},
        lambda t: [replace(g, rho=0.1 * (t % 3), scheduled=True) for g in groups()],
    ),
    # the others are climbed meanwhile, and its slope goes on observing
    "one group with a radius scheduled at zero": (
        None, 1, {"rho": lambda step, lr: 0.5 * (step % 2)},
        lambda t: with_group(1, rho=0.5 * (t % 2), scheduled=True),
    ),
    "a theta that falls with time": (
        2, None, {"theta": lambda step, lr: falling(step)},
        lambda t: [replace(g, theta=falling(t)) for g in groups()],
    ),
}  # fmt: skip
"""Seed of the missing gradients, the group that is changed or all, our settings, the twin's."""


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (method, name)
        for method in (SAM, VaSSO)
        for name in SCHEDULED
        if method is VaSSO or "theta" not in name
    ],
)
def test_schedules_follow_the_twin(method: type, name: str) -> None:
    seed, only, given, settings = SCHEDULED[name]
    batches = Batches() if seed is None else Batches(some(seed))
    found = walk(*ours(method, batches, only, **given), batches)
    assert_near(found, path_of_twin(method, batches, settings), TOLERANCE, TOLERANCE)


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
