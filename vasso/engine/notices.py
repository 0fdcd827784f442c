"""Notices: warnings given once, at the user's line; errors where a host would train other weights.

Lightning, transformers and accelerate are recognised by their modules on the call stack and by
their closures; none of them is imported.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn

from vasso.engine.batchnorm import find_batchnorm_layers
from vasso.engine.groups import Groups
from vasso.parts.geometries import Geometry

MANY = 32
"""After this many plain steps without a perturbed one a warning is given."""

LIBRARIES = (
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
    os.path.dirname(torch.__file__) + os.sep,
    contextlib.__file__,
)

PACKAGES = ("lightning.pytorch.", "pytorch_lightning.")
AUTOMATIC = tuple(f"{package}loops.optimization.automatic" for package in PACKAGES)
LIGHTNING = (
    "Lightning {}. Add SharpnessAwareCallback of vasso.integrations.lightning to the Trainer's "
    "callbacks, or optimize manually."
)
TRAINER = (
    "transformers' Trainer {}. Use SharpnessAwareTrainer of vasso.integrations.transformers, or "
    "its mixin."
)

ACCELERATE = (
    "accelerate's optimizer {}. Use Window of vasso.integrations.accelerate; where a plain step is "
    "wanted, set rho to 0."
)
HOSTS = {
    AUTOMATIC: LIGHTNING,
    ("transformers.trainer",): TRAINER,  # which steps through accelerate
    ("accelerate.optimizer",): ACCELERATE,
}
"""The modules that call `step` in a host, and what it is told."""


def warn(message: str) -> None:
    """Warns with the nearest line of the call stack that is neither ours nor torch's."""
    level, frame = 1, sys._getframe().f_back
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level + 1)


class Notices:
    """The warnings of one optimizer; `started`: a step with passes of its own has begun."""

    def __init__(self, method: str, groups: Groups, model: nn.Module | None) -> None:
        self.method, self.groups, self.model = method, groups, model
        self.started = self._warned = False
        self._plain_steps = 0

    def before_first_step(self, geometry: Geometry | None = None) -> None:
        """Warns of BatchNorm that both passes would update, and of unknown parameter names."""
        if self.started:
            return
        self.started = True
        params = self.groups.params()
        layers = find_batchnorm_layers(params) if self.model is None else []
        remedy = f"pass model=, as in {self.method}(base, model=model)"
        if layers:
            warn(
                f"{len(layers)} layers such as {layers[0]} will update their running statistics in "
                f"both passes: {remedy}"
            )
        if geometry is None or not geometry.needs_names:
            return
        if any(p not in self.groups.names(self.model) for p in params):
            warn(
                f"{geometry} treats weights and biases differently, but the names of the "
                "parameters are not known: tensors of two or more dimensions count as weights, so "
                f"that the scale of BatchNorm does not: {remedy}"
            )

    def plain_step(self) -> None:
        """Warns of many steps of the base alone without any perturbation; raises inside a host."""
        if self.started or self._warned:
            return
        base = type(self.groups.base).__name__
        if self._plain_steps == 0:
            _check_plain_step(base)
        self._plain_steps += 1
        if self._plain_steps == MANY:
            self._warned = True
            warn(
                f"{MANY} plain steps of {base} and no perturbation: step() without a closure is a "
                f"step of the base alone, and so is scaler.step(opt). For {self.method}, call "
                "step(closure), or take the second gradient inside `with opt.ascended():`."
            )


def _callers(depth: int) -> Iterator[tuple[str, FrameType]]:
    """The nearest frames of the call stack, each with the name of its module."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and depth > 0:
        yield str(frame.f_globals.get("__name__")), frame
        frame, depth = frame.f_back, depth - 1


def check_closure(closure: object) -> None:
    """Raises RuntimeError for a closure that sees other gradients at w than at w + epsilon."""
    _check_lightning(closure)
    for name, frame in _callers(8):
        if name == "accelerate.optimizer" and "self" in frame.f_locals:
            micro_batches = frame.f_locals["self"].gradient_state.num_steps
            if micro_batches > 1:
                raise RuntimeError(
                    f"accelerate calls the closure for only the last of {micro_batches} "
                    "micro-batches. Use Window of vasso.integrations.accelerate."
                )


def _check_lightning(closure: object) -> None:
    """Lightning accumulates and clips inside of its closure, unless our callback is there."""
    if not isinstance(closure, partial) or not closure.args:
        return
    if not str(getattr(closure.func, "__module__", "")).startswith(PACKAGES):
        return
    module: Any = closure.args[0]
    trainer = module.trainer
    if not module.automatic_optimization:
        return
    if any(getattr(callback, "makes_second_pass", False) for callback in trainer.callbacks):
        return
    if trainer.accumulate_grad_batches > 1:
        several = f"accumulates {trainer.accumulate_grad_batches} batches"
        raise RuntimeError(LIGHTNING.format(f"{several}, of which the second pass sees the last"))
    if trainer.gradient_clip_val:
        clips = "clips the gradient of each pass, and with it the slope"
        raise RuntimeError(LIGHTNING.format(clips))


def _check_plain_step(base: str) -> None:
    """Raises RuntimeError if a host makes plain steps of the base."""
    names = {name for name, _ in _callers(40)}
    for callers, message in HOSTS.items():
        if names.intersection(callers):
            raise RuntimeError(
                message.format(f"makes plain steps of {base}, without a perturbation")
            )
