"""Which parts make a method? A preset is a choice of parts and nothing else."""

from __future__ import annotations

from typing import Unpack

from torch.optim import Optimizer

from vasso.directions import Ema
from vasso.optimizer import Options, SharpnessAware
from vasso.parts import Setting


class SAM(SharpnessAware):
    """Sharpness-aware minimisation: climbs along the gradient of the batch.

    epsilon_t = rho g_t(x_t) / ||g_t(x_t)||,  u = g_t(x_t + epsilon_t)

    Foret, Kleiner, Mobahi and Neyshabur, ICLR 2021. Costs two gradient evaluations per step and no
    memory between steps.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball.
        theta: weight of the newest gradient in the slope; below 1 this is `VaSSO`.
        **options: see `SharpnessAware`.

    Example:
        >>> import torch
        >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> opt = SAM(torch.optim.SGD([w], lr=0.5), rho=0.5)
        >>> def closure():
        ...     opt.zero_grad()
        ...     loss = 0.5 * w.square().sum()
        ...     loss.backward()
        ...     return loss
        >>> opt.step(closure).item()
        12.5
        >>> w  # from (3, 4) half of the gradient at (3.3, 4.4) down
        tensor([1.3500, 1.8000], requires_grad=True)
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        theta: Setting = 1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), **options)


class VaSSO(SharpnessAware):
    """Sharpness-aware minimisation with variance suppression: climbs along an averaged slope.

    d_t = (1 - theta) d_{t-1} + theta g_t(x_t),  epsilon_t = rho d_t / ||d_t||,
    u = g_t(x_t + epsilon_t)

    Li and Giannakis, NeurIPS 2023, eq. (4). Costs two gradient evaluations per step and one vector
    between steps.

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball. The averaged slope turns less of it into a rise of the loss on its
            own batch than SAM's does, so its best rho tends to be larger.
        theta: weight of the newest gradient, in (0, 1]; at 1 this is `SAM`.
        **options: see `SharpnessAware`.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> opt = VaSSO(torch.optim.AdamW(model.parameters()), rho=0.1, theta=0.2)
        >>> opt.param_groups[0]["theta"]
        0.2
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting = 0.05,
        theta: Setting = 0.4,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base, rho=rho, direction=Ema(theta), **options)
