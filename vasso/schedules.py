"""How does a setting change over time? By a plain function (step, lr) -> value.

| schedule             | value                                                       |
|----------------------|-------------------------------------------------------------|
| `proportional_to_lr` | low + (high - low) (lr - lr_low) / (lr_high - lr_low), >= 0 |
| `linear`             | from start to end over `steps`                              |
| `cosine`             | the same along half a cosine                                |
| `warmed_up`          | another schedule or number, from 0 over the first steps     |
| `piecewise`          | one number, another from a step on                          |
| `frank_wolfe`        | 4 / (t + 8)^(2/3), 1 at the start                           |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vasso.parts import Schedule, Setting


@dataclass(frozen=True)
class _Proportional:
    low: float
    high: float
    lr_low: float
    lr_high: float

    def __call__(self, step: int, lr: float) -> float:
        if self.lr_high == self.lr_low:
            return self.high
        share = (lr - self.lr_low) / (self.lr_high - self.lr_low)
        return max(0.0, self.low + (self.high - self.low) * share)


def proportional_to_lr(
    high: float, low: float = 0.0, *, lr_high: float, lr_low: float = 0.0
) -> Schedule:
    """GSAM's radius: as far between low and high as lr is between its bounds, never below 0.

    Args:
        high: the value at lr_high.
        low: the value at lr_low.
        lr_high: the largest learning rate.
        lr_low: the smallest; during a warm-up lr may be below it, and the value is clamped at 0.

    Returns:
        A schedule.

    Example:
        >>> rho = proportional_to_lr(0.6, lr_high=3e-3, lr_low=3e-5)
        >>> rho(0, 3e-3), rho(0, 3e-5), rho(0, 0.0)
        (0.6, 0.0, 0.0)
    """
    return _Proportional(low, high, lr_low, lr_high)


@dataclass(frozen=True)
class _Ramp:
    start: float
    end: float
    steps: int
    bend: bool

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def __call__(self, step: int, lr: float) -> float:
        share = min(step / self.steps, 1.0)
        if self.bend:
            share = (1 - math.cos(math.pi * share)) / 2
        return (1 - share) * self.start + share * self.end  # exact at both ends


def linear(start: float, end: float, steps: int) -> Schedule:
    """A straight line, constant after its end.

    Args:
        start: the value at step 0.
        end: the value from `steps` on.
        steps: how long it takes.

    Returns:
        A schedule.

    Example:
        >>> linear(1.0, 0.2, 100)(50, 0.1)
        0.6
    """
    return _Ramp(start, end, steps, bend=False)


def cosine(start: float, end: float, steps: int) -> Schedule:
    """Half a cosine, constant after its end.

    Args:
        start: the value at step 0.
        end: the value from `steps` on.
        steps: how long it takes.

    Returns:
        A schedule.

    Example:
        >>> round(cosine(0.0, 1.0, 100)(50, 0.1), 12)
        0.5
    """
    return _Ramp(start, end, steps, bend=True)


@dataclass(frozen=True)
class _WarmedUp:
    then: Setting
    steps: int

    def __call__(self, step: int, lr: float) -> float:
        value = self.then(step, lr) if callable(self.then) else self.then
        return value * min(step / self.steps, 1.0)


def warmed_up(then: Setting, steps: int) -> Schedule:
    """Comes up from 0 over the first steps.

    Args:
        then: what to come up to.
        steps: how long it takes; at least 1.

    Returns:
        A schedule.

    Raises:
        ValueError: steps is below 1.

    Example:
        >>> warmed_up(0.1, 10)(5, 0.1)
        0.05
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    return _WarmedUp(then, steps)


@dataclass(frozen=True)
class _Piecewise:
    before: float
    then: float
    at: int

    def __call__(self, step: int, lr: float) -> float:
        return self.before if step < self.at else self.then


def piecewise(before: float, then: float, at: int) -> Schedule:
    """One number, another from a step on.

    Args:
        before: the value at first.
        then: the value from step `at` on.
        at: the step.

    Returns:
        A schedule.

    Example:
        >>> [piecewise(0.0, 1.0, 2)(step, 0.1) for step in range(4)]
        [0.0, 0.0, 1.0, 1.0]
    """
    return _Piecewise(before, then, at)


def frank_wolfe(step: int, lr: float) -> float:
    """4 / (t + 8)^(2/3), the averaging weight of stochastic Frank-Wolfe with momentum.

    Mokhtari, Hassani and Karbasi, 2018. As `theta` of VaSSO it starts at 1 and falls.

    Args:
        step: t.
        lr: ignored.

    Returns:
        The weight, in (0, 1].

    Example:
        >>> round(frank_wolfe(0, 0.1), 12)
        1.0
    """
    weight: float = 4 / (step + 8) ** (2 / 3)
    return min(1.0, weight)
