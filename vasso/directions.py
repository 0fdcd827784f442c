"""Which way is up? A direction turns the gradients seen so far into the slope d that is climbed.

| direction | d_t                                   | remembers |
|-----------|---------------------------------------|-----------|
| `Ema`     | (1 - theta) d_{t-1} + theta g_t(x_t)  | d         |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vasso.here import Gradient, Here, Memory
from vasso.parts import Part, Range, Setting
from vasso.vectors import Vector, full_precision, lerp_


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
            return [torch.zeros_like(p) if s is None else s for p, s in zip(here.w, d, strict=True)]
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
