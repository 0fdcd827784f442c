"""How is a chart of the page drawn? Lines of methods, points that tell their values, axes, names.

Lines are means over seeds, bands their 95 % intervals; a cell of fewer than three runs is a hollow
mark without a band.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.style import Look, inline, look
from vasso.lab.methods import PLAIN
from vasso.lab.report import words
from vasso.lab.report.cells import Cell
from vasso.lab.report.hover import Tips
from vasso.lab.report.sections import Table
from vasso.lab.statistics import LEAST

HEIGHT = 3.3
WIDTH = 48
"""Letters of a line below a chart."""


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
    """How the method of a cell is drawn, wherever it is; dotted if its passes share their dropout.

    Args:
        cell: the cell.

    Returns:
        Colour, marker and line.
    """
    theta = dict(cell.method.settings).get("theta")
    name = cell.method.base if cell.method.name == PLAIN else cell.method.name
    found = look(name, float(theta) if isinstance(theta, (int, float)) else None)
    return replace(found, marker="+", line=":") if cell.method.same_rng else found


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


def legend(figure: Figure) -> None:
    """Names below the axes, where they hide nothing.

    Args:
        figure: with labelled lines.
    """
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(handles) > 1:
        longest = max(map(len, labels))
        columns = 1 if longest > 24 else 2 if longest > 13 else 3
        lines = [textwrap.fill(label, WIDTH, subsequent_indent="  ") for label in labels]
        if columns == 1:  # a line each or more, which is not to be taken from the axes
            count = sum(line.count("\n") + 1 for line in lines)
            figure.set_figheight(figure.get_figheight() + 0.17 * (count - 1))
        figure.legend(handles, lines, loc="outside lower center", ncols=columns)
