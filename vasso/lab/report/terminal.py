"""Tables for the terminal: results of a store, and rows of measurements."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table as Grid

from vasso.lab.report.cells import Cell
from vasso.lab.report.findings import Findings, SectionResult
from vasso.lab.report.metrics import Column, Criteria
from vasso.lab.report.sections import Table
from vasso.lab.report.text import (
    RULE,
    describe_comparison,
    describe_one_radius,
    describe_other_settings,
    format_duration,
    format_half_width,
    format_number,
)
from vasso.lab.studies.bleu import Bleu
from vasso.lab.studies.measurement_settings import Noise, Settings, Spectrum, Spread

Row = Mapping[str, Any]


def render_findings(found: Findings) -> Iterator[RenderableType]:
    """All findings as lines of text and tables for a console."""
    for result in found.results:
        yield from _section(result)
    for spread in found.contents.spreads:
        yield "\n[bold]Adversaries on a sphere[/bold]"
        yield _grid_of_lines(spread_lines(spread.rows))
    for error in found.contents.errors:
        yield escape(f"could not be read: {error.where}: {error.why}")
    yield f"\n[dim]{escape(RULE)}[/dim]"


def _section(result: SectionResult) -> Iterator[RenderableType]:
    section = result.section
    study, scale = section.study, section.scale
    counts = ", ".join(f"{n} {name}" for name, n in section.counts().items() if n)
    yield f"\n[bold]{escape(' '.join([study.title, scale.name]).strip())}[/bold]  ({counts})"
    yield escape(study.question)
    if section.other_settings:
        yield describe_other_settings(len(section.other_settings))
    for table in section.tables:
        yield _grid(table, section.criteria)
        if (one := result.radius_compared(table)) is not None:
            yield describe_one_radius(**vars(one), wrong=table.task.wrong)
        yield from (escape(describe_comparison(c)) for c in result.of_table(table))
    for label, trained in section.probes():
        yield escape(f"Probe of {label}, seed {trained.run.seed}:")
        yield from (escape(f"  {text}") for text in trained.probe_sentences)


def _grid(table: Table, criteria: Criteria) -> Grid:
    columns = table.columns(criteria)
    grid = Grid(title=escape(table.title), box=box.SIMPLE, title_justify="left", padding=(0, 1))
    grid.add_column("method", no_wrap=True)
    for title in ("ρ", "n", *(column.title for column in columns), "gradients", "time"):
        grid.add_column(title, justify="right")
    skipped = [cell.estimate("skipped") for cell in table.cells]
    if any(found is not None and found.value > 0 for found in skipped):
        grid.add_column("skipped steps, %", justify="right")
    for cell in table.cells:
        if cell.n:
            grid.add_row(escape(table.name(cell)), *_row(cell, columns)[: len(grid.columns) - 1])
    return grid


def _row(cell: Cell, columns: list[Column]) -> list[str]:
    cost, seconds, skipped = map(cell.estimate, ("cost", "seconds", "skipped"))
    return [
        "" if cell.rho is None else f"{cell.rho:g}",
        str(cell.n),
        *(_number(cell, column) for column in columns),
        f"{cost.value:,.0f}" if cost else "",
        format_duration(seconds.value) if seconds else "",
        f"{skipped.value:.1f}" if skipped else "",
    ]


def _number(cell: Cell, column: Column) -> str:
    found = cell.estimate(column.name)
    if found is None:
        return "–"
    half = format_half_width(found, column.digits)
    few = f" (n = {found.n:g})" if found.n < cell.n else ""
    return f"{format_number(found.value, column.digits)} {half}".rstrip() + few


def measurement_table(settings: Settings, rows: Sequence[Row]) -> Grid:
    """The rows that `vasso.lab.studies.measurements` gave for these settings."""
    lines = {Spread: spread_lines, Noise: _noise, Bleu: _bleu, Spectrum: _spectrum}[type(settings)]
    return _grid_of_lines(lines(rows))


def _grid_of_lines(lines: Iterator[dict[str, str]]) -> Grid:
    found = Grid(box=box.SIMPLE_HEAD)
    each = list(lines)
    for title in each[0]:
        found.add_column(title, justify="left" if title == "method" else "right", no_wrap=True)
    for line in each:
        found.add_row(*line.values())
    return found


def spread_lines(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Measured adversaries on a sphere, as title -> text for each line."""
    for row in rows:
        yield {
            "SNR": f"{row['snr']:g}",
            "method": "SAM" if row["theta"] == 1 else f"VaSSO theta={row['theta']:g}",
            "cosine": _with_interval(row, "cosine"),
            "resultant": _with_interval(row, "resultant"),
            "friends %": _with_interval(row, "friends", 100),
        }


def _noise(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for run in dict.fromkeys(row["run"] for row in rows):
        mine = [row for row in rows if row["run"] == run]
        values = [row["snr"] for row in mine]
        last = mine[-1]
        yield {
            **_method_and_seed(last),
            "epochs": f"{len(mine)}",
            "first": f"{values[0]:.3g}",
            "lowest": f"{min(values):.3g}",
            "median": f"{median(values):.3g}",
            "highest": f"{max(values):.3g}",
            "last": _with_interval(last, "snr"),
        }


def _spectrum(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for row in rows:
        values = [key for key in row if key.startswith("lambda")]
        count = sum(key.startswith("residual") for key in row)
        worst = max(abs(row[f"residual{i}"] / row[f"lambda{i}"]) for i in range(1, count + 1))
        yield {
            **_method_and_seed(row),
            **{key: f"{row[key]:.4g}" for key in values},
            "residual": f"{worst:.1g}",
            "images": f"{row['samples']:g}",
        }


def _bleu(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for row in rows:
        yield {
            **_method_and_seed(row),
            "BLEU": f"{row['bleu']:.2f}",
            "detokenised": f"{row['detokenised']:.2f}",
            "perplexity": "–" if row["perplexity"] is None else f"{row['perplexity']:.3f}",
            "length": f"{row['length_ratio']:.3f}",
            "sentences": f"{row['sentences']}",
            "endless": f"{row.get('endless', '–')}",
        }


def _method_and_seed(row: Row) -> dict[str, str]:
    return {"method": str(row["method"]), "seed": f"{row['seed']}"}


def _with_interval(row: Row, name: str, times: float = 1.0) -> str:
    """Value and interval; an infinite end, which JSON cannot hold, is "open"."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    ends = ["open" if end is None else f"{times * end:.2g}" for end in (low, high)]
    return f"{times * row[name]:.2g} ({ends[0]}, {ends[1]})"
