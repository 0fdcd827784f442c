"""How does a climb fit into accelerate's accumulation? The window is replayed at w + epsilon.

accelerate calls `step` only where gradients are synchronised, so that a closure would see one
micro-batch of a window. `Window` keeps them all and takes the second pass over every one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vasso.extras import brought_by
from vasso.optimizer import SharpnessAware

with brought_by("accelerate"):
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.optimizer import AcceleratedOptimizer  # type: ignore[import-untyped]


class Window:
    """Takes the two passes of a step over all micro-batches that accelerate accumulates.

    g = mean of g_k(w), then h = mean of g_k(w + epsilon), over the same micro-batches k. Where the
    method wants no gradient at w, the first round is left out.

    Args:
        accelerator: whose `accumulate` surrounds each micro-batch.
        model: as `prepare` gave it.
        optimizer: one of ours, prepared or not.

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

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: Optimizer) -> None:
        self.accelerator, self.model = accelerator, model
        self.optimizer = sharpness_aware(optimizer)
        self._kept: list[Callable[[], Tensor]] = []
        self._clean = True

    def backward(self, compute_loss: Callable[..., Tensor], *data: Any, **named: Any) -> Tensor:
        """Adds a micro-batch; with the last of a window this climbs and goes through it again.

        Use it instead of `accelerator.backward`, inside `accelerator.accumulate`; clip and step
        afterwards as always.

        Args:
            compute_loss: from the data to the loss; no `backward` inside.
            *data: the micro-batch. It is kept until the window is complete.
            **named: the same by name.

        Returns:
            The loss at w, detached; where the method wants no gradient at w, the sum of those at
            w + epsilon with the last micro-batch of a window and zero with the others.

        Raises:
            TypeError: no data, which a replay would take from variables that have moved on.
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
        if not self.accelerator.sync_gradients:
            return loss
        kept, self._kept = self._kept, []
        losses = climb(self.accelerator, self.model, self.optimizer, kept, clean=self._clean)
        return loss if self._clean else torch.stack(losses).sum()


def climb(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: SharpnessAware,
    passes: Sequence[Callable[[], Tensor]],
    *,
    clean: bool,
) -> list[Tensor]:
    """Climbs and takes all passes of a window there, if this step does.

    Args:
        accelerator: who knows how to keep ranks from synchronising.
        model: as `prepare` gave it.
        optimizer: ours.
        passes: forward and backward of each micro-batch.
        clean: whether the gradients of the window at w have been taken.

    Returns:
        The losses at w + epsilon; none where the step does not climb.
    """
    with optimizer.ascended(scaler=accelerator.scaler) as up:
        if not up and clean:
            return []
        return [
            one_pass_of(accelerator, model, one_pass, last=number == len(passes))
            for number, one_pass in enumerate(passes, 1)
        ]


def one_pass_of(
    accelerator: Accelerator, model: nn.Module, one_pass: Callable[[], Tensor], *, last: bool
) -> Tensor:
    """One pass; ranks synchronise their gradients in the last of a window only.

    Args:
        accelerator: who knows how.
        model: as `prepare` gave it.
        one_pass: forward and backward.
        last: whether it is the last.

    Returns:
        Its loss.
    """
    with nullcontext() if last else accelerator.no_sync(model):
        return one_pass()


def inner(optimizer: Optimizer | None) -> Optimizer | None:
    """What accelerate has wrapped.

    Args:
        optimizer: prepared or not.

    Returns:
        The optimizer as it was before `prepare`.
    """
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def sharpness_aware(optimizer: Optimizer | None) -> SharpnessAware:
    """Our optimizer inside accelerate's wrapper.

    Args:
        optimizer: ours, or what `accelerator.prepare` made of it.

    Returns:
        Ours.

    Raises:
        TypeError: it is somebody else's.
        ValueError: it wants gradients at w that stay on their rank, which accelerate synchronises.
    """
    found = inner(optimizer)
    if not isinstance(found, SharpnessAware):
        raise TypeError(
            f"expected a vasso optimizer with ascended(), got {type(found).__name__}: wrap it, as "
            "in VaSSO(optimizer, model=model)"
        )
    if found.sync == "local":
        raise ValueError(
            'sync="local" cannot be used with accelerate, which synchronises the gradients at w: '
            'use sync="global"'
        )
    return found
