"""How far is rho? A geometry finds the highest point of a linear slope within a ball of radius rho.

| geometry | epsilon                | ball               |
|----------|------------------------|--------------------|
| `L2`     | rho d / ||d||          | ||epsilon|| <= rho |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vasso.here import Here, Memory
from vasso.parts import Part
from vasso.vectors import Vector


@dataclass(frozen=True)
class Geometry(Part):
    """How far is rho?

    Attributes:
        depends_on_w: the ball changes with the weights, so that epsilon cannot be computed again
            from the slope alone. It is that of `here.x`, the weights at home, wherever we are.
        needs_names: weights, biases and the like are treated differently.
        asks_more: the geometry takes gradients of its own (`here.gradient`).
    """

    depends_on_w: ClassVar[bool] = False
    needs_names: ClassVar[bool] = False
    asks_more: ClassVar[bool] = False

    def __call__(self, d: Vector, memory: Memory, here: Here) -> tuple[Vector, Tensor]:
        """The maximiser of <d, epsilon> over the ball, as epsilon = rho push / length.

        Args:
            d: the slope, one tensor for each of `here.w`.
            memory: the vectors this part remembers, to be updated in place.
            here: the step.

        Returns:
            The push, one tensor for each of `here.w`, and the length, a 0-dim tensor that is
            infinite where there is nothing to climb.
        """
        raise NotImplementedError

    def length(self, v: Vector, here: Here) -> Tensor:
        """The norm whose unit ball, times rho, is climbed in.

        Args:
            v: one tensor for each of `here.w`.
            here: the step.

        Returns:
            A 0-dim tensor.
        """
        raise NotImplementedError


def or_infinite(length: Tensor) -> Tensor:
    """The length, or infinity where it is 0: dividing by it then gives 0 without asking the host.

    Args:
        length: a 0-dim tensor.

    Returns:
        Another.
    """
    return torch.where(length > 0, length, math.inf)


@dataclass(frozen=True)
class L2(Geometry):
    """The Euclidean ball over all weights together: epsilon = rho d / ||d||, and 0 where d is 0.

    Args:
        eps: added to ||d||. The published codes add 1e-7 or 1e-12; we need none, because a slope
            of zero is not climbed.
    """

    eps: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.eps < math.inf:
            raise ValueError(f"eps must be at least 0 and finite, got {self.eps}")

    def __call__(self, d: Vector, memory: Memory, here: Here) -> tuple[Vector, Tensor]:
        return d, or_infinite(here.norm(d)) + self.eps

    def length(self, v: Vector, here: Here) -> Tensor:
        return here.norm(v)
