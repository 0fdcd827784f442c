"""Entropy-SGD: steps towards the mean of a random walk around the weights.

The walk is a function of the weights, the step, the seed and the batches. Nothing is remembered
from one step to the next.
"""

from __future__ import annotations  # the site shows signatures as written

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer

from vasso.engine.wrapper import CommonOptions
from vasso.numerics.rng import mix_seed
from vasso.numerics.vectors import (
    Gradient,
    Vector,
    at_least_float32,
    fitted,
    lerp_,
    zeros_for_missing,
)
from vasso.parts.context import StepContext
from vasso.parts.part import Part, Range, Setting
from vasso.parts.plans import Data, Source
from vasso.standalone.stepper import Stepper

Fresh: TypeAlias = Callable[[], Data]
"""Gives the closure of a batch that has not been used yet."""


@dataclass(frozen=True)
class Langevin(Part):
    """The random walk: Langevin dynamics with stochastic gradients and a spring to x_t.

    The settings are those of `EntropySGD`.
    """

    L: int = 20
    inner_lr: Setting = 0.1
    gamma: Setting = 0.03
    scoping: float = 1e-3
    noise: Setting = 1e-4
    alpha: Setting = 0.25
    inner_momentum: Setting = 0.9
    inner_weight_decay: Setting = 0.0
    seed: int = 0

    scheduled: ClassVar[Mapping[str, Range]] = {
        "inner_lr": Range(above=0),
        "gamma": Range(least=0),
        "noise": Range(least=0),
        "alpha": Range(above=0, most=1),
        "inner_momentum": Range(least=0, most=1),
        "inner_weight_decay": Range(least=0),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0).check("scoping", self.scoping)
        if not isinstance(self.L, int) or isinstance(self.L, bool) or self.L < 0:
            raise ValueError(f"L must be a whole number of at least 0, got {self.L!r}")

    def spring(self, context: StepContext) -> list[float]:
        """gamma_t = gamma (1 + scoping)^t for each tensor; an error where the walk diverges."""
        grown = math.exp(min(context.step * math.log1p(self.scoping), 700.0))
        found = [gamma * grown for gamma in context.settings["gamma"]]
        for gamma, lr in zip(found, context.settings["inner_lr"], strict=True):
            if gamma * lr >= 2:
                raise ValueError(
                    f"gamma has grown to {gamma:g} at step {context.step}: with inner_lr={lr:g} "
                    "the walk would diverge, because inner_lr gamma has to stay below 2. Lower "
                    "scoping, or gamma or inner_lr in opt.param_groups."
                )
        return found


class Walk:
    """One random walk around x_t: `x` is its current point, `mu` the mean of its points.

    The weights of `context` have to be unperturbed at each step of the walk.
    """

    def __init__(self, rules: Langevin, context: StepContext) -> None:
        self.rules, self.context = rules, context
        self.x, self.mu = self._copy_of_w(), self._copy_of_w()
        self.momentum = [torch.zeros_like(x) for x in self.x]
        self.moved = [False] * len(self.x)
        self.gamma = rules.spring(context)

    def _copy_of_w(self) -> Vector:
        """Of float32 at least: an inner step may be less than an ulp of low precision."""
        wide = [at_least_float32(w.dtype) for w in self.context.w]
        pairs = zip(self.context.w, wide, strict=True)
        return [w.detach().to(dtype, copy=True) for w, dtype in pairs]

    def step(self, g: Gradient, at: int) -> None:
        """One step, whose noise depends on its number `at`; a tensor without gradient stays."""
        rows = [i for i, gradient in enumerate(g) if gradient is not None]
        x, start = [self.x[i] for i in rows], [self.context.w[i] for i in rows]
        lr = self._settings("inner_lr", rows)
        push = self._with_momentum([g[i] for i in rows], x, rows)  # type: ignore[misc]
        spring = torch._foreach_sub(start, x)
        torch._foreach_mul_(spring, [self.gamma[i] for i in rows])
        torch._foreach_sub_(push, spring)  # grad f(x') - gamma (x - x')
        torch._foreach_mul_(push, lr)
        torch._foreach_sub_(x, push)
        self._add_noise(x, lr, rows, at)
        lerp_(self.mu, self.x, self.context.settings["alpha"])
        self.moved = [before or i in rows for i, before in enumerate(self.moved)]

    def _with_momentum(self, g: Vector, x: Vector, rows: list[int]) -> Vector:
        """g + decay x', then Nesterov: m <- momentum m + g and g + momentum m; new tensors."""
        decay = self._settings("inner_weight_decay", rows)
        keep = self._settings("inner_momentum", rows)
        push = list(torch._foreach_mul(x, decay))
        torch._foreach_add_(push, g)
        m = [self.momentum[i] for i in rows]
        torch._foreach_mul_(m, keep)
        torch._foreach_add_(m, push)
        torch._foreach_add_(push, torch._foreach_mul(m, keep))
        return push

    def _add_noise(self, x: Vector, lr: list[float], rows: list[int], at: int) -> None:
        """x' <- x' + noise sqrt(2 lr) N, N a function of seed, step, place in the walk, tensor."""
        noise = self._settings("noise", rows)
        if any(noise):
            drawn = self.context.noise(mix_seed(self.rules.seed, at))
            N = [drawn[i] for i in rows]
            torch._foreach_mul_(N, [e * math.sqrt(2 * r) for e, r in zip(noise, lr, strict=True)])
            torch._foreach_add_(x, N)

    def _settings(self, name: str, rows: list[int]) -> list[float]:
        return [self.context.settings[name][i] for i in rows]

    def descent(self) -> Gradient:
        """u = x - mu, None for tensors that never had a gradient."""
        u = fitted(torch._foreach_sub(self.context.w, self.mu), 1.0, self.context.w)
        return [x if moved else None for x, moved in zip(u, self.moved, strict=True)]


class EntropySGD(Stepper):
    """Descends towards the mean of a random walk, which stays in wide valleys of the loss.

    u = x_t - mu, where x' = mu = x_t at first, then L times with a fresh batch and N ~ N(0, I):
    x' <- x' - inner_lr [grad f(x') - gamma_t (x_t - x')] + noise sqrt(2 inner_lr) N,
    mu <- (1 - alpha) mu + alpha x',  gamma_t = gamma (1 + scoping)^t

    Chaudhari et al., ICLR 2017; the factor gamma of the gradient of the local entropy is part of
    the base's lr: lr = 1 steps to mu. As in the paper's code, Nesterov's momentum acts on the
    gradients of a walk and is 0 at its start. Costs L gradient evaluations per step and keeps
    nothing between steps, four vectors during a pass. L = 0 is the base, bit for bit.

    The walk begins at x_t, with the closure given to `step`: its loss, at x_t, is returned. The
    other L - 1 batches come from the source, which saves its own position; a skipped step does not
    give them back.

    Args:
        base: the optimizer to wrap, an instance of any kind that steps without a closure.
        L: gradients per step.
        inner_lr: learning rate of the walk.
        gamma: strength of the spring to x_t at the first step.
        scoping: relative growth of gamma per step. inner_lr gamma_t has to stay below 2: with the
            defaults that is so for 6,500 steps.
        noise: temperature of the walk; 0 for none.
        alpha: weight of the newest point in the mean, in (0, 1].
        inner_momentum: Nesterov's momentum of the walk.
        inner_weight_decay: weight decay of the walk; in the paper's code that of the base.
        source: fresh batches: an object with `fresh()`, or such a function itself.
        seed: seed of the noise, a function of seed, step, number in the walk and tensor.
        **options: see `Stepper`. BatchNorm's "clean" pass is the one at x_t.

    Raises:
        TypeError: L is above 1 and there is no source.

    Example:
        >>> w = torch.tensor([8.0], requires_grad=True)
        >>> base = torch.optim.SGD([w], lr=1.0)
        >>> opt = EntropySGD(base, L=1, inner_lr=0.5, noise=0.0, inner_momentum=0.0)
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = 0.5 * w.square().sum()
        ...     loss.backward()
        ...     return loss
        >>> opt.step(closure).item()
        32.0
        >>> w  # the walk goes from 8 to 4, and alpha is 0.25
        tensor([7.], requires_grad=True)
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        L: int = 20,
        inner_lr: Setting = 0.1,
        gamma: Setting = 0.03,
        scoping: float = 1e-3,
        noise: Setting = 1e-4,
        alpha: Setting = 0.25,
        inner_momentum: Setting = 0.9,
        inner_weight_decay: Setting = 0.0,
        source: Source | Fresh | None = None,
        seed: int = 0,
        **options: Unpack[CommonOptions],
    ) -> None:
        self.langevin = Langevin(
            L, inner_lr, gamma, scoping, noise, alpha, inner_momentum, inner_weight_decay, seed
        )
        self.fresh = fresh_of(source, L)
        super().__init__(base, rho=None, parts=(self.langevin,), **options)

    def _compute_u(self, batch: Data) -> None:
        context = self._context()
        if self.langevin.L == 0:
            u = zeros_for_missing(self._gradient_of(batch, context), context.w)
            self._publish(context, u, u, None, None)
            return
        walk = Walk(self.langevin, context)
        first: Vector = []
        for k in range(self.langevin.L):
            g = self._gradient_at(walk.x, batch if k == 0 else self._next_batch(), context, k)
            if k == 0 and self._observers:
                first = [x.clone() for x in zeros_for_missing(g, context.w)]
            walk.step(g, k)
        for p, gradient in zip(context.w, walk.descent(), strict=True):
            p.grad = gradient
        self._norms.descent_in_range = not self._norms.checks  # the norm of u has not been read
        u = zeros_for_missing(context.gradients(), context.w)
        self._publish(context, first, u, None, None)

    def _gradient_at(self, x: Vector, data: Data, context: StepContext, k: int) -> Gradient:
        """grad f(x') on some data; the weights are restored afterwards."""
        held = self.statistics.second_pass() if k else nullcontext()
        with self._perturbation.at(context, x if k else None), held:
            g = self._gradient_of(data, context)
        for p, gradient in zip(context.w, g, strict=True):
            check_dense(p, gradient)
        self._current.note(climbed=k > 0)
        return g

    def _next_batch(self) -> Data:
        data = self.fresh()
        if not callable(data):
            raise TypeError(f"the source gave {data!r}: fresh() has to give a closure")
        return data


def fresh_of(source: Any, L: int) -> Fresh:
    """The function that gives fresh batches, or a TypeError if there is none and it is needed."""
    fresh: Any = getattr(source, "fresh", source)
    if callable(fresh) or (source is None and L <= 1):
        found: Fresh = fresh
        return found
    raise TypeError(
        f"EntropySGD with L={L} takes {L - 1} fresh batches per step besides the one given to "
        "step(): pass source=, an object whose fresh() gives the closure of a new batch, or such "
        f"a function, not {source!r}"
    )


def check_dense(p: Tensor, gradient: Tensor | None) -> None:
    """Raises TypeError if a gradient is sparse or complex."""
    if gradient is None:
        return
    if gradient.layout != torch.strided or p.is_complex():
        kind = "is complex" if p.is_complex() else "has a sparse gradient"
        raise TypeError(
            f"a parameter of shape {tuple(p.shape)} {kind}, which EntropySGD cannot average: "
            "give it an optimizer of its own, or make it dense (Embedding(sparse=False))"
        )
