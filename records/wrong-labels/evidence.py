"""What was found? The two tasks of wrong labels, and how their numbers are told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vasso.lab.report.cells import Cell
from vasso.lab.report.comparing import Comparison, OneRadius
from vasso.lab.report.findings import Answered, Findings
from vasso.lab.report.sections import Table
from vasso.lab.report.words import half_width, number, seeds
from vasso.lab.statistics import LEAST

STUDIES = {"radius": "ResNet-8, CIFAR-10", "radius-mlp": "MLP, Fashion-MNIST"}
WRONG = 0.75
Found = dict[str, tuple[Answered, Table]]
"""Study -> its answers and its table of wrong labels."""


def tables(found: Findings) -> Found:
    """Study -> its answers and its table of wrong labels."""
    return {
        answered.section.study.name: (answered, table)
        for answered in found.answered
        if answered.section.study.name in STUDIES and answered.section.scale.name == "cpu"
        for table in answered.section.tables
        if table.task.wrong == WRONG
    }


def picks(answered: Answered, table: Table) -> dict[str, Cell]:
    """Each method at the radius that validation images choose for it."""
    return {name: pick.cell for name, pick in answered.picks[_place(answered, table)].items()}


def one_radius(answered: Answered, table: Table) -> OneRadius | None:
    """The one radius for all."""
    return answered.radii[_place(answered, table)]


def _place(answered: Answered, table: Table) -> int:
    return answered.section.tables.index(table)


def row(cells: Iterable[Any]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def told(cell: Cell, name: str = "last", digits: int = 1) -> str:
    """A number of a cell with its half-width; one run has none."""
    found = cell.estimate(name)
    if found is None:
        return "–"
    return f"{number(found.value, digits)} {half_width(found, digits)}".rstrip()


def compared(answered: Answered, table: Table, kind: str, cell: Cell) -> Comparison | None:
    mine = (c for c in answered.of(table) if c.kind == kind and c.ours is cell)
    return next(mine, None)


def difference(c: Comparison) -> str:
    """A difference, its interval and what can be said of it."""
    if c.paired is None:
        return "–"
    value = number(c.paired.difference.value, 1, sign=True)
    if c.paired.n < LEAST:
        return f"{value} ({seeds(c.paired.n)})"
    ends = c.paired.difference.low, c.paired.difference.high
    low, high = (number(end, 1, sign=True) for end in ends)
    return f"{value} ({low} to {high}), {c.standing}"


def theta(cell: Cell) -> float:
    """1 of SAM, more of the base."""
    return float(dict(cell.method.settings).get("theta", 2.0 if cell.rho is None else 1.0))
