"""How is the maximum sought? An ascent says which points are visited on the way up.

epsilon_{j+1} = keep_j epsilon_j + add_j s_j, with s_j the highest point of the slope at
x_t + epsilon_j within the ball.

| ascent    | points | keep, add |
|-----------|--------|-----------|
| `OneStep` | 1      | 0, 1      |
"""

from __future__ import annotations

from dataclasses import dataclass

from vasso.parts import Part
from vasso.vectors import Vector


@dataclass(frozen=True)
class Ascent(Part):
    """How is the maximum sought?"""

    @property
    def points(self) -> int:
        """How many points above w a step visits, each for one gradient."""
        return 1

    @property
    def projects(self) -> bool:
        """Whether a point outside the ball is brought back to its surface."""
        return False

    def __call__(self, j: int) -> tuple[float, float]:
        """How to go on to point j.

        Args:
            j: 0 for the first point.

        Returns:
            How much of the way so far to keep, and how much of the new point to add.
        """
        raise NotImplementedError

    def slope(self, j: int, before: Vector, new: Vector) -> Vector:
        """The slope to go on with from point j, if it is not the one found there.

        Args:
            j: the point, 1 or more.
            before: the slope that led there.
            new: the slope found there.

        Returns:
            The slope to climb next.
        """
        return new


@dataclass(frozen=True)
class OneStep(Ascent):
    """Goes straight to the highest point of the slope: one gradient there, as in SAM."""

    def __call__(self, j: int) -> tuple[float, float]:
        return 0.0, 1.0
