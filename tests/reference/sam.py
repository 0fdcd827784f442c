"""SAM as on paper, tensor by tensor.

epsilon = rho g / ||g||,  u = g(x + epsilon),  x <- x - lr u       (Foret et al., 2021)

The norm is over all tensors that are climbed: those of groups with rho > 0 that have a gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Gradients: TypeAlias = dict[int, Tensor]
"""The gradient of each tensor, by its number; a tensor without a gradient is not there."""

Oracle: TypeAlias = Callable[[list[Tensor], int], Gradients]
"""Weights and the number of the pass within the step -> gradients."""


@dataclass
class Group:
    """Which tensors share which settings; change the settings to schedule them.

    Attributes:
        rows: the numbers of the tensors.
        lr: the learning rate.
        rho: the radius.
        theta: the weight of the newest gradient; SAM does not look at it.
        scheduled: whether rho is a schedule, so that 0 means "not just now" and not "never".
    """

    rows: list[int]
    lr: float
    rho: float
    theta: float = 1.0
    scheduled: bool = False


def length(slope: Gradients) -> float:
    """The norm of all entries together."""
    return math.sqrt(math.fsum(v * v for x in slope.values() for v in x.flatten().tolist()))


def epsilon(d: Gradients, groups: list[Group]) -> Gradients:
    """The adversary along d, of the tensors that are climbed."""
    climbed = {i: group for group in groups if group.rho > 0 for i in group.rows if i in d}
    norm = length({i: d[i] for i in climbed})
    return {i: group.rho * d[i] / norm if norm else 0 * d[i] for i, group in climbed.items()}


def add(x: list[Tensor], e: Gradients) -> list[Tensor]:
    """x + epsilon."""
    return [w + e[i] if i in e else w for i, w in enumerate(x)]


def adversary(x: list[Tensor], gradient: Oracle, groups: list[Group]) -> Gradients:
    """u, the gradient that goes down."""
    g = gradient(x, 0)
    e = epsilon(g, groups)
    return gradient(add(x, e), 1) if e else g


def descend(x: list[Tensor], u: Gradients, groups: list[Group]) -> list[Tensor]:
    """Plain gradient descent."""
    lr = {i: group.lr for group in groups for i in group.rows}
    return add(x, {i: -lr[i] * u[i] for i in u})


def step(x: list[Tensor], gradient: Oracle, groups: list[Group]) -> list[Tensor]:
    """One step of SAM: the new weights."""
    return descend(x, adversary(x, gradient, groups), groups)
