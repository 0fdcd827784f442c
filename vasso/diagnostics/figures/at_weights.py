"""How good are slopes and adversaries at one model's weights? A dot for each theta."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from vasso.diagnostics.figures.marks import dots
from vasso.diagnostics.figures.style import canvas, reference_line, styled
from vasso.diagnostics.friendliness import Friendliness
from vasso.diagnostics.sharpness import Sharpness
from vasso.diagnostics.slope_error import SlopeError


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
def slope_errors(found: list[SlopeError]) -> Figure:
    """Error and cosine of the slope of each theta.

    Args:
        found: one for each theta.

    Returns:
        The figure.
    """
    _check("slope errors", found)
    figure = canvas("wide", 1.2 + 0.35 * len(found), 1, 2)
    left, right = figure.axes
    dots(left, {method(x.theta): x.mse for x in found})
    dots(right, {method(x.theta): x.cosine for x in found})
    left.set_xlabel("error of the slope, E‖d - ∇f‖²")
    right.set_xlabel("cos(d, ∇f)")
    left.set_xlim(left=0)
    return figure


@styled
def friendliness(found: list[Friendliness]) -> Figure:
    """What each theta's adversary does to batches it has not seen.

    Args:
        found: one for each theta.

    Returns:
        The figure.
    """
    _check("results", found)
    figure = canvas("wide", 1.2 + 0.35 * len(found), 1, 2)
    left, right = figure.axes
    dots(left, {method(x.theta or 1.0): x.carried for x in found})
    dots(right, {method(x.theta or 1.0): x.rate for x in found})
    left.set_xlabel("rise on other batches / on the own batch")
    right.set_xlabel("other batches whose loss falls")
    right.set_xlim(-0.02, 1.02)
    reference_line(left, 0, vertical=True)
    return figure


@styled
def rises_nearby(found: list[Sharpness]) -> Figure:
    """How much the loss rises in the ball, by how the place is chosen.

    Args:
        found: at SAM's adversary, at the highest point found, at random.

    Returns:
        The figure.
    """
    _check("rises", found)
    figure = canvas("narrow", 2.2)
    (axes,) = figure.axes
    kinds = {"one-step": "SAM's adversary", "apgd": "highest found", "average": "random, as far"}
    dots(axes, {kinds[x.search]: x.sharpness for x in found})
    axes.set_xlabel(f"rise of the loss, rho {found[0].rho:g} away")
    reference_line(axes, 0, vertical=True)
    return figure


def _check(what: str, found: Sequence[object]) -> None:
    if not found:
        raise ValueError(f"there are no {what} to draw: pass at least one")
