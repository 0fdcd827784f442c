"""Schedules: settings over time, as plain functions (step, lr) -> value.

| schedule             | value                                                       |
|----------------------|-------------------------------------------------------------|
| `proportional_to_lr` | low + (high - low) (lr - lr_low) / (lr_high - lr_low), >= 0 |
| `linear`             | from start to end over `steps`                              |
| `cosine`             | the same along half a cosine                                |
| `warmed_up`          | another schedule or number, from 0 over the first steps     |
| `piecewise`          | one number, another from a step on                          |
| `frank_wolfe`        | 4 / (t + 8)^(2/3), 1 at the start                           |

Example:
    >>> rho = proportional_to_lr(0.6, lr_high=3e-3, lr_low=3e-5)
    >>> rho(0, 3e-3), rho(0, 3e-5), rho(0, 0.0)
    (0.6, 0.0, 0.0)
    >>> linear(1.0, 0.2, steps=100)(50, 0.1), warmed_up(0.1, steps=10)(5, 0.1)
    (0.6, 0.05)
    >>> [piecewise(0.0, 1.0, at=2)(step, 0.1) for step in range(4)]
    [0.0, 0.0, 1.0, 1.0]
"""

import math
from dataclasses import dataclass

from vasso.parts.part import Schedule, Setting


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
    """GSAM's radius: linear in lr, low at lr_low and high at lr_high, never below 0."""
    return _Proportional(low, high, lr_low, lr_high)


@dataclass(frozen=True)
class _Ramp:
    start: float
    end: float
    steps: int
    bend: bool
    after: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def __call__(self, step: int, lr: float) -> float:
        share = min(max(step - self.after, 0) / self.steps, 1.0)
        if self.bend:
            share = (1 - math.cos(math.pi * share)) / 2
        return (1 - share) * self.start + share * self.end  # exact at both ends


def linear(start: float, end: float, steps: int) -> Schedule:
    """A straight line from `start` at step 0 to `end` at step `steps`, constant afterwards."""
    return _Ramp(start, end, steps, bend=False)


def cosine(start: float, end: float, steps: int, after: int = 0) -> Schedule:
    """Half a cosine from `start` at step `after` to `end`, `steps` steps long; constant outside."""
    return _Ramp(start, end, steps, bend=True, after=after)


@dataclass(frozen=True)
class _WarmedUp:
    then: Setting
    steps: int

    def __call__(self, step: int, lr: float) -> float:
        value = self.then(step, lr) if callable(self.then) else self.then
        return value * min(step / self.steps, 1.0)


def warmed_up(then: Setting, steps: int) -> Schedule:
    """Rises linearly from 0 to another schedule or number in `steps` steps, at least 1."""
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
    """One number before step `at`, another from there on."""
    return _Piecewise(before, then, at)


def frank_wolfe(step: int, lr: float) -> float:
    """4 / (t + 8)^(2/3), the weight of stochastic Frank-Wolfe with momentum; ignores lr.

    Mokhtari, Hassani and Karbasi, 2018. As `theta` of VaSSO it starts at 1 and falls.

    Returns:
        The weight, in (0, 1].
    """
    weight: float = 4 / (step + 8) ** (2 / 3)
    return min(1.0, weight)
