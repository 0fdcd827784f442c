"""Loss scaling: unscales the gradients of a GradScaler twice in one step.

A `GradScaler` unscales the gradients of an optimizer once between two updates, and a step here
needs that twice. So each pass is unscaled in the name of another optimizer over the same
parameters: a proxy that never steps. The scaler notes what overflowed under the proxy's name, and
its `update` backs off whichever pass it was. All of this is public API of `torch.amp`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


class LossScaling:
    """The GradScaler of the current step, if there is one; without one all methods do nothing."""

    def __init__(self) -> None:
        self._scaler: torch.amp.GradScaler | None = None
        # the scaler identifies proxies by address until its next update, so they must not be freed
        self._proxies: list[Optimizer] = []

    def start(self, scaler: torch.amp.GradScaler | None) -> None:
        """Takes the scaler of a new step."""
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None

    def unscale(self, params: list[Tensor]) -> None:
        """Divides the gradients by the scale and lets the scaler note whether they overflowed."""
        if self._scaler is None or all(p.grad is None for p in params):
            return
        for proxy in self._proxies:
            if self._unscaled_as(self._scaler, proxy, params):
                return
        self._proxies.append(SGD(params, lr=0.0))
        self._scaler.unscale_(self._proxies[-1])

    @staticmethod
    def _unscaled_as(scaler: torch.amp.GradScaler, proxy: Optimizer, params: list[Tensor]) -> bool:
        """Whether the scaler accepted this proxy, which it does once between two updates."""
        known = proxy.param_groups[0]["params"]
        if len(known) != len(params) or any(a is not b for a, b in zip(known, params, strict=True)):
            return False
        try:
            scaler.unscale_(proxy)
        except RuntimeError:
            return False
        return True

    def rescale(self, params: list[Tensor]) -> None:
        """Multiplies the gradients by the scale, for a caller who is going to unscale them."""
        for p in params if self._scaler is not None else ():
            if p.grad is not None:
                p.grad.mul_(self._scaler.scale(torch.ones((), device=p.grad.device)))  # type: ignore[union-attr]

    def update(self) -> None:
        """Lets the scaler adapt its scale, at the end of a step."""
        if self._scaler is not None:
            self._scaler.update()

    def __reduce__(self) -> tuple[type[LossScaling], tuple[()]]:
        """A copy begins without a scaler."""
        return LossScaling, ()
