"""What does a step tell? A free summary of the last one, and all its vectors to whoever observes.

`StepRecord` is the only seam between the optimizer and diagnostics. Without an observer no record
is made and nothing is kept for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from vasso.vectors import Vector


@dataclass(frozen=True)
class StepSummary:
    """What a step knew anyway: nothing here cost a pass or a host synchronisation.

    Attributes:
        loss: the loss that `step` returns, detached; None if the caller owns the passes.
        loss_at: where that loss was taken.
        perturbed_loss: the loss at w + epsilon, None without a climb.
        g_norm: ||g|| over the tensors that may be climbed, None where it was not needed.
        d_norm: ||d||, likewise.
        h_norm: the norm of the gradient at w + epsilon over all tensors, likewise.
        climbed: whether a gradient was taken at w + epsilon.
        skipped: whether the step was skipped because a gradient was not finite.
    """

    loss: Any = None
    loss_at: Literal["w", "w, ascent data", "w + epsilon"] = "w"
    perturbed_loss: Any = None
    g_norm: Tensor | None = None
    d_norm: Tensor | None = None
    h_norm: Tensor | None = None
    climbed: bool = False
    skipped: bool = False


@dataclass(frozen=True)
class StepRecord:
    """All vectors of one step, for observers; valid during the call, clone what is to be kept.

    The weights are at home and the base has not stepped yet.

    Attributes:
        step: how many steps were completed before this one.
        params: the parameters that had a gradient at w and may be climbed; all lists follow it.
        g: the gradient at w.
        d: the slope.
        epsilon: the adversary as it was applied, rounding included; None without a climb.
        h: the gradient at w + epsilon, None where a tensor got none; None without a climb.
        summary: losses and norms.
    """

    step: int
    params: Vector
    g: Vector
    d: Vector
    epsilon: Vector | None
    h: list[Tensor | None] | None
    summary: StepSummary
