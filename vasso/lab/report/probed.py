"""What has a probe found at the weights of a run? Sentences, a table, and figures drawn anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from vasso.lab.report.drawing import Chart
from vasso.lab.report.reading import Trained
from vasso.lab.report.sections import Section

CAPTIONS = {
    "slope": ("Error of the slope", "Distance and angle between each slope and the true gradient."),
    "friendliness": (
        "Friends of other batches",
        "How much of the rise other batches share, and how many of them are better off at the "
        "adversary.",
    ),
    "radius": ("Rise over ρ", "On the adversary's own batch, and on batches it has not seen."),
    "sharpness": ("Rises nearby", "At SAM's adversary, at the highest place found, at random."),
    "eigenvalues": ("Largest eigenvalues", "Of the Hessian at these weights, with residuals."),
    "density": ("Density of eigenvalues", "Of the whole Hessian, on a logarithmic axis."),
    "landscape": ("Landscape", "The loss over a plane through these weights; the cross is here."),
}
WIDE = 5.0
"""Inches from which a figure takes the whole width."""


@dataclass(frozen=True)
class Drawing(Chart):
    """A figure of a probe.

    Attributes:
        wide: whether it takes the whole width.
    """

    wide: bool


@dataclass(frozen=True)
class Probed:
    """A probe on a page.

    Attributes:
        label: of the method.
        trained: the run.
        said: what it says, in sentences.
        lines: its numbers but for curves.
        drawings: its figures.
        elsewhere: where on the page it is shown already; "" if here.
    """

    label: str
    trained: Trained
    said: tuple[str, ...]
    lines: tuple[dict[str, Any], ...]
    drawings: tuple[Drawing, ...]
    elsewhere: str = ""

    @property
    def probe(self) -> Any:
        """What `probe.json` holds."""
        return self.trained.probe


def probes_of(section: Section) -> Iterator[tuple[str, Trained]]:
    """The runs of a section that were probed.

    Args:
        section: the section.

    Yields:
        Label of the method, and the run.
    """
    for table in section.tables:
        for cell in table.cells:
            for trained in cell.finished:
                if trained.probe is not None:
                    more = f" ({table.title})" if len(section.tables) > 1 else ""
                    yield table.label(cell) + more, trained


def said_by(trained: Trained) -> list[str]:
    """What a probe says, and what it could not measure.

    Args:
        trained: a run that was probed.

    Returns:
        Sentences.
    """
    probe = trained.probe or {}
    notes = (f"Note: {note}" for note in probe["notes"])
    return [str(text) for text in (*probe["sentences"], *notes)]


def shown_on_page(section: Section, before: dict[str, str]) -> tuple[Probed, ...]:
    """The probes of a section, drawn; those that the page shows already are linked.

    Args:
        section: the section.
        before: run -> where its probe is shown; gets more.

    Returns:
        One for each run that was probed.
    """
    found: list[Probed] = []
    for label, trained in probes_of(section):
        place = before.get(trained.run.id, "")
        before.setdefault(trained.run.id, f"{section.anchor}-probe-{len(found) + 1}")
        if place:
            found.append(Probed(label, trained, (), (), (), place))
        else:
            found.append(_drawn(label, trained, before[trained.run.id]))
    return tuple(found)


def _drawn(label: str, trained: Trained, name: str) -> Probed:
    from vasso.diagnostics.figures.style import inline
    from vasso.lab.probe_pictures import figures_of
    from vasso.lab.probe_reading import results_of

    probe = trained.probe or {}
    drawings, notes = [], []
    for measure, make in figures_of(results_of(probe)):
        title, caption = CAPTIONS[measure]
        try:
            figure = make()
        except ValueError as trouble:  # such as a landscape of NaN: the numbers are still good
            notes.append(f"Note: {measure} could not be drawn: {trouble}")
            continue
        about = f"{title}, {label}, seed {trained.run.seed}"
        svg = inline(figure, title=about, description=caption, name=f"{name}-{measure}")
        drawings.append(Drawing(title, caption, Markup(svg), figure.get_figwidth() > WIDE))
    lines = [line for line in probe["lines"] if not line["quantity"].startswith("rise on")]
    said = (*said_by(trained), *notes)
    return Probed(label, trained, said, tuple(lines), tuple(drawings))
