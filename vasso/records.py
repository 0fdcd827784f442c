"""Records of a step: a free summary of the last step, and all its vectors for observers.

`StepRecord` is the only interface between the optimizer and diagnostics. Without an observer no
record is made and no vector is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import Tensor

from vasso.numerics.vectors import Vector

Triangle: TypeAlias = tuple[float, Tensor, Tensor, Tensor]
"""theta, and the norms of the slope before, of the slope and of the gradient."""
LossAt: TypeAlias = Literal["w", "w, ascent data", "w + epsilon", "not seen, in your loop"]


@dataclass(frozen=True)
class StepSummary:
    """Losses and norms of a step; none of them costs a pass or a host synchronisation.

    Attributes:
        loss: the loss that `step` returns, detached; None if the passes are in your loop.
        loss_at: the weights and data of that loss, or that it was not seen; None before a step.
        perturbed_loss: the loss at w + epsilon, None if the weights were not perturbed.
        g_norm: ||g|| over the tensors that may be perturbed, None where it was not needed.
        d_norm: ||d||, or None likewise.
        h_norm: the norm of the gradient at w + epsilon over all tensors, or None likewise.
        climbed: whether a gradient was taken at w + epsilon.
        skipped: whether the step was skipped because a gradient was not finite.
        radius: rho and what it follows from, if a rule sets it (`FromGap`); else empty.
        triangle: what `cosine` is computed from when it is asked for.
    """

    loss: Any = None
    loss_at: LossAt | None = None
    perturbed_loss: Any = None
    g_norm: Tensor | None = None
    d_norm: Tensor | None = None
    h_norm: Tensor | None = None
    climbed: bool = False
    skipped: bool = False
    radius: Mapping[str, float] = field(default_factory=dict)
    triangle: Triangle | None = field(default=None, repr=False)

    @property
    def cosine(self) -> Tensor | None:
        """cos(d, g) on the device; None where it does not follow from the norms.

        The square of (1 - theta) d_{t-1} = d_t - theta g_t has the product of d_t and g_t.
        """
        if self.triangle is None:
            return None
        theta, before, d, g = self.triangle
        return (d**2 + (theta * g) ** 2 - ((1 - theta) * before) ** 2) / (2 * theta * d * g)


@dataclass(frozen=True)
class StepRecord:
    """All vectors of one step, for observers; valid during the call only: clone what you keep.

    At the call the weights are restored and the base has not stepped yet.

    Attributes:
        step: number of steps completed before this one.
        params: the parameters with a gradient at w that may be perturbed; all lists follow it.
        g: the gradient at w.
        d: the slope.
        epsilon: the perturbation as it was applied, rounding included; None if there was none.
        h: the gradient at w + epsilon, None where a tensor got none; None without perturbation.
        summary: losses and norms.
    """

    step: int
    params: Vector
    g: Vector
    d: Vector
    epsilon: Vector | None
    h: list[Tensor | None] | None
    summary: StepSummary
