"""How is the curvature spread? The largest eigenvalues, and the density of all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vasso.diagnostics.density import Density
from vasso.diagnostics.eigen import Eigenpairs
from vasso.diagnostics.estimates import Array
from vasso.diagnostics.figures.marks import BAND, given, legend
from vasso.diagnostics.figures.palette import look
from vasso.diagnostics.figures.style import Width, canvas, plain_log, reference_line, styled

PLACES = 500
"""At how many eigenvalues a density is drawn."""


@styled
def eigenvalues(found: Mapping[str, Eigenpairs], *, width: Width = "narrow") -> Figure:
    """The largest eigenvalues of each method, with what their residuals leave open.

    Args:
        found: method -> eigenvalues.
        width: "narrow" or "wide".

    Returns:
        The figure.
    """
    figure = canvas(width, 3.1)
    _eigenvalues(figure.axes[0], given("eigenvalues", found))
    legend(figure, width)
    return figure


@styled
def densities(found: Mapping[str, Density], *, width: Width = "narrow") -> Figure:
    """The density of all eigenvalues of each method, on a logarithmic axis.

    Args:
        found: method -> density.
        width: "narrow" or "wide".

    Returns:
        The figure.
    """
    figure = canvas(width, 3.1)
    _densities(figure.axes[0], given("densities", found))
    legend(figure, width)
    return figure


@styled
def spectra(
    pairs: Mapping[str, Eigenpairs], densities: Mapping[str, Density], *, width: Width = "wide"
) -> Figure:
    """Both: the largest eigenvalues and the density of all.

    Args:
        pairs: method -> eigenvalues.
        densities: method -> density.
        width: "wide" has the two beside each other, "narrow" below.

    Returns:
        The figure.
    """
    shape = (1, 2) if width == "wide" else (2, 1)
    figure = canvas(width, 3.4 if width == "wide" else 2.8, *shape)
    _eigenvalues(figure.axes[0], given("eigenvalues", pairs))
    _densities(figure.axes[1], given("densities", densities))
    legend(figure, width)
    return figure


def _eigenvalues(axes: Axes, found: Mapping[str, Eigenpairs]) -> None:
    for label, pairs in found.items():
        seen = look(label)
        axes.errorbar(
            np.arange(1, len(pairs.values) + 1),
            pairs.values,
            yerr=pairs.residuals,
            fmt=seen.line,
            marker=seen.marker,
            color=seen.colour,
            label=label,
        )
    most = max(len(pairs.values) for pairs in found.values())
    if most <= 12:
        axes.set_xticks(range(1, most + 1))
    axes.set(xlabel="rank k", ylabel="eigenvalue λₖ")
    if all((pairs.values > 0).all() for pairs in found.values()):
        axes.set_ylim(bottom=0)


def _densities(axes: Axes, found: Mapping[str, Density]) -> None:
    lowest = min(float(d.nodes.min()) for d in found.values())
    highest = max(float(d.nodes.max()) for d in found.values())
    spread = max(highest - lowest, 1e-12)
    where: Array = np.linspace(lowest - 0.05 * spread, highest + 0.05 * spread, PLACES)
    top = 0.0
    for label, density in found.items():
        seen = look(label)
        mean, error = density.at(where, spread / 100)
        axes.plot(where, mean, seen.line, color=seen.colour, label=label)
        floor = np.maximum(mean - error, 1e-300)
        axes.fill_between(where, floor, mean + error, color=seen.colour, alpha=BAND, linewidth=0)
        top = max(top, float(mean.max()))
    size = max(d.size for d in found.values())
    axes.set_yscale("log")
    axes.set_ylim(top / max(1e4, 30 * size), top * 3)
    plain_log(axes.yaxis)
    reference_line(axes, 0.0, vertical=True)
    axes.set(xlabel="eigenvalue λ", ylabel="density")
