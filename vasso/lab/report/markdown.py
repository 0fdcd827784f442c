"""How are numbers of cells told in Markdown? For pages of records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vasso.lab.report.cells import Cell
from vasso.lab.report.comparing import Comparison
from vasso.lab.report.words import duration, half_width, number, runs, seeds
from vasso.lab.statistics import LEAST

NOTHING = "–"


def row(cells: Iterable[object]) -> str:
    """A line of a table.

    Args:
        cells: what stands in it.

    Returns:
        The line.

    Example:
        >>> row(["SAM", 0.1])
        '| SAM | 0.1 |'
    """
    return f"| {' | '.join(map(str, cells))} |"


def rows(heads: Iterable[object], lines: Iterable[Iterable[object]]) -> list[str]:
    """A table.

    Args:
        heads: of the columns.
        lines: below them.

    Returns:
        Its lines.

    Example:
        >>> rows(["method", "n"], [["SAM", 3]])
        ['| method | n |', '| --- | --- |', '| SAM | 3 |']
    """
    titles = list(heads)
    return [row(titles), row(["---"] * len(titles)), *map(row, lines)]


def told(cell: Cell, name: str = "last", digits: int = 1) -> str:
    """A number of a cell.

    Args:
        cell: the cell.
        name: of the number.
        digits: after the point.

    Returns:
        Mean and half-width; one run has no half-width.
    """
    found = cell.estimate(name)
    if found is None:
        return NOTHING
    return f"{number(found.value, digits)} {half_width(found, digits)}".rstrip()


def difference(c: Comparison, digits: int = 1) -> str:
    """A difference, its interval and what can be said of it.

    Args:
        c: a comparison.
        digits: after the point.

    Returns:
        Such as "+0.4 (−0.1 to +0.9), cannot tell"; of too few seeds, that there is no verdict.
    """
    if c.paired is None:
        return NOTHING
    value = number(c.paired.difference.value, digits, sign=True)
    if c.paired.n < LEAST:
        return f"{value} ({seeds(c.paired.n)})"
    ends = c.paired.difference.low, c.paired.difference.high
    low, high = (number(end, digits, sign=True) for end in ends)
    return f"{value} ({low} to {high}), {c.standing}"


def put_into(text: str, name: str, block: str) -> str:
    """A page with a block that a program writes.

    Args:
        text: the page, which marks where it begins and where it ends.
        name: of the block.
        block: what stands between the marks.

    Returns:
        The page with the block in its place.

    Raises:
        ValueError: it is not marked.

    Example:
        >>> page = "ours <!-- begin: n --> 1 <!-- end: n --> ours"
        >>> put_into(page, "n", " 2 ")
        'ours <!-- begin: n --> 2 <!-- end: n --> ours'
    """
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no {begin} ... {end}")
    return before + begin + block + end + after


def page_of(folder: Path, script: str | None, **fields: str) -> str:
    """A page of a record: its `page.md` with numbers.

    Args:
        folder: of the record.
        script: docstring of what writes the page; its indented lines are the commands.
        **fields: what else stands in braces there.

    Returns:
        The text.
    """
    commands = (line for line in (script or "").splitlines() if line.startswith("    "))
    return (folder / "page.md").read_text().format(**fields, commands="\n".join(commands))


def computing(cells: Iterable[Cell], batches: str) -> str:
    """What the runs of some cells have cost.

    Args:
        cells: the cells.
        batches: of what gradients were taken.

    Returns:
        Runs, gradients, hours, commits.
    """
    finished = [trained for cell in cells for trained in cell.finished]
    gradients = sum((t.result or {})["cost"] for t in finished)
    spent = sum((t.result or {})["seconds"] for t in finished)
    commits = sorted({(t.certificate["commit"] or "none")[:7] for t in finished})
    return (
        f"{runs(len(finished))}, {gradients:,.0f} gradients of {batches}, {duration(spent)} on one "
        f"core (of a busy machine), commit {', '.join(commits)}"
    )
