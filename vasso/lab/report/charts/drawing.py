"""Drawing shared by all charts: series of methods, points with tooltips, axes, legends.

Lines are means over seeds, bands their 95 % confidence intervals. A cell of fewer than three runs
is a hollow mark without a band.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.sax.saxutils import escape

from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.transforms import Affine2D, IdentityTransform

from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.palette import INK, REST, REST_MARKERS
from vasso.diagnostics.figures.style import Look, inline, look
from vasso.lab.experiment.method import PLAIN
from vasso.lab.report.cells import Cell
from vasso.lab.report.sections import Table
from vasso.lab.report.text import format_half_width, format_number, format_seeds
from vasso.lab.statistics import LEAST

HEIGHT = 3.3
POINT = 15.0
"""Diameter of what is hovered over, in points of a figure."""
WIDTH = 48
"""Letters of a line below a chart."""


@dataclass(frozen=True)
class Chart:
    """A figure for the page, as an SVG element."""

    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True)
class Mark:
    """A point with its confidence interval and the text of its tooltip."""

    x: float
    y: Estimate
    text: str


Series = Mapping[str, tuple[Look, Sequence[Mark]]]
"""Name -> how it looks, and its points."""


class _Points(Artist):
    """Invisible circles, each in a group with its `gid`; a line of one point takes longer."""

    def __init__(self, axes: Axes) -> None:
        super().__init__()
        self.within = axes
        self.places: list[tuple[str, float, float]] = []
        self.set_zorder(4)
        self.set_in_layout(False)

    def draw(self, renderer: RendererBase) -> None:
        gc, circle = renderer.new_gc(), Path.unit_circle()
        size = Affine2D().scale(POINT / 2)  # of SVG a pixel is a point
        gc.set_alpha(0.0)
        gc.set_clip_rectangle(self.within.bbox)
        for gid, x, y in self.places:
            renderer.open_group("point", gid=gid)
            place = Path(self.within.transData.transform([(x, y)]))  # renderers know no logarithm
            renderer.draw_markers(gc, circle, size, place, IdentityTransform(), to_rgb(INK))
            renderer.close_group("point")
        gc.restore()


class Tooltips:
    """Tooltips of one figure: an SVG title for each point, which browsers and our script show."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.points: dict[Axes, _Points] = {}

    def add(self, text: str) -> str:
        """Keeps the text of a point and returns the `gid` to draw it with."""
        self.texts.append(text)
        return f"point-{len(self.texts) - 1}"

    def point(self, axes: Axes, x: float, y: float, text: str) -> None:
        """Draws an invisible point that is large enough to hover over."""
        if axes not in self.points:
            self.points[axes] = _Points(axes)
            axes.add_artist(self.points[axes])
        self.points[axes].places.append((self.add(text), x, y))

    def attached(self, svg: str, name: str) -> Markup:
        """The figure with its tooltips; `name` is the prefix of its ids."""

        def titled(match: re.Match[str]) -> str:
            text = escape(self.texts[int(match[1])])
            return f'<g class="point"><title>{text}</title>'

        done, count = re.subn(rf'<g id="{re.escape(name)}-point-(\d+)">', titled, svg)
        if count != len(self.texts):
            raise ValueError(f"{len(self.texts)} points were drawn, {count} are in the figure")
        return Markup(done)


def looks_of(table: Table) -> dict[str, Look]:
    """How the methods of a table are drawn, by name; variants of one get what is still free."""
    found: dict[str, Look] = {}
    for name, cells in table.families().items():
        own = look_of(cells[0])
        if cells[0].method.name != PLAIN:  # a base in more epochs keeps the colour of the base
            colours, marks = {o.colour for o in found.values()}, {o.marker for o in found.values()}
            colour = next((c for c in (own.colour, *REST) if c not in colours), own.colour)
            marker = next((m for m in (own.marker, *REST_MARKERS) if m not in marks), own.marker)
            own = replace(own, colour=colour, marker=marker)
        found[name] = own
    return found


def describe_intervals(counts: Iterable[float]) -> str:
    """What a caption says of means and bands, given the numbers of runs behind them."""
    least, most = min(every := [*counts]), max(every)
    if most < LEAST:
        return "one run each" if most == 1 else "mean over seeds, too few for a band"
    some = "; hollow marks are of too few runs for one" if least < LEAST else ""
    return f"mean over seeds and its 95 % band{some}"


def look_of(cell: Cell) -> Look:
    """How the method of a cell is drawn in every chart; dotted if its passes share dropout."""
    theta = dict(cell.method.settings).get("theta")
    name = cell.method.base if cell.method.name == PLAIN else cell.method.name
    found = look(name, float(theta) if isinstance(theta, (int, float)) else None)
    return replace(found, line=":") if cell.method.same_rng else found


def describe_estimate(y: Estimate) -> str:
    """An estimate in a tooltip: value, half of the interval, number of seeds."""
    digits = 2 if abs(y.value) >= 1 else 3
    value = f"{format_number(y.value, digits)} {format_half_width(y, digits)}".rstrip()
    return f"{value} ({format_seeds(int(y.n))})"


def make_chart(
    table: Table, figure: Figure, tips: Tooltips, name: str, title: str, caption: str
) -> Chart:
    """A figure with its tooltips as a chart; `name` is the prefix of its ids."""
    svg = inline(figure, title=f"{title}, {table.title}", description=caption, name=name)
    return Chart(title, caption, tips.attached(svg, name))


def draw_series(axes: Axes, name: str, looks: Look, marks: Sequence[Mark], tips: Tooltips) -> None:
    """Draws a method: its line, its band, and points with tooltips."""
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
        tips.point(axes, mark.x, mark.y.value, mark.text)


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from low to high and the nearest below.

    Example:
        >>> round_numbers(0.03, 0.6)
        [0.02, 0.05, 0.1, 0.2, 0.5]
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    every = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    below = max((value for value in every if value <= low), default=every[0])
    return [value for value in every if below <= value <= high]


def logarithmic_y(axes: Axes, low: float, high: float) -> None:
    """Makes the y axis logarithmic from low (above 0) to high, with plain numbers as ticks."""
    axes.set_yscale("log")
    axes.set_ylim(low / 1.2, high * 1.2)
    each = round_numbers(low / 1.2, high * 1.2)
    if len(each) > 8:
        each = [tick for tick in each if f"{tick:e}"[0] == "1"]
    axes.set_yticks(each, [f"{tick:g}" for tick in each])
    axes.set_yticks([], minor=True)


def legend(figure: Figure) -> None:
    """Puts the names below the axes, where they hide nothing."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(handles) > 1:
        longest = max(map(len, labels))
        columns = 1 if longest > 24 else 2 if longest > 13 else 3
        lines = [textwrap.fill(label, WIDTH, subsequent_indent="  ") for label in labels]
        if columns == 1:  # room for the lines, so that the axes keep their height
            count = sum(line.count("\n") + 1 for line in lines)
            figure.set_figheight(figure.get_figheight() + 0.17 * (count - 1))
        figure.legend(handles, lines, loc="outside lower center", ncols=columns)
