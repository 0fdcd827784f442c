"""Do we climb this step?

| policy   | climbs     |
|----------|------------|
| `Always` | every step |
"""

from __future__ import annotations

from dataclasses import dataclass

from vasso.here import Here
from vasso.parts import Part
from vasso.vectors import Vector


@dataclass(frozen=True)
class Policy(Part):
    """Do we climb this step?"""

    def climb(self, g: Vector, here: Here) -> bool:
        """Asked once per step, when the gradient at w is known.

        Args:
            g: the gradient at w, one tensor for each of `here.w`.
            here: the step.

        Returns:
            True to take the gradient at w + epsilon, False to go down by g.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Always(Policy):
    """Climbs at every step."""

    def climb(self, g: Vector, here: Here) -> bool:
        return True
