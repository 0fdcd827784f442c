"""Entropy-SGD: goes to the mean of a random walk around the weights, where the valley is wide.

x' = mu = x_t, then L times, each with a fresh batch and N from a standard normal,

    x' <- x' - inner_lr [grad f(x') - gamma_t (x_t - x')] + noise sqrt(2 inner_lr) N
    mu <- (1 - alpha) mu + alpha x'

and u = x_t - mu goes to the base. The walk is a function of the weights, the step, the seed and the
batches: nothing is remembered from one step to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer

from vasso.here import Gradient, Here, Memory
from vasso.parts import Part, Range, Setting
from vasso.plans import Data, Source
from vasso.randomness import mixed
from vasso.steppers.stepper import Stepper, StepperOptions
from vasso.vectors import Vector, lerp_

Fresh: TypeAlias = Callable[[], Data]
"""Gives the closure of a batch that has not been used yet."""


@dataclass(frozen=True)
class Langevin(Part):
    """The random walk: stochastic gradient Langevin dynamics, held to x_t by a spring gamma.

    Args:
        L: how many steps it takes, each for one gradient.
        inner_lr: its learning rate.
        gamma: how strong the spring is at first.
        scoping: gamma grows by this share in each step of the base.
        noise: its temperature; 0 for none.
        alpha: weight of the newest point in the mean, in (0, 1].
        inner_momentum: Nesterov's, of the gradients in one walk, in [0, 1).
        inner_weight_decay: of the walk.
        seed: of the noise.
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

    def spring(self, here: Here) -> list[float]:
        """gamma_t = gamma (1 + scoping)^t for each tensor.

        Args:
            here: the step.

        Returns:
            The numbers.

        Raises:
            ValueError: gamma_t has grown so large that a step of the walk would overshoot x_t by
                more than its distance from it.
        """
        grown = math.exp(min(here.step * math.log1p(self.scoping), 700.0))
        found = [gamma * grown for gamma in here.settings["gamma"]]
        for gamma, lr in zip(found, here.settings["inner_lr"], strict=True):
            if gamma * lr >= 2:
                raise ValueError(
                    f"gamma has grown to {gamma:g} at step {here.step}: with inner_lr={lr:g} the "
                    "walk would fly apart, because inner_lr gamma has to stay below 2. Lower "
                    "scoping, or gamma or inner_lr in opt.param_groups."
                )
        return found

    def walk(self, here: Here) -> Walk:
        """A walk that begins at the weights of a step.

        Args:
            here: the step, with the weights at home.

        Returns:
            The walk, before its first step.
        """
        return Walk(self, here)


class Walk:
    """One random walk around x_t.

    Args:
        rules: how it goes.
        here: the step; its weights have to be at home whenever the walk goes on.

    Attributes:
        x: x', where the walk is.
        mu: the mean of where it has been.
        moved: which tensors have had a gradient.
    """

    def __init__(self, rules: Langevin, here: Here) -> None:
        self.rules, self.here = rules, here
        self.x, self.mu = self._copy_of_w(), self._copy_of_w()
        self.momentum = [torch.zeros_like(x) for x in self.x]
        self.moved = [False] * len(self.x)
        self.gamma = rules.spring(here)

    def _copy_of_w(self) -> Vector:
        """Of float32 at least: an inner step may be less than an ulp of low precision."""
        wide = [torch.promote_types(w.dtype, torch.float32) for w in self.here.w]
        pairs = zip(self.here.w, wide, strict=True)
        return [w.detach().to(dtype, copy=True) for w, dtype in pairs]

    def go_on(self, g: Gradient, at: int) -> None:
        """One step; a tensor without gradient stays where it is.

        Args:
            g: the gradient at x', one or None for each tensor.
            at: the number of the step in this walk, of which the noise is a function.
        """
        rows = [i for i, gradient in enumerate(g) if gradient is not None]
        x, home = [self.x[i] for i in rows], [self.here.w[i] for i in rows]
        lr = self._settings("inner_lr", rows)
        push = self._with_momentum([g[i] for i in rows], x, rows)  # type: ignore[misc]
        spring = torch._foreach_sub(home, x)
        torch._foreach_mul_(spring, [self.gamma[i] for i in rows])
        torch._foreach_sub_(push, spring)  # grad f(x') - gamma (x - x')
        torch._foreach_mul_(push, lr)
        torch._foreach_sub_(x, push)
        self._shake(x, lr, rows, at)
        lerp_(self.mu, self.x, self.here.settings["alpha"])
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

    def _shake(self, x: Vector, lr: list[float], rows: list[int], at: int) -> None:
        """x' <- x' + noise sqrt(2 lr) N, N a function of seed, step, place in the walk, tensor."""
        noise = self._settings("noise", rows)
        if any(noise):
            drawn = self.here.noise(mixed(self.rules.seed, at))
            N = [drawn[i] for i in rows]
            torch._foreach_mul_(N, [e * math.sqrt(2 * r) for e, r in zip(noise, lr, strict=True)])
            torch._foreach_add_(x, N)

    def _settings(self, name: str, rows: list[int]) -> list[float]:
        return [self.here.settings[name][i] for i in rows]

    def way_home(self) -> Gradient:
        """u = x - mu, None for tensors that never had a gradient."""
        u = torch._foreach_sub(self.mu, self.here.w)
        torch._foreach_neg_(u)
        pairs = zip(u, self.here.w, self.moved, strict=True)
        return [x.to(w.dtype) if moved else None for x, w, moved in pairs]


class EntropySGD(Stepper):
    """Descends towards the mean of a random walk: wide valleys hold the walk, narrow ones do not.

    u = x_t - mu, with mu the running mean of L steps of Langevin dynamics around x_t,
    x' <- x' - inner_lr [grad f(x') - gamma_t (x_t - x')] + noise sqrt(2 inner_lr) N,
    gamma_t = gamma (1 + scoping)^t

    Chaudhari et al., ICLR 2017; the factor gamma of the gradient of the local entropy is left to
    the base's lr: 1 goes all the way to mu. As in the paper's code, Nesterov's momentum acts on the
    gradients of a walk and starts from rest in each. Costs L gradient evaluations per step and
    keeps nothing between steps, four vectors during a pass. L = 0 is the base, bit for bit.

    The walk begins at x_t, with the closure given to `step`: its loss, at x_t, is returned. The
    other L - 1 batches come from the source; what a skipped step has drawn of them is gone, and
    where it stands is its own to save.

    Args:
        base: the optimizer to wrap, an instance of any kind that steps without a closure.
        L: gradients per step.
        inner_lr: learning rate of the walk.
        gamma: how strongly the walk is held to x_t, at the first step.
        scoping: by which share gamma grows from step to step. inner_lr gamma_t has to stay below
            2: with the defaults that is so for 6,500 steps.
        noise: of the walk; 0 for none.
        alpha: weight of the newest point in the mean, in (0, 1].
        inner_momentum: Nesterov's momentum of the walk.
        inner_weight_decay: of the walk; the paper's code takes the base's here too.
        source: where fresh batches come from: an object with `fresh()`, or such a function itself.
        seed: of the noise, which is a function of seed, step, place in the walk and tensor.
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
        >>> w  # the walk goes from 8 to 4, and a quarter of the way counts
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
        **options: Unpack[StepperOptions],
    ) -> None:
        self.langevin = Langevin(
            L, inner_lr, gamma, scoping, noise, alpha, inner_momentum, inner_weight_decay, seed
        )
        self.fresh = fresh_of(source, L)
        super().__init__(base, rho=None, parts=(self.langevin,), **options)

    def _find(self, batch: Data) -> None:
        here = self._everywhere()
        if self.langevin.L == 0:
            self._gradient_of(batch, here)
            self._tell(here, filled(here), filled(here), None, [])
            return
        walk = self.langevin.walk(here)
        first: Vector = []
        for k in range(self.langevin.L):
            g = self._gradient_at(walk.x, batch if k == 0 else self._next_batch(), here, k)
            if k == 0 and self._now.observers:
                first = [x.clone() for x in filled(here)]
            walk.go_on(g, k)
        for p, gradient in zip(here.w, walk.way_home(), strict=True):
            p.grad = gradient
        self._now.descent_is_safe = self.nonfinite == "ignore"  # u itself has not been measured
        self._tell(here, first, filled(here), None, [])

    def _gradient_at(self, x: Vector, data: Data, here: Here, k: int) -> Gradient:
        """grad f(x') on some data; the weights are home again afterwards."""
        held = self.statistics.second_pass() if k else nullcontext()
        with self._climb(here, Memory({})) as borrowed, held:
            if k:
                borrowed.go_to(x)
            g = self._gradient_of(data, here)
        for p, gradient in zip(here.w, g, strict=True):
            check_dense(p, gradient)
        self._now.summary = replace(self._now.summary, climbed=k > 0)
        return g

    def _next_batch(self) -> Data:
        data = self.fresh()
        if not callable(data):
            raise TypeError(f"the source gave {data!r}: fresh() has to give a closure")
        return data

    def _kept(self) -> dict[Tensor, list[str]]:
        return {p: [] for p in self._params()}  # no vectors


def fresh_of(source: Any, L: int) -> Fresh:
    """The function that gives fresh batches.

    Args:
        source: an object with `fresh()`, such a function, or None.
        L: how many batches a step takes.

    Returns:
        The function.

    Raises:
        TypeError: there is none and it would be needed.
    """
    fresh: Any = getattr(source, "fresh", source)
    if callable(fresh) or (source is None and L <= 1):
        found: Fresh = fresh
        return found
    raise TypeError(
        f"EntropySGD with L={L} takes {L - 1} fresh batches per step beside the one given to "
        "step(): pass source=, an object whose fresh() gives the closure of a new batch, or such "
        f"a function, not {source!r}"
    )


def check_dense(p: Tensor, gradient: Tensor | None) -> None:
    """Raises if a parameter with this gradient cannot walk.

    Args:
        p: the parameter.
        gradient: its gradient.

    Raises:
        TypeError: it is sparse or complex.
    """
    if gradient is None:
        return
    if gradient.layout != torch.strided or p.is_complex():
        kind = "is complex" if p.is_complex() else "has a sparse gradient"
        raise TypeError(
            f"a parameter of shape {tuple(p.shape)} {kind}, which EntropySGD cannot average: "
            "give it an optimizer of its own, or make it dense (Embedding(sparse=False))"
        )


def filled(here: Here) -> Vector:
    """The gradients of now, zeros where there is none.

    Args:
        here: the step.

    Returns:
        One tensor for each of `here.w`.
    """
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in here.w]
