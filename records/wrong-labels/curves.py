"""Test accuracy over the radius, drawn: of each task over rho, and over what rho does."""

from collections.abc import Sequence
from typing import Any

from evidence import STUDIES, Found, theta
from matplotlib.figure import Figure

from vasso.diagnostics.figures.style import canvas, styled
from vasso.lab.experiment.method import PLAIN
from vasso.lab.report.cells import Cell
from vasso.lab.report.charts.drawing import Mark, Tooltips, draw_series, look_of, round_numbers
from vasso.lab.report.sections import Table


@styled
def over_radius(found: Found) -> Figure:
    """Test accuracy over the radius and over what it does, a row for each task."""
    figure = canvas("wide", 3.2, rows=len(found), columns=2)
    for i, (name, (_, table)) in enumerate(found.items()):
        left, right = figure.axes[2 * i : 2 * i + 2]
        for axes, over in ((left, "rho"), (right, "rise")):
            _draw(axes, table, over)
        left.set_ylabel("test accuracy, %")
        left.set_title(f"{STUDIES[name]}, 75 % of the labels wrong")
        right.set_title("the same over what ρ does")
        left.set_xlabel("radius ρ")
        right.set_xlabel("rise of the loss on the own batch, first epoch")
    named = [axes.get_legend_handles_labels() for axes in figure.axes]
    entries = {
        label: handle
        for handles, labels in named
        for handle, label in zip(handles, labels, strict=True)
    }
    order = sorted(entries, key=lambda name: _rank(name, found))
    figure.legend(
        [entries[name] for name in order], order, loc="outside lower center", ncols=len(entries)
    )
    return figure


def _rank(name: str, found: Found) -> float:
    """The base first, then SAM, then VaSSO by falling theta."""
    families = (table.families() for _, table in found.values())
    return -next(theta(cells[name][0]) for cells in families if name in cells)


def _draw(axes: Any, table: Table, over: str) -> None:
    """One panel; SGD, which has no radius, is a line across the left one."""
    every = []
    for name, cells in table.families().items():
        shown = _marks(cells, over)
        every += [mark.x for mark in shown]
        if shown:
            draw_series(axes, name, look_of(cells[0]), shown, Tooltips())
        elif over == "rho" and cells[0].method.name == PLAIN and cells[0].n:
            level = cells[0].estimate("last")
            style = {"color": look_of(cells[0]).colour, "linestyle": (0, (5, 2)), "label": name}
            axes.axhline(level.value if level else 0.0, **style)
    axes.set_xscale("log")
    ticks = round_numbers(min(every), max(every))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))


def _marks(cells: Sequence[Cell], over: str) -> list[Mark]:
    found = []
    for cell in sorted(cells, key=lambda cell: cell.rho or 0.0):
        y, x = cell.estimate("last"), cell.estimate("rise")
        if y is not None and x is not None and cell.rho is not None:
            found.append(Mark(cell.rho if over == "rho" else x.value, y, ""))
    return found
