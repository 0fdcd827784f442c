"""transformers: a Trainer whose `training_step` goes through each window of micro-batches twice.

The Trainer owns forward, backward, accumulation, clipping and the step, and calls no hook between
the last backward and clipping. `SharpnessAwareMixin` adds the second pass after the first pass of
the last micro-batch of a window.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vasso.numerics import rng
from vasso.optimizer import SharpnessAware
from vasso.optional import needs_extra
from vasso.parts.part import Setting
from vasso.presets import VaSSO

with needs_extra("transformers"):
    from transformers import Trainer

    from vasso.integrations.accelerate import perturbed_passes, sharpness_aware, unwrapped


class SharpnessAwareMixin(Trainer):
    """Makes any Trainer sharpness-aware: `class MyTrainer(SharpnessAwareMixin, Trainer)`.

    `method` wraps the Trainer's own optimizer, with its groups for weight decay, or the one given
    in `optimizers`. A vasso optimizer in `optimizers` is used as it is. The logged loss is the one
    at w, the logged gradient norm that of the gradient for the base.

    Args:
        *args: arguments of the Trainer.
        method: wraps the optimizer; further settings by `functools.partial(GSAM, alpha=0.2)`.
        rho: radius; None is the default of the method.
        theta: weight of the newest gradient in the slope; None is the default of the method.
        **kwargs: arguments of the Trainer.

    Raises:
        TypeError: the method is not callable.
        ValueError: rho or theta were given together with a vasso optimizer.
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
        self._at_w: list[Tensor] = []
        self._clean = True
        super().__init__(*args, **kwargs)
        if self._settings and isinstance(self.optimizer, SharpnessAware):
            raise ValueError(
                f"{self._settings} given along with an optimizer that has settings of its own: "
                f"give them to {type(self.optimizer).__name__}(...), or give the base alone"
            )

    @property
    def sharpness_aware(self) -> SharpnessAware:
        """The vasso optimizer inside accelerate's wrapper; it exists once training has begun."""
        return sharpness_aware(self.optimizer)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """The Trainer's optimizer or the one given to it, wrapped by `method`; no DeepSpeed."""
        self._window, self._at_w = [], []
        if self.is_deepspeed_enabled:
            raise NotImplementedError(
                "DeepSpeed steps its own optimizer, which cannot be wrapped: use DDP"
            )
        if isinstance(
            unwrapped(self.optimizer), SharpnessAware
        ):  # given, or from an earlier train()
            return sharpness_aware(self.optimizer)
        base = super().create_optimizer(*args, **kwargs)
        if not isinstance(base, SharpnessAware):  # a Recipe in optimizer_cls_and_kwargs makes one
            self.optimizer = self._method(base, model=self.model, **self._settings)
        return sharpness_aware(self.optimizer)

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """One micro-batch at w; after the last of a window all of them at w + epsilon.

        Returns the loss at w. If the method needs no gradient at w: zero, and for the last
        micro-batch of a window the sum of the losses at w + epsilon.
        """
        optimizer, host_step = self.sharpness_aware, super().training_step
        if not self._window:
            self._clean = optimizer.wants_clean

        def one_pass() -> Tensor:
            return host_step(model, copy.copy(inputs), num_items_in_batch)  # labels may be popped

        loss = one_pass() if self._clean else torch.zeros((), device=self.args.device)
        self._window.append(one_pass)  # now that it has succeeded
        self._at_w.append(loss)
        if not self.accelerator.gradient_state.sync_gradients:
            return loss
        (window, self._window), (at_w, self._at_w) = (self._window, []), (self._at_w, [])
        losses = perturbed_passes(self.accelerator, model, optimizer, window, clean=self._clean)
        if self._clean and losses:  # each is its share of the mean
            optimizer.note_losses(torch.stack(at_w).sum(), torch.stack(losses).sum())
        return loss if self._clean else torch.stack(losses).sum()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs what the Trainer does, and in training the optimizer's metrics."""
        if "loss" in logs:
            found = self.sharpness_aware.metrics()
            logs |= {f"vasso/{name}": value for name, value in found.items()}
        super().log(logs, *args, **kwargs)


class FunctionalMixin(SharpnessAwareMixin):
    """Makes any Trainer of a model with logits Functional-SAM; see `vasso.Functional`.

    `method` is `SAM`, `VaSSO`, `PreconditionedSAM` or another preset with one ascent step. The loss
    at w + epsilon that is logged is the loss; its gradient is J_z(w + epsilon)^T v, with v = dL/dz
    kept from the same micro-batch at w. The same dropout masks are drawn in both passes. A window
    keeps the logits' gradients of all its micro-batches.
    """

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """As the other mixin; a window that was not finished leaves nothing behind."""
        if not self._window:
            self._at_logits: list[tuple[Tensor, rng.RngState]] = []
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss; at w + epsilon with the gradient of sum(z v).

        Raises:
            NotImplementedError: the model has an auxiliary loss, which does not go through z.
            RuntimeError: the method took no gradient at w.
        """
        if not (model.training and torch.is_grad_enabled()):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        perturbed, params = self.sharpness_aware.perturbed, list(model.parameters())
        if perturbed and not self._at_logits:
            raise RuntimeError(
                "Functional-SAM needs the gradient at w in every step, which "
                f"{type(self.sharpness_aware).__name__} did not take: use method=SAM"
            )
        now = rng.get_state(params)
        v, before = self._at_logits.pop(0) if perturbed else (None, now)
        rng.set_state(before)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if getattr(outputs, "aux_loss", None) is not None:
            raise NotImplementedError(
                "this model has an auxiliary loss that does not go through the logits: train with "
                "step(Outputs(...)), which takes it, or with another method"
            )
        z = outputs["logits"]
        if v is None:
            self._at_logits.append((torch.autograd.grad(loss, z, retain_graph=True)[0], now))
        else:
            rng.set_state(now)
            product = (z * v).sum()
            loss = loss.detach() + (product - product.detach())
        return (loss, outputs) if return_outputs else loss


class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):
    """The Trainer with VaSSO, or another `method`, around its optimizer; see the mixin.

    ``SharpnessAwareTrainer(model, args, train_dataset=data, rho=0.05, theta=0.4).train()``
    """
