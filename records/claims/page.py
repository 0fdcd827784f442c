"""Writes the table of docs/claims.md: each claim of the paper with its verdict, from raw runs.

    python records/claims/page.py

The verdicts are those of `vasso.lab.report.claims`; what is computed and not trained comes from
theorems.py. Nothing of it is written by hand.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `records`

from theorems import Judged, theorems

from records.markdown_pages import EMPTY, replace_block, table_lines
from vasso.lab.report.claims import (
    CLAIMS,
    CONFIRMED,
    CONTRADICTED,
    EQUAL_LOSS,
    Line,
    claim_lines,
)
from vasso.lab.report.findings import Findings, findings
from vasso.lab.report.text import count_of, format_duration

HERE = Path(__file__).parent
RECORDS = HERE.parent
PAGE = RECORDS.parent / "docs" / "claims.md"
BLOCK = "records/claims/page.py"
HEADS = ("of the paper", "the claim", "verdict", "tested on", "method", "SAM minus its base",
         "measured difference", "the paper's", "seeds", "cost, record")  # fmt: skip
NAMES = sorted({claim.study for claim in CLAIMS} | {"snr", EQUAL_LOSS})


def block(every: Findings) -> str:
    """The table, with its counts."""
    trained = [(line, _cost(line)) for line in claim_lines(every)]
    lines = [*trained, *map(judged_line, theorems())]
    rows = [[*_shown(line), cost] for line, cost in lines]
    counts = Counter(line.word for line, _ in lines)
    said = ", ".join(f"{counts[word]} {word}" for word in sorted(counts))
    return "\n".join(["\n", f"{len(lines)} lines: {said}.", "", *table_lines(HEADS, rows), "\n"])


def judged_line(one: Judged) -> tuple[Line, str]:
    """A line of what is computed, with its record."""
    line = Line(
        *(one.place, one.says, one.verdict, one.tested, EMPTY, EMPTY, one.measured, one.paper),
        EMPTY,
    )
    return line, f"seconds, [{one.record}](../records/{one.record}/README.md)"


def _shown(line: Line) -> Sequence[object]:
    sure = line.verdict in (CONFIRMED, CONTRADICTED)
    return (
        *(line.place, line.says, f"**{line.verdict}**" if sure else line.verdict),
        *(line.tested, line.method, line.gained, line.measured, line.published, line.seeds),
    )


def _cost(line: Line) -> str:
    """Runs and time of a line's cells, and the record."""
    record = record_of(line.study)
    link = f"[{record}](../records/{record}/README.md)" if record else EMPTY
    cells = {cell.run.id: cell for cell in line.cells}
    results = [t.result or {} for cell in cells.values() for t in cell.finished]
    spent = format_duration(sum(r["seconds"] for r in results))
    return f"{count_of(len(results))}, {spent}, {link}" if results else link


@cache
def record_of(study: str) -> str:
    """The record whose page tells to run a study."""
    pages = sorted(RECORDS.glob("*/README.md"))
    result = (p.parent.name for p in pages if f"vasso study {study} " in p.read_text())
    return next(result, "")


def main() -> None:
    PAGE.write_text(replace_block(PAGE.read_text(), BLOCK, block(findings(RECORDS, NAMES))))


if __name__ == "__main__":
    main()
