"""What is drawn over the radius? The headline, what it does to other things, and what rho does.

The base alone, which has no radius, is a line across.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.style import Look, canvas, reference_line, styled
from vasso.lab.methods import PLAIN
from vasso.lab.report import words
from vasso.lab.report.cells import Cell
from vasso.lab.report.drawing import (
    HEIGHT,
    Chart,
    Mark,
    Series,
    draw_series,
    framed,
    in_words,
    legend,
    look_of,
    round_numbers,
)
from vasso.lab.report.headlines import ACCURACY, Headline
from vasso.lab.report.hover import Tips
from vasso.lab.report.sections import Table
from vasso.lab.statistics import LEAST, Better, paired

LEAST_RADII = 3
"""Radii from which something is drawn over them."""


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
            "step of each epoch of the first half: 1 is an adversary for all, 0 one for its own "
            "batch only.",
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


def _log_axis(axes: Axes, values: Sequence[float], label: str) -> None:
    axes.set_xscale("log")
    each = sorted(set(values))
    if not label.endswith("ρ") or len(each) > 9:
        each = round_numbers(each[0], each[-1])
    axes.set_xticks(each, [f"{value:g}" for value in each])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
