"""What is drawn of measurements? Signal and noise over epochs, eigenvalues by rank, BLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.palette import INK
from vasso.diagnostics.figures.style import Look, canvas, plain_log, styled
from vasso.lab.probe_reading import eigenpairs_of, estimate
from vasso.lab.report import words
from vasso.lab.report.cells import Cell
from vasso.lab.report.drawing import (
    HEIGHT,
    Chart,
    Mark,
    draw_series,
    framed,
    in_words,
    legend,
    logarithmic,
    look_of,
)
from vasso.lab.report.headlines import BLEU
from vasso.lab.report.hover import Tips
from vasso.lab.report.known import band, figures
from vasso.lab.report.quantities import rows_of
from vasso.lab.report.sections import Section, Table
from vasso.lab.statistics import LEAST, mean

WIDE_RANGE = 20.0
"""Largest over smallest eigenvalue from which their axis is logarithmic."""
LEVEL = 0.95


# -- signal and noise ------------------------------------------------------------------------------


def signal_and_noise(
    section: Section, table: Table, chosen: Sequence[Cell], name: str
) -> Chart | None:
    """The signal-to-noise ratio over the epochs, a line for each run.

    Args:
        section: whose study may hold a published range.
        table: a task.
        chosen: cells to show.
        name: prefix of ids.

    Returns:
        The chart; None where no run noted it.
    """
    lines: dict[str, tuple[Look, list[Mark]]] = {}
    for cell in chosen:
        label = table.label(cell)
        for trained in cell.finished:
            if marks := _ratios(rows_of(trained, "noise"), label, trained.run.seed):
                again = f"_{label}, seed {trained.run.seed}"  # which legends pass over
                lines[again if label in lines else label] = (look_of(cell), marks)
    if not lines:
        return None
    told = band(section.study)
    tips = Tips()
    figure = _noise(lines, told, tips)
    shaded = f" Shaded: the published range, {told[0]:g} to {told[1]:g}." if told else ""
    caption = (
        "Squared length of the mean gradient over the variance of a batch gradient, at the "
        f"beginning of each epoch, a line for each run; bands are its 95 % intervals.{shaded}"
    )
    return framed(table, figure, tips, name, "Signal and noise over the epochs", caption)


def _ratios(rows: Sequence[Mapping[str, Any]], label: str, seed: int) -> list[Mark]:
    found = []
    for row in rows:
        if (row.get("snr") or 0) > 0:  # an estimate of 0 has no place on a logarithmic axis
            ends = {"snr_low": row.get("snr_low"), "snr_high": row.get("snr_high")}
            y = replace(
                estimate({"snr": row["snr"], **ends}, "snr", LEVEL), n=row.get("batches") or 1
            )
            said = f"{label}, seed {seed}, epoch {row['epoch']}: {y.value:.3g}"
            found.append(Mark(row["epoch"], y, said))
    return found


@styled
def _noise(
    lines: Mapping[str, tuple[Look, Sequence[Mark]]], told: tuple[float, float] | None, tips: Tips
) -> Figure:
    figure = canvas("narrow", HEIGHT)
    axes = figure.axes[0]
    if told is not None:
        axes.axhspan(*told, color=INK, alpha=0.13, linewidth=0, zorder=0)
    values = [mark.y.value for _, marks in lines.values() for mark in marks]
    low, high = min([*values, *(told or ())]) / 1.5, max([*values, *(told or ())]) * 1.5
    for name, (looks, marks) in lines.items():
        clipped = [Mark(m.x, _within(m.y, low, high), m.text) for m in marks]
        draw_series(axes, name, looks, clipped, tips)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    plain_log(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("SNR of a batch gradient")
    legend(figure)
    return figure


def _within(y: Estimate, low: float, high: float) -> Estimate:
    """An interval as far as a logarithmic axis can show it."""
    ends = max(y.low, low / 2), min(y.high, high * 2)
    return Estimate(y.value, *ends, y.level, y.n)


# -- the Hessian -----------------------------------------------------------------------------------


def spectra(section: Section, table: Table, chosen: Sequence[Cell], name: str) -> Chart | None:
    """The largest eigenvalues by rank: a line through the means, a mark for each seed.

    Args:
        section: the study.
        table: a task.
        chosen: cells to show.
        name: prefix of ids.

    Returns:
        The chart; None where no run was measured.
    """
    found = {table.label(cell): (look_of(cell), _eigenvalues(cell)) for cell in chosen}
    shown = {label: (looks, each) for label, (looks, each) in found.items() if each}
    if not shown:
        return None
    tips = Tips()
    figure = _spectra(shown, tips)
    caption = (
        "Largest eigenvalues of the Hessian of the training loss where training ended: a mark for "
        "each seed, lines through their means."
    )
    return framed(table, figure, tips, name, "Eigenvalues by rank", caption)


def _eigenvalues(cell: Cell) -> dict[int, list[float]]:
    """Seed -> eigenvalues, largest first."""
    pairs = ((t.run.seed, rows_of(t, "spectrum")) for t in cell.finished)
    return {seed: eigenpairs_of(rows[0]).values.tolist() for seed, rows in pairs if rows}


@styled
def _spectra(shown: Mapping[str, tuple[Look, dict[int, list[float]]]], tips: Tips) -> Figure:
    figure = canvas("narrow", HEIGHT)
    axes = figure.axes[0]
    step = 0.5 / max(len(shown), 2)
    for place, (label, (looks, each)) in enumerate(shown.items()):
        shift = step * (place - (len(shown) - 1) / 2)  # beside each other, not one over another
        _ranked(axes, label, looks, each, shift, tips)
    values = [v for _, each in shown.values() for some in each.values() for v in some]
    if min(values) > 0 and max(values) > WIDE_RANGE * min(values):
        logarithmic(axes, min(values), max(values))
    elif min(values) > 0:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rank k")
    axes.set_ylabel("eigenvalue λk")
    legend(figure)
    return figure


def _ranked(
    axes: Axes, label: str, looks: Look, each: dict[int, list[float]], shift: float, tips: Tips
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
        said = ", ".join(f"{values[k - 1]:.4g}" for values in each.values())
        text = f"{label}, λ{k}: {said}" if len(each) < 6 else f"{label}, λ{k}: {in_words(m)}"
        over: dict[str, Any] = {"alpha": 0.0, "markersize": 15, "zorder": 4, "gid": tips.add(text)}
        axes.plot([x], [m.value], "o", **over)


# -- translations ----------------------------------------------------------------------------------


def scores(section: Section, table: Table, chosen: Sequence[Cell], name: str) -> Chart | None:
    """BLEU of each method with its interval; at the paper's scale the published figure beside it.

    Args:
        section: whose study holds published figures.
        table: a task.
        chosen: cells to show.
        name: prefix of ids.

    Returns:
        The chart; None where nothing was translated.
    """
    found = [(cell, y) for cell in chosen if (y := cell.estimate("bleu")) is not None]
    if not found:
        return None
    told: dict[str, float] = {}
    if section.scale.name == "paper":  # elsewhere it is another corpus: nothing to set beside
        for cell, _ in found:
            each = figures(section.study, table.task, cell.method, BLEU).values()
            told |= {table.label(cell): figure.means[0] for figure in each}
    tips = Tips()
    figure = _dots([(table.label(c), look_of(c), y) for c, y in found], told, tips)
    caption = "Mean over seeds and its 95 % interval, on test sentences, tokenised."
    more = " Crosses are the published means." if told else ""
    return framed(table, figure, tips, name, "BLEU", caption + more)


@styled
def _dots(
    found: Sequence[tuple[str, Look, Estimate]], told: Mapping[str, float], tips: Tips
) -> Figure:
    figure = canvas("narrow", 1.0 + 0.42 * len(found))
    axes = figure.axes[0]
    for place, (label, looks, y) in enumerate(found):
        if y.n >= LEAST:
            ends = [y.low, y.high]
            axes.plot(ends, [place] * 2, color=looks.colour, linewidth=2.4, alpha=0.55)
        fill = looks.colour if y.n >= LEAST else "none"
        mark: dict[str, Any] = {"color": looks.colour, "markerfacecolor": fill, "markersize": 7}
        axes.plot([y.value], [place], looks.marker, **mark)
        published = told.get(label)
        if published is not None:
            axes.plot([published], [place], "x", color=INK, markersize=7)
        more = "" if published is None else f"; published {words.number(published)}"
        text = f"{label}: {in_words(y)}{more}"
        over: dict[str, Any] = {"alpha": 0.0, "markersize": 15, "zorder": 4, "gid": tips.add(text)}
        axes.plot([y.value], [place], "o", **over)
    axes.set_yticks(range(len(found)), labels=[label for label, _, _ in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)
    axes.set_xlabel("BLEU (tokenised)")
    return figure
