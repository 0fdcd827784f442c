"""The methods under contract. A new preset is a new row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from vasso import SAM, SharpnessAware, VaSSO


@dataclass(frozen=True)
class Preset:
    """One row.

    Attributes:
        make: wraps a base; takes `rho` and the options of `SharpnessAware`.
        passes: closure calls in a step that climbs.
        remembers: the vectors it keeps from step to step.
    """

    make: Callable[..., SharpnessAware]
    passes: int = 2
    remembers: tuple[str, ...] = ()


PRESETS = {
    "SAM": Preset(SAM),
    "SAM with memory": Preset(partial(SAM, theta=0.3), remembers=("d",)),
    "VaSSO": Preset(VaSSO, remembers=("d",)),
    "VaSSO without memory": Preset(partial(VaSSO, theta=1.0)),
}
