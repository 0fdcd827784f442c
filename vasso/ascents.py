"""How is the maximum sought? An ascent says which points are visited on the way up.

epsilon_{j+1} = keep_j epsilon_j + add_j s_j, with s_j the highest point of the slope at
x_t + epsilon_j within the ball.

| ascent       | points | keep, add                                  |
|--------------|--------|--------------------------------------------|
| `OneStep`    | 1      | 0, 1                                       |
| `MultiStep`  | n      | 1, 1 or 1/n, back to the surface if outside |
| `FrankWolfe` | K      | 1 - gamma_k, gamma_k = 2 / (k + 2)         |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vasso import checks
from vasso.parts import Part
from vasso.vectors import Vector, as_dtypes


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


@dataclass(frozen=True)
class MultiStep(Ascent):
    """Climbs in several steps, with a new slope at each point; stays inside the ball.

    epsilon_{j+1} = Pi(epsilon_j + s d_j / ||d_j||),  d_j the slope at x_t + epsilon_j

    Foret et al., 2021 (appendix); Andriushchenko and Flammarion, 2022; Kim et al., 2023. With n = 1
    it is `OneStep`.

    Args:
        n: points, each for one gradient.
        stride: length of a step: "rho", or "rho/n".
    """

    n: int = 2
    stride: Literal["rho", "rho/n"] = "rho"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("n", self.n)
        if self.stride not in ("rho", "rho/n"):
            raise ValueError(f'stride must be "rho" or "rho/n", got {self.stride!r}')

    @property
    def points(self) -> int:
        """n."""
        return self.n

    @property
    def projects(self) -> bool:
        """Always."""
        return True

    def __call__(self, j: int) -> tuple[float, float]:
        return 1.0, 1.0 if self.stride == "rho" else 1.0 / self.n


@dataclass(frozen=True)
class FrankWolfe(Ascent):
    """Goes part of the way to the highest point of each slope: never leaves the ball.

    epsilon_{k+1} = (1 - gamma_k) epsilon_k + gamma_k s_k,  gamma_k = 2 / (k + 2)

    Stochastic Frank-Wolfe, Reddi et al., 2016, as the VaSSO paper reads SAM: K = 1 is `OneStep`.
    With momentum (Mokhtari, Hassani and Karbasi, 2018) the slopes of the points are averaged:
    d_k = (1 - r_k) d_{k-1} + r_k g(x_t + epsilon_k), r_k = 4 / (k + 8)^(2/3).

    Args:
        K: points, each for one gradient.
        momentum: whether slopes are averaged.
    """

    K: int = 2
    momentum: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("K", self.K)

    @property
    def points(self) -> int:
        """K."""
        return self.K

    def __call__(self, j: int) -> tuple[float, float]:
        gamma = 2 / (j + 2)
        return 1 - gamma, gamma

    def slope(self, j: int, before: Vector, new: Vector) -> Vector:
        """The average with momentum, else the new slope."""
        if not self.momentum:
            return new
        return list(torch._foreach_lerp(before, as_dtypes(new, before), 4 / (j + 8) ** (2 / 3)))
