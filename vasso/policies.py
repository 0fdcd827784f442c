"""Do we climb this step, and is a gradient at w wanted at all?

| policy            | climbs                                  | gradient at w        |
|-------------------|-----------------------------------------|----------------------|
| `Always`          | every step                              | every step           |
| `EveryK`          | every k-th step                         | every step           |
| `Bernoulli`       | with probability p                      | every step           |
| `AdaptiveNorm`    | when the gradient is large for its time | every step           |
| `After`           | from a step on, as another policy says  | as that policy says  |
| `RefreshEveryK`   | every step                              | every k-th step      |
| `RefreshRandomly` | every step                              | with probability p   |
| `RefreshAdaptive` | every step                              | when h has changed   |

What a coin says is a function of seed and step: the same on all ranks and after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from vasso import checks
from vasso.here import Gradient, Here, Memory
from vasso.parts import Part, Range, Setting
from vasso.vectors import norm


@dataclass(frozen=True)
class Policy(Part):
    """Do we climb this step? Settings of a policy are the same for all groups.

    Attributes:
        spares_clean: there are steps without a gradient at w, where the direction has to do with
            what it has.
    """

    spares_clean: ClassVar[bool] = False

    def clean(self, memory: Memory, here: Here) -> bool:
        """Whether to take a gradient at w; asked before any pass, when nothing of it is known.

        Args:
            memory: the numbers this part remembers.
            here: the step, without tensors yet.

        Returns:
            False only if the policy declares that it spares some.
        """
        return True

    def climb(self, g: Gradient | None, memory: Memory, here: Here) -> bool:
        """Whether to climb; asked once per step, after the gradient at w if there is one.

        Args:
            g: the gradient at w, one tensor for each of `here.w`, or None.
            memory: the numbers this part remembers, to be updated.
            here: the step.

        Returns:
            True to take the gradient at w + epsilon, False to go down by g.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Always(Policy):
    """Climbs at every step."""

    def climb(self, g: Gradient | None, memory: Memory, here: Here) -> bool:
        return True


@dataclass(frozen=True)
class EveryK(Policy):
    """Climbs at every k-th step, the first one included.

    Args:
        k: at least 1; 1 is `Always`.
    """

    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("k", self.k)

    def climb(self, g: Gradient | None, memory: Memory, here: Here) -> bool:
        return here.step % self.k == 0


@dataclass(frozen=True)
class Bernoulli(Policy):
    """Climbs with probability p, which may be scheduled.

    SS-SAM, Zhao, Zhang and Hu, 2022 (also called randomised sharpness-aware training). p = 1 is
    SAM, p = 0 the base.

    Args:
        p: in [0, 1].
        seed: of the coin.
    """

    p: Setting = 0.5
    seed: int = 0

    scheduled: ClassVar[Mapping[str, Range]] = {"p": Range(least=0, most=1)}

    def climb(self, g: Gradient | None, memory: Memory, here: Here) -> bool:
        return here.coin(self.seed) < here.settings["p"][0]


@dataclass(frozen=True)
class AdaptiveNorm(Policy):
    """Climbs when the squared norm of the gradient is large for its time.

    n_t = ||g||^2,  mu_t = delta mu_{t-1} + (1 - delta) n_t,
    sigma_t^2 = delta sigma_{t-1}^2 + (1 - delta) (n_t - mu_t)^2,
    climb if n_t >= mu_t + c_t sigma_t, with c_t going from lambda_2 to lambda_1 over `total` steps

    AE-SAM, Jiang, Yang, Zhang and Kwok, ICLR 2023. mu starts as the first n.

    Args:
        total: steps of the training.
        delta: weight of the old averages.
        lambda_1: c at the end.
        lambda_2: c at the start.
    """

    total: int
    delta: float = 0.9
    lambda_1: float = -1.0
    lambda_2: float = 1.0

    needs_clean: ClassVar[bool] = True
    counts: ClassVar[Mapping[str, float]] = {"mu": -1.0, "variance": math.exp(-10)}

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("total", self.total)
        Range(least=0, most=1).check("delta", self.delta)

    def climb(self, g: Gradient | None, memory: Memory, here: Here) -> bool:
        n = here.norm(here.g).item() ** 2
        old, numbers = memory.numbers["mu"], memory.numbers
        numbers["mu"] = n if old < 0 else self.delta * old + (1 - self.delta) * n
        spread = (n - numbers["mu"]) ** 2
        numbers["variance"] = self.delta * numbers["variance"] + (1 - self.delta) * spread
        share = min(here.step / self.total, 1.0)
        ends = {0.0: self.lambda_2, 1.0: self.lambda_1}  # 0 times infinity is no number
        c = ends.get(share, share * self.lambda_1 + (1 - share) * self.lambda_2)
        if math.isinf(c):
            return c < 0
        return n >= numbers["mu"] + c * math.sqrt(numbers["variance"])


@dataclass(frozen=True)
class After(Policy):
    """Takes plain steps at first, then does as another policy says: a late phase.

    The strongest cheap form on clean labels in an independent study; not for wrong labels, which
    the base has learnt by then.

    Args:
        start: the first step that may climb.
        then: the policy from there on.
    """

    start: int
    then: Policy = field(default_factory=Always)

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"start must be at least 0, got {self.start}")

    @property
    def scheduled(self) -> Mapping[str, Range]:  # type: ignore[override]
        """Those of the policy inside."""
        return self.then.scheduled

    @property
    def counts(self) -> Mapping[str, float]:  # type: ignore[override]
        """Those of the policy inside."""
        return self.then.counts

    @property
    def remembers(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the policy inside."""
        return self.then.remembers

    @property
    def needs_clean(self) -> bool:  # type: ignore[override]
        """As the policy inside."""
        return self.then.needs_clean

    @property
    def spares_clean(self) -> bool:  # type: ignore[override]
        """As the policy inside."""
        return self.then.spares_clean

    def value_of(self, name: str) -> Setting:
        """The setting of the policy inside."""
        return self.then.value_of(name)

    def clean(self, memory: Memory, here: Here) -> bool:
        return here.step < self.start or self.then.clean(memory, here)

    def climb(self, g: Gradient | None, memory: Memory, here: Here) -> bool:
        return here.step >= self.start and self.then.climb(g, memory, here)

    def after(self, h: Gradient, memory: Memory, here: Here) -> None:
        """Lets the policy inside see what it would have seen by itself."""
        if here.step >= self.start:
            self.then.after(h, memory, here)


@dataclass(frozen=True)
class Refresh(Policy):
    """Climbs at every step, but takes a new gradient at w only in some."""

    spares_clean: ClassVar[bool] = True

    def climb(self, g: Gradient | None, memory: Memory, here: Here) -> bool:
        return True


@dataclass(frozen=True)
class RefreshEveryK(Refresh):
    """A new gradient at w in every k-th step: 1 + 1/k gradients a step.

    Args:
        k: at least 1.
    """

    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("k", self.k)

    def clean(self, memory: Memory, here: Here) -> bool:
        return here.step % self.k == 0


@dataclass(frozen=True)
class RefreshRandomly(Refresh):
    """A new gradient at w with probability p: 1 + p gradients a step.

    Args:
        p: in [0, 1].
        seed: of the coin.
    """

    p: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0, most=1).check("p", self.p)

    def clean(self, memory: Memory, here: Here) -> bool:
        return here.coin(self.seed) < self.p


@dataclass(frozen=True)
class RefreshAdaptive(Refresh):
    """A new gradient at w when the norm of the last gradient above has moved away from its average.

    tau = lam tau + (1 - lam) ||h||;  "flat": tau > phi ||h||, phi = (1 - lam) z + lam;
    "sharp": tau < phi' ||h||, phi' = (1 - lam) / z + lam;  "ratio": either

    From an independent study of cheap forms of VaSSO. Reads the norm on the host.

    Args:
        rule: "flat", "sharp" or "ratio".
        lam: weight of the old average.
        z: how far is away, above 1.
        warm_up: steps at first that are all refreshed.
    """

    rule: Literal["flat", "sharp", "ratio"] = "flat"
    lam: float = 0.9
    z: float = 1.5
    warm_up: int = 100

    counts: ClassVar[Mapping[str, float]] = {"tau": -1.0, "h_norm": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0, most=1).check("lam", self.lam)
        Range(above=1).check("z", self.z)
        if self.rule not in ("flat", "sharp", "ratio"):
            raise ValueError(f'rule must be "flat", "sharp" or "ratio", got {self.rule!r}')

    def clean(self, memory: Memory, here: Here) -> bool:
        tau, h = memory.numbers["tau"], memory.numbers["h_norm"]
        if here.step < self.warm_up or tau < 0:
            return True
        flat = tau > ((1 - self.lam) * self.z + self.lam) * h
        sharp = tau < ((1 - self.lam) / self.z + self.lam) * h
        return {"flat": flat, "sharp": sharp, "ratio": flat or sharp}[self.rule]

    def after(self, h: Gradient, memory: Memory, here: Here) -> None:
        """Notes the norm and its average."""
        length = norm([x for x in h if x is not None]).item()
        tau = memory.numbers["tau"]
        memory.numbers["h_norm"] = length
        memory.numbers["tau"] = length if tau < 0 else self.lam * tau + (1 - self.lam) * length
