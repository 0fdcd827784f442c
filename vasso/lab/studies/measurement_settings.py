"""Measurements of a study besides accuracy: their names and their settings.

| measure | settings | on what |
|---|---|---|
| spread of adversaries in three dimensions | `Spread` | nothing is trained |
| signal-to-noise ratio | `Noise`: none, see the task's `snr` | during training |
| Hessian spectrum | `Spectrum` | the weights at the end of each run |
| BLEU | `vasso.lab.studies.bleu.Bleu` | likewise, on the test sentences |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from vasso.lab.experiment.run import Run
from vasso.lab.schema import filled
from vasso.lab.studies.bleu import Bleu
from vasso.parts.part import Range

SPREAD = "spread of adversaries in three dimensions"
NOISE = "signal-to-noise ratio"
SPECTRUM = "Hessian spectrum"
BLEU = "BLEU"


@dataclass(frozen=True)
class Spread:
    """Adversaries on a sphere: one cloud of `adversaries` points for each SNR and each theta.

    The true gradient is three numbers. `variances` are those of the noise, up to a factor; theta 1
    is SAM.
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
    """The signal-to-noise ratio over training; its only setting is the task's `snr`."""


@dataclass(frozen=True)
class Spectrum:
    """The largest eigenvalues of the Hessian.

    The loss is over `images` training images, evenly spaced; all if there are fewer. The iteration
    ends at ||H v - lambda v|| <= tolerance |lambda|.
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


def parse_settings(
    measure: str, table: Mapping[str, Any], runs: Sequence[Run], where: str
) -> Settings:
    """The settings of a measurement from a table, if these runs allow it."""
    try:
        settings = filled(MEASURES[measure], table, where)
    except TypeError as error:  # a setting without default is missing
        raise ValueError(f"{where}: {str(error).partition('() ')[2]}") from None
    if isinstance(settings, Noise) and not all(run.task.snr for run in runs):
        raise ValueError(
            f"{where}: the signal-to-noise ratio is measured during training: add snr = 50 (or "
            "another number of batches) to the task"
        )
    return settings
