"""SAMPa as on paper, with the batches as in the authors' code: one step late.

x~_t    = x_t + rho grad f(y_t; B_{t-1}) / ||grad f(y_t; B_{t-1})||
y_{t+1} = the step of SGD from x_t by grad f(y_t; B_{t-1}), which SGD forgets again
x_{t+1} = the step of SGD from x_t by (1 - lam) grad f(x~_t; B_{t-1}) + lam grad f(y_{t+1}; B_t)

Xie, Pethick and Cevher, 2024. At t = 0 there is no grad f(y_0): x~_0 = y_1 = x_0 on batch B_0.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass
class Sgd:
    """Torch's SGD by hand, on one vector."""

    lr: float = 0.1
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def step(self, x: Tensor, u: Tensor, buffer: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The new weights and the new momentum."""
        u = u + self.weight_decay * x
        if self.momentum == 0:
            return x - self.lr * u, None
        buffer = u if buffer is None else self.momentum * buffer + (1 - self.dampening) * u
        return x - self.lr * (u + self.momentum * buffer if self.nesterov else buffer), buffer


def train(
    x: Tensor,
    gradient: Callable[[Tensor, int], Tensor],
    steps: int,
    sgd: Sgd,
    rho: float,
    lam: float,
    lr: Callable[[int], float],
) -> list[Tensor]:
    """The weights after each step."""
    path, buffer = [], None
    for t in range(steps):
        sgd.lr = lr(t)
        if t == 0:
            slope = u = gradient(x, 0)
        else:
            above = x + rho * slope / slope.norm()
            y, _ = sgd.step(x, slope, buffer)
            slope = gradient(y, t)
            u = (1 - lam) * gradient(above, t - 1) + lam * slope
        x, buffer = sgd.step(x, u, buffer)
        path.append(x)
    return path
