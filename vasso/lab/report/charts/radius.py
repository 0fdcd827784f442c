"""Charts over the radius: each metric, wrong labels learnt, and effects of the perturbation.

The base alone, which has no radius, is a horizontal line.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.style import Look, canvas, reference_line, styled
from vasso.lab.experiment.method import PLAIN
from vasso.lab.report.cells import Cell
from vasso.lab.report.charts.drawing import (
    HEIGHT,
    Chart,
    Mark,
    Series,
    Tooltips,
    describe_estimate,
    draw_series,
    legend,
    look_of,
    looks_of,
    make_chart,
    round_numbers,
)
from vasso.lab.report.metrics import ACCURACY, Metric
from vasso.lab.report.sections import Table
from vasso.lab.report.text import capitalized, format_half_width, format_number, format_seeds
from vasso.lab.statistics import LEAST, Better, paired

LEAST_RADII = 3
"""Radii from which a chart over them is drawn."""
SIDES: Mapping[Better, str] = {
    "more": "above the line the method is better at that ρ",
    "less": "below the line the method is better at that ρ",
    "neither": "above the line it is larger at that ρ",
}


def over_radius(table: Table, metric: Metric, name: str) -> list[Chart | None]:
    """The charts of a metric over the radius, if there are enough radii; accuracy has more."""
    radii = {cell.rho for cell in table.cells if cell.n and cell.rho is not None}
    if len(radii) < LEAST_RADII:
        return []
    short = "accuracy" if metric is ACCURACY else metric.name
    first = _chart(
        table, metric.name, _rho, f"{name}-{short}",
        title=f"{capitalized(metric.quantity)} over ρ",
        caption="Last epoch. The horizontal line is the base alone.",
        x="radius ρ", y=f"{metric.quantity}, %" if metric is ACCURACY else metric.quantity,
    )  # fmt: skip
    if metric is not ACCURACY:
        return [first, _difference(table, metric, f"{name}-{short}-difference")]
    return [first, _difference(table, metric, f"{name}-difference"), *_of_accuracy(table, name)]


def _of_accuracy(table: Table, name: str) -> list[Chart | None]:
    return [
        _chart(
            table, "wrong", _rho, f"{name}-wrong",
            title="Wrong labels learnt over ρ",
            caption="Share of wrong training labels that the network predicts at the end.",
            x="radius ρ", y="wrong labels learnt, %",
        ),
        _chart(
            table, "last", _effective_radius, f"{name}-effective",
            title="Test accuracy over the effective radius",
            caption="The same points over the effect of ρ: the mean rise of the loss on the own "
            "batch in the first epoch. Where curves coincide, methods differ in their radius only.",
            x="rise of the loss on the own batch, first epoch", y="test accuracy, %",
        ),
        _chart(
            table, "carried", _rho, f"{name}-carried",
            title="Effect of the adversary on other batches",
            caption="Rise of the loss on other batches over that on the own batch, at the last "
            "step of each epoch of the first half: 1 if the adversary affects all batches alike, "
            "0 if only its own.",
            x="radius ρ", y="rise on others / own",
        ),
    ]  # fmt: skip


def _rho(cell: Cell) -> float | None:
    return cell.rho


def _effective_radius(cell: Cell) -> float | None:
    found = cell.estimate("rise")
    return None if found is None or found.value <= 0 else found.value


def _chart(
    table: Table,
    of: str,
    over: Callable[[Cell], float | None],
    name: str,
    *,
    title: str,
    caption: str,
    x: str,
    y: str,
) -> Chart | None:
    looks = looks_of(table)
    series = {
        key: (looks[key], _marks(table, cells, of, over)) for key, cells in table.families().items()
    }
    series = {key: (looks, marks) for key, (looks, marks) in series.items() if marks}
    if not any(len(marks) > 1 for _, marks in series.values()):
        return None
    bases = {} if over is _effective_radius or of == "carried" else _bases(table, of)
    tips = Tooltips()
    figure = _draw(series, bases, tips, x, y)
    return make_chart(table, figure, tips, name, title, caption)


def _marks(
    table: Table, cells: Sequence[Cell], of: str, over: Callable[[Cell], float | None]
) -> list[Mark]:
    found = []
    for cell in sorted(cells, key=lambda cell: cell.rho or 0.0):
        x, y = over(cell), cell.estimate(of)
        if x is not None and y is not None:
            text = f"{table.label(cell)}: {describe_estimate(y)}"
            found.append(Mark(x, y, text if x == cell.rho else f"{text}, rise {x:.3g}"))
    return found


def _bases(table: Table, of: str) -> dict[str, tuple[Look, Estimate]]:
    found = {}
    for cell in table.cells:
        y = cell.estimate(of)
        if cell.method.name == PLAIN and y is not None:
            looks = look_of(cell)
            longer = cell.task != table.task
            found[table.name(cell)] = (replace(looks, line=":") if longer else looks, y)
    return found


def _difference(table: Table, metric: Metric, name: str) -> Chart | None:
    families = table.families()
    theirs = {cell.rho: cell for cell in families.get("SAM", []) if cell.n}
    series: dict[str, tuple[Look, Sequence[Mark]]] = {}
    looks = looks_of(table)
    for key, cells in families.items():
        marks = _marks_minus_sam(table, cells, theirs, metric) if key != "SAM" else []
        if len(marks) > 1:
            series[key] = (looks[key], marks)
    if not series:
        return None
    title = "Difference to SAM at the same ρ"
    caption = f"{capitalized(metric.quantity)} minus SAM's, seed by seed; {SIDES[metric.better]}."
    if any(mark.y.n >= LEAST for _, marks in series.values() for mark in marks):
        caption += " Intervals are not adjusted for multiple comparisons."
    tips = Tooltips()
    y = f"{metric.unit or metric.quantity} above SAM"
    figure = _draw(series, {}, tips, "radius ρ", y, zero=True)
    return make_chart(table, figure, tips, name, title, caption)


def _marks_minus_sam(
    table: Table, cells: Sequence[Cell], theirs: Mapping[float | None, Cell], metric: Metric
) -> list[Mark]:
    found = []
    for cell in sorted(cells, key=lambda cell: cell.rho or 0.0):
        other = theirs.get(cell.rho)
        if cell.rho is None or other is None:
            continue
        compared = paired(cell.values(metric.name), other.values(metric.name))
        if compared is not None:
            d, digits = compared.difference, metric.digits
            value = format_number(d.value, digits, sign=True)
            size = metric.with_unit(f"{value} {format_half_width(d, digits)}".rstrip())
            text = f"{table.label(cell)} minus SAM: {size} ({format_seeds(compared.n)})"
            found.append(Mark(cell.rho, d, text))
    return found


@styled
def _draw(
    series: Series,
    bases: Mapping[str, tuple[Look, Estimate]],
    tips: Tooltips,
    x: str,
    y: str,
    zero: bool = False,
) -> Figure:
    figure = canvas("narrow", HEIGHT)
    axes = figure.axes[0]
    if zero:
        reference_line(axes, 0.0)
    for name, (looks, level) in bases.items():
        axes.axhline(
            level.value, color=looks.colour, linewidth=1.4, linestyle=(0, (5, 2)), label=name
        )
        if level.n >= LEAST:
            axes.axhspan(level.low, level.high, color=looks.colour, alpha=0.13, linewidth=0)
    for name, (looks, marks) in series.items():
        draw_series(axes, name, looks, marks, tips)
    _logarithmic_x(axes, [mark.x for _, marks in series.values() for mark in marks], x)
    axes.set_ylabel(y)
    if y.endswith("%"):  # no band beyond 0 and 100 %
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -2.0), min(high, 102.0))
    legend(figure)
    return figure


def _logarithmic_x(axes: Axes, values: Sequence[float], label: str) -> None:
    axes.set_xscale("log")
    each = sorted(set(values))
    if not label.endswith("ρ") or len(each) > 9:
        each = round_numbers(each[0], each[-1])
    axes.set_xticks(each, [f"{value:g}" for value in each])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
