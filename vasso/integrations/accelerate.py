"""accelerate: `Window` repeats all micro-batches of an accumulation window at w + epsilon.

accelerate calls `step` only where gradients are synchronised, so a closure would see only one
micro-batch of the window.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vasso.engine.groups import STEP
from vasso.optimizer import SharpnessAware
from vasso.optional import needs_extra

with needs_extra("accelerate"):
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-untyped]


class Window:
    """Takes both passes of a step over all micro-batches that accelerate accumulates.

    g = mean of g_k(w), then h = mean of g_k(w + epsilon), over the same micro-batches k. If the
    method needs no gradient at w, the first round is skipped.

    Args:
        accelerator: its `accumulate` surrounds each micro-batch.
        model: the model that `prepare` returned.
        optimizer: a vasso optimizer, prepared or not.
        log_every: steps from one `accelerator.log` of the optimizer's `metrics()` to the next, as
            "vasso/rho" and so on; 0 for none.

    Example:
        >>> from vasso import VaSSO
        >>> model = nn.Linear(2, 1)
        >>> base = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> accelerator = Accelerator(gradient_accumulation_steps=2)
        >>> model, opt = accelerator.prepare(model, VaSSO(base, model=model))
        >>> window = Window(accelerator, model, opt)
        >>> for x in torch.ones(2, 4, 2):
        ...     with accelerator.accumulate(model):
        ...         loss_at_w = window.backward(lambda x: model(x).square().mean(), x)
        ...         opt.step()
        ...         opt.zero_grad()
        >>> window.optimizer.last.climbed
        True
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        log_every: int = 0,
    ) -> None:
        self.accelerator, self.model, self.log_every = accelerator, model, log_every
        self.optimizer = sharpness_aware(optimizer)
        self._kept: list[Callable[[], Tensor]] = []
        self._at_w: list[Tensor] = []
        self._clean = True

    def backward(self, compute_loss: Callable[..., Tensor], *data: Any, **named: Any) -> Tensor:
        """Adds a micro-batch; the last one of a window starts the passes at w + epsilon.

        Use it instead of `accelerator.backward`, inside `accelerator.accumulate`; clip and step
        afterwards as usual.

        Args:
            compute_loss: a function from the data to the loss; it must not call `backward`.
            *data: the micro-batch. It is kept until the window is complete.
            **named: the same, as keyword arguments.

        Returns:
            The loss at w, detached. If the method needs no gradient at w: zero, and for the last
            micro-batch of a window the sum of the losses at w + epsilon.

        Raises:
            TypeError: no data. A second pass would read newer values from the loop's variables.
        """
        if not data and not named:
            raise TypeError(
                "backward() got no data: pass the micro-batch, as in backward(compute_loss, x, y). "
                "A function that reads it from the loop's variables would see the newest one only "
                "when the window is replayed."
            )
        if not self._kept:
            self._clean = self.optimizer.wants_clean

        def one_pass() -> Tensor:
            loss = compute_loss(*data, **named)
            self.accelerator.backward(loss)
            return loss.detach()

        loss = one_pass() if self._clean else torch.zeros((), device=self.accelerator.device)
        self._kept.append(one_pass)  # now that it has succeeded
        self._at_w.append(loss)
        if not self.accelerator.sync_gradients:
            return loss
        (kept, self._kept), (at_w, self._at_w) = (self._kept, []), (self._at_w, [])
        losses = perturbed_passes(
            self.accelerator, self.model, self.optimizer, kept, clean=self._clean
        )
        if self._clean and losses:
            self.optimizer.note_losses(torch.stack(at_w).mean(), torch.stack(losses).mean())
        self._log()
        return loss if self._clean else torch.stack(losses).sum()

    def _log(self) -> None:
        step = self.optimizer.param_groups[0][STEP] + 1
        if self.log_every and step % self.log_every == 0:
            found = self.optimizer.metrics()
            self.accelerator.log({f"vasso/{name}": value for name, value in found.items()}, step)


def perturbed_passes(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: SharpnessAware,
    passes: Sequence[Callable[[], Tensor]],
    *,
    clean: bool,
) -> list[Tensor]:
    """Makes all passes of a window at w + epsilon, if this step perturbs; returns their losses.

    `clean` says whether the gradients at w have been taken. Ranks synchronise gradients in the last
    pass only.
    """
    losses: list[Tensor] = []
    with optimizer.ascended(scaler=accelerator.scaler) as perturbed:
        if perturbed or not clean:
            for number, one_pass in enumerate(passes, start=1):
                last = number == len(passes)
                with nullcontext() if last else accelerator.no_sync(model):
                    losses.append(one_pass())
    return losses


def unwrapped(optimizer: Optimizer | None) -> Optimizer | None:
    """The optimizer as it was before `prepare`."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def sharpness_aware(optimizer: Optimizer | None) -> SharpnessAware:
    """The vasso optimizer inside accelerate's wrapper; an error for any other or sync="local"."""
    ours = unwrapped(optimizer)
    if not isinstance(ours, SharpnessAware):
        raise TypeError(
            f"expected a vasso optimizer with ascended(), got {type(ours).__name__}: wrap it, as "
            "in VaSSO(optimizer, model=model)"
        )
    if ours.sync == "local":
        raise ValueError(
            'sync="local" cannot be used with accelerate, which synchronises the gradients at w: '
            'use sync="global"'
        )
    return ours
