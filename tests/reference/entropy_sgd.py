"""Entropy-SGD as on paper, with Nesterov's momentum and weight decay in the walk as in its code.

x' = mu = x, m = 0, then L times
    g  = grad f(x') + decay x',  m <- momentum m + g,  g <- g + momentum m
    x' <- x' - lr' (g - gamma_t (x - x')) + noise sqrt(2 lr') N
    mu <- (1 - alpha) mu + alpha x'
and x <- x - lr (x - mu), with gamma_t = gamma (1 + scoping)^t.

Chaudhari et al., 2017.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Walk:
    """The settings of the inner loop."""

    L: int = 20
    lr: float = 0.1
    gamma: float = 0.03
    scoping: float = 1e-3
    noise: float = 1e-4
    alpha: float = 0.25
    momentum: float = 0.9
    decay: float = 0.0


def train(
    x: Tensor,
    gradient: Callable[[Tensor, int], Tensor],
    normal: Callable[[int, int], Tensor],
    steps: int,
    walk: Walk,
    lr: float,
) -> list[Tensor]:
    """The weights after each step; batches are taken one after the other, L per step.

    `normal` gives the N of a step and a place in its walk.
    """
    path, batch = [], 0
    for t in range(steps):
        gamma = walk.gamma * (1 + walk.scoping) ** t
        inner, mean, m = x.clone(), x.clone(), torch.zeros_like(x)
        for k in range(walk.L):
            g = gradient(inner, batch) + walk.decay * inner
            m = walk.momentum * m + g
            g = g + walk.momentum * m
            inner = inner - walk.lr * (g - gamma * (x - inner))
            inner = inner + walk.noise * (2 * walk.lr) ** 0.5 * normal(t, k)
            mean = (1 - walk.alpha) * mean + walk.alpha * inner
            batch += 1
        x = x - lr * (x - mean)
        path.append(x)
    return path
