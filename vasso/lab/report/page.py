"""The page: findings and charts in templates that escape by default.

The page is one file: style and script are inside, and its own policy forbids fetching anything.
"""

import io
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from vasso.optional import needs_extra

with needs_extra("lab"):
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

import vasso
from vasso.lab.report import text
from vasso.lab.report.cells import Cell, Provenance, provenance_of
from vasso.lab.report.charts import charts_of
from vasso.lab.report.charts.drawing import Chart
from vasso.lab.report.claims import judged_claims
from vasso.lab.report.compare import published_figures
from vasso.lab.report.findings import Findings, SectionResult
from vasso.lab.report.metrics import ACCURACY, Metric
from vasso.lab.report.probed import ProbeView, probe_views
from vasso.lab.report.sections import Section, Table
from vasso.lab.report.terminal import spread_lines
from vasso.lab.schema import printable
from vasso.lab.store import atomic
from vasso.lab.store.provenance import now
from vasso.lab.studies import study as studies

FEW = 14
"""Rows up to which a table is open when the page is."""
SPHERE_THETAS = (1.0, 0.4, 0.2)


@dataclass(frozen=True)
class SectionView:
    """What the template of a section needs."""

    result: SectionResult
    provenance: Provenance | None
    probes: tuple[ProbeView, ...]

    def charts(self, index: int) -> tuple[Chart, ...]:
        """The charts of a table of the section, which take time to draw."""
        return charts_of(self.result, index)


@dataclass(frozen=True)
class SpherePart:
    """All signal-to-noise ratios as a still figure, and one (`snr`) that rotates by `library`."""

    still: Markup
    rotating: Markup
    snr: float
    library: Markup


def write_page(found: Findings, path: str | Path, *, sphere: bool = False) -> Path:
    """Writes the page of findings; `sphere` adds adversaries on a sphere, and 5 MB."""
    path, content = Path(path).expanduser(), io.BytesIO()
    for part in _parts(found, sphere):
        content.write(part.encode())
    atomic.write_output(path, content.getvalue())
    return path


def page(found: Findings, *, sphere: bool = False) -> str:
    return "".join(_parts(found, sphere))


def _parts(found: Findings, sphere: bool) -> Iterator[str]:
    """The page in parts; the charts of a table are drawn when it is their turn."""
    shown: dict[str, str] = {}
    claims = judged_claims(found)
    return (
        _environment()
        .get_template("page.html")
        .generate(
            found=found,
            place=shlex.quote(found.store),
            views=[_view(result, shown) for result in found.results],
            claims=claims,
            tally=Counter(sorted(line.word for line in claims)),
            sphere=_sphere_part() if sphere else None,
            spreads=[list(spread_lines(spread.rows)) for spread in found.contents.spreads],
            sphere_study=studies.load("sphere"),
            style=_asset("style.css"),
            script=_asset("script.js"),
            made=now(),
            version=vasso.__version__,
        )
    )


def _view(result: SectionResult, shown: dict[str, str]) -> SectionView:
    runs = [trained for cell in result.section.cells for trained in cell.finished]
    probes = probe_views(result.section, shown)
    return SectionView(result, provenance_of(runs), probes)


def _sphere_part() -> SpherePart:
    """Draws the study `sphere`; several MB."""
    from vasso.diagnostics.adversary.sphere import cloud
    from vasso.diagnostics.figures.interactive import fragment, interactive_sphere, library
    from vasso.diagnostics.figures.spheres import spheres
    from vasso.diagnostics.figures.style import inline

    study = studies.load("sphere")
    settings = study.at("cpu").measurement
    given = {name: settings[name] for name in ("gradient", "variances", "adversaries")}
    clouds = {
        snr: [cloud(snr, theta, **given) for theta in SPHERE_THETAS] for snr in settings["snr"]
    }
    snr = sorted(clouds)[1]
    still = spheres([one for each in clouds.values() for one in each], width="wide")
    svg = inline(still, title=study.title, description=study.question, name="sphere-still")
    rotating = fragment(interactive_sphere(clouds[snr]), name="sphere-turns")
    return SpherePart(Markup(svg), Markup(rotating), snr, Markup(library()))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vasso.lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        text=text,
        accuracy=ACCURACY,
        few=FEW,
        probe_number=_probe_number,
        published_figures=published_figures,
        published_columns=published_columns,
        seeds_by_state=seeds_by_state,
        unfinished_tasks=unfinished_tasks,
    )
    return environment


def _probe_number(value: float) -> str:
    from vasso.lab.probe.results import number  # imports scipy, and few stores hold probes

    return number(value)


def _asset(name: str) -> Markup:
    return Markup((resources.files("vasso.lab.report") / "templates" / name).read_text())


def published_columns(section: Section, table: Table) -> list[tuple[Metric, tuple[str, str]]]:
    """Metric, source and network, where somebody has published it of a method of the table."""
    study, task = section.study, table.task
    found = (
        (metric, key)
        for metric in section.criteria.metrics
        for cell in table.cells
        for key in published_figures(study, task, cell.method, metric)
    )
    return list(dict.fromkeys(found))


def unfinished_tasks(section: Section) -> list[str]:
    return [table.title for table in section.tables if not any(c.n for c in table.cells)]


def seeds_by_state(cell: Cell) -> dict[str, Any]:
    """The seeds of a cell that are finished, under way and not begun."""
    begun = tuple(trained.run.seed for trained in cell.under_way)
    rest = tuple(seed for seed in cell.missing if seed not in begun)
    return {"finished": cell.seeds, "under way": begun, "not begun": rest}
