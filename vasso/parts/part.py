"""Part: what every part of a method declares, such as scheduled settings and remembered vectors.

A part makes one decision of the step, such as the direction or the geometry. It is a frozen
dataclass without state: the current values of its settings are in the param groups, the vectors it
remembers are kept by the optimizer, and both are passed to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from vasso.numerics.vectors import at_least_float32

UNNAMED: Mapping[str, bool] = {"unnamed": True}
"""Metadata of a field that is left out of `str(part)` while it is None, as in older checkpoints."""

Schedule: TypeAlias = Callable[[int, float], float]
"""A setting over time: ``(step, lr) -> value``, called once per group and step."""

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
        """The value as a float, or a TypeError or ValueError that names it and the range."""
        if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
            raise TypeError(
                f"{name} must be a number or a schedule (step, lr) -> number, got {value!r}"
            )
        number = float(value)
        if math.isfinite(number) and self.above < number and self.least <= number <= self.most:
            return number
        raise ValueError(f"{name} must be {self}, got {number:g}")

    def __str__(self) -> str:
        bounds = (self.above, "above"), (self.least, "at least"), (self.most, "at most")
        finite = [f"{word} {bound:g}" for bound, word in bounds if math.isfinite(bound)]
        return " and ".join(finite) or "finite"


@dataclass(frozen=True)
class Part:
    """One decision of the step.

    Attributes:
        scheduled: the fields that may be a `Schedule` and differ by group, each with its range;
            their values are in the param groups.
        remembers: the names of the vectors this part keeps from one step to the next.
        counts: the names of the numbers it keeps, with their initial values.
        needs_clean: the part needs the gradient at w.
        remembers_all: the part remembers all weights, also those that are not perturbed, because
            it moves back to earlier weights.
        like_gradients: those of `remembers` that add up over micro-batches as gradients do; all
            others are averaged.
        moves_past_base: `after_base` is called after each step of the base, except plain ones.
    """

    scheduled: ClassVar[Mapping[str, Range]] = {}
    remembers: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[Mapping[str, float]] = {}
    needs_clean: ClassVar[bool] = False
    remembers_all: ClassVar[bool] = False
    like_gradients: ClassVar[tuple[str, ...]] = ()
    moves_past_base: ClassVar[bool] = False

    def value_of(self, name: str) -> Setting:
        """The value of a scheduled setting as given to the constructor."""
        value: Setting = getattr(self, name)
        return value

    def __post_init__(self) -> None:
        for name, allowed in self.scheduled.items():
            value = self.value_of(name)
            if not callable(value):
                allowed.check(name, value)

    def keeps(self, **settings: float) -> tuple[str, ...]:
        """The names in `remembers` that are needed under these values of the settings."""
        return self.remembers

    def dtype_of(self, name: str, weights: torch.dtype) -> torch.dtype:
        """The dtype in which a vector is kept, for weights of a dtype."""
        return at_least_float32(weights)

    def check_base(self, base: Optimizer) -> None:
        """Raises if the part cannot work with a base optimizer; called at construction."""

    def after(self, h: list[Tensor | None], memory: Any, context: Any) -> None:
        """Updates what the part remembers; called with restored weights and the last gradient h."""

    def after_base(self, memory: Any, base: Optimizer) -> None:
        """Moves the weights once more, if `moves_past_base`."""

    def __str__(self) -> str:
        """The part without its scheduled settings: equal strings can share a checkpoint."""
        fixed = [field for field in fields(self) if field.name not in self.scheduled]
        every = {field.name: (getattr(self, field.name), field.metadata) for field in fixed}
        values = {name: x for name, (x, told) in every.items() if x is not None or told != UNNAMED}
        arguments = ", ".join(
            f"{name}={value if isinstance(value, Part) else repr(value)}"
            for name, value in values.items()
        )
        return f"{type(self).__name__}({arguments})"
