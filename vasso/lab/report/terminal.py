"""What does a store say on a terminal? A table for each task, and the comparisons below it."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table as Grid

from vasso.lab.report import words
from vasso.lab.report.answer import RULE
from vasso.lab.report.cells import Cell
from vasso.lab.report.comparing import Comparison
from vasso.lab.report.findings import Answered, Findings
from vasso.lab.report.sections import Table

COLUMNS = ("last", "best", "training", "wrong")
TITLES = {
    "last": "last epoch %",
    "best": "best by validation %",
    "training": "training labels learnt %",
    "wrong": "wrong labels learnt %",
}


def told(found: Findings) -> Iterator[RenderableType]:
    """All findings for a console.

    Args:
        found: the findings.

    Yields:
        Lines of text and tables.
    """
    for answered in found.answered:
        yield from _section(answered)
    for trouble in found.contents.troubles:
        yield escape(f"could not be read: {trouble.where}: {trouble.why}")
    yield f"\n[dim]{escape(RULE)}[/dim]"


def _section(answered: Answered) -> Iterator[RenderableType]:
    section = answered.section
    study, scale = section.study, section.scale
    counts = ", ".join(f"{n} {name}" for name, n in section.counts().items() if n)
    yield f"\n[bold]{escape(' '.join([study.title, scale.name]).strip())}[/bold]  ({counts})"
    yield escape(study.question)
    for table in section.tables:
        yield _grid(table)
        yield from (escape(sentence(c)) for c in answered.of(table))


def _grid(table: Table) -> Grid:
    shown = [name for name in COLUMNS if any(cell.values(name) for cell in table.cells)]
    grid = Grid(title=escape(table.title), box=box.SIMPLE, title_justify="left", padding=(0, 1))
    grid.add_column("method", no_wrap=True)
    for title in ("ρ", "n", *(TITLES[name] for name in shown), "gradients", "time"):
        grid.add_column(title, justify="right")
    for cell in table.cells:
        if cell.n:
            grid.add_row(escape(table.name(cell)), *_row(cell, shown))
    return grid


def _row(cell: Cell, shown: list[str]) -> list[str]:
    cost, seconds = cell.estimate("cost"), cell.estimate("seconds")
    return [
        "" if cell.rho is None else f"{cell.rho:g}",
        str(cell.n),
        *(_number(cell, name) for name in shown),
        f"{cost.value:,.0f}" if cost else "",
        words.duration(seconds.value) if seconds else "",
    ]


def _number(cell: Cell, name: str) -> str:
    found = cell.estimate(name)
    if found is None:
        return "–"
    return f"{words.number(found.value)} {words.half_width(found)}".rstrip()


def sentence(c: Comparison) -> str:
    """A comparison in one sentence.

    Args:
        c: the comparison.

    Returns:
        Who, by how much, and what follows.
    """
    who = f"{c.table.label(c.ours)} against {c.table.label(c.theirs)} ({words.KINDS[c.kind]})"
    if c.paired is None:
        return f"{who}: no seed in common, no verdict."
    d = c.paired.difference
    size = f"{words.number(d.value, sign=True)} points, {words.interval(d, sign=True)}"
    against = "".join(
        f"; {j.verdict} with {j.published.source}" for j in c.judged if j.published.claims
    )
    return f"{who}: {size}, n = {c.paired.n}: {c.standing}{against}."
