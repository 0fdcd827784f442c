"""How is the maximum sought? An ascent says how many points are visited on the way up.

| ascent    | points |
|-----------|--------|
| `OneStep` | 1      |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vasso.parts import Part


@dataclass(frozen=True)
class Ascent(Part):
    """How is the maximum sought?

    Attributes:
        points: how many points above w a step visits, each for one gradient.
    """

    points: ClassVar[int] = 1


@dataclass(frozen=True)
class OneStep(Ascent):
    """Goes straight to the highest point of the slope: one gradient there, as in SAM."""
