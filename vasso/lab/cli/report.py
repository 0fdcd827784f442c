"""`vasso report` and `vasso export`: read a store and write a page, tables, JSON or copies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vasso.lab.cli.errors import FAILED, say, usage_errors
from vasso.lab.store import atomic
from vasso.lab.store.store import STORE, UNREAD, check_replaces_none
from vasso.optional import check_installed

if TYPE_CHECKING:
    from vasso.lab.report.findings import Findings


@dataclass(frozen=True)
class ReportCommand:
    """Reports what the runs of a store show, as a page, tables or JSON; changes nothing.

    Exit code 1 means that something in the store could not be read; the rest is shown.

    Try:
        vasso report runs -o report.html
        vasso report runs --table
        vasso report records --study label-noise --json answer.json
    """

    store: tyro.conf.Positional[Path] = STORE
    """directory of runs, or of compact copies of them"""
    output: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """the page to write; report.html unless only tables or JSON are asked for"""
    table: bool = False
    """print tables to the terminal"""
    json: Path | None = None
    """write all numbers to this file"""
    study: tuple[str, ...] = ()
    """only these studies, by name or as TOML files"""

    sphere: bool = False
    """add the paper's Figure 2, adversaries on a sphere that can be rotated: 5 MB more; needs the
    extra `figures`"""

    def __call__(self) -> int:
        from vasso.lab.report.findings import findings

        if self.sphere:  # checked before anything is read
            check_installed("figures", "plotly")
        with usage_errors():
            for path in filter(None, (self.output, self.json)):
                atomic.check_output(path.expanduser())
                check_replaces_none(path.expanduser())
            if self.output is not None and self.output == self.json:
                raise ValueError(f"{str(self.json)!r} is for the page and for JSON: name two files")
            found = findings(self.store, self.study)
        for error in found.contents.errors:
            say(f"{UNREAD}{error.where}: {error.why}")
        if self.table:
            _print_tables(found)
        if self.json is not None:
            _write_json(found, self.json)
        if self.output is not None or not (self.table or self.json):
            from vasso.lab.report.page import write_page

            print(write_page(found, self.output or Path("report.html"), sphere=self.sphere))
        return FAILED if found.contents.errors else 0


@dataclass(frozen=True)
class ExportCommand:
    """Copies finished runs without their weights, one line of JSON each.

    Exit code 1 means that something in the store could not be read; the rest is copied.

    Measurements of a run are copied too, and its probe if that is not larger than 40 kB. Copies
    that are there already stay, so that several stores can be brought together.

    Try:
        vasso export runs records
    """

    store: tyro.conf.Positional[Path]
    """directory of runs"""
    to: tyro.conf.Positional[Path]
    """directory for the copies; each study gets a folder with a file runs.jsonl"""
    study: tuple[str, ...] = ()
    """only these studies, by name or as TOML files"""
    again: bool = False
    """replace the copies of runs that were trained again with other results"""

    def __call__(self) -> int:
        from vasso.lab.report.export import export

        lines: list[str] = []
        with usage_errors():
            written = export(self.store, self.to, self.study, lines.append, again=self.again)
        for line in lines:
            say(line)
        for path, count in written.items():
            print(f"{path}: {count} runs, {path.stat().st_size / 1e3:,.0f} kB")
        return FAILED if any(line.startswith(UNREAD) for line in lines) else 0


def _print_tables(found: Findings) -> None:
    from rich.console import Console

    from vasso.lab.report.terminal import render_findings

    console = Console()
    for part in render_findings(found):
        console.print(part, highlight=False)


def _write_json(found: Findings, path: Path) -> None:
    from vasso.lab.report.json import findings_as_table

    text = json.dumps(findings_as_table(found), indent=1, ensure_ascii=False, allow_nan=False)
    atomic.write_output(path.expanduser(), f"{text}\n".encode())
    print(path)
