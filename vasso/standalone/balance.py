"""BAR: balances the two factors of each LoRA pair before the base steps; one gradient a step.

| by          | which factor grows by 1 + alpha lr           | which shrinks by 1 - alpha lr |
|-------------|----------------------------------------------|-------------------------------|
| "gradients" | nBAR: the one with the larger gradient       | the other                     |
| "weights"   | oBAR: the one with the smaller norm          | the other                     |

The sharpness of a loss of the product B A depends on how the product is divided between the two.
Li, Zhang and He, 2024, show that SAM balances them, and do so directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vasso import validation
from vasso.engine.wrapper import CommonOptions
from vasso.numerics.rng import mix_seed
from vasso.numerics.rounding import is_low, rounded
from vasso.numerics.vectors import full_precision, norm, shards
from vasso.parts.part import Part, Range, Setting
from vasso.parts.plans import Data
from vasso.standalone.lora_layers import LoraLayer, Pairs, given_layers, lora_layers, of_base
from vasso.standalone.stepper import Stepper


@dataclass(frozen=True)
class Balance(Part):
    """Scales the factors of a pair by 1 + alpha lr and 1 - alpha lr, so that their norms meet.

    Args:
        alpha: strength, at least 0.
        by: what is compared, the norms of the "gradients" or of the "weights".
    """

    alpha: Setting = 0.5
    by: Literal["gradients", "weights"] = "gradients"

    scheduled: ClassVar[Mapping[str, Range]] = {"alpha": Range(least=0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("by", self.by, "gradients", "weights")

    def signs(self, x: LoraLayer) -> tuple[Tensor, Tensor]:
        """1 for the factor that grows, -1 for the one that shrinks; on the device."""
        if self.by == "gradients":
            A_grows = norm([_gradient(x.A)]) >= norm([_gradient(x.B)])
        else:
            A_grows = norm([x.A.detach()]) < norm([x.B.detach()])
        sign = torch.where(A_grows, 1.0, -1.0)
        return sign, -sign


class BAR(Stepper):
    """Balances the two factors of each LoRA pair, then lets the base step.

    For each pair by itself, with Frobenius norms, lr the base's and nBAR's test:

    A <- (1 + alpha lr) A, B <- (1 - alpha lr) B  if ||g_A|| >= ||g_B||, else the other way round

    Li, Zhang and He, NeurIPS 2024: nBAR with ``by="gradients"``, oBAR with ``by="weights"``, which
    shrinks the larger factor. One gradient a step and no memory. The product B A changes by the
    factor 1 - (alpha lr)^2 only. `step()` needs no closure, so BAR works in any loop and in the
    plain Trainer of transformers; it comes after accumulation, unscaling and all-reduce, and a
    common factor of the gradients (a loss scale, clipping of the global norm) does not change it.
    While B is still zero only A is scaled. alpha and lr are those of A's group. In the paper's
    tables alpha is called mu.

    Factors in bfloat16 or float16 are rounded at random: alpha lr is far below their precision, and
    to nearest nothing would change. `peft` keeps its adapters in float32 by default, which is
    better.

    Args:
        base: the optimizer of the adapters, an instance.
        alpha: strength; the authors fall from 0.2 to 2 linearly to 0, see `schedules.linear`.
        by: the norms that are compared, of the "gradients" or of the "weights".
        pairs: pairs (A, B) of factors; None for those in `model`, as peft names them.
        **options: see `Stepper`.

    Raises:
        ValueError: there are no pairs, or the base does not have both factors of one.

    Example:
        >>> A, B = (torch.ones(2, 2, requires_grad=True) for _ in range(2))
        >>> opt = BAR(torch.optim.SGD([A, B], lr=0.1), alpha=1.0, pairs=[(A, B)])
        >>> (B @ A).sum().mul(0.0).backward()
        >>> opt.step()
        >>> A[0, 0].item(), B[0, 0].item()
        (1.100000023841858, 0.8999999761581421)
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        alpha: Setting = 0.5,
        by: Literal["gradients", "weights"] = "gradients",
        pairs: Pairs | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        self.balance = Balance(alpha, by)
        super().__init__(base, rho=None, parts=(self.balance,), **options)
        model: Any = options.get("model") or nn.Module()
        found = lora_layers(model) if pairs is None else given_layers(pairs)
        self.pairs = of_base(found, base)

    def _compute_u(self, batch: Data) -> None:
        context = self._context()
        gradient = self._gradient_of(batch, context)
        self._publish(context, [x for x in gradient if x is not None], None, None, None)

    def _step_base(self) -> None:
        if self._current.pending != "skip":
            self._scale_pairs()
        super()._step_base()

    def _scale_pairs(self) -> None:
        rows = self._groups.current()
        settings = {
            p: row["alpha"] * float(group["lr"])
            for group, row in zip(self.param_groups, rows, strict=True)
            for p in group["params"]
        }
        pairs = of_base(self.pairs, self.base)
        strengths = [settings[x.A] for x in pairs]
        for x, by in zip(pairs, strengths, strict=True):
            if by >= 1:
                raise ValueError(
                    f"alpha lr must be below 1, or a factor changes its sign; it is {by:g} for "
                    f"{x.name!r}: lower alpha"
                )
        for i, (x, by) in enumerate(zip(pairs, strengths, strict=True)):
            if by and x.A.grad is not None and x.B.grad is not None:
                for j, (p, sign) in enumerate(zip((x.A, x.B), self.balance.signs(x), strict=True)):
                    _scale(p, sign, by, seed=mix_seed(self._groups.step, i, j))


def _gradient(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


def _scale(p: Tensor, sign: Tensor, by: float, seed: int) -> None:
    """p <- (1 + sign by) p, in place."""
    (own,) = shards([p.detach()])
    wide = full_precision(own)
    wide = wide * (1 + sign.to(wide) * by)
    own.copy_(rounded(wide, own.dtype, seed) if is_low(own.dtype) else wide)
