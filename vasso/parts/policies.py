"""Policies: which steps perturb the weights, and which take a gradient at w.

| policy            | perturbs                                | gradient at w        |
|-------------------|-----------------------------------------|----------------------|
| `Always`          | every step                              | every step           |
| `EveryK`          | every k-th step                         | every step           |
| `Bernoulli`       | with probability p                      | every step           |
| `AdaptiveNorm`    | when the gradient is relatively large   | every step           |
| `After`           | from a step on, as another policy says  | as that policy says  |
| `RefreshEveryK`   | every step                              | every k-th step      |
| `RefreshRandomly` | every step                              | with probability p   |
| `RefreshAdaptive` | every step                              | when h has changed   |

Random choices are a function of seed and step: the same on all ranks and after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, Literal

from vasso import validation
from vasso.numerics.vectors import Gradient, measured
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState
from vasso.parts.part import Part, Range, Setting


@dataclass(frozen=True)
class Policy(Part):
    """Which steps perturb. Settings of a policy are the same for all groups.

    Attributes:
        spares_clean: some steps take no gradient at w; the direction has to allow that.
    """

    spares_clean: ClassVar[bool] = False

    def clean(self, memory: PartState, context: StepContext) -> bool:
        """Whether to take a gradient at w; called before any pass of the step.

        Args:
            memory: the numbers this part remembers.
            context: the step, without tensors yet.

        Returns:
            False only if the policy declares `spares_clean`.
        """
        return True

    def certain(self, context: StepContext) -> bool:
        """Whether this step perturbs whatever its gradient at w is; asked before any pass.

        Then gradients at w of tensors that are not perturbed are not computed.

        Args:
            context: the step, without tensors yet.

        Returns:
            True only if `climb` will be True.
        """
        return False

    def climb(self, g: Gradient | None, memory: PartState, context: StepContext) -> bool:
        """Whether to perturb; called once per step, after the gradient at w if there is one.

        Unless a policy says otherwise, where it is `certain`.

        Args:
            g: the gradient at w, one tensor for each of `context.w`, or None.
            memory: the numbers this part remembers, to be updated.
            context: the step.

        Returns:
            True to take the gradient at w + epsilon, False to descend by g.
        """
        return self.certain(context)


@dataclass(frozen=True)
class Always(Policy):
    """Perturbs at every step."""

    def certain(self, context: StepContext) -> bool:
        return True


@dataclass(frozen=True)
class EveryK(Policy):
    """Perturbs at every k-th step, the first one included.

    Args:
        k: at least 1; 1 is `Always`.
    """

    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.count("k", self.k)

    def certain(self, context: StepContext) -> bool:
        return context.step % self.k == 0


@dataclass(frozen=True)
class Bernoulli(Policy):
    """Perturbs with probability p, which may be scheduled.

    SS-SAM, Zhao, Zhang and Hu, 2022 (also called randomised sharpness-aware training). p = 1 is
    SAM, p = 0 the base.

    Args:
        p: in [0, 1].
        seed: seed of the draws.
    """

    p: Setting = 0.5
    seed: int = 0

    scheduled: ClassVar[Mapping[str, Range]] = {"p": Range(least=0, most=1)}

    def certain(self, context: StepContext) -> bool:
        return context.coin(self.seed) < context.settings["p"][0]


@dataclass(frozen=True)
class AdaptiveNorm(Policy):
    """Perturbs when the squared norm of the gradient is large compared with its recent average.

    n_t = ||g||^2,  mu_t = delta mu_{t-1} + (1 - delta) n_t,
    sigma_t^2 = delta sigma_{t-1}^2 + (1 - delta) (n_t - mu_t)^2,
    perturb if n_t >= mu_t + c_t sigma_t,  c_t going from lambda_2 to lambda_1 over `total` steps

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
        validation.count("total", self.total)
        Range(least=0, most=1).check("delta", self.delta)

    def climb(self, g: Gradient | None, memory: PartState, context: StepContext) -> bool:
        n = context.norm(context.g).item() ** 2
        old, numbers = memory.numbers["mu"], memory.numbers
        numbers["mu"] = n if old < 0 else self.delta * old + (1 - self.delta) * n
        spread = (n - numbers["mu"]) ** 2
        numbers["variance"] = self.delta * numbers["variance"] + (1 - self.delta) * spread
        share = min(context.step / self.total, 1.0)
        ends = {0.0: self.lambda_2, 1.0: self.lambda_1}  # 0 times infinity is NaN
        c = ends.get(share, share * self.lambda_1 + (1 - share) * self.lambda_2)
        if math.isinf(c):
            return c < 0
        return n >= numbers["mu"] + c * math.sqrt(numbers["variance"])


def _of_inner_policy(name: str) -> Any:
    """A property of `After` that is the one of the policy that follows."""
    return property(attrgetter(f"then.{name}"))


@dataclass(frozen=True)
class After(Policy):
    """Plain steps first, then another policy: a late phase.

    The best of the cheap forms on clean labels in an independent study. Unsuitable for wrong
    labels, which the base has learnt by then.

    Args:
        start: the first step that may perturb.
        then: the policy from there on.
    """

    start: int
    then: Policy = field(default_factory=Always)

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"start must be at least 0, got {self.start}")

    scheduled = _of_inner_policy("scheduled")
    counts = _of_inner_policy("counts")
    remembers = _of_inner_policy("remembers")
    needs_clean = _of_inner_policy("needs_clean")
    spares_clean = _of_inner_policy("spares_clean")

    def value_of(self, name: str) -> Setting:
        return self.then.value_of(name)

    def clean(self, memory: PartState, context: StepContext) -> bool:
        return context.step < self.start or self.then.clean(memory, context)

    def certain(self, context: StepContext) -> bool:
        return context.step >= self.start and self.then.certain(context)

    def climb(self, g: Gradient | None, memory: PartState, context: StepContext) -> bool:
        return context.step >= self.start and self.then.climb(g, memory, context)

    def after(self, h: Gradient, memory: PartState, context: StepContext) -> None:
        if context.step >= self.start:
            self.then.after(h, memory, context)


@dataclass(frozen=True)
class Refresh(Policy):
    """Perturbs at every step, but takes a new gradient at w only in some."""

    spares_clean: ClassVar[bool] = True

    def certain(self, context: StepContext) -> bool:
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
        validation.count("k", self.k)

    def clean(self, memory: PartState, context: StepContext) -> bool:
        return context.step % self.k == 0


@dataclass(frozen=True)
class RefreshRandomly(Refresh):
    """A new gradient at w with probability p: 1 + p gradients a step.

    Args:
        p: in [0, 1].
        seed: seed of the draws.
    """

    p: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0, most=1).check("p", self.p)

    def clean(self, memory: PartState, context: StepContext) -> bool:
        return context.coin(self.seed) < self.p


@dataclass(frozen=True)
class RefreshAdaptive(Refresh):
    """A new gradient at w when ||h|| of the last step has moved away from its average.

    tau = lam tau + (1 - lam) ||h||;  "flat": tau > phi ||h||, phi = (1 - lam) z + lam;
    "sharp": tau < phi' ||h||, phi' = (1 - lam) / z + lam;  "ratio": either

    From an independent study of cheap forms of VaSSO. Needs a host synchronisation per step.

    Args:
        rule: "flat", "sharp" or "ratio".
        lam: weight of the old average.
        z: how far the norm must move, above 1.
        warm_up: the first steps, which all take a new gradient.
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
        validation.one_of("rule", self.rule, "flat", "sharp", "ratio")

    def clean(self, memory: PartState, context: StepContext) -> bool:
        tau, h = memory.numbers["tau"], memory.numbers["h_norm"]
        if context.step < self.warm_up or tau < 0:
            return True
        flat = tau > ((1 - self.lam) * self.z + self.lam) * h
        sharp = tau < ((1 - self.lam) / self.z + self.lam) * h
        return {"flat": flat, "sharp": sharp, "ratio": flat or sharp}[self.rule]

    def after(self, h: Gradient, memory: PartState, context: StepContext) -> None:
        _, length = measured([x for x in h if x is not None])
        tau = memory.numbers["tau"]
        memory.numbers["h_norm"] = length
        memory.numbers["tau"] = length if tau < 0 else self.lam * tau + (1 - self.lam) * length
