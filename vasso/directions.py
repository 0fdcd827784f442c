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

from vasso.here import Here, Memory
from vasso.parts import Part, Range, Setting
from vasso.vectors import Vector, full_precision, lerp_


@dataclass(frozen=True)
class Direction(Part):
    """Which way is up?"""

    def __call__(self, g: Vector, memory: Memory, here: Here, **settings: list[float]) -> Vector:
        """The slope d, from the gradient at w; called once per step, before any climb.

        Args:
            g: the gradient at w, one tensor for each of `here.w`.
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

    Example:
        >>> Ema(0.4)
        Ema(theta=0.4, init='first')
    """

    theta: Setting = 0.4
    init: Literal["first", "zero"] = "first"

    scheduled: ClassVar[Mapping[str, Range]] = {"theta": Range(above=0, most=1)}
    remembers: ClassVar[tuple[str, ...]] = ("d",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init not in ("first", "zero"):
            raise ValueError(f'init must be "first" or "zero", got {self.init!r}')

    def keeps(self, **settings: float) -> bool:
        """Only below theta = 1."""
        return settings["theta"] < 1

    def __call__(self, g: Vector, memory: Memory, here: Here, **settings: list[float]) -> Vector:
        theta = settings["theta"]
        d = memory.recall("d")
        old = [i for i, slope in enumerate(d) if slope is not None]
        new = [i for i, slope in enumerate(d) if slope is None and theta[i] < 1]
        if not old and not new:
            return g
        lerp_([s for s in d if s is not None], [g[i] for i in old], [theta[i] for i in old])
        for i in new:
            start = 1.0 if self.init == "first" else theta[i]
            d[i] = memory.store("d", i, torch.mul(full_precision(g[i]), start))
        return [g[i] if slope is None else slope for i, slope in enumerate(d)]
