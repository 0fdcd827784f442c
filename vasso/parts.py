"""What does every part declare? The settings that change over time, the vectors it remembers.

A part answers one question about the step (which way is up? how far is rho?). It is a frozen
dataclass without state of its own: the current value of each of its settings sits in the param
groups, each vector it remembers sits with the optimizer, and both are handed to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

Schedule: TypeAlias = Callable[[int, float], float]
"""A setting over time: ``(step, lr) -> value``, asked once per group and step."""

Setting: TypeAlias = float | Schedule
"""A number, or a schedule that gives one."""


@dataclass(frozen=True)
class Range:
    """The values a setting may take: ``above < value``, ``least <= value <= most``.

    Example:
        >>> Range(above=0, most=1).check("theta", 0.4)
        0.4
        >>> Range(above=0, most=1).check("theta", 1.5)
        Traceback (most recent call last):
        ...
        ValueError: theta must be above 0 and at most 1, got 1.5
    """

    above: float = -math.inf
    least: float = -math.inf
    most: float = math.inf

    def check(self, name: str, value: object) -> float:
        """The value as a float, or an error that names it and the range.

        Args:
            name: what to call the value in the error.
            value: what came from the user, a schedule or a checkpoint.

        Returns:
            The value.

        Raises:
            TypeError: the value is not a number.
            ValueError: the value is outside the range, infinite or NaN.
        """
        if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
            raise TypeError(
                f"{name} must be a number or a schedule (step, lr) -> number, got {value!r}"
            )
        number = float(value)
        if math.isfinite(number) and self.above < number and self.least <= number <= self.most:
            return number
        raise ValueError(f"{name} must be {self}, got {number:g}")

    def __str__(self) -> str:
        bounds = [
            (self.above, "above"),
            (self.least, "at least"),
            (self.most, "at most"),
        ]
        told = [f"{word} {bound:g}" for bound, word in bounds if math.isfinite(bound)]
        return " and ".join(told) or "finite"


@dataclass(frozen=True)
class Part:
    """One answer to one question of the step.

    Attributes:
        scheduled: the fields that may be a `Schedule`, differ by group and live in the param
            groups, each with its range.
        remembers: the names of the vectors this part keeps from one step to the next.
        counts: the names of the numbers it keeps, with what they are at first.
        needs_clean: the part cannot do without the gradient at w.
        remembers_all: the part remembers all weights, also those that are not climbed.
    """

    scheduled: ClassVar[Mapping[str, Range]] = {}
    remembers: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[Mapping[str, float]] = {}
    needs_clean: ClassVar[bool] = False
    remembers_all: ClassVar[bool] = False

    def value_of(self, name: str) -> Setting:
        """The constructor's value of a setting.

        Args:
            name: one of those in `scheduled`.

        Returns:
            A number or a schedule.
        """
        value: Setting = getattr(self, name)
        return value

    def __post_init__(self) -> None:
        for name, allowed in self.scheduled.items():
            value = self.value_of(name)
            if not callable(value):
                allowed.check(name, value)

    def keeps(self, **settings: float) -> tuple[str, ...]:
        """The vectors that have to be remembered under these settings.

        Args:
            **settings: the current values of what the part declares as scheduled.

        Returns:
            Some of the names in `remembers`.
        """
        return self.remembers

    def check_base(self, base: Optimizer) -> None:
        """Raises if the part cannot work with a base; asked once, at construction.

        Args:
            base: the optimizer to be wrapped.
        """

    def after(self, h: list[Tensor | None], memory: Any, here: Any) -> None:
        """Remembers what the step has found; called when the weights are home again.

        Args:
            h: the last gradient of the step, one or None for each of `here.w`.
            memory: what the part remembers, to be updated.
            here: the step.
        """

    def __str__(self) -> str:
        """The part without its scheduled settings: equal strings can share a checkpoint."""
        fixed = [field.name for field in fields(self) if field.name not in self.scheduled]
        values = {name: getattr(self, name) for name in fixed}
        told = ", ".join(
            f"{name}={value if isinstance(value, Part) else repr(value)}"
            for name, value in values.items()
        )
        return f"{type(self).__name__}({told})"
