"""SAMPa: SAM whose two gradients do not depend on each other.

y_{t+1} = x_t - lr grad f(y_t),  x~_t = x_t + rho grad f(y_t) / ||grad f(y_t)||,
x_{t+1} = x_t - lr u,            u = (1 - lam) grad f(x~_t) + lam grad f(y_{t+1})

grad f(y_{t+1}) is taken on the batch of step t, grad f(x~_t) and grad f(y_t) on the one before. The
paper computes the two gradients of u in parallel on two devices. Here both gradients of a batch are
taken in the step that gets the batch: u gives x_{t+1} and with it x~_{t+1}. So the next step needs
two vectors and no earlier data, and a resumed run continues bit for bit.
"""

from __future__ import annotations  # the site shows signatures as written

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.sgd import sgd

from vasso import validation
from vasso.engine.groups import Group
from vasso.engine.passes import clear, clip
from vasso.engine.perturbation import Perturbation
from vasso.engine.wrapper import CommonOptions
from vasso.numerics import rng
from vasso.numerics.vectors import (
    Gradient,
    Vector,
    copied,
    lerp_,
    measured,
    norm,
    zeros_for_missing,
)
from vasso.parts.context import StepContext
from vasso.parts.geometries import L2
from vasso.parts.memory import PartState
from vasso.parts.part import Part, Range, Setting
from vasso.parts.plans import Data
from vasso.standalone.stepper import Stepper

OF_SGD = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "foreach", "fused")


@dataclass(frozen=True)
class Pair(Part):
    """Mixes two gradients: u = (1 - lam) grad f(x~_t) + lam grad f(y_{t+1}).

    Remembers v = grad f(y_t) and q = grad f(x~_t), both of the last batch.
    """

    lam: Setting = 0.2

    scheduled: ClassVar[Mapping[str, Range]] = {"lam": Range(least=0, most=1)}
    remembers: ClassVar[tuple[str, ...]] = ("v", "q")

    def __call__(self, q: Gradient, v: Gradient, lam: list[float]) -> Gradient:
        """u in new tensors; what is missing counts as 0, and where both are there is none."""
        pairs = enumerate(zip(q, v, strict=True))
        rows = [i for i, (a, b) in pairs if a is not None or b is not None]
        start = [_or_zeros(q[i], v[i]).clone() for i in rows]
        lerp_(start, [_or_zeros(v[i], q[i]) for i in rows], [lam[i] for i in rows])
        found = dict(zip(rows, start, strict=True))
        return [found.get(i) for i in range(len(q))]

    def check_base(self, base: Optimizer) -> None:
        """Raises TypeError unless the base is torch's SGD: the preview y is a step of it."""
        same_step = inspect.unwrap(type(base).step) is inspect.unwrap(SGD.step)
        if not (isinstance(base, SGD) and same_step):
            raise TypeError(
                "SAMPa has to know in advance where its base will go, and knows it of "
                f"torch.optim.SGD only, not of {type(base).__name__}: use SGD (with momentum, "
                "nesterov, weight_decay as you like), or another method around this base"
            )


class SAMPa(Stepper):
    """SAM whose two gradients can be computed in parallel.

    x~_t = x_t + rho grad f(y_t) / ||grad f(y_t)||,  y_{t+1} = x_t - lr grad f(y_t),
    u = (1 - lam) grad f(x~_t) + lam grad f(y_{t+1})

    Xie, Pethick and Cevher, NeurIPS 2024. The step to y is the base's own, with its momentum,
    weight decay and clipping. grad f(x~_t) and its rho are those of the batch before. The first
    step is one of the base, because there is no batch before: y_0 = x_0. Costs two gradient
    evaluations per step and two vectors between steps, three more during a pass.

    A group with the number rho = 0 is left to the base: its tensors step by the gradient of the
    current batch, and nothing of them is remembered. With rho = 0 everywhere this is the base, bit
    for bit, at one evaluation. A schedule whose value is 0 only makes x~_t = x_t.

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
        >>> w  # the base's step; the gradient at its perturbed weights is (1.8, 2.4)
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
        **options: Unpack[CommonOptions],
    ) -> None:
        self.pair = Pair(lam)
        super().__init__(base, rho=rho, parts=(self.pair,), **options)
        self.same_rng = same_rng

    def _compute_u(self, batch: Data) -> None:
        context = self._context()
        alone = self._left_to_the_base()
        memory = PartState(self._vectors, w=context.w)
        v, q = memory.recall("v"), memory.recall("q")  # grad f(y_t), grad f(x~_t)
        first = not self._vectors
        v = self._gradient_at_y(batch, context, None if first else v)  # grad f(y_{t+1})
        for p, gradient, by_itself in zip(context.w, v, alone, strict=True):
            if gradient is not None and not by_itself:
                validation.perturbable(p, gradient, self.restore)
        # u = (1 - lam) grad f(x~_t) + lam grad f(y_{t+1})
        u = v if first else self._mixture(q, v, context, alone)
        h: Gradient | None = None
        epsilon = None
        if not all(alone):
            q, epsilon = self._gradient_at_adversary(batch, context, u, v)  # grad f(x~_{t+1})
            remember(memory, "v", v, alone)
            remember(memory, "q", q, alone)
            h = q
        for p, gradient in zip(context.w, u, strict=True):
            p.grad = None if gradient is None else gradient.to(p.dtype)
        self._norms.descent_in_range = not self._norms.checks  # the norm of u has not been read
        filled = zeros_for_missing(v, context.w)
        self._publish(context, filled, filled, epsilon, h)

    def _gradient_at_y(self, batch: Data, context: StepContext, v: Gradient | None) -> Gradient:
        """grad f(y_{t+1}), with y_{t+1} = x_t - lr v, or x_t if there is no v yet."""
        current = self._current
        current.has_gradient_at_w = v is None
        current.rng_state = rng.get_state(context.w) if self.same_rng else None
        y = None if v is None else self._after_step(context, v)
        with self._perturbation.at(context, y):
            v = [copied(x) for x in self._gradient_of(batch, context)]
        current.note(g_norm=current.summary.h_norm, h_norm=None)
        return v

    def _gradient_at_adversary(
        self, batch: Data, context: StepContext, u: Gradient, v: Gradient
    ) -> tuple[Gradient, Vector | None]:
        """grad f(x~_{t+1}), with x~_{t+1} = x_t - lr u + rho v / ||v||, and that last part."""
        with self._perturbation.around(context, L2()) as x, self.statistics.second_pass():
            next_x = self._after_step(context, u)
            x.go_to(context, next_x)
            self._perturb(x, context, v)
            epsilon = list(torch._foreach_sub(context.w, next_x)) if self._observers else None
            del next_x  # frees memory before the pass
            if self._current.rng_state is not None:
                rng.set_state(self._current.rng_state)
            q = self._gradient_of(batch, context)
        self._current.note(climbed=True)
        return q, epsilon

    def _left_to_the_base(self) -> list[bool]:
        """Whether the rho of each tensor is the number 0; such a tensor is forgotten."""
        found = []
        for group in self.param_groups:
            schedules = self._groups.schedules_of(group)
            alone = "rho" not in schedules and group[self.settings[0].key] == 0
            for p in group["params"]:
                if alone:
                    self._vectors.pop(p, None)
                if p.requires_grad:
                    found.append(alone)
        return found

    def _mixture(
        self, q: Gradient, v: Gradient, context: StepContext, alone: list[bool]
    ) -> Gradient:
        mine = [None if by_itself else x for x, by_itself in zip(v, alone, strict=True)]
        u = self.pair(q, mine, context.settings["lam"])
        return [a if by_itself else b for a, b, by_itself in zip(v, u, alone, strict=True)]

    def _perturb(self, x: Perturbation, context: StepContext, v: Gradient) -> None:
        """Adds rho v / ||v|| to the current weights, if rho is not 0."""
        in_range = self._norms.descent_in_range and all(rho > 0 for rho in context.rho)
        self._norms.reads = self._norms.checks and not in_range
        if context.perturbs:
            x.move(zeros_for_missing(v, context.w), keep=1.0)
        self._norms.forget()

    def _after_step(self, context: StepContext, u: Gradient) -> Vector:
        """The weights after a step of the base from x_t by these gradients, clipped."""
        for p, gradient in zip(context.w, u, strict=True):
            p.grad = None if gradient is None else gradient.to(p.dtype, copy=True)
        checks = self._norms.checks
        clip(self._groups.params(), self.clip_norm, lambda u: measured(u)[0] if checks else norm(u))
        there: dict[Tensor, Tensor] = {}
        for group in self.base.param_groups:
            there.update(after_sgd(group, self.base.state))
        clear(self._groups.params())
        return [there.get(p, p) for p in context.w]


def after_sgd(group: Group, state: Mapping[Tensor, Any]) -> dict[Tensor, Tensor]:
    """The weights after SGD's next step, by torch's own function on copies; bit for bit."""
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


def remember(memory: PartState, name: str, values: Gradient, alone: list[bool]) -> None:
    """Keeps copies of a gradient; where there is none, none is remembered."""
    kept = [None if by_itself else x for x, by_itself in zip(values, alone, strict=True)]
    memory.keep(name, kept)
    for p, x in zip(memory.w, kept, strict=True):
        if x is None and p in memory.kept:
            memory.kept[p].pop(name, None)
            if not memory.kept[p]:
                del memory.kept[p]


def _or_zeros(x: Tensor | None, like: Tensor | None) -> Tensor:
    if x is not None:
        return x
    assert like is not None
    return torch.zeros_like(like)
