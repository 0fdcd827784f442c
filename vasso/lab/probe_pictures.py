"""How does a probe look? One SVG for each measure that has something to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vasso.diagnostics.figures.landscapes import surfaces
from vasso.diagnostics.figures.marks import dots
from vasso.diagnostics.figures.radii import rise_curves, sharpnesses
from vasso.diagnostics.figures.spectra import densities, eigenvalues
from vasso.diagnostics.figures.style import canvas, reference_line, save, styled
from vasso.diagnostics.friendliness import Friendliness
from vasso.diagnostics.radius import RiseCurve
from vasso.diagnostics.slope_error import SlopeError
from vasso.lab.probing import Findings


def draw(findings: Findings, folder: Path) -> list[Path]:
    """Draws what was found.

    Args:
        findings: of a probe.
        folder: where to.

    Returns:
        The files.
    """
    return [save(figure, folder / f"{name}.svg") for name, figure in _figures(findings.results)]


def _figures(results: Mapping[str, list[Any]]) -> Iterator[tuple[str, Figure]]:
    curves = [x for x in results.get("radius", ()) if isinstance(x, RiseCurve)]
    if results.get("slope"):
        yield "slope", slope_figure(results["slope"])
    if results.get("friendliness"):
        yield "friendliness", friendliness_figure(results["friendliness"])
    if curves:
        yield "radius", rise_curves({method(x.theta or 1.0): x for x in curves})
    if results.get("sharpness"):
        one, most, mean = results["sharpness"]
        named = {"one step": one, "highest found": most, "random, as far": mean}
        yield "sharpness", sharpnesses(named)
    alone: dict[str, Callable[..., Figure]] = {
        "eigenvalues": eigenvalues,
        "density": densities,
        "landscape": surfaces,
    }
    for name, figure in alone.items():
        if results.get(name):
            yield name, figure({"this model": results[name][0]})


def method(theta: float) -> str:
    """The label of a slope, which gives it its colour.

    Args:
        theta: 1 is SAM's.

    Returns:
        A label of the lab.

    Example:
        >>> method(1.0), method(0.4)
        ('SAM', 'VaSSO theta=0.4')
    """
    return "SAM" if theta == 1 else f"VaSSO theta={theta:g}"


@styled
def slope_figure(found: list[SlopeError]) -> Figure:
    """Error and cosine of the slope of each theta.

    Args:
        found: one for each theta.

    Returns:
        The figure.
    """
    figure = canvas("wide", 1.2 + 0.35 * len(found), 1, 2)
    left, right = figure.axes
    dots(left, {method(x.theta): x.mse for x in found})
    dots(right, {method(x.theta): x.cosine for x in found})
    left.set_xlabel("error of the slope, E‖d - ∇f‖²")
    right.set_xlabel("cos(d, ∇f)")
    left.set_xlim(left=0)
    return figure


@styled
def friendliness_figure(found: list[Friendliness]) -> Figure:
    """What each theta's adversary does to batches it has not seen.

    Args:
        found: one for each theta.

    Returns:
        The figure.
    """
    figure = canvas("wide", 1.2 + 0.35 * len(found), 1, 2)
    left, right = figure.axes
    dots(left, {method(x.theta or 1.0): x.carried for x in found})
    dots(right, {method(x.theta or 1.0): x.rate for x in found})
    left.set_xlabel("rise on other batches / on the own batch")
    right.set_xlabel("other batches whose loss falls")
    right.set_xlim(-0.02, 1.02)
    reference_line(left, 0, vertical=True)
    return figure
