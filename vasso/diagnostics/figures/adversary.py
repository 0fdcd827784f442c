"""Figures of adversaries: rise over the radius, error of the slope, friendliness."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from vasso.diagnostics.adversary.friendliness import Friendliness
from vasso.diagnostics.adversary.radius import RiseCurve
from vasso.diagnostics.adversary.slope_error import SlopeError
from vasso.diagnostics.figures.palette import method_label
from vasso.diagnostics.figures.style import (
    Width,
    canvas,
    dots,
    legend,
    line,
    reference_line,
    require_results,
    styled,
)
from vasso.diagnostics.sharpness import Sharpness


@styled
def rise_curves(curves: Mapping[str, RiseCurve], *, width: Width = "wide") -> Figure:
    """The rise of the loss over rho by method, on the adversary's own batch and on others."""
    shape = (1, 2) if width == "wide" else (2, 1)
    figure = canvas(width, 3.4 if width == "wide" else 2.7, *shape, sharey=True, sharex=True)
    kinds = (("own", "on its own batch"), ("others", "on batches it has not seen"))
    require_results("curves", curves)
    for axes, (kind, title) in zip(figure.axes, kinds, strict=True):
        for label, curve in curves.items():
            line(axes, label, curve.rhos, getattr(curve, kind))
        reference_line(axes, 0.0)
        axes.set_title(title)
        axes.set_xlabel("radius ρ")
        axes.label_outer()
    figure.supylabel("rise of the loss", fontsize=10)
    legend(figure, width)
    return figure


@styled
def slope_errors(errors: list[SlopeError]) -> Figure:
    """Squared error and cosine of the slope of each theta."""
    _require_some("slope errors", errors)
    figure = canvas("wide", 1.2 + 0.35 * len(errors), 1, 2)
    left, right = figure.axes
    dots(left, {method_label(x.theta): x.mse for x in errors})
    dots(right, {method_label(x.theta): x.cosine for x in errors})
    left.set_xlabel("error of the slope, E‖d - ∇f‖²")
    right.set_xlabel("cos(d, ∇f)")
    left.set_xlim(left=0)
    return figure


@styled
def friendliness(results: list[Friendliness]) -> Figure:
    """What the adversary of each theta does to batches it has not seen."""
    _require_some("results", results)
    figure = canvas("wide", 1.2 + 0.35 * len(results), 1, 2)
    left, right = figure.axes
    dots(left, {method_label(x.theta or 1.0): x.carried for x in results})
    dots(right, {method_label(x.theta or 1.0): x.rate for x in results})
    left.set_xlabel("rise on other batches / on the own batch")
    right.set_xlabel("other batches whose loss falls")
    right.set_xlim(-0.02, 1.02)
    reference_line(left, 0, vertical=True)
    return figure


@styled
def rises_nearby(results: list[Sharpness]) -> Figure:
    """The rise of the loss in the ball: at SAM's adversary, at the highest point, at random."""
    _require_some("rises", results)
    figure = canvas("narrow", 2.2)
    (axes,) = figure.axes
    kinds = {"one-step": "SAM's adversary", "apgd": "highest found", "average": "random, as far"}
    dots(axes, {kinds[x.search]: x.sharpness for x in results})
    axes.set_xlabel(f"rise of the loss, rho {results[0].rho:g} away")
    reference_line(axes, 0, vertical=True)
    return figure


def _require_some(what: str, results: Sequence[object]) -> None:
    if not results:
        raise ValueError(f"there are no {what} to draw: pass at least one")
