"""Methods that choose slopes and points of their own, on one task, and the side of their twins."""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import vasso
from tests.reference import trajectories as twins
from tests.support import compare
from tests.support.compare import digits, flat, records_of
from vasso.numerics.rng import mix_seed

STEPS = 40
NEAR = 1e-13
BATCH, BATCHES = 16, 5
EXAMPLES = BATCH * BATCHES
SIZE = 64 * 6 + 6 + 6 * 10 + 10
Vector = list[Tensor]

# -- the problem ----------------------------------------------------------------------------------


@cache
def data() -> tuple[Tensor, Tensor]:
    """Eighty handwritten digits, rotated at random so that no input is always 0: no scores tie."""
    x, y = digits()
    luck = torch.Generator().manual_seed(7)
    square = torch.randn(64, 64, dtype=torch.float64, generator=luck)
    return x[:EXAMPLES] @ torch.linalg.qr(square).Q, y[:EXAMPLES]


def rows_of(t: int | None) -> slice:
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

    def samples(self, opt: Any, t: int | None) -> vasso.Samples:
        x, y = data()
        rows = rows_of(t)
        return vasso.Samples(opt.zero_grad, self.losses, x[rows].to(self.dtype), y[rows])

    def flat(self) -> Tensor:
        return flat(self.params())


class Everything:
    def __init__(self, task: Task, base: Any) -> None:
        self.task, self.base = task, base

    def full(self) -> vasso.Samples:
        return self.task.samples(self.base, None)

    def fresh(self) -> vasso.Samples:
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
    more = {"data": Everything(task, base)} if getattr(make, "func", make) in SOURCED else {}
    return make(base, model=task.model, **more)


SOURCED = (vasso.SVRGSAM, vasso.SARAHSAM)


def train(
    make: Make, base: Make = momentum, *, steps: int = 8, dtype: torch.dtype = torch.float32
) -> Tensor:
    task = Task(dtype)
    opt = with_data(task, make, base(task.params()))
    path = []
    for t in range(steps):
        opt.step(task.samples(opt, t))
        path.append(task.flat())
    return torch.stack(path)


def plain(base: Any, **_: Any) -> Any:
    return base


def records(
    make: Make,
    base: Make = momentum,
    *,
    steps: int = 8,
    dtype: torch.dtype = torch.float64,
    middle: nn.Module | None = None,
) -> Iterator[tuple[vasso.StepRecord, Vector, Any]]:
    """Each step's record, the weights it began with and the optimizer after it."""
    task = Task(dtype, middle)
    opt = with_data(task, make, base(task.params()))
    seen = records_of(opt)
    for t in range(steps):
        home = [p.detach().clone() for p in task.params()]
        opt.step(task.samples(opt, t))
        yield seen[-1], home, opt


def norm(x: Vector) -> float:
    return math.sqrt(sum(float(a.square().sum()) for a in x))


assert_near = partial(compare.assert_near, rtol=0.0, atol=NEAR)


# -- the twin's side ------------------------------------------------------------------------------


class Oracle:
    """Gradients of the same problem by autograd on weights in a list; counts by samples."""

    def __init__(self) -> None:
        self.evaluations = 0.0

    def on(self, x: Vector, rows: slice) -> Vector:
        inputs, labels = data()
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
    start = [p.detach().clone() for p in Task().params()]
    steps = twin((start, Oracle().gradient, BASES[base]()), **settings)
    return torch.stack([flat(x) for x in itertools.islice(steps, STEPS)])


def ours(make: Make, base: Make = momentum) -> Tensor:
    return train(make, base, steps=STEPS, dtype=torch.float64)


def uniform(seed: int, t: int) -> Vector:
    """The documented luck: a function of seed, step and place alone."""
    return [
        torch.rand(
            p.shape,
            generator=torch.Generator().manual_seed(mix_seed(seed, t, i)),
            dtype=torch.float64,
        )
        for i, p in enumerate(Task().params())
    ]


def coin(seed: int, t: int) -> float:
    """The documented coin: a function of seed and step alone."""
    return random.Random(mix_seed(seed, t)).random()


# fmt: off
SPARING: dict[str, tuple[Make, list[bool]]] = {
    "late": (partial(vasso.LateSAM, start=4), [True] * 8),
    "late, reused": (partial(vasso.LateSAM, start=3, then=vasso.RefreshEveryK(4)),
        [True, True, True, False, True, False, False, False]),
    "every third": (partial(vasso.ReusedSAM, refresh=vasso.RefreshEveryK(3)),
        [t % 3 == 0 for t in range(8)]),
    "follows": (partial(vasso.ReusedSAM, refresh=vasso.RefreshEveryK(3), stale="follow"),
        [t % 3 == 0 for t in range(8)]),
    "by a coin": (partial(vasso.ReusedSAM, refresh=vasso.RefreshRandomly(p=0.5, seed=3)),
        [t == 0 or coin(3, t) < 0.5 for t in range(8)]),
    "warm-up": (partial(vasso.ReusedSAM, refresh=vasso.RefreshAdaptive("flat", z=100.0, warm_up=5)),
        [t < 5 for t in range(8)]),
    "momentum": (vasso.MSAM, [False] * 8),
    "last gradient": (vasso.S2SAM, [False] * 8),
}
# fmt: on


class One(Everything):
    def full(self) -> vasso.Samples:
        return self.task.samples(self.base, 0)


ROUND: dict[str, Make] = {
    "late": partial(vasso.LateSAM, start=1),
    "reused": partial(vasso.ReusedSAM, refresh=vasso.RefreshEveryK(3)),
    "following": partial(vasso.ReusedSAM, refresh=vasso.RefreshEveryK(3), stale="follow"),
    "momentum": vasso.MSAM,
    "last gradient": vasso.S2SAM,
    "friendly": vasso.FriendlySAM,
    "storm": vasso.StormSAM,
    "svrg": partial(vasso.SVRGSAM, every=3),
    "sarah": partial(vasso.SARAHSAM, every=3),
    "penalty": vasso.PGN,
}
