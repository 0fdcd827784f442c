"""The advantage of an averaged slope by the share of wrong labels: a row for each share."""

from collections.abc import Iterator

from answers import end_of
from evidence import compared, ends, families, one_radius, picks

from records.markdown_pages import EMPTY, format_cell, format_difference, table_lines
from vasso.lab.report.cells import Cell
from vasso.lab.report.findings import Findings, SectionResult
from vasso.lab.report.sections import Table

STUDY, OURS = "label-noise", "VaSSO θ=0.2"


LESS = "minus SAM's, points"


def by_level(every: Findings) -> list[str]:
    """SGD, SAM and theta 0.2 by both rules, from clean labels to mostly wrong ones."""
    heads = ("wrong", "SGD", "SAM, its best ρ", "θ=0.2, its best ρ", LESS)
    shared = ("one ρ: SAM", "θ=0.2", LESS)
    lines = ((*best, *one[2:]) for best, one in _levels(every))
    return table_lines((*heads, *shared), lines)


def in_short(every: Findings) -> list[str]:
    """The same at the best radii, and below it most wrong labels at one radius for all."""
    levels = list(_levels(every))
    shared, *cells = levels[-1][1]
    lines = [*(best for best, _ in levels), (f"{shared}, one ρ for all", *cells)]
    heads = ("wrong labels", "SGD", "SAM", OURS, "VaSSO minus SAM, points")
    return table_lines(heads, lines)


def _levels(every: Findings) -> Iterator[tuple[list[str], list[str]]]:
    """For each share of wrong labels: share, SGD, SAM, ours, difference; by both rules."""
    ours = (a for a in every.results if a.section.study.name == STUDY)
    answered = next(a for a in ours if a.section.scale.name == "cpu")
    for table in sorted(answered.section.tables, key=lambda table: table.task.wrong):
        best, one = picks(answered, table), one_radius(answered, table)
        at_one = {
            name: next((c for c in cells if one is not None and c.rho == one.rho and c.n), None)
            for name, cells in families(table).items()
        }
        wrong, base = f"{100 * table.task.wrong:g} %", _at_best(answered, table, best.get("SGD"))
        at_best = [_at_best(answered, table, best.get(name)) for name in ("SAM", OURS)]
        cells = [_with_seeds(at_one.get(name)) for name in ("SAM", OURS)]
        yield (
            [wrong, base, *at_best, _less(answered, table, "best", best.get(OURS))],
            [wrong, base, *cells, _less(answered, table, "one", at_one.get(OURS))],
        )


def _with_seeds(cell: Cell | None) -> str:
    return EMPTY if cell is None else f"{format_cell(cell)} (n {cell.n})"


def _at_best(answered: SectionResult, table: Table, cell: Cell | None) -> str:
    if cell is None:
        return EMPTY
    end = end_of(table.name(cell), ends(answered, table))
    rho = "" if cell.rho is None else f"ρ {cell.rho:g}{end}, "
    return f"{format_cell(cell)} ({rho}n {cell.n})"


def _less(answered: SectionResult, table: Table, kind: str, cell: Cell | None) -> str:
    found = None if cell is None else compared(answered, table, kind, cell)
    if found is None and kind == "one" and cell is not None:
        found = compared(answered, table, "best", cell)  # both rules ask for the same two cells
    return EMPTY if found is None else format_difference(found)
