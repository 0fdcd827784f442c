"""Radii: the length of the perturbation, as given or by a rule from what the step knows for free.

| radius    | rho                                               | sees                          |
|-----------|---------------------------------------------------|-------------------------------|
| `Given`   | the number or schedule of each group              | nothing                       |
| `FromGap` | such that the rise of the loss is kappa times the | losses at w and w + epsilon,  |
|           | generalisation gap                                | loss of held-out data         |
| `LossBudget` | such that the linear rise of the loss is sigma, at most a cap | g and d       |
| `AccumulatedNorm` | the length of d over the root of all its squares so far | d          |

Every method takes a rule as its `rho`. A rule is called once in a step that perturbs, when the
slope is known and the weights have not moved: ``rule(d, memory, context)`` returns the radius. It
sees the gradient (`context.g`), the slope d, norms (`context.norm`), the settings that it declares
in `scheduled`, which are those of a policy (the same for all groups), and its numbers
(`memory.numbers`, declared in `counts`, saved in checkpoints). After the step `observe` receives
the losses of the step, if the rule `observes` them. The radius of a group is the rule's times the
group's own `rho`, its factor, 1 unless set: ratios between groups stay, and a group with rho = 0 is
not perturbed. A radius of 0 makes the step one that does not perturb.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from vasso import validation
from vasso.numerics.vectors import Vector, share_along
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState
from vasso.parts.part import Part, Range, Setting

SPAN = 50.0, 20.0  # a radius stays between start / 50 and 20 start


@dataclass(frozen=True)
class StepLosses:
    """The losses of a step; on several ranks their means, so that all ranks see the same.

    Attributes:
        step: how many steps have been completed.
        loss: the loss at w.
        rise: the loss at w + epsilon less that at w; None if the weights were not perturbed.
        evaluate: calls a function that returns a loss, without gradients and in evaluation mode.
    """

    step: int
    loss: float
    rise: float | None
    evaluate: Callable[[Callable[[], Any]], float]


@dataclass(frozen=True)
class Radius(Part):
    """The radius of a step.

    Attributes:
        observes: the rule needs the losses of each step, at w and at w + epsilon of the same data.
        factor: what `rho` is in the groups: the radius of a group is the rule's times its factor.
    """

    observes: ClassVar[bool] = False

    factor: Setting = field(default=1.0, kw_only=True, repr=False)

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> float:
        """The radius of a step that perturbs, before the factors of the groups.

        Args:
            d: the slope, one tensor for each of `context.w`.
            memory: the numbers this rule remembers, to be updated.
            context: the step; `context.rho` are the factors.

        Returns:
            A finite number, at least 0. With 0 the step does not perturb.
        """
        raise NotImplementedError

    def observe(
        self, losses: StepLosses, numbers: dict[str, float], settings: Mapping[str, float]
    ) -> None:
        """Updates what the rule remembers; called after each step whose losses are known.

        Args:
            losses: those of the step.
            numbers: the numbers this rule remembers, to be updated.
            settings: the current values of the settings in `scheduled`.
        """

    def shown(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """What `opt.metrics()` shows of the numbers, beside rho."""
        return {}

    def __str__(self) -> str:
        """The rule without its settings, which may change between two parts of a training."""
        return f"{type(self).__name__}()"


@dataclass(frozen=True)
class Given(Radius):
    """The radius is the number or schedule in each group; `factor` is the radius itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.factor
        if given == "auto":
            raise ValueError(
                'rho="auto" needs a loss of held-out data and the length of the training: '
                "rho=FromGap(validation, total=steps)"
            )
        if not callable(given):
            Range(least=0).check("rho", given)

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> float:
        return 1.0

    def __str__(self) -> str:
        """Nothing: checkpoints without a rule do not name one."""
        return ""


Rho: TypeAlias = Setting | Radius
"""A number, a schedule, or a rule for the radius."""


@dataclass(frozen=True)
class LossBudget(Radius):
    """A radius that spends a budget of loss: rho = min(sigma ||d|| / (g.d), most).

    LE-SAM, 2605.10183, ICML 2026. sigma is the rise of the loss to first order, in units of the
    mean loss of a batch: not of a sum, and label smoothing shifts it. Along the gradient itself
    rho = sigma / ||g||. Where the slope d points down, g.d <= 0, rho is the cap, and so it is where
    g = 0. Without a cap rho explodes as gradients vanish. In balls other than `L2` the rise is not
    sigma, but as many times it as ||epsilon|| is rho. In `ascended(accumulate=True)`, where you
    divide the loss of each micro-batch by their number k, divide sigma by k too. What the authors
    call adaptive, abs(w) g, is not `Adaptive`'s w^2 g. Their script can also descend by h - alpha g
    and by the largest losses alone, both off by default and not built.

    The authors keep sigma constant and let it fall to 0 over the last fifth:
    `schedules.cosine(0.35, 0.0, steps=40 * epoch, after=160 * epoch)`.

    Args:
        sigma: the budget, at least 0; 0.35 for CIFAR-100, 0.5 in the authors' script.
        most: the cap, above 0.

    Example:
        >>> import torch
        >>> from vasso import SAM
        >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> opt = SAM(torch.optim.SGD([w], lr=0.1), rho=LossBudget(1.0))
        >>> (0.5 * w.square().sum()).backward()
        >>> with opt.ascended():
        ...     (0.5 * w.square().sum()).backward()
        >>> round(opt.metrics()["rho"], 6)
        0.2
    """

    sigma: Setting = 0.5
    most: float = 0.5

    needs_clean: ClassVar[bool] = True
    scheduled: ClassVar[Mapping[str, Range]] = {"sigma": Range(least=0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(above=0).check("most", self.most)

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> float:
        g = context.g
        along = context.norm(g) if d is g else share_along(g, d) * context.norm(d)
        slope, sigma = float(along), context.settings["sigma"][0]
        return min(sigma / slope, self.most) if slope > 0 else self.most


@dataclass(frozen=True)
class AccumulatedNorm(Radius):
    """A radius that falls as AdaGrad's rate does: epsilon = factor d / sqrt(U).

    U_t = U_{t-1} + ||d_t||^2, so that rho = ||d_t|| / sqrt(U_t) is 1 at the first step

    Half of LightSAM-I, second-hand; see `Accumulated` for the other half.

    Args:
        small: U is its square at first; above 0.
    """

    small: float = 1e-8

    needs_clean: ClassVar[bool] = True
    counts: ClassVar[Mapping[str, float]] = {"rho_squares": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(above=0).check("small", self.small)

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> float:
        length = context.norm.read(d)[1]
        memory.numbers["rho_squares"] += length**2
        return length / math.sqrt(self.small**2 + memory.numbers["rho_squares"])


@dataclass(frozen=True)
class FromGap(Radius):
    """A radius that sets itself: the adversary costs as much as new data does.

    R = mean of l(w + epsilon) - l(w),  G = mean of l_validation(w) - l(w), at least its floor,
    rho <- rho exp(speed / total clip(log(kappa G / R), -1, 1)),  start / 50 <= rho <= 20 start

    l is the loss of the batches and l_validation that of held-out data, both as you train them (the
    same label smoothing, labels as noisy). Means are moving averages over a share `memory` of the
    training. Losses that are not finite change nothing. All ranks see the means over ranks. The
    rule reads the losses of each step on the host, and needs methods that take both of the same
    data. On digits with wrong labels no kappa does as well as a tuned rho (records/frontier).

    Args:
        validation: returns a loss of held-out data. It is called without gradients, in evaluation
            mode if the optimizer has `model=`. Its cost is that of a forward pass over a batch; an
            attribute `cost`, in gradients of a batch, states another.
        total: steps of the training; all speeds below are shares of it.
        kappa: the rise wanted, in gaps; above 0.
        start: radius of the first step, the method's usual rho.
        speed: how many times rho can grow or shrink by e during the training.
        memory: share of the training over which means are taken.
        checks: calls of `validation` during the training.
        floor: the least gap, as a share of the first loss.

    Example:
        >>> import torch
        >>> from vasso import VaSSO
        >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> def validation():
        ...     return 0.5 * (w - 0.1).square().sum()
        >>> base = torch.optim.SGD([w], lr=0.1)
        >>> opt = VaSSO(base, rho=FromGap(validation, total=100))
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = 0.5 * w.square().sum()
        ...     loss.backward()
        ...     return loss
        >>> for _ in range(3):
        ...     loss = opt.step(closure)
        >>> {name: round(value, 3) for name, value in opt.last.radius.items()}
        {'rho': 0.034, 'R': 0.166, 'G': 0.025}
    """

    validation: Callable[[], Any]
    total: int
    kappa: Setting = 1.0
    start: float = 0.05
    speed: float = 20.0
    memory: float = 0.02
    checks: int = 100
    floor: float = 0.002

    observes: ClassVar[bool] = True
    scheduled: ClassVar[Mapping[str, Range]] = {"kappa": Range(above=0)}
    counts: ClassVar[Mapping[str, float]] = {
        "rho_log": 0.0,  # log(rho / start)
        "rho_floor": 0.0,
        "rho_next_check": 0.0,
        **dict.fromkeys(("rho_loss", "rho_loss_weight"), 0.0),
        **dict.fromkeys(("rho_rise", "rho_rise_weight"), 0.0),
        **dict.fromkeys(("rho_gap", "rho_gap_weight"), 0.0),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.validation):
            raise TypeError(
                f"validation must be a function that returns the loss of held-out data, got "
                f"{self.validation!r}"
            )
        validation.count("total", self.total)
        validation.count("checks", self.checks)
        for name in ("start", "speed", "floor"):
            Range(above=0).check(name, getattr(self, name))
        Range(above=0, most=1).check("memory", self.memory)

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> float:
        return self.start * math.exp(memory.numbers["rho_log"])

    def observe(
        self, losses: StepLosses, numbers: dict[str, float], settings: Mapping[str, float]
    ) -> None:
        if not (math.isfinite(losses.loss) and math.isfinite(losses.rise or 0.0)):
            return
        new = 1 / max(1.0, self.memory * self.total)
        _average(numbers, "rho_loss", losses.loss, new)
        if losses.rise is not None:
            _average(numbers, "rho_rise", losses.rise, new)
        if numbers["rho_floor"] == 0:
            numbers["rho_floor"] = self.floor * abs(losses.loss)
        if losses.step >= numbers["rho_next_check"]:
            numbers["rho_next_check"] = losses.step + max(1, self.total // self.checks)
            self._check(losses.evaluate(self.validation), numbers)
        self._control(numbers, settings["kappa"])

    def _check(self, held_out: float, numbers: dict[str, float]) -> None:
        """G <- moving average of the loss of held-out data less that of the batches."""
        if math.isfinite(held_out):
            new = 1 / max(1.0, self.memory * self.checks)
            _average(numbers, "rho_gap", held_out - _mean(numbers, "rho_loss"), new)

    def _control(self, numbers: dict[str, float], kappa: float) -> None:
        """rho <- rho exp(speed / total clip(log(kappa G / R), -1, 1))."""
        known = self.shown(numbers)
        if len(known) < 2 or known["G"] <= 0:
            return
        rise, wanted = known["R"], kappa * known["G"]
        error = math.log(wanted / rise) if rise > 0 else 1.0
        moved = numbers["rho_log"] + self.speed / self.total * min(max(error, -1.0), 1.0)
        numbers["rho_log"] = min(max(moved, -math.log(SPAN[0])), math.log(SPAN[1]))

    def shown(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The rise R and the gap G, each as soon as it is known."""
        found = {}
        if numbers["rho_rise_weight"]:
            found["R"] = _mean(numbers, "rho_rise")
        if numbers["rho_gap_weight"]:
            found["G"] = max(_mean(numbers, "rho_gap"), numbers["rho_floor"])
        return found


def _average(numbers: dict[str, float], name: str, value: float, new: float) -> None:
    """A moving average and the moving average of 1, its weight."""
    numbers[name] += new * (value - numbers[name])
    numbers[f"{name}_weight"] += new * (1 - numbers[f"{name}_weight"])


def _mean(numbers: Mapping[str, float], name: str) -> float:
    return numbers[name] / numbers[f"{name}_weight"]
