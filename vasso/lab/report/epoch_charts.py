"""What is drawn over the epochs?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vasso.diagnostics.figures.style import Look, canvas, styled
from vasso.lab.report.cells import Cell
from vasso.lab.report.curves import Curve, curves_of
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
from vasso.lab.report.hover import Tips
from vasso.lab.report.sections import Table


@dataclass(frozen=True)
class Course:
    """A number over the epochs.

    Attributes:
        name: of what was noted at the end of epochs.
        title: of the axis.
        begins: the first words of the caption.
        log: whether the axis is logarithmic.
    """

    name: str
    title: str
    begins: str
    log: bool = False


def over_epochs(
    table: Table, chosen: Sequence[Cell], course: Course, rule: str, name: str
) -> Chart | None:
    """What is drawn over the epochs.

    Args:
        table: a task.
        chosen: cells to show.
        course: which number.
        rule: at which radius each method is shown.
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
    caption = f"{course.begins}, each method {rule}; mean over seeds and its 95 % band."
    return framed(table, figure, tips, name, "Over the epochs", caption)


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
