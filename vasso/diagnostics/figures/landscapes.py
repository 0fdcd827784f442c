"""What does the loss look like around a solution? Lines, maps of a plane, the way between two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vasso.diagnostics.estimates import Array
from vasso.diagnostics.figures.marks import BAND, given, legend, told
from vasso.diagnostics.figures.palette import INK, look
from vasso.diagnostics.figures.style import Width, canvas, reference_line, styled
from vasso.diagnostics.landscape import Slice, Surface

LEVELS = 12
"""Colours of a map."""


@styled
def slices(
    found: Mapping[str, Slice], *, highest: float | None = None, width: Width = "narrow"
) -> Figure:
    """The loss along a random direction through each solution.

    Args:
        found: method -> losses along a line.
        highest: where the axis of the loss ends; None shows all.
        width: "narrow" or "wide".

    Returns:
        The figure; bands are two standard errors wide on each side.
    """
    figure = canvas(width, 3.1)
    (axes,) = figure.axes
    _slices(axes, given("slices", found))
    reference_line(axes, 0.0, vertical=True)
    axes.set(xlabel="steps along a direction, each filter as long as its weights", ylabel="loss")
    axes.set_ylim(top=highest)
    legend(figure, width)
    return figure


@styled
def interpolations(found: Mapping[str, Slice], *, width: Width = "narrow") -> Figure:
    """The loss on the straight way between two solutions, and how high the barrier is.

    Args:
        found: what the two are -> losses from one to the other.
        width: "narrow" or "wide".

    Returns:
        The figure.
    """
    figure = canvas(width, 3.1)
    (axes,) = figure.axes
    _slices(axes, given("slices", found), lambda way: f", barrier {way.barrier:.2g}")
    for way in found.values():
        ends = way.losses[[0, -1]]
        axes.plot(way.at[[0, -1]], ends, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    axes.set(xlabel="share of the way from the first solution to the second", ylabel="loss")
    legend(figure, width)
    return figure


def _slices(
    axes: Axes, found: Mapping[str, Slice], note: Callable[[Slice], str] = lambda way: ""
) -> None:
    for label, way in found.items():
        seen = look(label)
        axes.plot(way.at, way.losses, seen.line, color=seen.colour, label=label + note(way))
        if np.isfinite(way.errors).all():
            low, high = way.losses - 2 * way.errors, way.losses + 2 * way.errors
            axes.fill_between(way.at, low, high, color=seen.colour, alpha=BAND, linewidth=0)


@styled
def surfaces(
    found: Mapping[str, Surface], *, highest: float | None = None, width: Width = "wide"
) -> Figure:
    """Maps of the loss over a plane through each solution, all with the same colours.

    Args:
        found: method -> losses over a plane.
        highest: losses above it have one colour; None shows all.
        width: "wide" has up to three beside each other, "narrow" one.

    Returns:
        The figure.
    """
    given("surfaces", found)
    columns = min(len(found), 3 if width == "wide" else 2)
    rows = -(-len(found) // columns)
    height = (3.3 if width == "wide" else 2.1) + 0.7 / rows
    figure = canvas(width, height, rows, columns, squeeze=False)
    levels = heights(found, highest)
    for axes, (label, surface) in zip(figure.axes, found.items(), strict=False):
        filled = axes.contourf(
            surface.across, surface.along, surface.losses.T, levels, cmap="cividis", extend="max"
        )
        axes.contour(
            surface.across, surface.along, surface.losses.T, levels, colors=[INK], linewidths=0.4
        )
        axes.plot([0], [0], "+", color="white", markersize=8)
        axes.set_title(told(label), fontsize=10)
        axes.set_aspect("equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(4))
        axes.grid(visible=False)
    for axes in figure.axes[len(found) :]:
        axes.set_axis_off()
    side = "right" if width == "wide" else "bottom"
    shape: dict[str, Any] = {"location": side, "shrink": 0.85, "pad": 0.02, "aspect": 30}
    bar = figure.colorbar(filled, ax=figure.axes, label="loss", format="%.2g", **shape)
    bar.outline.set_visible(False)
    return figure


def heights(found: Mapping[str, Surface], highest: float | None) -> Array:
    """Levels of a map: close together near the bottom, where solutions are.

    Args:
        found: surfaces that share the levels.
        highest: the last level; None for the highest loss.

    Returns:
        Rising numbers, equally spaced in the square root of the height above the lowest loss.

    Raises:
        ValueError: all of it is above `highest`, or no loss is finite.
    """
    every = np.concatenate([s.losses.ravel() for s in found.values()])
    every = every[np.isfinite(every)]
    if not every.size:
        raise ValueError("no loss of the surfaces is finite: there is nothing to draw")
    low, high = float(every.min()), float(every.max()) if highest is None else highest
    if highest is None and high == low:  # flat: one colour, but levels have to rise
        high = low + max(abs(low), 1.0) * 1e-6
    if not high > low:
        raise ValueError(f"highest must be above the lowest loss {low:g}, got {high:g}")
    rising: Array = low + (high - low) * np.linspace(0, 1, LEVELS + 1) ** 2
    return rising
