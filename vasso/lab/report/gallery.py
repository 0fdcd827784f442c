"""Which charts has a section? Those that its measure is told by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from vasso.lab import measures
from vasso.lab.report.cells import Cell
from vasso.lab.report.comparing import Pick
from vasso.lab.report.drawing import Chart
from vasso.lab.report.epoch_charts import Course, over_epochs
from vasso.lab.report.findings import Answered
from vasso.lab.report.measured_charts import scores, signal_and_noise, spectra
from vasso.lab.report.radius_charts import over_radius
from vasso.lab.report.sections import Section, Table

Draw: TypeAlias = Callable[[Section, Table, Sequence[Cell], str], Chart | None]
ACCURACY = Course("test_accuracy", "test accuracy, %", "Test accuracy")
PERPLEXITY = Course(
    "validation_perplexity", "validation perplexity", "Validation perplexity", log=True
)
FIRST: Mapping[str, Draw] = {
    measures.BLEU: scores,
    measures.SPECTRUM: spectra,
    measures.NOISE: signal_and_noise,
}
"""What is drawn of a measure before anything else."""
COURSES: Mapping[str, Course] = {measures.BLEU: PERPLEXITY}
"""What is drawn over the epochs, where that is not accuracy."""


def charts_of(answered: Answered) -> tuple[tuple[Chart, ...], ...]:
    """What is drawn of each table of a section.

    Args:
        answered: the section.

    Returns:
        Charts for each table, none where there is nothing to see.
    """
    tables = enumerate(zip(answered.section.tables, answered.picks, strict=True), 1)
    return tuple(
        _charts(answered.section, table, [*picks.values()], number)
        for number, (table, picks) in tables
    )


def _charts(
    section: Section, table: Table, picks: Sequence[Pick], number: int
) -> tuple[Chart, ...]:
    chosen = [pick.cell for pick in picks]
    name, measure = f"{section.anchor}-{number}", section.study.measure
    found: list[Chart | None] = []
    if measure in FIRST:
        found.append(FIRST[measure](section, table, chosen, f"{name}-measured"))
    for headline in section.judging.headlines:
        found += over_radius(table, headline, name)
    course = COURSES.get(measure, ACCURACY)
    rule = "at its best ρ by validation" if any(p.of > 1 for p in picks) else "at the ρ it has here"
    found.append(over_epochs(table, chosen, course, rule, f"{name}-epochs"))
    return tuple(chart for chart in found if chart is not None)
