"""How does the page come about? Findings and charts, poured into templates that escape by default.

The page is one file: style and script are inside, nothing is fetched, its own policy forbids it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import vasso
from vasso.lab import atomic
from vasso.lab.certificate import now
from vasso.lab.report import words
from vasso.lab.report.answer import RULE
from vasso.lab.report.births import Birth, birth
from vasso.lab.report.cells import Cell
from vasso.lab.report.charts import Chart, charts_of
from vasso.lab.report.findings import Answered, Findings
from vasso.lab.report.known import figures
from vasso.lab.report.rerun import command
from vasso.lab.report.sections import Section, Table
from vasso.lab.report.terminal import TITLES
from vasso.lab.study import Study

FEW = 14
"""Rows up to which a table is open when the page is."""


@dataclass(frozen=True)
class View:
    """What the template of a section needs.

    Attributes:
        answered: the findings.
        charts: for each table, what is drawn of it.
        birth: where the numbers come from.
    """

    answered: Answered
    charts: tuple[tuple[Chart, ...], ...]
    birth: Birth | None


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
    views = [_view(answered) for answered in found.answered]
    return (
        _environment()
        .get_template("page.html")
        .render(
            found=found,
            views=views,
            sphere=_sphere() if sphere else None,
            rule=RULE,
            style=_asset("style.css"),
            script=_asset("script.js"),
            made=now(),
            version=vasso.__version__,
        )
    )


def _view(answered: Answered) -> View:
    runs = [trained for cell in answered.section.cells for trained in cell.finished]
    return View(answered, charts_of(answered), birth(runs))


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
    environment.globals.update(words=words, titles=TITLES, few=FEW)
    environment.globals.update(columns=columns, command=command, seeds_of=seeds_of)
    environment.globals.update(figures=figures, sources=sources)
    environment.globals.update(waiting_for=waiting_for)
    return environment


def _asset(name: str) -> Markup:
    text = (resources.files("vasso.lab.report") / "templates" / name).read_text()
    return Markup(text)


def columns(table: Table) -> list[str]:
    """The accuracies that at least one run of a table has.

    Args:
        table: the table.

    Returns:
        Names of `NUMBERS`.
    """
    return [name for name in TITLES if any(cell.values(name) for cell in table.cells)]


def sources(study: Study, table: Table) -> list[str]:
    """Who has published accuracies of the methods of a table.

    Args:
        study: which holds the figures.
        table: the table.

    Returns:
        Sources.
    """
    found = (figures(study, table.task, cell.method) for cell in table.cells)
    return list(dict.fromkeys(source for each in found for source in each))


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
