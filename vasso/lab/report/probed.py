"""Probes on the page: sentences, a table, and the figures of `vasso probe`."""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from vasso.lab.report.charts.drawing import Chart
from vasso.lab.report.read import TrainedRun
from vasso.lab.report.sections import Section

CAPTIONS = {
    "slope": (
        "Error of the slope",
        "Distance and angle between each estimated slope and the true gradient.",
    ),
    "friendliness": (
        "Other batches at the adversary",
        "How much of the rise of the loss other batches share, and how many have a lower loss at "
        "the adversary.",
    ),
    "radius": ("Rise over ρ", "On the adversary's own batch, and on batches it has not seen."),
    "sharpness": (
        "Rises close to the weights",
        "At SAM's adversary, at the highest point found, at random.",
    ),
    "eigenvalues": ("Largest eigenvalues", "Of the Hessian at these weights, with residuals."),
    "density": ("Density of eigenvalues", "Of the whole Hessian, on a logarithmic axis."),
    "landscape": ("Landscape", "The loss over a plane through these weights, marked by a cross."),
}
WIDE = 5.0
"""Inches from which a figure takes the whole width."""


@dataclass(frozen=True)
class ProbeFigure(Chart):
    """A figure of a probe; a wide one takes the whole width."""

    wide: bool


@dataclass(frozen=True)
class ProbeView:
    """A probe on the page.

    `lines` are its numbers without curves. A probe that the page shows already has only the anchor
    of that place, `shown_at`.
    """

    label: str
    trained: TrainedRun
    sentences: tuple[str, ...]
    lines: tuple[dict[str, Any], ...]
    figures: tuple[ProbeFigure, ...]
    shown_at: str = ""

    @property
    def probe(self) -> Any:
        return self.trained.probe


def probe_views(section: Section, shown: dict[str, str]) -> tuple[ProbeView, ...]:
    """The probes of a section; `shown`, which this extends, holds the anchors by run id."""
    found: list[ProbeView] = []
    for label, trained in section.probes():
        anchor = shown.get(trained.run.id, "")
        shown.setdefault(trained.run.id, f"{section.anchor}-probe-{len(found) + 1}")
        if anchor:
            found.append(ProbeView(label, trained, (), (), (), anchor))
        else:
            found.append(_view(label, trained, shown[trained.run.id]))
    return tuple(found)


def _view(label: str, trained: TrainedRun, name: str) -> ProbeView:
    from vasso.diagnostics.figures.style import inline
    from vasso.lab.probe.pictures import figures_of
    from vasso.lab.probe.results import results_of

    probe = trained.probe or {}
    figures, notes = [], []
    for measure, make in figures_of(results_of(probe)):
        title, caption = CAPTIONS[measure]
        try:
            figure = make()
        except ValueError as error:  # such as a landscape of NaN: the numbers are still good
            notes.append(f"Note: {measure} could not be drawn: {error}")
            continue
        about = f"{title}, {label}, seed {trained.run.seed}"
        svg = inline(figure, title=about, description=caption, name=f"{name}-{measure}")
        figures.append(ProbeFigure(title, caption, Markup(svg), figure.get_figwidth() > WIDE))
    lines = [line for line in probe["lines"] if not line["quantity"].startswith("rise on")]
    sentences = (*trained.probe_sentences, *notes)
    return ProbeView(label, trained, sentences, tuple(lines), tuple(figures))
