"""What is common to methods that are not the one step of `SharpnessAware`? All but the passes.

A stepper finds a gradient u by passes of its own, at weights that it borrows; then the base takes
its step by u. Until u is found nothing is remembered and the base is not touched, so that an
exception or a gradient that is not finite leaves everything as it was before the step.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import torch
from torch import nn
from torch._compile import _disable_dynamo as not_traced  # imports dynamo only when it is called
from torch.optim import Optimizer

from vasso import checks
from vasso.batchnorm import Mode, Statistics
from vasso.footwork import Footwork
from vasso.geometries import L2
from vasso.here import Gradient, Here
from vasso.parts import Part, Setting
from vasso.plans import Batch, Data
from vasso.ranks import Ranks
from vasso.records import StepSummary
from vasso.settings import COST, STEP
from vasso.underway import NonFiniteError


class StepperOptions(TypedDict, total=False):
    """What every stepper takes beside the settings of its method; see `Stepper`."""

    model: nn.Module | None
    batchnorm: Mode
    nonfinite: Literal["skip", "raise", "ignore"]
    clip_norm: float | None


class Stepper(Footwork):
    """A method that finds u in its own way: x_{t+1} = x_t - lr u, as the base does it.

    Weights return bit for bit from wherever they were borrowed to (`restore="copy"`).

    Args:
        base: the optimizer to wrap, an instance.
        rho: radius of the ball, None for methods that have none.
        parts: what the method is made of.
        model: the model, so that BatchNorm's statistics are moved by one pass of the step only.
        batchnorm: the pass that moves them: "clean" (the first), "perturbed" (the last) or "both"
            (every).
        nonfinite: what to do when a gradient is infinite or NaN: "skip" the step, "raise", or
            "ignore" (no check, no host synchronisation).
        clip_norm: clips the norm of the gradient that goes down.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        rho: Setting | None,
        parts: tuple[Part, ...],
        model: nn.Module | None = None,
        batchnorm: Mode = "clean",
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
        clip_norm: float | None = None,
    ) -> None:
        checks.one_of("batchnorm", batchnorm, "clean", "both", "perturbed")
        checks.one_of("nonfinite", nonfinite, "skip", "raise", "ignore")
        checks.positive_or_none("clip_norm", clip_norm)
        checks.base(base)
        checks.model(model, base)
        for part in parts:
            part.check_base(base)
        self.model, self.statistics = model, Statistics(model, batchnorm)
        self.ranks = Ranks(model, "global")
        self.nonfinite, self.clip_norm = nonfinite, clip_norm
        self.geometry, self.restore, self.same_rng = L2(), "copy", False
        super().__init__(base, 0.0 if rho is None else rho, parts)
        if rho is None:
            self._do_without_rho()

    def _do_without_rho(self) -> None:
        """A method without a radius leaves no radius in the groups."""
        rho, *self_settings = self.settings
        self.settings = tuple(self_settings)
        for group in self.base.param_groups:
            group.pop(rho.key, None)

    @not_traced
    @torch.no_grad()
    def step(self, closure: Data | None = None) -> Any:
        """One step: finds u by several passes, then lets the base go down by it.

        Without a closure this is a plain step of the base by the gradients there are.

        Args:
            closure: zeroes the gradients, computes the loss, calls backward and returns the loss.

        Returns:
            The loss of the first pass. None without a closure.
        """
        now = self._now
        self._refuse_away("step()")
        checks.closure(closure)
        if closure is None:
            return self._step_without_closure()
        now.pending, now.losses, now.other_data, now.clean = None, [], False, True
        now.batch_size = len(closure) if isinstance(closure, Batch) else None
        now.summary = StepSummary()
        self._begin()
        self.statistics.remember()
        try:
            self._find(closure)
        except NonFiniteError as trouble:
            self._skip(trouble)
        finally:
            self._come_home()
        self._descend()
        return now.losses[0]

    def _find(self, batch: Data) -> None:
        """Leaves u in `p.grad`, the weights at home and the base as it was."""
        raise NotImplementedError

    def _step_without_closure(self) -> None:
        """A plain step, or what the getters of distributed checkpoints take for one."""
        if self._is_probe():
            self._learn_form()
            return
        self._now.summary, self._now.descent_is_safe = StepSummary(), True
        self._count(COST)  # the caller's own pass
        self._descend()
        self.statistics.remember()

    def _everywhere(self) -> Here:
        """The step with all parameters that may move, and their settings."""
        w, values = [], []
        for group, row in zip(self.param_groups, self._current_settings(), strict=True):
            for p in group["params"]:
                if p.requires_grad:
                    w.append(p)
                    values.append(row)
        settings = {s.name: [row[s.name] for row in values] for s in self.settings}
        names = [self._names().get(p) for p in w]
        return Here(self.param_groups[0][STEP], w, w, names=names, settings=settings)

    def _gradient_of(self, data: Data, here: Here) -> Gradient:
        """The gradient of some data wherever the weights are now, if it is finite."""
        self._clear_gradients()
        self._evaluate(data)
        self._measure_last()
        return here.gradients()
