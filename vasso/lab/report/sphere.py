"""How do noisy adversaries look? The paper's Figure 2, which needs no run, to be turned by hand."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from vasso.diagnostics.figures.spheres import spheres
from vasso.diagnostics.figures.style import inline
from vasso.diagnostics.figures.turnable import fragment, library, turnable_sphere
from vasso.diagnostics.sphere import Cloud, cloud
from vasso.lab import study as studies
from vasso.lab.study import Study

THETAS = (1.0, 0.4, 0.2)


@dataclass(frozen=True)
class Sphere:
    """The part of a page on adversaries in three dimensions.

    Attributes:
        study: the question.
        still: all signal-to-noise ratios side by side.
        turns: the noisiest but one, to be turned; needs `library`.
        snr: of that one.
        library: the script that turns it.
    """

    study: Study
    still: Markup
    turns: Markup
    snr: float
    library: Markup


def sphere_part() -> Sphere:
    """Draws the study `sphere`.

    Returns:
        The part; some MB.
    """
    study = studies.load("sphere")
    settings = study.at("cpu").measurement
    clouds = {snr: [_cloud(snr, theta) for theta in THETAS] for snr in settings["snr"]}
    snr = sorted(clouds)[1]
    still = spheres([one for each in clouds.values() for one in each], width="wide")
    svg = inline(still, title=study.title, description=study.question, name="sphere-still")
    turns = fragment(turnable_sphere(clouds[snr]), name="sphere-turns")
    return Sphere(study, Markup(svg), Markup(turns), snr, Markup(library()))


def _cloud(snr: float, theta: float) -> Cloud:
    settings = studies.load("sphere").at("cpu").measurement
    given = {name: settings[name] for name in ("gradient", "variances", "adversaries")}
    return cloud(snr, theta, **given)
