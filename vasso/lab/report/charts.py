"""What is drawn of a task? Its headline over rho, over the effective radius, over epochs, and why.

Lines are means over seeds, bands their 95 % intervals; a cell of fewer than three runs is a hollow
mark without a band. The base alone, which has no radius, is a line across.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.style import (
    Look,
    canvas,
    inline,
    look,
    reference_line,
    styled,
)
from vasso.lab.methods import PLAIN
from vasso.lab.report import words
from vasso.lab.report.cells import Cell
from vasso.lab.report.curves import Curve, curves_of
from vasso.lab.report.headlines import ACCURACY, Headline
from vasso.lab.report.hover import Tips
from vasso.lab.report.sections import Table
from vasso.lab.statistics import LEAST, Better, paired

HEIGHT = 3.3
LEAST_RADII = 3
"""Radii from which something is drawn over them."""


@dataclass(frozen=True)
class Chart:
    """A figure for the page.

    Attributes:
        title: what it is.
        caption: how to read it.
        svg: the element.
    """

    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True)
class Mark:
    """A point with its interval.

    Attributes:
        x: where.
        y: the mean.
        text: what is said of it on hovering.
    """

    x: float
    y: Estimate
    text: str


Series = Mapping[str, tuple[Look, Sequence[Mark]]]
"""Name -> how it looks, and its points."""


def look_of(cell: Cell) -> Look:
    """How the method of a cell is drawn, wherever it is.

    Args:
        cell: the cell.

    Returns:
        Colour, marker and line.
    """
    theta = dict(cell.method.settings).get("theta")
    name = cell.method.base if cell.method.name == PLAIN else cell.method.name
    return look(name, float(theta) if isinstance(theta, (int, float)) else None)


# -- over the radius -------------------------------------------------------------------------------


def over_radius(table: Table, headline: Headline, name: str) -> list[Chart | None]:
    """What is drawn over the radius, if there are enough radii.

    Args:
        table: a task.
        headline: which number; of accuracy there is more to draw.
        name: prefix of ids.

    Returns:
        Charts, None where there is nothing to see.
    """
    radii = {cell.rho for cell in table.cells if cell.n and cell.rho is not None}
    if len(radii) < LEAST_RADII:
        return []
    short = "accuracy" if headline is ACCURACY else headline.name
    first = _chart(
        table, headline.name, _rho, f"{name}-{short}",
        title=f"{words.begun_large(headline.quantity)} over ρ",
        caption="Last epoch. The line across is the base alone.",
        x="radius ρ", y=axis_of(headline),
    )  # fmt: skip
    found = [first, _difference(table, headline, f"{name}-{short}-difference")]
    if headline is not ACCURACY:
        return found
    found[1] = _difference(table, headline, f"{name}-difference")
    return found + _of_accuracy(table, name)


def _rho(cell: Cell) -> float | None:
    return cell.rho


def axis_of(headline: Headline) -> str:
    """The title of an axis.

    Args:
        headline: what is along it.

    Returns:
        Quantity and unit.
    """
    return f"{headline.quantity}, %" if headline is ACCURACY else headline.quantity


def _of_accuracy(table: Table, name: str) -> list[Chart | None]:
    return [
        _chart(
            table, "wrong", _rho, f"{name}-wrong",
            title="Wrong labels learnt over ρ",
            caption="Share of wrong training labels that the network gives back at the end.",
            x="radius ρ", y="wrong labels learnt, %",
        ),
        _chart(
            table, "last", _effective, f"{name}-effective",
            title="Test accuracy over the effective radius",
            caption="The same points over what ρ does: the mean rise of the loss on the own batch "
            "in the first epoch. Where curves fall together, methods differ in their radius only.",
            x="rise of the loss on the own batch, first epoch", y="test accuracy, %",
        ),
        _chart(
            table, "carried", _rho, f"{name}-carried",
            title="How far the adversary carries over to other batches",
            caption="Rise of the loss on other batches over that on the own batch, at the last "
            "step of each epoch: 1 is an adversary for all, 0 one for its own batch only.",
            x="radius ρ", y="rise on others / own",
        ),
    ]  # fmt: skip


def _effective(cell: Cell) -> float | None:
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
    series = {
        key: (look_of(cells[0]), _marks(table, cells, of, over))
        for key, cells in table.families().items()
    }
    series = {key: (looks, marks) for key, (looks, marks) in series.items() if marks}
    if not any(len(marks) > 1 for _, marks in series.values()):
        return None
    across = {} if over is _effective or of == "carried" else _bases(table, of)
    tips = Tips()
    figure = _lines(series, across, tips, x, y)
    return framed(table, figure, tips, name, title, caption)


def _marks(
    table: Table, cells: Sequence[Cell], of: str, over: Callable[[Cell], float | None]
) -> list[Mark]:
    found = []
    for cell in sorted(cells, key=lambda cell: cell.rho or 0.0):
        x, y = over(cell), cell.estimate(of)
        if x is not None and y is not None:
            said = f"{table.label(cell)}: {in_words(y)}"
            found.append(Mark(x, y, said if x == cell.rho else f"{said}, rise {x:.3g}"))
    return found


def in_words(y: Estimate) -> str:
    """An estimate on hovering.

    Args:
        y: the estimate.

    Returns:
        Value, half of the interval, number of seeds.
    """
    digits = 2 if abs(y.value) >= 1 else 3
    half = words.half_width(y, digits)
    return f"{words.number(y.value, digits)} {half}".rstrip() + f" ({words.seeds(int(y.n))})"


def _bases(table: Table, of: str) -> dict[str, tuple[Look, Estimate]]:
    found = {}
    for cell in table.cells:
        y = cell.estimate(of)
        if cell.method.name == PLAIN and y is not None:
            found[table.name(cell)] = (look_of(cell), y)
    return found


SIDES: Mapping[Better, str] = {
    "more": "above the line the method is better at that ρ",
    "less": "below the line the method is better at that ρ",
    "neither": "above the line it is larger at that ρ",
}


def _difference(table: Table, headline: Headline, name: str) -> Chart | None:
    """Each method less SAM at the same radius, seed by seed."""
    families = table.families()
    theirs = {cell.rho: cell for cell in families.get("SAM", []) if cell.n}
    series: dict[str, tuple[Look, Sequence[Mark]]] = {}
    for key, cells in families.items():
        marks = _less(table, cells, theirs, headline) if key != "SAM" else []
        if len(marks) > 1:
            series[key] = (look_of(cells[0]), marks)
    if not series:
        return None
    title = "Difference to SAM at the same ρ"
    caption = (
        f"{words.begun_large(headline.quantity)} less SAM's, seed by seed; "
        f"{SIDES[headline.better]}. Intervals are not adjusted for looking at many."
    )
    tips = Tips()
    above = f"{headline.unit or headline.quantity} above SAM"
    figure = _lines(series, {}, tips, "radius ρ", above, zero=True)
    return framed(table, figure, tips, name, title, caption)


def _less(
    table: Table, cells: Sequence[Cell], theirs: Mapping[float | None, Cell], headline: Headline
) -> list[Mark]:
    found = []
    for cell in sorted(cells, key=lambda cell: cell.rho or 0.0):
        other = theirs.get(cell.rho)
        if cell.rho is None or other is None:
            continue
        compared = paired(cell.values(headline.name), other.values(headline.name))
        if compared is not None:
            d = compared.difference
            digits = headline.digits
            number, half = words.number(d.value, digits, sign=True), words.half_width(d, digits)
            size = headline.size(f"{number} {half}".rstrip())
            said = f"{table.label(cell)} less SAM: {size} ({words.seeds(compared.n)})"
            found.append(Mark(cell.rho, d, said))
    return found


def framed(table: Table, figure: Figure, tips: Tips, name: str, title: str, caption: str) -> Chart:
    """A figure for the page.

    Args:
        table: of which task.
        figure: the figure.
        tips: what its points say.
        name: prefix of ids.
        title: what it is.
        caption: how to read it.

    Returns:
        The chart.
    """
    svg = inline(figure, title=f"{title}, {table.title}", description=caption, name=name)
    return Chart(title, caption, tips.attached(svg, name))


# -- drawing ---------------------------------------------------------------------------------------


@styled
def _lines(
    series: Series,
    across: Mapping[str, tuple[Look, Estimate]],
    tips: Tips,
    x: str,
    y: str,
    zero: bool = False,
) -> Figure:
    figure = canvas("narrow", HEIGHT)
    axes = figure.axes[0]
    if zero:
        reference_line(axes, 0.0)
    for name, (looks, level) in across.items():
        axes.axhline(
            level.value, color=looks.colour, linewidth=1.4, linestyle=(0, (5, 2)), label=name
        )
        if level.n >= LEAST:
            axes.axhspan(level.low, level.high, color=looks.colour, alpha=0.13, linewidth=0)
    for name, (looks, marks) in series.items():
        draw_series(axes, name, looks, marks, tips)
    _log_axis(axes, [mark.x for _, marks in series.values() for mark in marks], x)
    axes.set_ylabel(y)
    if y.endswith("%"):  # no band beyond what there is
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -2.0), min(high, 102.0))
    legend(figure)
    return figure


def draw_series(axes: Axes, name: str, looks: Look, marks: Sequence[Mark], tips: Tips) -> None:
    """Draws a method: its line, its band, and points that tell their values.

    Args:
        axes: where.
        name: for the legend.
        looks: colour, marker and line.
        marks: the points.
        tips: what points say.
    """
    xs, ys = [m.x for m in marks], [m.y.value for m in marks]
    sure = [m.y.n >= LEAST for m in marks]
    filled = [i for i, ok in enumerate(sure) if ok]
    plain: dict[str, Any] = {"color": looks.colour, "marker": looks.marker}
    axes.plot(xs, ys, looks.line, **plain, markevery=filled, label=name)
    alone = [i for i, ok in enumerate(sure) if not ok]
    hollow = {**plain, "markerfacecolor": "none", "linestyle": "none"}
    axes.plot([xs[i] for i in alone], [ys[i] for i in alone], **hollow)
    low = [m.y.low if ok else m.y.value for m, ok in zip(marks, sure, strict=True)]
    high = [m.y.high if ok else m.y.value for m, ok in zip(marks, sure, strict=True)]
    axes.fill_between(xs, low, high, color=looks.colour, alpha=0.15, linewidth=0)
    for mark in marks:
        target: dict[str, Any] = {
            "alpha": 0.0,
            "markersize": 15,
            "zorder": 4,
            "gid": tips.add(mark.text),
        }
        axes.plot([mark.x], [mark.y.value], "o", **target)


def _log_axis(axes: Axes, values: Sequence[float], label: str) -> None:
    axes.set_xscale("log")
    each = sorted(set(values))
    if not label.endswith("ρ") or len(each) > 9:
        each = round_numbers(each[0], each[-1])
    axes.set_xticks(each, [f"{value:g}" for value in each])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten.

    Args:
        low: above 0.
        high: at least as large.

    Returns:
        Those from low to high and the nearest below.

    Example:
        >>> round_numbers(0.03, 0.6)
        [0.02, 0.05, 0.1, 0.2, 0.5]
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    every = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    below = max((value for value in every if value <= low), default=every[0])
    return [value for value in every if below <= value <= high]


def legend(figure: Figure) -> None:
    """Names below the axes, where they hide nothing.

    Args:
        figure: with labelled lines.
    """
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(handles) > 1:
        longest = max(map(len, labels))
        columns = 1 if longest > 24 else 2 if longest > 13 else 3
        if columns == 1:  # a line each, which is not to be taken from the axes
            figure.set_figheight(figure.get_figheight() + 0.17 * (len(labels) - 1))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


# -- over epochs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """A number over the epochs.

    Attributes:
        name: of what was noted at the end of epochs.
        title: of the axis.
        caption: how to read it.
        log: whether the axis is logarithmic.
    """

    name: str
    title: str
    caption: str
    log: bool = False


def over_epochs(table: Table, chosen: Sequence[Cell], course: Course, name: str) -> Chart | None:
    """What is drawn over the epochs.

    Args:
        table: a task.
        chosen: cells to show.
        course: which number.
        name: prefix of ids.

    Returns:
        The chart; None where fewer than two epochs have it.
    """
    found = {table.label(cell): (look_of(cell), curves_of(cell, course.name)) for cell in chosen}
    shown = {key: (looks, curve) for key, (looks, curve) in found.items() if curve is not None}
    if not shown:
        return None
    tips = Tips()
    figure = _epochs(shown, tips, course)
    return framed(table, figure, tips, name, "Over the epochs", course.caption)


@styled
def _epochs(shown: Mapping[str, tuple[Look, Curve]], tips: Tips, course: Course) -> Figure:
    figure = canvas("narrow", HEIGHT)
    axes = figure.axes[0]
    for name, (looks, curve) in shown.items():
        pairs = zip(curve.epochs, curve.means, strict=True)
        marks = [Mark(e, y, f"{name}, epoch {e}: {in_words(y)}") for e, y in pairs]
        draw_series(axes, name, looks, marks, tips)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel(course.title)
    if course.log:
        means = [y.value for _, curve in shown.values() for y in curve.means]
        logarithmic(axes, min(means), max(means))
    legend(figure)
    return figure


def logarithmic(axes: Axes, low: float, high: float) -> None:
    """Makes the upright axis logarithmic, with numbers one reads.

    Args:
        axes: where.
        low: the lowest value to be seen, above 0.
        high: the highest.
    """
    axes.set_yscale("log")
    axes.set_ylim(low / 1.2, high * 1.2)
    each = round_numbers(low / 1.2, high * 1.2)
    if len(each) > 8:
        each = [tick for tick in each if f"{tick:e}"[0] == "1"]
    axes.set_yticks(each, [f"{tick:g}" for tick in each])
    axes.set_yticks([], minor=True)
