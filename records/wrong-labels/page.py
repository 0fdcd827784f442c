"""Writes README.md (page.md with numbers), the figures, and the result of the project's README.

    vasso study radius --store runs --jobs 2
    vasso study radius-mlp --store runs --jobs 2
    vasso study label-noise --store runs --jobs 2
    vasso export runs records
    python records/wrong-labels/page.py

Everything is read from the lines of `records/*/runs.jsonl`; words that depend on numbers are chosen
by the numbers.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `records`

from answers import (
    Answer,
    at_equal_weights,
    end_of,
    first_answer,
    fourth_answer,
    second_answer,
    third_answer,
    whole,
)
from curves import over_radius
from evidence import (
    STUDIES,
    Found,
    compared,
    ends,
    everything,
    families,
    one_radius,
    other_levels,
    picks,
    tables,
)
from levels import by_level, in_short

from records.markdown_pages import (
    EMPTY,
    describe_cost,
    fill_page,
    format_cell,
    format_difference,
    replace_block,
    table_lines,
)
from vasso.diagnostics.figures.style import save
from vasso.lab.experiment.method import PLAIN
from vasso.lab.report.cells import Cell
from vasso.lab.report.compare import OneRadius
from vasso.lab.report.findings import Findings, SectionResult, findings
from vasso.lab.report.sections import Table
from vasso.lab.statistics import LEAST

HERE = Path(__file__).parent
RECORDS = HERE.parent
BASE = "SGD"
FIRST, ALL = "records/wrong-labels/page.py, in short", "records/wrong-labels/page.py, all"
"""The block of the project's README and the block of docs/claims.md that this script writes."""


# -- the record's page -----------------------------------------------------------------------------


def page(every: Findings) -> str:
    """The text of README.md: page.md with numbers."""
    names, found = {"conv": "radius", "mlp": "radius-mlp"}, tables(every)
    fields: dict[str, str] = {"cost": cost(every), "weights": at_equal_weights()}
    fields["by_level"] = "\n".join(by_level(every))
    fields["levels"] = "\n\n".join(level(*one) for one in other_levels(every))
    for short, name in names.items():
        answered, table = found[name]
        fields[f"first_{short}"] = whole(first_answer(answered, table))
        fields[f"second_{short}"] = whole(second_answer(answered, table))
        fields[f"third_{short}"] = whole(third_answer(answered, table))
        fields[f"fourth_{short}"] = fourth_answer(table)
        fields[f"best_{short}"] = "\n".join(best_table(answered, table))
        fields[f"radii_{short}"] = "\n".join(radius_table(table))
        fields[f"wrong_{short}"] = "\n".join(radius_table(table, "wrong"))
        fields[f"rise_{short}"] = "\n".join(radius_table(table, "rise", 3))
        fields[f"carried_{short}"] = "\n".join(radius_table(table, "carried", 2))
    return fill_page(HERE, __doc__, **fields)


def cost(every: Findings) -> str:
    """What all of it has cost."""
    return describe_cost(everything(every), "batches of 128")


def level(model: str, table: Table) -> str:
    """Test accuracy with so many wrong labels; with none, that in validation too, which chooses."""
    wrong = table.task.wrong
    labels = f"{100 * wrong:g} % of the labels wrong" if wrong else "clean labels"
    bases = [(table.name(c), format_cell(c), c.n) for c in table.cells if c.rho is None and c.n]
    beside = "".join(f"; {name} {value} (n = {n})" for name, value, n in bases)
    counts = sorted({cell.n for cell in table.cells if cell.n and cell.rho is not None})
    n = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))) if counts else "0"
    shown = [f"Test accuracy, {model}, {labels} (n = {n}{beside}):", "\n".join(radius_table(table))]
    if not wrong:
        shown += [
            f"Validation accuracy of the same, {model}:",
            "\n".join(radius_table(table, "validation")),
        ]
    return "\n\n".join(shown)


def best_table(answered: SectionResult, table: Table) -> Iterator[str]:
    """Every method at its best radius, and its difference to SAM."""
    heads = ("method", "ρ", "n", "test accuracy %", "its best epoch %", "wrong labels learnt %")
    more = ("minus SAM's, points", "rise on its batch", "carried to others", "gradients a step")
    chosen = picks(answered, table).items()
    yield from table_lines((*heads, *more), (_at_best(answered, table, *pick) for pick in chosen))


def _at_best(answered: SectionResult, table: Table, name: str, cell: Cell) -> Iterator[object]:
    against, end = compared(answered, table, "best", cell), end_of(name, ends(answered, table))
    yield from (name, EMPTY if cell.rho is None else f"{cell.rho:g}{end}", cell.n)
    yield from (format_cell(cell), format_cell(cell, "best"), format_cell(cell, "wrong"))
    yield EMPTY if against is None else format_difference(against)
    yield from (format_cell(cell, "rise", 3), format_cell(cell, "carried", 2))
    yield 2 if cell.method.name != PLAIN else 1


def radius_table(table: Table, of: str = "last", digits: int = 1) -> Iterator[str]:
    """A number of every method and radius of which there are runs."""
    radii = sorted({cell.rho for cell in table.cells if cell.rho is not None and cell.n})
    lines = []
    for name, cells in families(table).items():
        by_rho = {cell.rho: cell for cell in cells if cell.n and cell.rho is not None}
        there = (by_rho.get(rho) for rho in radii)
        if by_rho:
            lines.append([
                name,
                *(EMPTY if c is None else format_cell(c, of, digits) for c in there),
            ])
    yield from table_lines(["ρ", *(f"{rho:g}" for rho in radii)], lines)


# -- the results in the project's README and in docs/claims.md -----------------------------------


def in_readme(text: str, every: Findings) -> str:
    """The project's README with its block."""
    return replace_block(text, FIRST, "\n".join(["\n", *in_short(every), "\n"]))


def in_evidence(text: str, every: Findings) -> str:
    """docs/claims.md with its block."""
    return replace_block(text, ALL, result(tables(every), by_level(every), cost(every)))


def result(found: Found, levels: Sequence[str], spent: str) -> str:
    """Both tasks by both rules, fewer wrong labels, and the answers."""
    less = "minus SAM's, points"
    heads = ("75 % of the labels wrong", "one ρ for all", less, "each at its best ρ", less)
    lines = [line for name, of in found.items() for line in _by_both_rules(STUDIES[name], *of)]
    asked = f"More or fewer wrong labels, {STUDIES['radius']}:"
    answers = [*_short_answers(found), f"- **Cost**: {spent}."]
    return "\n".join(["\n", *table_lines(heads, lines), "", asked, "", *levels, "", *answers, "\n"])


def _by_both_rules(title: str, answered: SectionResult, table: Table) -> Iterator[Sequence[str]]:
    """Methods with enough seeds for a test: all at one radius, and each at its best."""
    one, best = one_radius(answered, table), picks(answered, table)
    yield f"**{title}**", "" if one is None else f"ρ {one.rho:g}", "", "", ""
    for name, shared, own in _cells(table, one, best):
        at_one = _in_readme(answered, table, "one", shared)
        at_best = _in_readme(answered, table, "best", own)
        if any((*at_one, *at_best)):
            yield name, *at_one, *at_best


def _cells(
    table: Table, one: OneRadius | None, best: dict[str, Cell]
) -> Iterator[tuple[str, Cell | None, Cell | None]]:
    """Every method at the one radius and at its best; the base has none and is in both."""
    for name, cells in families(table).items():
        at_one = (c for c in cells if one is not None and c.rho in (one.rho, None))
        yield name, next(at_one, None), best.get(name)


def _in_readme(
    answered: SectionResult, table: Table, kind: str, cell: Cell | None
) -> tuple[str, str]:
    """Accuracy with radius and seeds, and the difference; nothing for too few seeds."""
    if cell is None or cell.n < LEAST:
        return "", ""
    c = compared(answered, table, kind, cell)
    end = end_of(table.name(cell), ends(answered, table))
    rho = "" if cell.rho is None or kind == "one" else f"ρ {cell.rho:g}{end}, "
    return f"{format_cell(cell)} ({rho}n {cell.n})", "" if c is None else format_difference(c)


def _short_answers(found: Found) -> Iterator[str]:
    """The questions, each in a line; then what early stopping does."""
    names = {name: STUDIES[name].partition(",")[0] for name in found}

    def each(answer: Callable[[SectionResult, Table], Answer]) -> str:
        return " ".join(f"{names[name]}: {answer(*of)[0]}." for name, of in found.items())

    asked = "SAM's best on clean labels, as in the paper: ahead of SAM?"
    yield f"- **One rho for all**, {asked} {each(first_answer)}"
    yield f"- **Each at its best rho**: ahead of SAM? {each(second_answer)}"
    asked = "is more of it carried over to batches that the adversary has not seen?"
    yield f"- **At equal rise on its own batch**, {asked} {each(third_answer)}"
    wide = {names[name]: fourth_answer(of[1]) for name, of in found.items()}
    if known := " ".join(f"{name}: {text}" for name, text in wide.items() if "times" in text):
        yield f"- **How wide is the range of good rho?** Asked after seeing the curves. {known}"
    early = (f"{names[n]} {format_cell(picks(*of)[BASE], 'best')}" for n, of in found.items())
    asked = "by clean-labelled validation images, the cheaper remedy"
    yield f"- **Early stopping** {asked}: {BASE} at its best epoch has {', '.join(early)}."


def main() -> None:
    every = findings(RECORDS, [*STUDIES, "label-noise"])
    save(over_radius(tables(every)), HERE / "over-radius.svg")
    (HERE / "README.md").write_text(page(every))
    for path, fill in (("README.md", in_readme), ("docs/claims.md", in_evidence)):
        page_of = RECORDS.parent / path
        page_of.write_text(fill(page_of.read_text(), every))


if __name__ == "__main__":
    main()
