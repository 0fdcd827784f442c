"""Charts over the epochs (accuracy, signal-to-noise ratio) and of eigenvalues by rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.palette import INK
from vasso.diagnostics.figures.style import Look, canvas, plain_log, styled
from vasso.lab.report.cells import Cell, rows_of
from vasso.lab.report.charts.drawing import (
    HEIGHT,
    Chart,
    Mark,
    Tooltips,
    describe_estimate,
    describe_intervals,
    draw_series,
    legend,
    logarithmic_y,
    looks_of,
    make_chart,
)
from vasso.lab.report.compare import published_snr_range
from vasso.lab.report.sections import Section, Table
from vasso.lab.report.text import describe_range
from vasso.lab.statistics import mean

WIDE_RANGE = 20.0
"""Largest over smallest eigenvalue from which their axis is logarithmic."""
LEVEL = 0.95

Curve = Mapping[int, Estimate]
"""Epoch -> mean over seeds."""


@dataclass(frozen=True)
class EpochNumber:
    """A number noted at the end of epochs, the title of its axis, and its name in a caption."""

    name: str
    axis: str
    caption: str
    log: bool = False


def over_epochs(
    table: Table, cells: Sequence[Cell], number: EpochNumber, rule: str, name: str
) -> Chart | None:
    """A number over the epochs; `rule` says at which radius each method is shown."""
    looks = looks_of(table)
    found = {table.label(c): (looks[table.name(c)], _curve(c, number.name)) for c in cells}
    shown = {label: (own, curve) for label, (own, curve) in found.items() if len(curve) > 1}
    if not shown:
        return None
    tips = Tooltips()
    figure = _draw_epochs(shown, tips, number)
    counts = (y.n for _, curve in shown.values() for y in curve.values())
    caption = f"{number.caption}, each method {rule}; {describe_intervals(counts)}."
    return make_chart(table, figure, tips, name, "Over the epochs", caption)


def _curve(cell: Cell, name: str) -> Curve:
    tables = [
        {epoch["epoch"]: epoch[name] for epoch in trained.epochs if epoch.get(name) is not None}
        for trained in cell.finished
    ]
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    return {epoch: mean([table[epoch] for table in tables]) for epoch in shared}


@styled
def _draw_epochs(
    shown: Mapping[str, tuple[Look, Curve]], tips: Tooltips, number: EpochNumber
) -> Figure:
    figure = canvas("narrow", HEIGHT)
    axes = figure.axes[0]
    for name, (looks, curve) in shown.items():
        marks = [
            Mark(epoch, y, f"{name}, epoch {epoch}: {describe_estimate(y)}")
            for epoch, y in curve.items()
        ]
        draw_series(axes, name, looks, marks, tips)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel(number.axis)
    if number.log:
        means = [y.value for _, curve in shown.values() for y in curve.values()]
        logarithmic_y(axes, min(means), max(means))
    legend(figure)
    return figure


def snr_over_epochs(
    section: Section, table: Table, cells: Sequence[Cell], name: str
) -> Chart | None:
    """The signal-to-noise ratio over the epochs, a line for each run."""
    lines: dict[str, tuple[Look, list[Mark]]] = {}
    looks = looks_of(table)
    for cell in cells:
        label = table.label(cell)
        for trained in cell.finished:
            if marks := _snr_marks(rows_of(trained, "noise"), label, trained.run.seed):
                again = f"_{label}, seed {trained.run.seed}"  # legends skip names with "_"
                lines[again if label in lines else label] = (looks[table.name(cell)], marks)
    if not lines:
        return None
    published = published_snr_range(section.study)
    tips = Tooltips()
    figure = _draw_snr(lines, published, tips)
    caption = (
        "Squared length of the mean gradient over the variance of a batch gradient, at the "
        "beginning of each epoch, a line for each run; bands are its 95 % confidence intervals."
    )
    if published is not None:
        values = [mark.y.value for _, marks in lines.values() for mark in marks]
        caption += f" {describe_range(published, values)}"
    return make_chart(table, figure, tips, name, "Signal and noise over the epochs", caption)


def _snr_marks(rows: Sequence[Mapping[str, Any]], label: str, seed: int) -> list[Mark]:
    from vasso.lab.probe.results import estimate  # imports scipy

    found = []
    for row in rows:
        if (row.get("snr") or 0) > 0:  # an estimate of 0 has no place on a logarithmic axis
            ends = {"snr_low": row.get("snr_low"), "snr_high": row.get("snr_high")}
            y = replace(
                estimate({"snr": row["snr"], **ends}, "snr", LEVEL), n=row.get("batches") or 1
            )
            text = f"{label}, seed {seed}, epoch {row['epoch']}: {y.value:.3g}"
            found.append(Mark(row["epoch"], y, text))
    return found


@styled
def _draw_snr(
    lines: Mapping[str, tuple[Look, Sequence[Mark]]],
    published: tuple[float, float] | None,
    tips: Tooltips,
) -> Figure:
    figure = canvas("narrow", HEIGHT)
    axes = figure.axes[0]
    if published is not None:
        axes.axhspan(*published, color=INK, alpha=0.13, linewidth=0, zorder=0)
    values = [mark.y.value for _, marks in lines.values() for mark in marks]
    low, high = min([*values, *(published or ())]) / 1.5, max([*values, *(published or ())]) * 1.5
    for name, (looks, marks) in lines.items():
        clipped = [Mark(m.x, _clipped(m.y, low, high), m.text) for m in marks]
        draw_series(axes, name, looks, clipped, tips)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    plain_log(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("SNR of a batch gradient")
    legend(figure)
    return figure


def _clipped(y: Estimate, low: float, high: float) -> Estimate:
    """An interval as far as a logarithmic axis can show it."""
    ends = max(y.low, low / 2), min(y.high, high * 2)
    return Estimate(y.value, *ends, y.level, y.n)


def spectra(section: Section, table: Table, cells: Sequence[Cell], name: str) -> Chart | None:
    """The largest eigenvalues by rank: a line through the means, a mark for each seed."""
    looks = looks_of(table)
    pairs = ((c, each) for c in cells if (each := _eigenvalues(c)))
    shown = {table.label(c): (looks[table.name(c)], each) for c, each in pairs}
    if not shown:
        return None
    tips = Tooltips()
    figure = _draw_spectra(shown, tips)
    caption = (
        "Largest eigenvalues of the Hessian of the training loss where training ended: a mark for "
        "each seed, lines through their means."
    )
    return make_chart(table, figure, tips, name, "Eigenvalues by rank", caption)


def _eigenvalues(cell: Cell) -> dict[int, list[float]]:
    from vasso.lab.probe.results import eigenpairs_of  # imports scipy

    pairs = ((t.run.seed, rows_of(t, "spectrum")) for t in cell.finished)
    return {seed: eigenpairs_of(rows[0]).values.tolist() for seed, rows in pairs if rows}


@styled
def _draw_spectra(
    shown: Mapping[str, tuple[Look, dict[int, list[float]]]], tips: Tooltips
) -> Figure:
    figure = canvas("narrow", HEIGHT)
    axes = figure.axes[0]
    step = 0.5 / max(len(shown), 2)
    for place, (label, (looks, each)) in enumerate(shown.items()):
        shift = step * (place - (len(shown) - 1) / 2)  # so that marks do not overlap
        _draw_eigenvalues(axes, label, looks, each, shift, tips)
    values = [v for _, each in shown.values() for some in each.values() for v in some]
    if min(values) > 0 and max(values) > WIDE_RANGE * min(values):
        logarithmic_y(axes, min(values), max(values))
    elif min(values) > 0:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rank k")
    axes.set_ylabel("eigenvalue λk")
    legend(figure)
    return figure


def _draw_eigenvalues(
    axes: Axes, label: str, looks: Look, each: dict[int, list[float]], shift: float, tips: Tooltips
) -> None:
    most = min(len(values) for values in each.values())
    means = [mean([values[k] for values in each.values()]) for k in range(most)]
    where = [k + 1 + shift for k in range(most)]
    axes.plot(where, [m.value for m in means], looks.line, color=looks.colour, linewidth=1.2)
    marks: dict[str, Any] = {"color": looks.colour, "marker": looks.marker, "linestyle": "none"}
    for seed, values in each.items():
        first = seed == min(each)
        axes.plot(where, values[:most], **marks, alpha=0.75, label=label if first else None)
    for k, (x, m) in enumerate(zip(where, means, strict=True), 1):
        listed = ", ".join(f"{values[k - 1]:.4g}" for values in each.values())
        numbers = listed if len(each) < 6 else describe_estimate(m)
        tips.point(axes, x, m.value, f"{label}, λ{k}: {numbers}")
