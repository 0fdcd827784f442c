"""Writes README.md (page.md with numbers) of this record from the runs of its studies alone.

    vasso study cifar10 --seeds 0 --store runs --jobs 2
    vasso study cifar100 --seeds 0 --store runs --jobs 2
    vasso study imagenet --seeds 0 --store runs --jobs 2
    vasso study hessian --seeds 0 --store runs --jobs 2
    vasso study friendly-adversary --seeds 0 --store runs --jobs 2
    vasso study noisy-adversary --seeds 0 --store runs --jobs 2
    vasso study snr --seeds 0 --store runs --jobs 2
    vasso study label-noise-human --seeds 0 --store runs --jobs 2
    vasso export runs records
    python records/once/page.py

Studies share runs: what is there is not trained again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vasso.lab.report.cells import Cell
from vasso.lab.report.findings import Answered, findings
from vasso.lab.report.headlines import Column
from vasso.lab.report.markdown import NOTHING, computing, page_of, rows, told
from vasso.lab.report.sections import Table
from vasso.lab.report.terminal import shown_columns
from vasso.lab.report.words import begun_large

HERE = Path(__file__).parent
RECORDS = HERE.parent
STUDIES = re.findall(r"vasso study ([\w-]+)", __doc__)
"""As the commands above have them."""


def answered() -> list[Answered]:
    """The studies at scale cpu, in that order."""
    found = [one for one in findings(RECORDS, STUDIES).answered if one.section.scale.name == "cpu"]
    return sorted(found, key=lambda one: STUDIES.index(one.section.study.name))


def section(one: Answered) -> Iterator[str]:
    """A study: what it shows, what it asks, what came out."""
    study, scale = one.section.study, one.section.scale
    yield f"## {study.shows or 'Ours'}: {study.title} (`{study.name}`)"
    yield " ".join(filter(None, (study.question, scale.about)))
    for table in one.section.tables:
        if any(cell.n for cell in table.cells):
            shown = shown_columns(table, one.section.judging)
            if len(one.section.tables) > 1:
                yield f"{begun_large(table.title)}:"
            yield "\n".join(lines(table, shown))


def lines(table: Table, shown: list[Column]) -> list[str]:
    """Every method and radius of which there is a run."""
    heads = ("method", "ρ", "n", *(column.title for column in shown), "gradients")
    return rows(heads, (_row(table, cell, shown) for cell in table.cells if cell.n))


def _row(table: Table, cell: Cell, shown: list[Column]) -> Iterator[object]:
    rho = dict(cell.method.settings).get("rho")
    yield from (table.name(cell), NOTHING if rho is None else rho, cell.n)
    yield from (told(cell, column.name, column.digits) for column in shown)
    cost = cell.estimate("cost")
    yield NOTHING if cost is None else f"{cost.value:,.0f}"


def page(found: list[Answered]) -> str:
    """The text of README.md: page.md with numbers."""
    cells = {cell.run.id: cell for one in found for cell in one.section.cells}  # studies share runs
    return page_of(
        HERE,
        __doc__,
        studies="\n\n".join(part for one in found for part in section(one)),
        computing=computing(cells.values(), "batches of 128"),
    )


def main() -> None:
    (HERE / "README.md").write_text(page(answered()))


if __name__ == "__main__":
    main()
