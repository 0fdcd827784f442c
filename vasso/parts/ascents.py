"""Ascents: the points that approximate the maximum of the loss in the ball.

epsilon_{j+1} = keep_j epsilon_j + add_j s_j, with s_j the maximum over the ball of the linear model
with the slope at x_t + epsilon_j.

| ascent       | points | keep, add                                  |
|--------------|--------|--------------------------------------------|
| `OneStep`    | 1      | 0, 1                                       |
| `MultiStep`  | n      | 1, 1 or 1/n, projected onto the ball     |
| `FrankWolfe` | K      | 1 - gamma_k, gamma_k = 2 / (k + 2)         |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from vasso import validation
from vasso.numerics.vectors import Vector, as_dtypes
from vasso.parts.part import Part


@dataclass(frozen=True)
class Ascent(Part):
    """Approximation of the maximum in the ball."""

    @property
    def points(self) -> int:
        """Number of points w + epsilon of a step; each costs one gradient."""
        return 1

    @property
    def projects(self) -> bool:
        """Whether a point outside the ball is projected onto its surface."""
        return False

    def __call__(self, j: int) -> tuple[float, float]:
        """The weights keep_j and add_j of the step to point j; j = 0 is the first point."""
        raise NotImplementedError

    def slope(self, j: int, before: Vector, new: Vector) -> Vector:
        """The slope from point j >= 1 on, of the one before and the new one at the point."""
        return new


@dataclass(frozen=True)
class OneStep(Ascent):
    """One point, the maximum of the linear model at w, as in SAM."""

    def __call__(self, j: int) -> tuple[float, float]:
        return 0.0, 1.0


@dataclass(frozen=True)
class MultiStep(Ascent):
    """Several steps, with a new slope at each point; stays inside the ball.

    epsilon_{j+1} = Pi(epsilon_j + s d_j / ||d_j||),  d_j the slope at x_t + epsilon_j

    Foret et al., 2021 (appendix); Andriushchenko and Flammarion, 2022; Kim et al., 2023. With n = 1
    it is `OneStep`.

    Args:
        n: number of points; each costs one gradient.
        stride: length of a step, "rho" or "rho/n".
        project: whether points stay inside the ball.
    """

    n: int = 2
    stride: Literal["rho", "rho/n"] = "rho"
    project: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.count("n", self.n)
        validation.one_of("stride", self.stride, "rho", "rho/n")

    @property
    def points(self) -> int:
        return self.n

    @property
    def projects(self) -> bool:
        return self.project

    def __call__(self, j: int) -> tuple[float, float]:
        return 1.0, 1.0 if self.stride == "rho" else 1.0 / self.n


@dataclass(frozen=True)
class FrankWolfe(Ascent):
    """Moves part of the way to the maximum of each linear model, so it never leaves the ball.

    epsilon_{k+1} = (1 - gamma_k) epsilon_k + gamma_k s_k,  gamma_k = 2 / (k + 2)

    Stochastic Frank-Wolfe, Reddi et al., 2016, as the VaSSO paper reads SAM: K = 1 is `OneStep`.
    With momentum (Mokhtari, Hassani and Karbasi, 2018) the slopes of the points are averaged:
    d_k = (1 - r_k) d_{k-1} + r_k g(x_t + epsilon_k), r_k = 4 / (k + 8)^(2/3).

    Args:
        K: number of points; each costs one gradient.
        momentum: whether slopes are averaged.
    """

    K: int = 2
    momentum: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.count("K", self.K)

    @property
    def points(self) -> int:
        return self.K

    def __call__(self, j: int) -> tuple[float, float]:
        gamma = 2 / (j + 2)
        return 1 - gamma, gamma

    def slope(self, j: int, before: Vector, new: Vector) -> Vector:
        if not self.momentum:
            return new
        return list(torch._foreach_lerp(before, as_dtypes(new, before), 4 / (j + 8) ** (2 / 3)))
