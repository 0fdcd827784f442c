"""SAMPa: the gradient that climbs is taken beside the weights, before they get there.

y_{t+1} = x_t - lr grad f(y_t),  x~_t = x_t + rho grad f(y_t) / ||grad f(y_t)||,
x_{t+1} = x_t - lr u,            u = (1 - lam) grad f(x~_t) + lam grad f(y_{t+1})

where grad f(y_{t+1}) is taken on the batch of step t and grad f(x~_t) on the one before, from which
grad f(y_t) is. The two gradients of u do not depend on each other; the paper takes them at once on
two devices. Here the later one of a batch is taken in the step that brings the batch: as soon as u
is known, so is x_{t+1}, and with it x~_{t+1}. Nothing of the data is left for the next step, only
two vectors, and a resumed run goes on bit for bit.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.sgd import sgd

from vasso import checks, randomness
from vasso.here import Climb, Gradient, Here, Memory
from vasso.parts import Part, Range, Setting
from vasso.plans import Data
from vasso.settings import Group
from vasso.steppers.stepper import Stepper, StepperOptions
from vasso.vectors import Vector, lerp_, measured, norm

OF_SGD = (
    "weight_decay",
    "momentum",
    "lr",
    "dampening",
    "nesterov",
    "maximize",
    "foreach",
    "fused",
)


@dataclass(frozen=True)
class Pair(Part):
    """Mixes two gradients: u = (1 - lam) grad f(x~_t) + lam grad f(y_{t+1}).

    Remembers v = grad f(y_t) and q = grad f(x~_t), both of the last batch.

    Args:
        lam: weight of the newest batch, in [0, 1].
    """

    lam: Setting = 0.2

    scheduled: ClassVar[Mapping[str, Range]] = {"lam": Range(least=0, most=1)}
    remembers: ClassVar[tuple[str, ...]] = ("v", "q")

    def __call__(self, q: Gradient, v: Gradient, lam: list[float]) -> Gradient:
        """The mixture; what is missing counts as 0, and where both are there is none.

        Args:
            q: grad f(x~_t).
            v: grad f(y_{t+1}).
            lam: weight of v, for each tensor.

        Returns:
            u, in new tensors.
        """
        pairs = enumerate(zip(q, v, strict=True))
        rows = [i for i, (a, b) in pairs if a is not None or b is not None]
        start = [_or_zeros(q[i], v[i]).clone() for i in rows]
        lerp_(start, [_or_zeros(v[i], q[i]) for i in rows], [lam[i] for i in rows])
        found = dict(zip(rows, start, strict=True))
        return [found.get(i) for i in range(len(q))]

    def check_base(self, base: Optimizer) -> None:
        """Raises unless the base is torch's SGD: the preview y is a step of it.

        Args:
            base: the optimizer to be wrapped.

        Raises:
            TypeError: it is another one.
        """
        same_step = inspect.unwrap(type(base).step) is inspect.unwrap(SGD.step)
        if not (isinstance(base, SGD) and same_step):
            raise TypeError(
                "SAMPa has to know in advance where its base will go, and knows it of "
                f"torch.optim.SGD only, not of {type(base).__name__}: use SGD (with momentum, "
                "nesterov, weight_decay as you like), or another method around this base"
            )


class SAMPa(Stepper):
    """SAM whose two gradients do not wait for each other.

    x~_t = x_t + rho grad f(y_t) / ||grad f(y_t)||,  y_{t+1} = x_t - lr grad f(y_t),
    u = (1 - lam) grad f(x~_t) + lam grad f(y_{t+1})

    Xie, Pethick and Cevher, NeurIPS 2024. The step to y is the base's own, with its momentum,
    weight decay and clipping. grad f(x~_t) is of the batch before (see the top of this module), and
    so is its rho if that changes from step to step. The first step is one of the base: y_0 = x_0
    and there is no batch before. Costs two gradient evaluations per step and two vectors between
    steps, three more during a pass.

    A group with rho = 0 is left to the base: its tensors take no part in the preview, go down by
    the gradient of the current batch, and nothing of them is remembered. With rho = 0 everywhere
    this is the base, bit for bit, at one evaluation. A schedule that is at 0 just now only makes
    x~_t = x_t.

    Args:
        base: the optimizer to wrap, a `torch.optim.SGD`.
        rho: radius of the ball.
        lam: weight of the newest batch in u, in [0, 1]; 0 is the paper's SAMPa, 1 the method of
            optimistic gradient descent.
        same_rng: whether both passes over a batch draw the same random numbers (dropout).
        **options: see `Stepper`. BatchNorm's "clean" pass is the one at y, "perturbed" at x~.

    Example:
        >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> opt = SAMPa(SGD([w], lr=0.5), rho=0.5, lam=0.0)
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = 0.5 * w.square().sum()
        ...     loss.backward()
        ...     return loss
        >>> _ = opt.step(closure)
        >>> w  # the base's step; the gradient there, rho further up, is (1.8, 2.4)
        tensor([1.5000, 2.0000], requires_grad=True)
        >>> _ = opt.step(closure)
        >>> w
        tensor([0.6000, 0.8000], requires_grad=True)
        >>> opt.cost
        4.0
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.1,
        lam: Setting = 0.2,
        same_rng: bool = False,
        **options: Unpack[StepperOptions],
    ) -> None:
        self.pair = Pair(lam)
        super().__init__(base, rho=rho, parts=(self.pair,), **options)
        self.same_rng = same_rng

    def _find(self, batch: Data) -> None:
        here = self._everywhere()
        alone = self._left_to_the_base()
        memory = Memory(self._memories, w=here.w)
        v, q = memory.recall("v"), memory.recall("q")  # grad f(y_t), grad f(x~_t)
        first = not self._memories
        v = self._gradient_at_y(batch, here, None if first else v)  # grad f(y_{t+1})
        self._check_dense(here, v, alone)
        # u = (1 - lam) grad f(x~_t) + lam grad f(y_{t+1})
        u = v if first else self._mixture(q, v, here, alone)
        path, epsilon = [], None
        if not all(alone):
            q, epsilon = self._gradient_at_adversary(batch, here, u, v)  # grad f(x~_{t+1})
            remember(memory, "v", v, alone)
            remember(memory, "q", q, alone)
            path = [q]
        for p, gradient in zip(here.w, u, strict=True):
            p.grad = None if gradient is None else gradient.to(p.dtype)
        self._now.descent_is_safe = self.nonfinite == "ignore"  # u itself has not been measured
        self._tell(here, filled(v, here), filled(v, here), epsilon, path)

    def _gradient_at_y(self, batch: Data, here: Here, v: Gradient | None) -> Gradient:
        """grad f(y_{t+1}), with y_{t+1} = x_t - lr v, or x_t if there is no v yet."""
        now = self._now
        now.clean = v is None
        now.draws = randomness.current(here.w) if self.same_rng else None
        with self._climb(here, Memory({})) as x:
            if v is not None:
                x.go_to(self._ahead(here, v))
            v = self._gradient_of(batch, here)
        now.summary = replace(now.summary, g_norm=now.summary.h_norm, h_norm=None)
        return v

    def _gradient_at_adversary(
        self, batch: Data, here: Here, u: Gradient, v: Gradient
    ) -> tuple[Gradient, Vector | None]:
        """grad f(x~_{t+1}), with x~_{t+1} = x_t - lr u + rho v / ||v||, and that last part."""
        now = self._now
        with self._climb(here, Memory({})) as x, self.statistics.second_pass():
            next_x = self._ahead(here, u)
            x.go_to(next_x)
            self._go_up(x, here, v)
            epsilon = list(torch._foreach_sub(here.w, next_x)) if now.observers else None
            del next_x  # the pass wants the memory
            if now.draws is not None:
                randomness.replay(now.draws)
            q = self._gradient_of(batch, here)
        now.summary = replace(now.summary, climbed=True)
        return q, epsilon

    def _left_to_the_base(self) -> list[bool]:
        """Whether the rho of each tensor is the number 0; such a tensor is forgotten."""
        found = []
        for group, schedules in zip(self.param_groups, self._schedules, strict=True):
            alone = "rho" not in schedules and group[self.settings[0].key] == 0
            for p in group["params"]:
                if alone:
                    self._memories.pop(p, None)
                if p.requires_grad:
                    found.append(alone)
        return found

    def _check_dense(self, here: Here, v: Gradient, alone: list[bool]) -> None:
        for p, gradient, by_itself in zip(here.w, v, alone, strict=True):
            if gradient is not None and not by_itself:
                checks.climbable(p, gradient, self.restore)

    def _mixture(self, q: Gradient, v: Gradient, here: Here, alone: list[bool]) -> Gradient:
        mine = [None if by_itself else x for x, by_itself in zip(v, alone, strict=True)]
        u = self.pair(q, mine, here.settings["lam"])
        return [a if by_itself else b for a, b, by_itself in zip(v, u, alone, strict=True)]

    def _go_up(self, x: Climb, here: Here, v: Gradient) -> None:
        """From where the weights are to the highest point of v within rho, if rho is not 0."""
        measured_all = self._now.descent_is_safe and all(rho > 0 for rho in here.rho)
        here.norm.look = self.nonfinite != "ignore" and not measured_all
        if any(rho > 0 for rho in here.rho):
            x.move(filled(v, here), keep=1.0)
        here.norm.let_go()

    def _ahead(self, here: Here, u: Gradient) -> Vector:
        """Where the base would go from x_t by these gradients, clipped as they would be."""
        for p, gradient in zip(here.w, u, strict=True):
            p.grad = None if gradient is None else gradient.to(p.dtype, copy=True)
        if self.clip_norm is not None:
            going = self._going_down()
            length = norm(going) if self.nonfinite == "ignore" else measured(going)[0]
            nn.utils.clip_grads_with_norm_(self._params(), self.clip_norm, length)
        there: dict[Tensor, Tensor] = {}
        for group in self.base.param_groups:
            there.update(after_sgd(group, self.base.state))
        self._clear_gradients()
        return [there.get(p, p) for p in here.w]


def after_sgd(group: Group, state: Mapping[Tensor, Any]) -> dict[Tensor, Tensor]:
    """Where SGD's next step would bring the parameters of a group that have a gradient.

    Torch's own function on copies, so that it is that step to the last bit.

    Args:
        group: a group of an SGD.
        state: the state of that SGD, which is not changed.

    Returns:
        Parameter -> its weights after the step.

    Example:
        >>> w = torch.tensor([1.0], requires_grad=True)
        >>> w.square().backward()
        >>> base = SGD([w], lr=0.1)
        >>> after_sgd(base.param_groups[0], base.state)[w], w.item()
        (tensor([0.8000]), 1.0)
    """
    moving = [p for p in group["params"] if p.grad is not None]
    there = [p.detach().clone() for p in moving]
    gradients = [p.grad for p in moving]
    buffers: list[Tensor | None] = []
    if group["momentum"] != 0:
        found = (state.get(p, {}).get("momentum_buffer") for p in moving)
        buffers = [None if buffer is None else buffer.clone() for buffer in found]
    sparse = any(x.is_sparse for x in gradients)
    sgd(there, gradients, buffers, sparse, **{name: group[name] for name in OF_SGD})
    return dict(zip(moving, there, strict=True))


def remember(memory: Memory, name: str, values: Gradient, alone: list[bool]) -> None:
    """Keeps copies of a gradient; where there is none, none is remembered.

    Args:
        memory: where.
        name: under which name.
        values: one gradient or None for each of `memory.w`.
        alone: where nothing is to be remembered.
    """
    kept = [None if by_itself else x for x, by_itself in zip(values, alone, strict=True)]
    memory.keep(name, kept)
    for p, x in zip(memory.w, kept, strict=True):
        if x is None and p in memory.kept:
            memory.kept[p].pop(name, None)
            if not memory.kept[p]:
                del memory.kept[p]


def filled(v: Gradient, here: Here) -> Vector:
    """A gradient with zeros where there is none.

    Args:
        v: one gradient or None for each of `here.w`.
        here: the step.

    Returns:
        One tensor for each of `here.w`.
    """
    return [torch.zeros_like(p) if x is None else x for p, x in zip(here.w, v, strict=True)]


def _or_zeros(x: Tensor | None, like: Tensor | None) -> Tensor:
    if x is not None:
        return x
    assert like is not None
    return torch.zeros_like(like)
