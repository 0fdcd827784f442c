"""Does an averaged slope help more, the more labels are wrong? A row for each share of them."""

from __future__ import annotations

from collections.abc import Iterator

from answers import end_of
from evidence import compared, ends, families, one_radius, picks

from vasso.lab.report.cells import Cell
from vasso.lab.report.findings import Answered, Findings
from vasso.lab.report.markdown import NOTHING, difference, rows, told
from vasso.lab.report.sections import Table

STUDY, OURS = "label-noise", "VaSSO θ=0.2"


def by_level(every: Findings) -> list[str]:
    """SGD, SAM and theta 0.2 by both rules, from clean labels to mostly wrong ones."""
    answered = next(a for a in every.answered if a.section.study.name == STUDY)
    less = "minus SAM's, points"
    heads = ("wrong", "SGD", "SAM, its best ρ", "θ=0.2, its best ρ", less)
    shared = ("one ρ: SAM", "θ=0.2", less)
    tables = sorted(answered.section.tables, key=lambda table: table.task.wrong)
    return rows((*heads, *shared), (_level(answered, table) for table in tables))


def _level(answered: Answered, table: Table) -> Iterator[str]:
    best, one = picks(answered, table), one_radius(answered, table)
    yield f"{100 * table.task.wrong:g} %"
    yield from (_at_best(answered, table, best.get(name)) for name in ("SGD", "SAM", OURS))
    yield _less(answered, table, "best", best.get(OURS))
    at_one = {
        name: next((c for c in cells if one is not None and c.rho == one.rho and c.n), None)
        for name, cells in families(table).items()
    }
    cells = (at_one.get(name) for name in ("SAM", OURS))
    yield from (NOTHING if cell is None else f"{told(cell)} (n {cell.n})" for cell in cells)
    yield _less(answered, table, "one", at_one.get(OURS))


def _at_best(answered: Answered, table: Table, cell: Cell | None) -> str:
    if cell is None:
        return NOTHING
    end = end_of(table.name(cell), ends(answered, table))
    rho = "" if cell.rho is None else f"ρ {cell.rho:g}{end}, "
    return f"{told(cell)} ({rho}n {cell.n})"


def _less(answered: Answered, table: Table, kind: str, cell: Cell | None) -> str:
    found = None if cell is None else compared(answered, table, kind, cell)
    if found is None and kind == "one" and cell is not None:
        found = compared(answered, table, "best", cell)  # both rules ask for the same two cells
    return NOTHING if found is None else difference(found)
