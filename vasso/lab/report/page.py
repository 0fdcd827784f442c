"""How does the page come about? Findings and charts, poured into templates that escape by default.

The page is one file: style and script are inside, nothing is fetched, its own policy forbids it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from vasso.extras import brought_by

with brought_by("lab"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

import vasso
from vasso.lab import atomic
from vasso.lab import study as studies
from vasso.lab.certificate import now
from vasso.lab.measured import spread_lines
from vasso.lab.probe_report import number
from vasso.lab.report import words
from vasso.lab.report.answer import RULE
from vasso.lab.report.births import Birth, birth
from vasso.lab.report.cells import Cell
from vasso.lab.report.drawing import Chart
from vasso.lab.report.findings import Answered, Findings
from vasso.lab.report.gallery import charts_of
from vasso.lab.report.headlines import ACCURACY, Headline
from vasso.lab.report.known import figures
from vasso.lab.report.probed import Probed, shown_on_page
from vasso.lab.report.rerun import command
from vasso.lab.report.sections import Section, Table
from vasso.lab.report.terminal import shown_columns

FEW = 14
"""Rows up to which a table is open when the page is."""


@dataclass(frozen=True)
class View:
    """What the template of a section needs.

    Attributes:
        answered: the findings.
        charts: for each table, what is drawn of it.
        birth: where the numbers come from.
        probes: of its runs.
    """

    answered: Answered
    charts: tuple[tuple[Chart, ...], ...]
    birth: Birth | None
    probes: tuple[Probed, ...]


def write_page(found: Findings, path: str | Path, *, sphere: bool = False) -> Path:
    """Writes the page of findings.

    Args:
        found: the findings.
        path: the file to write; folders are made.
        sphere: adds adversaries on a sphere, and 5 MB.

    Returns:
        The file.
    """
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace(path, page(found, sphere=sphere).encode())
    return path


def page(found: Findings, *, sphere: bool = False) -> str:
    """The page as text.

    Args:
        found: the findings.
        sphere: adds adversaries on a sphere, and 5 MB.

    Returns:
        HTML.
    """
    probed: dict[str, str] = {}
    views = [_view(answered, probed) for answered in found.answered]
    return (
        _environment()
        .get_template("page.html")
        .render(
            found=found,
            place=shlex.quote(found.place),
            views=views,
            sphere=_sphere() if sphere else None,
            spreads=[list(spread_lines(spread.rows)) for spread in found.contents.spreads],
            asked=studies.load("sphere"),
            rule=RULE,
            style=_asset("style.css"),
            script=_asset("script.js"),
            made=now(),
            version=vasso.__version__,
        )
    )


def _view(answered: Answered, probed: dict[str, str]) -> View:
    runs = [trained for cell in answered.section.cells for trained in cell.finished]
    probes = shown_on_page(answered.section, probed)
    return View(answered, charts_of(answered), birth(runs), probes)


def _sphere() -> object:
    from vasso.lab.report.sphere import sphere_part  # plotly, which is large

    return sphere_part()


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vasso.lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(words=words, accuracy=ACCURACY, few=FEW, tell=number)
    environment.globals.update(columns=shown_columns, command=command, seeds_of=seeds_of)
    environment.globals.update(figures=figures, sources=sources)
    environment.globals.update(waiting_for=waiting_for)
    return environment


def _asset(name: str) -> Markup:
    text = (resources.files("vasso.lab.report") / "templates" / name).read_text()
    return Markup(text)


def sources(section: Section, table: Table) -> list[tuple[Headline, str]]:
    """Who has published headlines of the methods of a table.

    Args:
        section: whose study holds the figures.
        table: the table.

    Returns:
        Headline and source.
    """
    study, task = section.study, table.task
    found = (
        (headline, source)
        for headline in section.judging.headlines
        for cell in table.cells
        for source in figures(study, task, cell.method, headline)
    )
    return list(dict.fromkeys(found))


def waiting_for(section: Section) -> list[str]:
    """The tasks of which no run is finished.

    Args:
        section: the section.

    Returns:
        Their titles.
    """
    return [table.title for table in section.tables if not any(c.n for c in table.cells)]


def seeds_of(cell: Cell) -> dict[str, Any]:
    """The seeds of a cell by what became of them.

    Args:
        cell: the cell.

    Returns:
        finished, under way and not begun.
    """
    begun = tuple(trained.run.seed for trained in cell.under_way)
    rest = tuple(seed for seed in cell.missing if seed not in begun)
    return {"finished": cell.seeds, "under way": begun, "not begun": rest}
