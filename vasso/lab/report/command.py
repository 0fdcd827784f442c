"""The commands `vasso report` and `vasso export`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vasso.extras import need
from vasso.lab import atomic
from vasso.lab.usage import say, usage

if TYPE_CHECKING:
    from vasso.lab.report.findings import Findings


@dataclass(frozen=True)
class Report:
    """Says what the runs of a store show: a page, tables or JSON. It only reads the store.

    Exit code 1 tells that something in the store could not be read; all the rest is shown.

    Try:
        vasso report runs -o report.html
        vasso report runs --table
        vasso report records --study label-noise --json answer.json
    """

    store: tyro.conf.Positional[Path] = Path("runs")
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
    """add the paper's Figure 2, adversaries on a sphere that can be turned: 5 MB more; needs the
    extra `figures`"""

    def __call__(self) -> int:
        """Makes what is asked for.

        Returns:
            The exit code.
        """
        from vasso.lab.report.findings import findings

        if self.sphere:  # said before anything is read
            need("figures", "plotly")
        with usage():
            found = findings(self.store, self.study)
        for trouble in found.contents.troubles:
            print(f"could not be read: {trouble.where}: {trouble.why}", file=sys.stderr)
        if self.table:
            _print_tables(found)
        if self.json is not None:
            _write_json(found, self.json)
        if self.output is not None or not (self.table or self.json):
            from vasso.lab.report.page import write_page

            print(write_page(found, self.output or Path("report.html"), sphere=self.sphere))
        return 1 if found.contents.troubles else 0


@dataclass(frozen=True)
class Export:
    """Copies finished runs in a compact form, one line of JSON each, without weights.

    What was measured of a run goes along, and a probe of it of up to 40 kB. What is there already
    stays, so that several stores can be brought together.

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
    """runs that were trained again, with other results, take the places of their copies"""

    def __call__(self) -> int:
        """Copies them.

        Returns:
            The exit code.
        """
        from vasso.lab.report.export import export

        with usage():
            written = export(self.store, self.to, self.study, say, again=self.again)
        for path, count in written.items():
            print(f"{path}: {count} runs, {path.stat().st_size / 1e3:,.0f} kB")
        return 0


def _print_tables(found: Findings) -> None:
    from rich.console import Console

    from vasso.lab.report.terminal import told

    console = Console()
    for part in told(found):
        console.print(part, highlight=False)


def _write_json(found: Findings, path: Path) -> None:
    from vasso.lab.report.answer import answer

    text = json.dumps(answer(found), indent=1, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace(path, f"{text}\n".encode())
    print(path)
