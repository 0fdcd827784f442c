"""Warnings that an optimizer gives once, attributed to the user's line."""

import contextlib
import os
import sys
import warnings

import torch
from torch import nn

from vasso.engine import hosts
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
            hosts.check_plain_step(base)
        self._plain_steps += 1
        if self._plain_steps == MANY:
            self._warned = True
            warn(
                f"{MANY} plain steps of {base} and no perturbation: step() without a closure is a "
                f"step of the base alone, and so is scaler.step(opt). For {self.method}, call "
                "step(closure), or take the second gradient inside `with opt.ascended():`."
            )
