"""Directions: the slope d along which the weights are perturbed, from the gradients seen so far.

| direction      | d_t                                              | remembers   | gradients |
|----------------|--------------------------------------------------|-------------|-----------|
| `Ema`          | (1 - theta) d_{t-1} + theta g_t(x_t)             | d           | 1         |
| `Noisy`        | the same of g_t(x_t) + noise                     | d           | 1         |
| `TopEigenvector` | the unit slope, tilted to the Hessian's v      | d, v        | 1 + 5 / every |
| `AffineEma`    | g_t(x_t) - sigma m_t, m_t the average            | m           | 1         |
| `Storm`        | g_t(x_t) + (1 - a) (d_{t-1} - g_t(x_{t-1}))      | d, x        | 2         |
| `Sarah`        | g_t(x_t) - g_t(x_{t-1}) + d_{t-1}                | d, x        | 2         |
| `Svrg`         | g_t(x_t) - g_t(snapshot) + full gradient there   | snapshot, mu | 2        |
| `LastGradient` | the gradient of the step before                  | last        | 0         |
| `BaseMomentum` | the momentum of the base (epsilon goes against it) |           | 0         |
| `Random`       | noise                                            |             | 0         |

The last column counts the gradients for the slope; the one at w + epsilon is not included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch.optim import Optimizer

from vasso import validation
from vasso.numerics.rng import mix_seed
from vasso.numerics.vectors import (
    Gradient,
    Vector,
    as_dtypes,
    by_peak,
    dot,
    full_precision,
    lerp_,
    norm,
    zeros_for_missing,
)
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState
from vasso.parts.part import UNNAMED, Part, Range, Setting


@dataclass(frozen=True)
class Direction(Part):
    """The slope d of a step.

    Attributes:
        sign: 1 to perturb along d, -1 against it.
        asks_more: the direction takes extra gradients (`context.gradient`), which only
            `step(closure)` can give.
    """

    sign: ClassVar[int] = 1
    needs_clean: ClassVar[bool] = True
    asks_more: ClassVar[bool] = False

    @property
    def has_stale(self) -> bool:
        """Whether later steps can do without a gradient at w."""
        return not self.needs_clean

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        """The slope d; called once per step at w, and at each inner point of an ascent.

        Args:
            g: the gradient, one tensor for each of `context.w`; None if none was taken.
            memory: the vectors this part remembers, to be updated in place.
            context: the step.
            **settings: the value of each scheduled setting for each tensor.

        Returns:
            One tensor for each of `context.w`; it may be g itself.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Ema(Direction):
    """Averages the slope over steps, so that one noisy batch cannot turn it (the paper's eq. 4).

    d_t = (1 - theta) d_{t-1} + theta g_t(x_t)

    The average is over gradients at x_t, never at x_t + epsilon_t. At theta = 1 the slope is the
    batch gradient, as in SAM, and nothing is remembered. For weights below float32 the slope is
    kept in float32, unless `dtype` says otherwise.

    Args:
        theta: weight of the newest gradient, in (0, 1]. A small theta averages over many steps.
        init: the slope at a tensor's first gradient: "first" is that gradient (as in the paper's
            code), "zero" is theta times it, as if the slope had been 0 before.
        stale: what to do in a step without a gradient at w: "stay" keeps the slope, "follow" uses
            the last gradient at w + epsilon instead.
        dtype: torch.bfloat16 keeps the slope in half of the memory. Each update is rounded up or
            down at random, so that it is right on average; the random numbers are a function of
            the step. Default: the dtype of the weights, at least float32.

    Example:
        >>> print(Ema(0.4, dtype=torch.bfloat16))
        Ema(init='first', stale=None, dtype=torch.bfloat16)
    """

    theta: Setting = 0.4
    init: Literal["first", "zero"] = "first"
    stale: Literal["stay", "follow"] | None = None
    dtype: torch.dtype | None = field(default=None, kw_only=True, metadata=UNNAMED)

    scheduled: ClassVar[Mapping[str, Range]] = {"theta": Range(above=0, most=1)}
    remembers: ClassVar[tuple[str, ...]] = ("d", "h")

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("init", self.init, "first", "zero")
        validation.one_of("stale", self.stale, "stay", "follow", None)
        if self.dtype not in (torch.bfloat16, None):
            raise ValueError(f"dtype must be torch.bfloat16 or None, got {self.dtype!r}")

    @property
    def has_stale(self) -> bool:
        return self.stale is not None

    def keeps(self, **settings: float) -> tuple[str, ...]:
        """The slope, if theta < 1 or `stale` is given; the last gradient too for "follow"."""
        if self.stale == "follow":
            return ("d", "h")
        return ("d",) if settings["theta"] < 1 or self.stale else ()

    def dtype_of(self, name: str, weights: torch.dtype) -> torch.dtype:
        return self.dtype if self.dtype and name == "d" else super().dtype_of(name, weights)

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        theta = settings["theta"]
        d = memory.recall("d")
        seen: Gradient = list(memory.recall("h") if g is None else g)
        if g is not None or self.stale == "follow":
            old = [i for i, s in enumerate(d) if s is not None and seen[i] is not None]
            seed = mix_seed(context.step, 0) if self.dtype else None  # 1, 2, ... round weights
            lerp_(_present(d, old), _present(seen, old), [theta[i] for i in old], seed)
        if g is None:
            return zeros_for_missing(d, context.w)
        if all(s is None for s in d) and not any("d" in self.keeps(theta=t) for t in theta):
            return g
        for i, slope in enumerate(d):
            if slope is None and "d" in self.keeps(theta=theta[i]):
                start = 1.0 if self.init == "first" else theta[i]
                first = torch.mul(full_precision(g[i]), start)
                d[i] = memory.store("d", i, first.to(self.dtype or first.dtype))
        return [g[i] if slope is None else slope for i, slope in enumerate(d)]

    def after(self, h: Gradient, memory: PartState, context: StepContext) -> None:
        if self.stale == "follow":
            memory.keep("h", h)


def _present(v: Gradient, rows: list[int]) -> Vector:
    """The tensors of these rows, none of which is None."""
    return [x for x in (v[i] for i in rows) if x is not None]


@dataclass(frozen=True)
class Noisy(Ema):
    """The gradient plus noise as slope: d = g_t(x_t) + zeta, zeta ~ N(0, s^2 I).

    A control experiment of the VaSSO paper (Fig. 1b). For P weights,
    s = sigma + ||g|| sqrt(kappa / P).

    Args:
        theta: as for `Ema`, which averages the noisy gradients; so are init and stale.
        sigma: standard deviation of the noise that does not depend on the gradient.
        kappa: power of the other noise as a multiple of the gradient's.
        seed: seed of the noise, which is a function of seed and step.
    """

    theta: Setting = 1.0
    sigma: float = 0.0
    kappa: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0).check("sigma", self.sigma)
        Range(least=0).check("kappa", self.kappa)

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        if g is None:
            return super().__call__(g, memory, context, **settings)
        size = sum(x.numel() for x in g)
        scale = self.sigma + context.norm(g) * math.sqrt(self.kappa / max(size, 1))
        noise = torch._foreach_mul(context.noise(self.seed), scale)
        noisy = torch._foreach_add(noise, as_dtypes(g, list(noise)))
        return super().__call__(list(noisy), memory, context, **settings)


@dataclass(frozen=True)
class TopEigenvector(Ema):
    """The unit slope, tilted towards the Hessian's top eigenvector v; for `Unnormalised`.

    d = n + alpha sign(g.v) (v - (n.v) n),  n the averaged slope over its length

    Eigen-SAM, Luo et al., NeurIPS 2024: epsilon = rho d is not renormalised, so that its length is
    rho sqrt(1 + alpha^2 sin^2) of the angle between n and v. The sign of v does not matter. Every
    `every` steps, and before the first perturbation, v takes `steps` steps of the power method from
    where it was:

    v <- H v / ||H v||,  H v ~ (g_t(x_t + h v) - g_t(x_t)) / h,  h = sqrt(ulp) (1 + ||x_t||)

    The products are differences of the closure's gradients, one gradient each, which any closure
    can give. They are those of the batch in training mode, where the authors differentiate twice in
    evaluation mode; their code perturbs by rho g, not normalised, until v is known. With several
    groups the Hessian is that of the tensors that are perturbed.

    Args:
        theta: weight of the newest gradient in the slope; 1 is the published method.
        alpha: strength of the tilt, at least 0; 0 is SAM.
        every: steps between updates of v.
        steps: products with the Hessian in an update.
        seed: seed of the first v.
    """

    theta: Setting = 1.0
    alpha: Setting = 0.2
    every: int = 100
    steps: int = 5
    seed: int = 0

    scheduled: ClassVar[Mapping[str, Range]] = {
        "theta": Range(above=0, most=1),
        "alpha": Range(least=0),
    }
    remembers: ClassVar[tuple[str, ...]] = ("d", "h", "v")
    asks_more: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.count("every", self.every)
        validation.count("steps", self.steps)

    def keeps(self, **settings: float) -> tuple[str, ...]:
        return (*super().keeps(**settings), "v")

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        slope = super().__call__(g, memory, context, **settings)
        kept = memory.recall("v")
        due = context.step % self.every == 0 or all(x is None for x in kept)
        if g is not None and due and not context.is_perturbed:
            memory.keep("v", [*self._updated(kept, g, context)])
        v = zeros_for_missing(memory.recall("v"), context.w)
        length = context.norm(slope)  # in float64 where float32 cannot hold it
        divisor = torch.where(length > 0, length, 1.0)
        quotients = [x.to(divisor.dtype) / divisor.to(x.device) for x in slope]
        n = as_dtypes(quotients, [full_precision(x) for x in slope])
        along = dot(n, v)
        rows = zip(n, v, settings["alpha"], strict=True)
        return [x + alpha * torch.sign(along) * (y - along * x) for x, y, alpha in rows]

    def _updated(self, v: Gradient, g: Vector, context: StepContext) -> Vector:
        """v after some steps of the power method; a zero product leaves it as it is."""
        fresh = all(x is None for x in v)
        now = _unit(context.noise(self.seed) if fresh else zeros_for_missing(v, context.w))
        ulp = max(torch.finfo(w.dtype).eps for w in context.w)
        h = math.sqrt(ulp) * (1 + norm([w.detach() for w in context.w]))
        for _ in range(self.steps):
            at = [w.detach() + (h * x).to(w.dtype) for w, x in zip(context.w, now, strict=True)]
            there = zeros_for_missing(context.gradient(at=at), context.w)
            small, _peak = by_peak([*there, *g])
            product = torch._foreach_sub(small[: len(g)], small[len(g) :])
            now = _unit(list(product), otherwise=now)
        return now


def _unit(v: Vector, otherwise: Vector | None = None) -> Vector:
    """v / ||v||, or the other vector if v is 0; no host synchronisation."""
    length = norm(v)
    rows = zip(v, otherwise or v, strict=True)
    return [torch.where(length > 0, x / length, y) for x, y in rows]


@dataclass(frozen=True)
class AffineEma(Direction):
    """Subtracts the average from the gradient; the rest is specific to the batch.

    m_t = lam m_{t-1} + (1 - lam) g_t(x_t),  d_t = g_t(x_t) - sigma m_t

    Friendly-SAM, Li, Zhou, He, Cheng and Huang, CVPR 2024: the opposite of variance suppression.
    The first step perturbs along g, the first value of the average.

    Args:
        sigma: how much of the average is subtracted; 0 is SAM.
        lam: weight of the old average, in [0, 1).
        use: "new", the average with this gradient in it as in the paper, or "old", without it as in
            the authors' code. At sigma = 1 both have the same direction.
    """

    sigma: Setting = 1.0
    lam: float = 0.9
    use: Literal["new", "old"] = "new"

    scheduled: ClassVar[Mapping[str, Range]] = {"sigma": Range()}
    remembers: ClassVar[tuple[str, ...]] = ("m",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lam < 1:
            raise ValueError(f"lam must be at least 0 and below 1, got {self.lam}")
        validation.one_of("use", self.use, "new", "old")

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        g, sigma, m = _not_none(g), settings["sigma"], memory.recall("m")
        old = [i for i, average in enumerate(m) if average is not None]
        before = _present(m, old) if self.use == "new" else [x.clone() for x in _present(m, old)]
        lerp_(_present(m, old), [g[i] for i in old], [1 - self.lam] * len(old))
        for i in (i for i, average in enumerate(m) if average is None):
            memory.store("m", i, full_precision(g[i]).clone())
        d = list(g)
        for i, average in zip(old, before, strict=True):
            d[i] = torch.sub(g[i], average, alpha=sigma[i])
        return d


@dataclass(frozen=True)
class Storm(Direction):
    """Corrects the average for the movement of the weights since the last step (STORM).

    d_t = g_t(x_t) + (1 - a) (d_{t-1} - g_t(x_{t-1}))

    Cutkosky and Orabona, 2019. As a slope for SAM it is VaSSO with a correction that costs one more
    gradient of the same batch. a = 1 is SAM.

    Args:
        a: weight of the newest gradient, in (0, 1].
    """

    a: Setting = 0.1

    scheduled: ClassVar[Mapping[str, Range]] = {"a": Range(above=0, most=1)}
    remembers: ClassVar[tuple[str, ...]] = ("d", "x")
    asks_more: ClassVar[bool] = True
    remembers_all: ClassVar[bool] = True

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        g, old = _not_none(g), memory.recall("d")
        if all(slope is None for slope in old):
            memory.keep("d", list(g))
            memory.keep("x", [w.detach() for w in context.w])
            return g
        back = context.gradient(at=_or_current(memory.recall("x"), context))
        memory.keep("x", [w.detach() for w in context.w])
        for i, (slope, correction) in enumerate(zip(old, back, strict=True)):
            if slope is None:
                memory.store("d", i, g[i].clone())
            elif correction is not None:
                slope.sub_(correction).mul_(1 - settings["a"][i]).add_(g[i])
            else:
                slope.copy_(g[i])
        return _all(memory.recall("d"))


@dataclass(frozen=True)
class Sarah(Direction):
    """Adds differences of gradients of the same batch to a full gradient (SARAH).

    d_t = g_t(x_t) - g_t(x_{t-1}) + d_{t-1},  d_t = full gradient at x_t every `every` steps

    Nguyen, Liu, Scheinberg and Takac, 2017; the VaSSO paper's "straightforward attempt", rejected
    there for its cost. Needs `source=`.

    Args:
        every: steps between full gradients.
    """

    every: int = 50

    remembers: ClassVar[tuple[str, ...]] = ("d", "x")
    asks_more: ClassVar[bool] = True
    remembers_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.count("every", self.every)

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        g, old = _not_none(g), memory.recall("d")
        if context.step % self.every == 0 or any(slope is None for slope in old):
            memory.keep("d", context.gradient(data="full"))
        else:
            back = context.gradient(at=_or_current(memory.recall("x"), context))
            for slope, new, correction in zip(_all(old), g, back, strict=True):
                slope.add_(new if correction is None else full_precision(new) - correction)
        memory.keep("x", [w.detach() for w in context.w])
        return _all(memory.recall("d"))


@dataclass(frozen=True)
class Svrg(Direction):
    """Corrects the gradient by the one at a snapshot whose full gradient mu is known (SVRG).

    d_t = g_t(x_t) - g_t(snapshot) + mu,  snapshot and mu taken every `every` steps

    Johnson and Zhang, 2013; see `Sarah`. Needs `source=`.

    Args:
        every: steps between snapshots; at 1 the slope is the full gradient.
    """

    every: int = 50

    remembers: ClassVar[tuple[str, ...]] = ("snapshot", "mu")
    asks_more: ClassVar[bool] = True
    remembers_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.count("every", self.every)

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        g, mu = _not_none(g), memory.recall("mu")
        if context.step % self.every == 0 or any(x is None for x in mu):
            memory.keep("mu", context.gradient(data="full"))
            memory.keep("snapshot", [w.detach() for w in context.w])
            return _all(memory.recall("mu"))
        back = context.gradient(at=_or_current(memory.recall("snapshot"), context))
        return [
            new + full if there is None else full_precision(new) - there + full
            for new, there, full in zip(g, back, _all(mu), strict=True)
        ]


@dataclass(frozen=True)
class LastGradient(Direction):
    """The gradient of the step before: d_t = g_{t-1}(x_{t-1} + epsilon_{t-1}).

    S2-SAM, Ji et al., NeurIPS 2024. The first step does not perturb.
    """

    needs_clean: ClassVar[bool] = False
    remembers: ClassVar[tuple[str, ...]] = ("last",)

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        return zeros_for_missing(memory.recall("last"), context.w)

    def after(self, h: Gradient, memory: PartState, context: StepContext) -> None:
        memory.keep("last", h)


@dataclass(frozen=True)
class BaseMomentum(Direction):
    """The momentum v of the base: epsilon = -rho v / ||v||, where the base will move anyway.

    Momentum-SAM, Becker, Altrock and Risse, 2024: v is the buffer before this step's update
    (`momentum_buffer` or `exp_avg`). Costs no gradient; the first step does not perturb.
    """

    sign: ClassVar[int] = -1
    needs_clean: ClassVar[bool] = False

    def check_base(self, base: Optimizer) -> None:
        """Raises ValueError if the base has no momentum."""
        if not all(group.get("momentum") or "betas" in group for group in base.param_groups):
            raise ValueError(
                f"{type(base).__name__} has no momentum to perturb along: use SGD(momentum=0.9), "
                "Adam or another base that keeps one"
            )

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        entries = [context.base_state(p) for p in context.w]
        momentum = [e.get("momentum_buffer", e.get("exp_avg")) for e in entries]
        return zeros_for_missing(momentum, context.w)


@dataclass(frozen=True)
class Random(Direction):
    """A random direction, without a gradient at w: d ~ N(0, I).

    Args:
        seed: seed of the noise, which is a function of seed and step.
    """

    seed: int = 0

    needs_clean: ClassVar[bool] = False

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        return context.noise(self.seed)


def _all(v: Gradient) -> Vector:
    """All tensors, none of which is None."""
    return [x for x in v if x is not None]


def _not_none(g: Vector | None) -> Vector:
    """The gradient at w, which every step of this direction has."""
    assert g is not None
    return g


def _or_current(v: Gradient, context: StepContext) -> Vector:
    return [p.detach() if x is None else x for p, x in zip(context.w, v, strict=True)]
