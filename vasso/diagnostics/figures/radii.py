"""How much does an adversary raise the loss, and at which radius do two of them do as much?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from matplotlib.figure import Figure

from vasso.diagnostics.figures.marks import dots, given, legend, line
from vasso.diagnostics.figures.style import Width, canvas, reference_line, styled
from vasso.diagnostics.radius import RiseCurve
from vasso.diagnostics.sharpness import Sharpness


@styled
def rise_curves(curves: Mapping[str, RiseCurve], *, width: Width = "wide") -> Figure:
    """The rise of the loss over rho, on the adversary's own batch and on others.

    Args:
        curves: method -> curve.
        width: "wide" has the two beside each other, "narrow" below.

    Returns:
        The figure.
    """
    shape = (1, 2) if width == "wide" else (2, 1)
    figure = canvas(width, 3.4 if width == "wide" else 2.7, *shape, sharey=True, sharex=True)
    kinds = (("own", "on its own batch"), ("others", "on batches it has not seen"))
    for axes, (kind, title) in zip(figure.axes, kinds, strict=True):
        for label, curve in given("curves", curves).items():
            line(axes, label, curve.rhos, getattr(curve, kind))
        reference_line(axes, 0.0)
        axes.set_title(title)
        axes.set_xlabel("radius ρ")
        axes.label_outer()
    figure.supylabel("rise of the loss", fontsize=10)
    legend(figure, width)
    return figure


@styled
def radii_of_equal_effect(
    curves: Mapping[str, RiseCurve],
    rise: float,
    *,
    on: Literal["own", "others"] = "others",
    width: Width = "narrow",
) -> Figure:
    """The radius at which each method raises the loss by the same.

    Args:
        curves: method -> curve.
        rise: of the loss, above 0; of `RiseCurve.rise_at` of one of the methods, for example.
        on: which batches.
        width: "narrow" or "wide".

    Returns:
        The figure.
    """
    given("curves", curves)
    figure = canvas(width, 1.0 + 0.5 * len(curves))
    (axes,) = figure.axes
    dots(axes, {label: curve.radius_at(rise, on) for label, curve in curves.items()})
    where = "the own batch" if on == "own" else "other batches"
    axes.set_xlabel(f"ρ for a rise of {rise:.2g} on {where}")
    axes.set_xlim(left=0)
    return figure


@styled
def sharpnesses(found: Mapping[str, Sharpness], *, width: Width = "narrow") -> Figure:
    """The sharpness where each method ended.

    Args:
        found: method -> sharpness, all of one kind.
        width: "narrow" or "wide".

    Returns:
        The figure.

    Raises:
        ValueError: they are of different balls or searches and cannot be compared.
    """
    kinds = {(s.rho, s.norm, s.adaptive, s.search, s.m) for s in given("results", found).values()}
    if len(kinds) > 1:
        raise ValueError(f"these are not one kind of sharpness: {sorted(kinds, key=str)}")
    ((rho, norm, adaptive, search, m),) = kinds
    figure = canvas(width, 1.0 + 0.5 * len(found))
    (axes,) = figure.axes
    dots(axes, {label: s.sharpness for label, s in found.items()})
    ball = f"{'adaptive ' if adaptive else ''}{'ℓ2' if norm == 'l2' else 'ℓ∞'} ball, ρ={rho:g}"
    pieces = "" if m is None else f", m={m}"
    axes.set_xlabel(f"{'mean' if search == 'average' else 'worst'} rise, {ball}{pieces}")
    return figure
