"""Writes README.md (page.md with numbers), the figures, and the result of the project's README.

    vasso study radius --store runs --jobs 2
    vasso study radius-mlp --store runs --jobs 2
    vasso study label-noise --store runs --jobs 2
    vasso export runs records
    python records/wrong-labels/page.py

Everything is read from the lines of `records/*/runs.jsonl`; words that depend on numbers are chosen
by the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from answers import (
    all_at_one,
    at_equal_weights,
    end_of,
    first_answer,
    fourth_answer,
    second_answer,
    third_answer,
    trend,
    whole,
)
from curves import over_radius
from evidence import STUDIES, Found, compared, ends, families, other_levels, picks, tables, theta

from vasso.diagnostics.figures.style import save
from vasso.lab.methods import PLAIN
from vasso.lab.report.cells import Cell
from vasso.lab.report.findings import Answered, findings
from vasso.lab.report.markdown import NOTHING, computing, difference, page_of, put_into, rows, told
from vasso.lab.report.sections import Table
from vasso.lab.statistics import LEAST

HERE = Path(__file__).parent
RECORDS = HERE.parent
BLOCK = "records/wrong-labels/page.py"
"""The part of the project's README that is written here."""


# -- the record's page -----------------------------------------------------------------------------


def page(found: Found, levels: Sequence[Table] = ()) -> str:
    """The text of README.md: page.md with numbers."""
    names = {"conv": "radius", "mlp": "radius-mlp"}
    cells = [cell for _, table in found.values() for cell in table.cells]
    cells += [cell for table in levels for cell in table.cells]
    spent = computing(cells, "batches of 128")
    fields: dict[str, str] = {"computing": spent, "weights": at_equal_weights()}
    fields["levels"] = "\n\n".join(map(level, levels))
    for short, name in names.items():
        answered, table = found[name]
        fields[f"first_{short}"] = first_answer(answered, table)
        fields[f"second_{short}"] = whole(second_answer(answered, table))
        fields[f"third_{short}"] = whole(third_answer(answered, table))
        fields[f"fourth_{short}"] = fourth_answer(table)
        fields[f"best_{short}"] = "\n".join(best_table(answered, table))
        fields[f"radii_{short}"] = "\n".join(radius_table(table))
        fields[f"wrong_{short}"] = "\n".join(radius_table(table, "wrong"))
        fields[f"rise_{short}"] = "\n".join(radius_table(table, "rise", 3))
        fields[f"carried_{short}"] = "\n".join(radius_table(table, "carried", 2))
    return page_of(HERE, __doc__, **fields)


def level(table: Table) -> str:
    """Test accuracy with so many wrong labels."""
    wrong = (
        f"{100 * table.task.wrong:g} % of the labels wrong" if table.task.wrong else "clean labels"
    )
    bases = [(table.name(c), told(c), c.n) for c in table.cells if c.rho is None and c.n]
    beside = "".join(f"; {name} {value} (n = {n})" for name, value, n in bases)
    counts = sorted({cell.n for cell in table.cells if cell.n and cell.rho is not None})
    n = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "0"
    return f"Test accuracy, ResNet-8, {wrong} (n = {n}{beside}):\n\n" + "\n".join(
        radius_table(table)
    )


def best_table(answered: Answered, table: Table) -> Iterator[str]:
    """Every method at its best radius, and its difference to SAM."""
    heads = ("method", "ρ", "n", "test accuracy %", "wrong labels learnt %", "less SAM's, points")
    more = ("rise on its batch", "carried to others", "gradients a step")
    chosen = picks(answered, table).items()
    yield from rows((*heads, *more), (_at_best(answered, table, *pick) for pick in chosen))


def _at_best(answered: Answered, table: Table, name: str, cell: Cell) -> Iterator[object]:
    against, end = compared(answered, table, "best", cell), end_of(name, ends(answered, table))
    yield from (name, NOTHING if cell.rho is None else f"{cell.rho:g}{end}", cell.n)
    yield from (told(cell), told(cell, "wrong"))
    yield NOTHING if against is None else difference(against)
    yield from (told(cell, "rise", 3), told(cell, "carried", 2))
    yield 2 if cell.method.name != PLAIN else 1


def radius_table(table: Table, of: str = "last", digits: int = 1) -> Iterator[str]:
    """A number of every method and radius of which there are runs."""
    radii = sorted({cell.rho for cell in table.cells if cell.rho is not None and cell.n})
    lines = []
    for name, cells in families(table).items():
        by_rho = {cell.rho: cell for cell in cells if cell.n and cell.rho is not None}
        there = (by_rho.get(rho) for rho in radii)
        if by_rho:
            lines.append([name, *(NOTHING if c is None else told(c, of, digits) for c in there)])
    yield from rows(["ρ", *(f"{rho:g}" for rho in radii)], lines)


# -- the result in the project's README ------------------------------------------------------------


def result(found: Found) -> str:
    """The block of the project's README: what has seeds enough for a verdict, and the answers."""
    heads = [head for name in found for head in (STUDIES[name], "less SAM's, points")]
    chosen = {name: picks(*of) for name, of in found.items()}
    every = {method: cell for cells in chosen.values() for method, cell in cells.items()}
    methods = sorted(every, key=lambda method: -theta(every[method]))
    lines = []
    for method in methods:
        pairs = ((of, chosen[name].get(method)) for name, of in found.items())
        shown = [part for of, cell in pairs for part in _in_readme(*of, cell)]
        if any(shown):
            lines.append([method, *shown])
    told_so = rows(["75 % of the labels wrong", *heads], lines)
    return "\n".join(["\n", *told_so, "", *_short_answers(found), "\n"])


def _in_readme(answered: Answered, table: Table, cell: Cell | None) -> tuple[str, str]:
    """Accuracy with radius and seeds, and the difference; nothing for too few seeds."""
    if cell is None or cell.n < LEAST:
        return "", ""
    c = compared(answered, table, "best", cell)
    end = end_of(table.name(cell), ends(answered, table))
    rho = "" if cell.rho is None else f"ρ {cell.rho:g}{end}, "
    return f"{told(cell)} ({rho}n {cell.n})", "" if c is None else difference(c)


def _short_answers(found: Found) -> Iterator[str]:
    """The three questions, each in a line."""
    names = {name: STUDIES[name].partition(",")[0] for name in found}
    one = (f"{names[name]} {_at_one(*of)}" for name, of in found.items())
    yield f"- **One rho for all**, as in the paper: {'; '.join(one)}."
    best = (f"{names[name]}: {second_answer(*of)[0]}" for name, of in found.items())
    yield f"- **Each at its best rho**, ahead of SAM? {'. '.join(best)}."
    rise = (f"{names[name]}: {third_answer(*of)[0]}" for name, of in found.items())
    asked = "is more of it carried over to batches that the adversary has not seen?"
    yield f"- **At equal rise on its own batch**, {asked} {'. '.join(rise)}."
    wide = (f"{names[name]}: {fourth_answer(of[1])}" for name, of in found.items())
    known = [text for text in wide if "times" in text]
    if known:
        asked = "**How wide is the range of good rho?** Asked after seeing the curves"
        yield f"- {asked}: {' '.join(known)}"


def _at_one(answered: Answered, table: Table) -> str:
    one, there = all_at_one(answered, table)
    if one is None:
        return "not enough runs yet"
    values = ", ".join(f"{name.removeprefix('VaSSO ')} {told(c)}" for name, c in there.items())
    way = trend(list(there.values())).rstrip(".")
    best = f"SAM's best on {one.labels} labels (n = {one.n})"
    return f"at ρ = {one.rho:g}, {best}, {values}: {way.lower()}"


def main() -> None:
    every = findings(RECORDS, [*STUDIES, "label-noise"])
    found = tables(every)
    save(over_radius(found), HERE / "over-radius.svg")
    (HERE / "README.md").write_text(page(found, other_levels(every)))
    readme = RECORDS.parent / "README.md"
    readme.write_text(put_into(readme.read_text(), BLOCK, result(found)))


if __name__ == "__main__":
    main()
