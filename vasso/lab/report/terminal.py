"""What does a store say on a terminal? A table for each task, and the comparisons below it."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table as Grid

from vasso.lab.measured import spread_table
from vasso.lab.report import words
from vasso.lab.report.answer import RULE
from vasso.lab.report.cells import Cell
from vasso.lab.report.comparing import Comparison
from vasso.lab.report.findings import Answered, Findings
from vasso.lab.report.headlines import ACCURACY, Column, Judging
from vasso.lab.report.probed import probes_of, said_by
from vasso.lab.report.sections import Table


def told(found: Findings) -> Iterator[RenderableType]:
    """All findings for a console.

    Args:
        found: the findings.

    Yields:
        Lines of text and tables.
    """
    for answered in found.answered:
        yield from _section(answered)
    for spread in found.contents.spreads:
        yield "\n[bold]Adversaries on a sphere[/bold]"
        yield spread_table(spread.rows)
    for trouble in found.contents.troubles:
        yield escape(f"could not be read: {trouble.where}: {trouble.why}")
    yield f"\n[dim]{escape(RULE)}[/dim]"


def _section(answered: Answered) -> Iterator[RenderableType]:
    section = answered.section
    study, scale = section.study, section.scale
    counts = ", ".join(f"{n} {name}" for name, n in section.counts().items() if n)
    yield f"\n[bold]{escape(' '.join([study.title, scale.name]).strip())}[/bold]  ({counts})"
    yield escape(study.question)
    if section.otherwise:
        yield words.otherwise(len(section.otherwise))
    for table in section.tables:
        yield _grid(table, section.judging)
        if (one := answered.one_for_all(table)) is not None:
            yield words.one_radius(**vars(one), wrong=table.task.wrong)
        yield from (escape(sentence(c)) for c in answered.of(table))
    for label, trained in probes_of(section):
        yield escape(f"Probe of {label}, seed {trained.run.seed}:")
        yield from (escape(f"  {text}") for text in said_by(trained))


def shown_columns(table: Table, judging: Judging) -> list[Column]:
    """The numbers that at least one run of a table has.

    Args:
        table: the table.
        judging: which ones there may be.

    Returns:
        Columns, in order.
    """
    return [c for c in judging.columns if any(cell.values(c.name) for cell in table.cells)]


def _grid(table: Table, judging: Judging) -> Grid:
    shown = shown_columns(table, judging)
    grid = Grid(title=escape(table.title), box=box.SIMPLE, title_justify="left", padding=(0, 1))
    grid.add_column("method", no_wrap=True)
    for title in ("ρ", "n", *(column.title for column in shown), "gradients", "time"):
        grid.add_column(title, justify="right")
    missed = [cell.estimate("skipped") for cell in table.cells]
    if any(found is not None and found.value > 0 for found in missed):
        grid.add_column("skipped steps, %", justify="right")
    for cell in table.cells:
        if cell.n:
            grid.add_row(escape(table.name(cell)), *_row(cell, shown)[: len(grid.columns) - 1])
    return grid


def _row(cell: Cell, shown: list[Column]) -> list[str]:
    cost, seconds, missed = map(cell.estimate, ("cost", "seconds", "skipped"))
    return [
        "" if cell.rho is None else f"{cell.rho:g}",
        str(cell.n),
        *(_number(cell, column) for column in shown),
        f"{cost.value:,.0f}" if cost else "",
        words.duration(seconds.value) if seconds else "",
        f"{missed.value:.1f}" if missed else "",
    ]


def _number(cell: Cell, column: Column) -> str:
    found = cell.estimate(column.name)
    if found is None:
        return "–"
    half = words.half_width(found, column.digits)
    few = f" (n = {found.n:g})" if found.n < cell.n else ""
    return f"{words.number(found.value, column.digits)} {half}".rstrip() + few


def sentence(c: Comparison) -> str:
    """A comparison in one sentence.

    Args:
        c: the comparison.

    Returns:
        Who, by how much, and what follows.
    """
    by = f"{c.headline.quantity}, " if c.headline is not ACCURACY else ""
    rule = f"({by}{words.KINDS[c.kind]})"
    who = f"{c.table.label(c.ours)} against {c.table.label(c.theirs)} {rule}"
    if c.paired is None:
        return f"{who}: no seed in common, no verdict."
    d, digits = c.paired.difference, c.headline.digits
    size = c.headline.size(words.number(d.value, digits, sign=True))
    ends = words.interval(d, digits, sign=True)
    against = "".join(
        f"; {words.VERDICTS[j.verdict]} {j.published.source}"
        for j in c.judged
        if j.published.claims
    )
    more = f" {words.decides(c.headline, c.decides)}" if c.decides is not None else ""
    return f"{who}: {size}, {ends}, n = {c.paired.n}: {c.standing}{against}.{more}"
