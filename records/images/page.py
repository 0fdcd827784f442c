"""Writes README.md (page.md with numbers) of this record from the runs of its studies alone.

    vasso study cifar10 --store runs --jobs 2
    vasso study cifar100 --store runs --jobs 2
    vasso study imagenet --store runs --jobs 2
    vasso study hessian --store runs --jobs 2
    vasso study hessian-equal-loss --store runs --jobs 2
    vasso study friendly-adversary --store runs --jobs 2
    vasso study noisy-adversary --store runs --jobs 2
    vasso study snr --store runs --jobs 2
    vasso study label-noise-human --store runs --jobs 2
    vasso export runs records
    python records/images/page.py

Studies share runs: what is there is not trained again.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `records`

from records.markdown_pages import EMPTY, describe_cost, fill_page, format_cell, table_lines
from vasso.lab.report.cells import Cell
from vasso.lab.report.findings import SectionResult, findings
from vasso.lab.report.metrics import Column
from vasso.lab.report.sections import Table
from vasso.lab.report.text import capitalized

HERE = Path(__file__).parent
RECORDS = HERE.parent
STUDIES = re.findall(r"vasso study ([\w-]+)", __doc__)
"""As the commands above have them."""


def answered() -> list[SectionResult]:
    """The studies at scale cpu, in that order."""
    found = [one for one in findings(RECORDS, STUDIES).results if one.section.scale.name == "cpu"]
    return sorted(found, key=lambda one: STUDIES.index(one.section.study.name))


def section(one: SectionResult) -> Iterator[str]:
    """A study: what it shows, what it asks, what came out."""
    study, scale = one.section.study, one.section.scale
    yield f"## {study.shows or 'Ours'}: {study.title} (`{study.name}`)"
    yield " ".join(filter(None, (study.question, scale.about)))
    for table in one.section.tables:
        if any(cell.n for cell in table.cells):
            shown = table.columns(one.section.criteria)
            if len(one.section.tables) > 1:
                yield f"{capitalized(table.title)}:"
            yield "\n".join(lines(table, shown))


def lines(table: Table, shown: list[Column]) -> list[str]:
    """Every method and radius of which there is a run."""
    heads = ("method", "ρ", "n", *(column.title for column in shown), "gradients")
    return table_lines(heads, (_row(table, cell, shown) for cell in table.cells if cell.n))


def _row(table: Table, cell: Cell, shown: list[Column]) -> Iterator[object]:
    rho = dict(cell.method.settings).get("rho")
    yield from (table.name(cell), EMPTY if rho is None else rho, cell.n)
    yield from (format_cell(cell, column.name, column.digits) for column in shown)
    cost = cell.estimate("cost")
    yield EMPTY if cost is None else f"{cost.value:,.0f}"


def page(found: list[SectionResult]) -> str:
    """The text of README.md: page.md with numbers."""
    cells = {cell.run.id: cell for one in found for cell in one.section.cells}  # studies share runs
    return fill_page(
        HERE,
        __doc__,
        studies="\n\n".join(part for one in found for part in section(one)),
        cost=describe_cost(cells.values(), "batches of 128"),
    )


def main() -> None:
    (HERE / "README.md").write_text(page(answered()))


if __name__ == "__main__":
    main()
