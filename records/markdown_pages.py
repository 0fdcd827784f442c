"""Markdown of the pages of records: tables, numbers of cells, and blocks that scripts write."""

from collections.abc import Iterable
from pathlib import Path

from vasso.lab.report.cells import Cell
from vasso.lab.report.compare import Comparison
from vasso.lab.report.text import count_of, format_duration, format_half_width, format_number
from vasso.lab.statistics import LEAST, Standing

EMPTY = "–"


def table_row(cells: Iterable[object]) -> str:
    """A line of a table: | SAM | 0.1 |."""
    return f"| {' | '.join(map(str, cells))} |"


def table_lines(heads: Iterable[object], lines: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table."""
    titles = list(heads)
    return [table_row(titles), table_row(["---"] * len(titles)), *map(table_row, lines)]


def short_standing(standing: Standing) -> str:
    """An outcome in a table: n.s. for no significant difference."""
    return "n.s." if standing == "no significant difference" else standing


def format_cell(cell: Cell, name: str = "last", digits: int = 1) -> str:
    """A number of a cell: mean and half-width; one run has no half-width."""
    found = cell.estimate(name)
    if found is None:
        return EMPTY
    return f"{format_number(found.value, digits)} {format_half_width(found, digits)}".rstrip()


def format_difference(c: Comparison, digits: int = 1) -> str:
    """A difference, its confidence interval and outcome, such as "+0.4 (−0.1 to +0.9), n.s."."""
    if c.paired is None:
        return EMPTY
    value = format_number(c.paired.difference.value, digits, sign=True)
    if c.paired.n < LEAST:
        return f"{value} (n = {c.paired.n}, not tested)"
    ends = c.paired.difference.low, c.paired.difference.high
    low, high = (format_number(end, digits, sign=True) for end in ends)
    return f"{value} ({low} to {high}), {short_standing(c.standing)}"


def replace_block(text: str, name: str, block: str) -> str:
    """A page with the text between `<!-- begin: name -->` and `<!-- end: name -->` replaced."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no {begin} ... {end}")
    return before + begin + block + end + after


def fill_page(folder: Path, script: str | None, **fields: str) -> str:
    """The `page.md` of a record with its fields filled in.

    `script` is the docstring of the script that writes the page; its indented lines are the
    commands.
    """
    commands = (line for line in (script or "").splitlines() if line.startswith("    "))
    return (folder / "page.md").read_text().format(**fields, commands="\n".join(commands))


def describe_cost(cells: Iterable[Cell], batches: str) -> str:
    """What the runs of some cells have cost: runs, gradients of `batches`, hours, commits."""
    finished = [trained for cell in cells for trained in cell.finished]
    gradients = sum((t.result or {})["cost"] for t in finished)
    spent = sum((t.result or {})["seconds"] for t in finished)
    commits = sorted({(t.certificate["commit"] or "none")[:7] for t in finished})
    return (
        f"{count_of(len(finished))}, {gradients:,.0f} gradients of {batches}, "
        f"{format_duration(spent)} on one core (of a busy machine), commit {', '.join(commits)}"
    )
