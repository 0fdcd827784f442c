"""Which way is up? A direction turns the gradients seen so far into the slope d that is climbed.

| direction      | d_t                                              | remembers   | gradients |
|----------------|--------------------------------------------------|-------------|-----------|
| `Ema`          | (1 - theta) d_{t-1} + theta g_t(x_t)             | d           | 1         |
| `Noisy`        | the same of g_t(x_t) + noise                     | d           | 1         |
| `AffineEma`    | g_t(x_t) - sigma m_t, m_t the average            | m           | 1         |
| `Storm`        | g_t(x_t) + (1 - a) (d_{t-1} - g_t(x_{t-1}))      | d, x        | 2         |
| `Sarah`        | g_t(x_t) - g_t(x_{t-1}) + d_{t-1}                | d, x        | 2         |
| `Svrg`         | g_t(x_t) - g_t(snapshot) + full gradient there   | snapshot, mu | 2        |
| `LastGradient` | the gradient of the step before                  | last        | 0         |
| `BaseMomentum` | the momentum of the base, to be gone against     |             | 0         |
| `Random`       | noise                                            |             | 0         |

The last column counts the gradients that the slope costs; the one at w + epsilon comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch.optim import Optimizer

from vasso import checks
from vasso.here import Gradient, Here, Memory
from vasso.parts import Part, Range, Setting
from vasso.vectors import Vector, as_dtypes, full_precision, lerp_


@dataclass(frozen=True)
class Direction(Part):
    """Which way is up?

    Attributes:
        sign: 1 to climb along d, -1 against it.
        asks_more: the direction takes gradients of its own (`here.gradient`), which only
            `step(closure)` can give.
    """

    sign: ClassVar[int] = 1
    needs_clean: ClassVar[bool] = True
    asks_more: ClassVar[bool] = False

    @property
    def has_stale(self) -> bool:
        """Whether the direction can do without a gradient at w once it has seen one."""
        return not self.needs_clean

    def __call__(
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        """The slope d; called once per step before any climb, and at each inner point of an ascent.

        Args:
            g: the gradient at w, one tensor for each of `here.w`; None if none was taken.
            memory: the vectors this part remembers, to be updated in place.
            here: the step.
            **settings: the value of each scheduled setting for each tensor.

        Returns:
            One tensor for each of `here.w`; it may be g itself.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Ema(Direction):
    """Averages the slope over steps, so that one noisy batch cannot turn it (the paper's eq. 4).

    d_t = (1 - theta) d_{t-1} + theta g_t(x_t)

    The average is of gradients at successive weights x_t, never at x_t + epsilon_t. At theta = 1 it
    is the batch gradient, the slope of SAM, and nothing is remembered. For weights below float32
    the slope is kept in float32.

    Args:
        theta: weight of the newest gradient, in (0, 1]. Small theta is a long memory.
        init: the slope at a tensor's first gradient: "first" is that gradient (as the paper's code
            has it), "zero" theta times it, as if the slope had been 0 before.
        stale: what to do in a step without a gradient at w: "stay" with the slope, or "follow"
            the last gradient taken above w, which then takes the place of the missing one.

    Example:
        >>> Ema(0.4)
        Ema(theta=0.4, init='first', stale=None)
    """

    theta: Setting = 0.4
    init: Literal["first", "zero"] = "first"
    stale: Literal["stay", "follow"] | None = None

    scheduled: ClassVar[Mapping[str, Range]] = {"theta": Range(above=0, most=1)}
    remembers: ClassVar[tuple[str, ...]] = ("d", "h")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init not in ("first", "zero"):
            raise ValueError(f'init must be "first" or "zero", got {self.init!r}')
        if self.stale not in (None, "stay", "follow"):
            raise ValueError(f'stale must be "stay", "follow" or None, got {self.stale!r}')

    @property
    def has_stale(self) -> bool:
        """Whether it was told what to do without a gradient at w."""
        return self.stale is not None

    def keeps(self, **settings: float) -> tuple[str, ...]:
        """The slope below theta = 1 or if it may get stale; the last gradient to follow that."""
        if self.stale == "follow":
            return ("d", "h")
        return ("d",) if settings["theta"] < 1 or self.stale else ()

    def __call__(
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        theta = settings["theta"]
        d = memory.recall("d")
        seen: Gradient = list(memory.recall("h") if g is None else g)
        if g is not None or self.stale == "follow":
            old = [i for i, s in enumerate(d) if s is not None and seen[i] is not None]
            lerp_(_present(d, old), _present(seen, old), [theta[i] for i in old])
        if g is None:
            return _or_zero(d, here)
        if all(s is None for s in d) and not any(self.keeps(theta=t) for t in theta):
            return g
        for i, slope in enumerate(d):
            if slope is None and self.keeps(theta=theta[i]):
                start = 1.0 if self.init == "first" else theta[i]
                d[i] = memory.store("d", i, torch.mul(full_precision(g[i]), start))
        return [g[i] if slope is None else slope for i, slope in enumerate(d)]

    def after(self, h: Gradient, memory: Memory, here: Here) -> None:
        """Keeps the last gradient if the slope is to follow it."""
        if self.stale == "follow":
            memory.keep("h", h)


def _present(v: Gradient, rows: list[int]) -> Vector:
    """The tensors of these rows, which are there."""
    return [x for x in (v[i] for i in rows) if x is not None]


@dataclass(frozen=True)
class Noisy(Ema):
    """The slope of a gradient with noise on it: d = g_t(x_t) + zeta, zeta ~ N(0, s^2 I).

    A probe of the VaSSO paper (Fig. 1b): an adversary that is harmed on purpose.

    Args:
        theta: as for `Ema`, which averages the noisy gradients.
        init: as for `Ema`.
        stale: as for `Ema`.
        sigma: standard deviation of the noise, added to
        kappa: the noise's power as a multiple of the gradient's: s = ||g|| sqrt(kappa / P) for P
            weights.
        seed: of the noise, which is a function of seed and step.
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
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        if g is None:
            return super().__call__(g, memory, here, **settings)
        size = sum(x.numel() for x in g)
        scale = self.sigma + here.norm(g) * math.sqrt(self.kappa / max(size, 1))
        noise = torch._foreach_mul(here.noise(self.seed), scale)
        noisy = torch._foreach_add(noise, as_dtypes(g, list(noise)))
        return super().__call__(as_dtypes(list(noisy), g), memory, here, **settings)


@dataclass(frozen=True)
class AffineEma(Direction):
    """Takes the average out of the gradient and climbs along what is special to the batch.

    m_t = lam m_{t-1} + (1 - lam) g_t(x_t),  d_t = g_t(x_t) - sigma m_t

    Friendly-SAM, Li, Zhou, He, Cheng and Huang, CVPR 2024: the opposite of variance suppression.
    The first step climbs along g, which the average starts from.

    Args:
        sigma: how much of the average is taken out; 0 is SAM.
        lam: weight of the old average, in [0, 1).
        use: "new", the average with this gradient in it as in the paper, or "old", without it as in
            the authors' code. At sigma = 1 both point the same way.
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
        if self.use not in ("new", "old"):
            raise ValueError(f'use must be "new" or "old", got {self.use!r}')

    def __call__(
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        g, sigma, m = _given(g), settings["sigma"], memory.recall("m")
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
    """Corrects the average for the way the weights have gone since (STORM).

    d_t = g_t(x_t) + (1 - a) (d_{t-1} - g_t(x_{t-1}))

    Cutkosky and Orabona, 2019; as a slope for SAM it is VaSSO with a correction that costs one more
    gradient of the same batch. a = 1 is SAM.

    Args:
        a: weight of the newest gradient, in (0, 1].
    """

    a: Setting = 0.1

    scheduled: ClassVar[Mapping[str, Range]] = {"a": Range(above=0, most=1)}
    remembers: ClassVar[tuple[str, ...]] = ("d", "x")
    asks_more: ClassVar[bool] = True
    remembers_all: ClassVar[bool] = True  # to go back to earlier weights is to go back with all

    def __call__(
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        g, old = _given(g), memory.recall("d")
        if all(slope is None for slope in old):
            memory.keep("d", list(g))
            memory.keep("x", [w.detach() for w in here.w])
            return g
        back = here.gradient(at=_or_here(memory.recall("x"), here))
        memory.keep("x", [w.detach() for w in here.w])
        for i, (slope, correction) in enumerate(zip(old, back, strict=True)):
            if slope is None:
                memory.store("d", i, g[i].clone())
            elif correction is not None:
                slope.sub_(correction).mul_(1 - settings["a"][i]).add_(g[i])
            else:
                slope.copy_(g[i])
        return _present(memory.recall("d"), list(range(len(g))))


@dataclass(frozen=True)
class Sarah(Direction):
    """Adds up differences of gradients of the same batch, from a full gradient on (SARAH).

    d_t = g_t(x_t) - g_t(x_{t-1}) + d_{t-1},  d_t = full gradient at x_t every `every` steps

    Nguyen, Liu, Scheinberg and Takac, 2017; the VaSSO paper's "straightforward attempt", rejected
    there for its cost. Needs `source=`.

    Args:
        every: steps between full gradients.
    """

    every: int = 50

    remembers: ClassVar[tuple[str, ...]] = ("d", "x")
    asks_more: ClassVar[bool] = True
    remembers_all: ClassVar[bool] = True  # to go back to earlier weights is to go back with all

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("every", self.every)

    def __call__(
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        g, old = _given(g), memory.recall("d")
        if here.step % self.every == 0 or any(slope is None for slope in old):
            memory.keep("d", here.gradient(data="full"))
        else:
            back = here.gradient(at=_or_here(memory.recall("x"), here))
            for slope, new, correction in zip(_present(old, _all(g)), g, back, strict=True):
                slope.add_(new if correction is None else new - correction)
        memory.keep("x", [w.detach() for w in here.w])
        return _present(memory.recall("d"), _all(g))


@dataclass(frozen=True)
class Svrg(Direction):
    """Corrects the gradient by what the same batch says at a snapshot with a known full gradient.

    d_t = g_t(x_t) - g_t(snapshot) + mu,  mu the full gradient there, both taken every `every` steps

    Johnson and Zhang, 2013; see `Sarah`. Needs `source=`.

    Args:
        every: steps between snapshots; at 1 the slope is the full gradient.
    """

    every: int = 50

    remembers: ClassVar[tuple[str, ...]] = ("snapshot", "mu")
    asks_more: ClassVar[bool] = True
    remembers_all: ClassVar[bool] = True  # to go back to earlier weights is to go back with all

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("every", self.every)

    def __call__(
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        g, mu = _given(g), memory.recall("mu")
        if here.step % self.every == 0 or any(x is None for x in mu):
            memory.keep("mu", here.gradient(data="full"))
            memory.keep("snapshot", [w.detach() for w in here.w])
            return _present(memory.recall("mu"), _all(g))
        back = here.gradient(at=_or_here(memory.recall("snapshot"), here))
        return [
            new + full if there is None else new - there + full
            for new, there, full in zip(g, back, _present(mu, _all(g)), strict=True)
        ]


@dataclass(frozen=True)
class LastGradient(Direction):
    """The gradient of the step before: d_t = g_{t-1}(x_{t-1} + epsilon_{t-1}).

    S2-SAM, Ji et al., NeurIPS 2024. The first step does not climb.
    """

    needs_clean: ClassVar[bool] = False
    remembers: ClassVar[tuple[str, ...]] = ("last",)

    def __call__(
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        return _or_zero(memory.recall("last"), here)

    def after(self, h: Gradient, memory: Memory, here: Here) -> None:
        """Keeps the gradient for the next step."""
        memory.keep("last", h)


@dataclass(frozen=True)
class BaseMomentum(Direction):
    """The momentum of the base, gone along as the base will go: epsilon = -rho v / ||v||.

    Momentum-SAM, Becker, Altrock and Risse, 2024: v is the buffer before this step's update
    (`momentum_buffer` or `exp_avg`). Costs no gradient; the first step does not climb.
    """

    sign: ClassVar[int] = -1
    needs_clean: ClassVar[bool] = False

    def check_base(self, base: Optimizer) -> None:
        """Raises if the base has no momentum.

        Args:
            base: the optimizer to be wrapped.

        Raises:
            ValueError: it has none.
        """
        if not all(group.get("momentum") or "betas" in group for group in base.param_groups):
            raise ValueError(
                f"{type(base).__name__} has no momentum to climb along: use SGD(momentum=0.9), "
                "Adam or another base that keeps one"
            )

    def __call__(
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        entries = [here.base_state(p) for p in here.w]
        return _or_zero([e.get("momentum_buffer", e.get("exp_avg")) for e in entries], here)


@dataclass(frozen=True)
class Random(Direction):
    """Any direction: d ~ N(0, I), a probe without a gradient.

    Args:
        seed: of the noise, which is a function of seed and step.
    """

    seed: int = 0

    needs_clean: ClassVar[bool] = False

    def __call__(
        self, g: Vector | None, memory: Memory, here: Here, **settings: list[float]
    ) -> Vector:
        return here.noise(self.seed)


def _given(g: Vector | None) -> Vector:
    """The gradient at w, which every step of this direction has."""
    assert g is not None
    return g


def _all(v: Vector) -> list[int]:
    return list(range(len(v)))


def _or_zero(v: Gradient, here: Here) -> Vector:
    return [torch.zeros_like(p) if x is None else x for p, x in zip(here.w, v, strict=True)]


def _or_here(v: Gradient, here: Here) -> Vector:
    return [p.detach() if x is None else x for p, x in zip(here.w, v, strict=True)]
