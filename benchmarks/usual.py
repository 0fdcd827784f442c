"""SAM and VaSSO as most published codes have them: tensor by tensor, epsilon kept in a dict."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Usual:
    """The usual scheme: an average and an epsilon per tensor, added, then subtracted again.

    d <- (1 - theta) d + theta g,  epsilon = rho d / (||d|| + 1e-12),  w + epsilon,  w - epsilon

    Args:
        base: takes the step.
        rho: radius of the ball.
        theta: weight of the newest gradient; at 1 this is SAM and no average is kept.
    """

    def __init__(self, base: Optimizer, rho: float, theta: float) -> None:
        self.base, self.rho, self.theta = base, rho, theta
        self.params: list[Tensor] = [p for group in base.param_groups for p in group["params"]]
        self.state: dict[Tensor, dict[str, Tensor]] = {p: {} for p in self.params}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> None:
        """Both passes and the step of the base."""
        with torch.enable_grad():
            closure()
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()

    def first_step(self) -> None:
        """Up to w + epsilon."""
        slopes = {p: self.slope(p) for p in self.params}
        lengths = torch.stack([slope.norm(p=2) for slope in slopes.values()])
        scale = self.rho / (lengths.norm(p=2) + 1e-12)
        for p, slope in slopes.items():
            e_w = slope * scale
            p.add_(e_w)
            self.state[p]["e_w"] = e_w
        for p in self.params:
            p.grad = None

    def slope(self, p: Tensor) -> Tensor:
        """The average of the gradients of one tensor, which begins with the first of them."""
        assert p.grad is not None
        if self.theta == 1:
            return p.grad
        if "ema" not in self.state[p]:
            self.state[p]["ema"] = p.grad.clone()
        return self.state[p]["ema"].mul_(1 - self.theta).add_(p.grad, alpha=self.theta)

    def second_step(self) -> None:
        """Down to w and on with the base."""
        for p in self.params:
            p.sub_(self.state[p]["e_w"])
        self.base.step()
