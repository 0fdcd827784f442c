"""Charts of the page: which ones a section has, by its measure."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from vasso.lab.report.cells import Cell
from vasso.lab.report.charts.drawing import Chart
from vasso.lab.report.charts.measured import (
    EpochNumber,
    over_epochs,
    snr_over_epochs,
    spectra,
)
from vasso.lab.report.charts.radius import over_radius
from vasso.lab.report.charts.scores import bleu_scores, minus_base
from vasso.lab.report.compare import Pick
from vasso.lab.report.findings import SectionResult
from vasso.lab.report.sections import Section, Table
from vasso.lab.studies import measurement_settings

Draw: TypeAlias = Callable[[Section, Table, Sequence[Cell], str], Chart | None]
ACCURACY = EpochNumber("test_accuracy", "test accuracy, %", "Test accuracy")
PERPLEXITY = EpochNumber(
    "validation_perplexity", "validation perplexity", "Validation perplexity", log=True
)
FIRST: Mapping[str, Draw] = {
    "accuracy": minus_base,
    measurement_settings.BLEU: bleu_scores,
    measurement_settings.SPECTRUM: spectra,
    measurement_settings.NOISE: snr_over_epochs,
}
"""The first chart of a measure."""
OVER_EPOCHS: Mapping[str, EpochNumber] = {measurement_settings.BLEU: PERPLEXITY}
"""What is drawn over the epochs, where that is not accuracy."""


def charts_of(result: SectionResult, index: int) -> tuple[Chart, ...]:
    """The charts of a table of a section."""
    table, picks = result.section.tables[index], result.picks[index]
    return _charts(result.section, table, [*picks.values()], index + 1)


def _charts(
    section: Section, table: Table, picks: Sequence[Pick], number: int
) -> tuple[Chart, ...]:
    cells = [pick.cell for pick in picks]
    name, measure = f"{section.anchor}-{number}", section.study.measure
    found: list[Chart | None] = []
    if measure in FIRST:
        found.append(FIRST[measure](section, table, cells, f"{name}-measured"))
    for metric in section.criteria.metrics:
        found += over_radius(table, metric, name)
    of_epochs = OVER_EPOCHS.get(measure, ACCURACY)
    several = any(pick.of > 1 for pick in picks)
    rule = "at its best ρ by validation" if several else "at the ρ that the study has"
    found.append(over_epochs(table, cells, of_epochs, rule, f"{name}-epochs"))
    return tuple(chart for chart in found if chart is not None)
