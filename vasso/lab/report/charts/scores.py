"""Charts of one number for each method, with its interval: BLEU, accuracy minus the base's."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.palette import INK
from vasso.diagnostics.figures.style import Look, canvas, styled
from vasso.lab.experiment.method import PLAIN
from vasso.lab.report.cells import Cell
from vasso.lab.report.charts.drawing import (
    Chart,
    Tooltips,
    describe_estimate,
    describe_intervals,
    looks_of,
    make_chart,
)
from vasso.lab.report.compare import published_figures
from vasso.lab.report.metrics import BLEU
from vasso.lab.report.sections import Section, Table
from vasso.lab.report.text import format_number
from vasso.lab.statistics import LEAST, paired

Scores = Sequence[tuple[str, Look, Estimate]]
"""Label, look and number of each method."""


def bleu_scores(section: Section, table: Table, cells: Sequence[Cell], name: str) -> Chart | None:
    """BLEU of each method with its interval; at the paper's scale with the published figure."""
    found = [(cell, y) for cell in cells if (y := cell.estimate("bleu")) is not None]
    if not found:
        return None
    published: dict[str, float] = {}
    if section.scale.name == "paper":  # other scales have another corpus
        for cell, _ in found:
            each = published_figures(section.study, table.task, cell.method, BLEU).values()
            published |= {table.label(cell): figure.means[0] for figure in each}
    tips, looks = Tooltips(), looks_of(table)
    scores = [(table.label(c), looks[table.name(c)], y) for c, y in found]
    figure = _draw(scores, "BLEU (tokenised)", published, tips)
    caption = f"On test sentences, tokenised; {_intervals(scores)}."
    more = " Crosses are the published means." if published else ""
    return make_chart(table, figure, tips, name, "BLEU", caption + more)


def minus_base(section: Section, table: Table, cells: Sequence[Cell], name: str) -> Chart | None:
    """Accuracy minus that of the base, seed by seed, as the paper draws Figures 1a and 1b."""
    bases = [c for c in table.cells if c.method.name == PLAIN and c.task == table.task and c.n]
    if not section.study.shows.startswith("Figure") or not bases:
        return None
    base, looks, scores = bases[0], looks_of(table), []
    for cell in (c for c in cells if c.method.name != PLAIN):
        pair = paired(cell.values("last"), base.values("last"))
        if pair is not None:
            scores.append((table.label(cell), looks[table.name(cell)], pair.difference))
    if not scores:
        return None
    tips, theirs = Tooltips(), table.name(base)
    figure = _draw(scores, f"points above {theirs}", {}, tips, zero=True)
    title = f"Test accuracy relative to {theirs}"
    caption = f"Last epoch, minus {theirs}'s, seed by seed; {_intervals(scores)}."
    return make_chart(table, figure, tips, name, title, caption)


def _intervals(scores: Scores) -> str:
    return describe_intervals(y.n for _, _, y in scores).replace("band", "interval")


@styled
def _draw(
    scores: Scores, label: str, published: Mapping[str, float], tips: Tooltips, zero: bool = False
) -> Figure:
    figure = canvas("narrow", 1.0 + 0.42 * len(scores))
    axes = figure.axes[0]
    for place, (name, looks, y) in enumerate(scores):
        if y.n >= LEAST:
            axes.plot([y.low, y.high], [place] * 2, color=looks.colour, linewidth=2.4, alpha=0.55)
        fill = looks.colour if y.n >= LEAST else "none"
        mark: dict[str, Any] = {"color": looks.colour, "markerfacecolor": fill, "markersize": 7}
        axes.plot([y.value], [place], looks.marker, **mark)
        other = published.get(name)
        if other is not None:
            axes.plot([other], [place], "x", color=INK, markersize=7)
        more = "" if other is None else f"; published {format_number(other)}"
        tips.point(axes, y.value, place, f"{name}: {describe_estimate(y)}{more}")
    if zero:
        axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(scores)), labels=[name for name, _, _ in scores])
    axes.set_ylim(len(scores) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)
    axes.set_xlabel(label)
    return figure
