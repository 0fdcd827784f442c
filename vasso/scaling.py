"""How do the scaled gradients of a GradScaler become true ones, twice in one step?

A `GradScaler` unscales the gradients of an optimizer once between two updates, and a climb needs
that twice. So each pass is unscaled in the name of another optimizer over the same parameters: a
proxy that never steps. The scaler notes what overflowed under the proxy's name, and its `update`
backs off whichever pass it was. All of this is public API of `torch.amp`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


class Scaling:
    """A GradScaler for the length of one step.

    Args:
        scaler: the caller's.
        proxies: optimizers over the same parameters that the scaler may know already; it knows them
            by their addresses until its next update, so they have to live on.

    Example:
        >>> w = torch.tensor([1.0], requires_grad=True)
        >>> scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        >>> scaling = Scaling(scaler, [])
        >>> for _ in range(2):
        ...     w.grad = None
        ...     scaler.scale(3 * w).sum().backward()
        ...     scaling.unscale([w])
        ...     print(w.grad)
        tensor([3.])
        tensor([3.])
    """

    def __init__(self, scaler: torch.amp.GradScaler, proxies: list[Optimizer]) -> None:
        self.scaler, self.proxies = scaler, proxies

    def unscale(self, params: list[Tensor]) -> None:
        """Divides the gradients by the scale and lets the scaler note whether they overflowed.

        Args:
            params: all parameters; those without a gradient are left alone.
        """
        if all(p.grad is None for p in params):
            return
        for proxy in self.proxies:
            if self._unscaled_as(proxy, params):
                return
        self.proxies.append(SGD(params, lr=0.0))
        self.scaler.unscale_(self.proxies[-1])

    def _unscaled_as(self, proxy: Optimizer, params: list[Tensor]) -> bool:
        """Whether the scaler took this proxy, which it does once between two updates."""
        known = proxy.param_groups[0]["params"]
        if len(known) != len(params) or any(a is not b for a, b in zip(known, params, strict=True)):
            return False
        try:
            self.scaler.unscale_(proxy)
        except RuntimeError:
            return False
        return True

    def rescale(self, params: list[Tensor]) -> None:
        """Multiplies the gradients by the scale, for a caller who is going to unscale them.

        Args:
            params: all parameters.
        """
        for p in params:
            if p.grad is not None:
                p.grad.mul_(self.scaler.scale(torch.ones((), device=p.grad.device)))
