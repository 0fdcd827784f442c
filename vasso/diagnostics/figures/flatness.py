"""Figures of flatness: eigenvalues, spectral densities, slices and maps of the loss."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vasso.diagnostics.curvature.density import Density
from vasso.diagnostics.curvature.eigen import Eigenpairs
from vasso.diagnostics.estimates import Array
from vasso.diagnostics.figures.palette import INK, look
from vasso.diagnostics.figures.style import (
    BAND,
    Width,
    canvas,
    legend,
    plain_log,
    reference_line,
    require_results,
    styled,
    with_greek_letters,
)
from vasso.diagnostics.landscape import Slice, Surface

DENSITY_POINTS = 500
"""Number of eigenvalues at which a density is drawn."""
LEVELS = 12
"""Number of colours of a map."""


@styled
def eigenvalues(pairs: Mapping[str, Eigenpairs], *, width: Width = "narrow") -> Figure:
    """The largest eigenvalues of each method, with error bars from their residuals."""
    require_results("eigenvalues", pairs)
    figure = canvas(width, 3.1)
    (axes,) = figure.axes
    for label, result in pairs.items():
        style = look(label)
        axes.errorbar(
            np.arange(1, len(result.values) + 1),
            result.values,
            yerr=result.residuals,
            fmt=style.line,
            marker=style.marker,
            color=style.colour,
            label=label,
        )
    most = max(len(result.values) for result in pairs.values())
    if most <= 12:
        axes.set_xticks(range(1, most + 1))
    axes.set(xlabel="rank k", ylabel="eigenvalue λₖ")
    if all((result.values > 0).all() for result in pairs.values()):
        axes.set_ylim(bottom=0)
    legend(figure, width)
    return figure


@styled
def densities(results: Mapping[str, Density], *, width: Width = "narrow") -> Figure:
    """The density of all eigenvalues of each method, on a logarithmic axis."""
    require_results("densities", results)
    figure = canvas(width, 3.1)
    (axes,) = figure.axes
    lowest = min(float(d.nodes.min()) for d in results.values())
    highest = max(float(d.nodes.max()) for d in results.values())
    spread = max(highest - lowest, 1e-12)
    x: Array = np.linspace(lowest - 0.05 * spread, highest + 0.05 * spread, DENSITY_POINTS)
    top = 0.0
    for label, density in results.items():
        style = look(label)
        mean, error = density.at(x, spread / 100)
        axes.plot(x, mean, style.line, color=style.colour, label=label)
        floor = np.maximum(mean - error, 1e-300)
        axes.fill_between(x, floor, mean + error, color=style.colour, alpha=BAND, linewidth=0)
        top = max(top, float(mean.max()))
    size = max(d.size for d in results.values())
    axes.set_yscale("log")
    axes.set_ylim(top / max(1e4, 30 * size), top * 3)
    plain_log(axes.yaxis)
    reference_line(axes, 0.0, vertical=True)
    axes.set(xlabel="eigenvalue λ", ylabel="density")
    legend(figure, width)
    return figure


@styled
def slices(
    results: Mapping[str, Slice], *, highest: float | None = None, width: Width = "narrow"
) -> Figure:
    """The loss along a random direction through each solution, with bands of two standard errors.

    `highest` is the upper end of the loss axis; None shows all.
    """
    require_results("slices", results)
    figure = canvas(width, 3.1)
    (axes,) = figure.axes
    for label, result in results.items():
        style = look(label)
        axes.plot(result.at, result.losses, style.line, color=style.colour, label=label)
        if np.isfinite(result.errors).all():
            low, high = result.losses - 2 * result.errors, result.losses + 2 * result.errors
            axes.fill_between(result.at, low, high, color=style.colour, alpha=BAND, linewidth=0)
    reference_line(axes, 0.0, vertical=True)
    axes.set(xlabel="steps along a direction, each filter as long as its weights", ylabel="loss")
    axes.set_ylim(top=highest)
    legend(figure, width)
    return figure


@styled
def surfaces(
    results: Mapping[str, Surface], *, highest: float | None = None, width: Width = "wide"
) -> Figure:
    """Maps of the loss over a plane through each solution, all with the same colours.

    Losses above `highest` have one colour; None shows all.
    """
    require_results("surfaces", results)
    columns = min(len(results), 3 if width == "wide" else 2)
    rows = -(-len(results) // columns)
    height = (3.3 if width == "wide" else 2.1) + 0.7 / rows
    figure = canvas(width, height, rows, columns, squeeze=False)
    levels = heights(results, highest)
    for axes, (label, surface) in zip(figure.axes, results.items(), strict=False):
        x, y, losses = surface.across, surface.along, surface.losses.T
        filled = axes.contourf(x, y, losses, levels, cmap="cividis", extend="max")
        axes.contour(x, y, losses, levels, colors=[INK], linewidths=0.4)
        axes.plot([0], [0], "+", color="white", markersize=8)
        axes.set_title(with_greek_letters(label), fontsize=10)
        axes.set_aspect("equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(4))
        axes.grid(visible=False)
    for axes in figure.axes[len(results) :]:
        axes.set_axis_off()
    side = "right" if width == "wide" else "bottom"
    shape: dict[str, Any] = {"location": side, "shrink": 0.85, "pad": 0.02, "aspect": 30}
    bar = figure.colorbar(filled, ax=figure.axes, label="loss", format="%.2g", **shape)
    bar.outline.set_visible(False)
    return figure


def heights(results: Mapping[str, Surface], highest: float | None) -> Array:
    """Levels of a map: equally spaced in the square root of the height above the lowest loss.

    So they are close together near the bottom, where solutions are.
    """
    losses = np.concatenate([s.losses.ravel() for s in results.values()])
    losses = losses[np.isfinite(losses)]
    if not losses.size:
        raise ValueError("no loss of the surfaces is finite: there is nothing to draw")
    low, high = float(losses.min()), float(losses.max()) if highest is None else highest
    if highest is None and high == low:  # flat: one colour, but levels have to rise
        high = low + max(abs(low), 1.0) * 1e-6
    if not high > low:
        raise ValueError(f"highest must be above the lowest loss {low:g}, got {high:g}")
    levels: Array = low + (high - low) * np.linspace(0, 1, LEVELS + 1) ** 2
    return levels
