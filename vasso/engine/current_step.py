"""State of the step in progress, from the first pass until the base has stepped.

There is one object for the life of an optimizer, reset in place: a wrapper of a host may hold a
copy of our attributes, and both must see the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from vasso.numerics.rng import RngState
from vasso.records import LossAt, StepSummary


@dataclass
class CurrentStep:
    """The step in progress, or the last one.

    Attributes:
        pending: what the next `step()` does with the gradients of `ascended()`.
        plain: whether it is a step of the base alone, without passes of ours.
        in_ascended: whether the caller is inside `ascended()`.
        has_gradient_at_w: whether this step has taken a gradient at w.
        other_data: whether perturbation and descent have different data.
        losses: what the closures of this step returned, in order.
        saved_gradients: gradients to put back where a pass that may be left out brings no others.
        outside: parameters with a state from earlier steps that this step does not perturb.
        rng_state: of the generators before the pass at w, if it is to be replayed.
        batch_size: samples in the batch of this step, if known.
        summary: what `opt.last` shows.
    """

    pending: Literal["descend", "skip"] | None = None
    plain: bool = False
    in_ascended: bool = False
    has_gradient_at_w: bool = True
    other_data: bool = False
    losses: list[Any] = field(default_factory=list)
    saved_gradients: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    outside: list[Tensor] = field(default_factory=list)
    rng_state: RngState | None = None
    batch_size: int | None = None
    summary: StepSummary = field(default_factory=StepSummary)

    def reset(self) -> None:
        """Forgets a step that was not completed."""
        self.pending, self.losses, self.saved_gradients = None, [], []

    def start_passes(self, other_data: bool, rng_state: RngState | None) -> None:
        """Before the passes over one share of the data."""
        self.summary, self.losses, self.plain = StepSummary(), [], False
        self.other_data, self.rng_state = other_data, rng_state

    def note(self, **values: Any) -> None:
        """Changes entries of the summary."""
        self.summary = replace(self.summary, **values)

    def note_losses(self, losses: list[Any]) -> None:
        """Puts the losses of the passes into the summary."""
        self.losses = losses
        found = [loss.detach() if isinstance(loss, Tensor) else loss for loss in losses]
        climbed = self.summary.climbed
        where: LossAt = "w"
        if climbed and not self.has_gradient_at_w:
            where = "w + epsilon"
        elif climbed and self.other_data:
            where = "w, ascent data"
        self.note(
            loss=found[0 if climbed else -1] if found else None,
            loss_at=where if found else "not seen, in your loop",
            perturbed_loss=found[-1] if climbed and found else None,
        )

    def __reduce__(self) -> tuple[type[CurrentStep], tuple[()]]:
        """A copy begins without a step in progress."""
        return CurrentStep, ()
