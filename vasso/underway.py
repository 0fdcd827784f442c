"""What is in the middle of happening? All of it in one object.

One object, because a host's wrapper may copy our attributes (Fabric's does): what is set through
the wrapper has to be seen by us, and the other way round.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from vasso.here import Climb
from vasso.records import StepRecord, StepSummary


class NonFiniteError(ArithmeticError):
    """A gradient is infinite or NaN; ends the step under way."""


@dataclass
class UnderWay:
    """What is under way between two steps, or in the middle of one.

    Attributes:
        climb: the last climb; the weights may be away from home.
        attic: room for copies of the weights, kept from step to step.
        ascended: whether the caller is inside `ascended()`.
        pending: what the next `step()` has to do with the gradients that `ascended()` left.
        other_data: whether the adversary comes from other data than the descent.
        losses: what the closures of this step returned, in order.
        norms_are_safe: the last norms of g and d were far from under- and overflow; the next slope
            is an average of both, so its norm need not be looked at by the host.
        started: whether a step has been begun.
        gone: whether the base has been given back.
        summary: of the last step.
        observers: who wants records.
    """

    climb: Climb | None = None
    attic: dict[Tensor, Tensor] = field(default_factory=dict)
    ascended: bool = False
    pending: Literal["descend", "skip"] | None = None
    other_data: bool = False
    losses: list[Any] = field(default_factory=list)
    norms_are_safe: bool = False
    started: bool = False
    gone: bool = False
    summary: StepSummary = field(default_factory=StepSummary)
    observers: OrderedDict[int, Callable[[StepRecord], None]] = field(default_factory=OrderedDict)

    @property
    def away(self) -> bool:
        """Whether weights are at w + epsilon."""
        return self.climb is not None and self.climb.away
