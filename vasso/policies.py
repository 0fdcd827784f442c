"""Do we climb this step, and is a gradient at w wanted at all?

| policy   | climbs     | gradient at w |
|----------|------------|---------------|
| `Always` | every step | every step    |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vasso.here import Gradient, Here, Memory
from vasso.parts import Part


@dataclass(frozen=True)
class Policy(Part):
    """Do we climb this step? Settings of a policy are the same for all groups.

    Attributes:
        spares_clean: there are steps without a gradient at w, where the direction has to do with
            what it has.
    """

    spares_clean: ClassVar[bool] = False

    def clean(self, memory: Memory, here: Here) -> bool:
        """Whether to take a gradient at w; asked before any pass, when nothing of it is known.

        Args:
            memory: the numbers this part remembers.
            here: the step, without tensors yet.

        Returns:
            False only if the policy declares that it spares some.
        """
        return True

    def climb(self, g: Gradient | None, memory: Memory, here: Here) -> bool:
        """Whether to climb; asked once per step, after the gradient at w if there is one.

        Args:
            g: the gradient at w, one tensor for each of `here.w`, or None.
            memory: the numbers this part remembers, to be updated.
            here: the step.

        Returns:
            True to take the gradient at w + epsilon, False to go down by g.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Always(Policy):
    """Climbs at every step."""

    def climb(self, g: Gradient | None, memory: Memory, here: Here) -> bool:
        return True
