"""What can a study measure besides accuracy? Names, and the settings of each, checked.

| measure | settings | on what |
|---|---|---|
| spread of adversaries in three dimensions | `Spread` | nothing is trained |
| signal-to-noise ratio | `Noise`: none, the task's `snr` asks for it | as training goes |
| Hessian spectrum | `Spectrum` | the weights at the end of each run |
| BLEU | `vasso.lab.translation.bleu.Bleu` | likewise, on the test sentences |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from vasso.lab.runs import Run
from vasso.lab.settings import filled
from vasso.lab.translation.bleu import Bleu
from vasso.parts import Range

SPREAD = "spread of adversaries in three dimensions"
NOISE = "signal-to-noise ratio"
SPECTRUM = "Hessian spectrum"
BLEU = "BLEU"


@dataclass(frozen=True)
class Spread:
    """Adversaries on a sphere.

    Args:
        gradient: the true one, three numbers.
        variances: of the noise, up to a factor.
        snr: signal-to-noise ratios, one cloud each.
        theta: weights of the newest gradient, one cloud each; 1 is SAM.
        adversaries: in a cloud.
        seed: of the noise.
    """

    gradient: list[float]
    variances: list[float]
    snr: list[float]
    theta: list[float]
    adversaries: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("gradient", "variances", "snr", "theta"):
            given = getattr(self, name)
            if not given or not all(isinstance(x, int | float) for x in given):
                raise ValueError(f"{name} must be a list of numbers, got {given!r}")
        for snr in self.snr:
            Range(above=0).check("snr", snr)
        for theta in self.theta:
            Range(above=0, most=1).check("theta", theta)
        Range(least=3).check("adversaries", self.adversaries)
        Range(least=0).check("seed", self.seed)


@dataclass(frozen=True)
class Noise:
    """The signal-to-noise ratio over training has no settings here: `snr` is one of the task."""


@dataclass(frozen=True)
class Spectrum:
    """The largest eigenvalues of the Hessian.

    Args:
        eigenvalues: how many.
        images: training images that the loss is a mean over, evenly spaced; all if fewer.
        tolerance: ||H v - lambda v|| <= tolerance |lambda| ends the iteration.
    """

    eigenvalues: int = 5
    images: int = 2000
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        Range(least=1).check("eigenvalues", self.eigenvalues)
        Range(least=1).check("images", self.images)
        Range(above=0).check("tolerance", self.tolerance)


Settings: TypeAlias = Spread | Noise | Spectrum | Bleu
MEASURES: Mapping[str, type[Settings]] = {
    SPREAD: Spread,
    NOISE: Noise,
    SPECTRUM: Spectrum,
    BLEU: Bleu,
}


def settings_of(
    measure: str, table: Mapping[str, Any], runs: Sequence[Run], where: str
) -> Settings:
    """The settings of a measurement, if it can be made of these runs.

    Args:
        measure: one of `MEASURES`.
        table: setting -> value.
        runs: what is to be measured.
        where: where the table comes from, for messages.

    Returns:
        The settings.

    Raises:
        ValueError: a setting is wrong or missing, or the runs do not measure what is asked.

    Example:
        >>> settings_of("Hessian spectrum", {"images": 100}, [], "mine")
        Spectrum(eigenvalues=5, images=100, tolerance=0.001)
    """
    kind = MEASURES[measure]
    try:
        found = filled(kind, table, where)
    except TypeError as trouble:  # a setting without default is missing
        raise ValueError(f"{where}: {str(trouble).partition('() ')[2]}") from None
    if isinstance(found, Noise) and not all(run.task.snr for run in runs):
        raise ValueError(
            f"{where}: the signal-to-noise ratio is measured as training goes: add snr = 50 (or "
            "another number of batches) to the task"
        )
    return found
