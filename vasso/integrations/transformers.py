"""How does a climb fit into transformers' Trainer? `training_step` goes through a window twice.

The Trainer owns forward, backward, accumulation, clipping and the step, and calls no hook between
the last backward and clipping. `SharpnessAwareMixin` adds the second pass once the last micro-batch
of a window has been through its first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vasso.extras import brought_by
from vasso.optimizer import SharpnessAware
from vasso.parts import Setting
from vasso.presets import VaSSO

with brought_by("transformers"):
    from transformers import Trainer

    from vasso.integrations.accelerate import climb, inner, sharpness_aware


class SharpnessAwareMixin(Trainer):
    """Makes any Trainer sharpness-aware: `class MyTrainer(SharpnessAwareMixin, Trainer)`.

    The Trainer's own optimizer, with its groups for weight decay, or the one given in `optimizers`
    is wrapped by `method`. An optimizer of ours in `optimizers` is taken as it is. The loss that is
    logged is the one at w, the gradient norm that of what goes down.

    Args:
        *args: the Trainer's.
        method: what wraps the optimizer; further settings by `functools.partial(GSAM, alpha=0.2)`.
        rho: radius, if not the method's own.
        theta: weight of the newest gradient in the slope, if not the method's own.
        **kwargs: the Trainer's.

    Raises:
        TypeError: the method is not something to call.
        ValueError: rho or theta were given along with an optimizer that has its own.
    """

    def __init__(
        self,
        *args: Any,
        method: Callable[..., SharpnessAware] = VaSSO,
        rho: Setting | None = None,
        theta: Setting | None = None,
        **kwargs: Any,
    ) -> None:
        if not callable(method):
            raise TypeError(
                "method must be a preset such as VaSSO, or functools.partial(GSAM, alpha=0.2), "
                f"got {method!r}"
            )
        given = {"rho": rho, "theta": theta}
        self._settings = {name: value for name, value in given.items() if value is not None}
        self._method, self._window = method, list[Callable[[], Tensor]]()
        self._clean = True
        super().__init__(*args, **kwargs)
        if self._settings and isinstance(self.optimizer, SharpnessAware):
            raise ValueError(
                f"{self._settings} given along with an optimizer that has settings of its own: "
                f"give them to {type(self.optimizer).__name__}(...), or give the base alone"
            )

    @property
    def sharpness_aware(self) -> SharpnessAware:
        """Our optimizer inside accelerate's; there is one once training has begun."""
        return sharpness_aware(self.optimizer)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """The Trainer's optimizer or the one given to it, wrapped.

        Args:
            *args: the Trainer's.
            **kwargs: the Trainer's.

        Returns:
            The wrapped one.

        Raises:
            NotImplementedError: DeepSpeed, which makes its own steps.
        """
        self._window = []
        if self.is_deepspeed_enabled:
            raise NotImplementedError(
                "DeepSpeed steps its own optimizer, which cannot be wrapped: use DDP"
            )
        if isinstance(inner(self.optimizer), SharpnessAware):  # given, or of an earlier train
            return sharpness_aware(self.optimizer)
        base = super().create_optimizer(*args, **kwargs)
        self.optimizer = self._method(base, model=self.model, **self._settings)
        return sharpness_aware(self.optimizer)

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """One micro-batch at w; after the last of a window all of them at w + epsilon.

        Args:
            model: as the accelerator prepared it.
            inputs: the micro-batch; kept until the window is complete.
            num_items_in_batch: of the whole window, by which the loss is divided.

        Returns:
            The loss at w. Where the method wants no gradient at w: the sum of those at w + epsilon
            with the last micro-batch of a window, zero with the others.
        """
        optimizer, host_step = self.sharpness_aware, super().training_step
        if not self._window:
            self._clean = optimizer.wants_clean

        def one_pass() -> Tensor:
            return host_step(model, copy.copy(inputs), num_items_in_batch)  # labels may be popped

        loss = one_pass() if self._clean else torch.zeros((), device=self.args.device)
        self._window.append(one_pass)  # now that it has succeeded
        if not self.accelerator.gradient_state.sync_gradients:
            return loss
        window, self._window = self._window, []
        losses = climb(self.accelerator, model, optimizer, window, clean=self._clean)
        return loss if self._clean else torch.stack(losses).sum()


class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):
    """The Trainer with VaSSO, or another `method`, around its optimizer; see the mixin.

    ``SharpnessAwareTrainer(model, args, train_dataset=data, rho=0.05, theta=0.4).train()``
    """
