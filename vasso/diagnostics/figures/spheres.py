"""Figure 2 (a) to (d) of the paper: adversaries as points on a sphere, seen from the side.

The true gradient points up, tilted towards the reader. Above the equator the true loss rises; an
adversary below it is friendly. Points behind the sphere are hollow.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vasso.diagnostics.adversary.sphere import Cloud
from vasso.diagnostics.estimates import Array
from vasso.diagnostics.figures.palette import GRID, INK, look, method_label
from vasso.diagnostics.figures.style import Width, canvas, styled, with_greek_letters

TILT = np.radians(22)
"""Angle by which the gradient is tilted towards the reader."""


@styled
def spheres(clouds: Sequence[Cloud], *, width: Width = "wide") -> Figure:
    """One sphere of adversaries for each SNR and theta, with numbers for their spread.

    Clouds have three dimensions, and there is one for every theta at every SNR. "wide" has a row
    for each theta, "narrow" a column.

    Example:
        >>> from vasso.diagnostics.adversary.sphere import cloud
        >>> figure = spheres([cloud(snr, theta) for theta in (1.0, 0.4) for snr in (1.0, 0.1)])
        >>> [axes.get_title(loc="center") for axes in figure.axes[:2]]
        ['SNR 1', 'SNR 0.1']
    """
    by_setting = {(c.theta, c.snr): c for c in clouds}
    thetas = list(dict.fromkeys(c.theta for c in clouds))
    snrs = sorted({c.snr for c in clouds}, reverse=True)
    _check(clouds, thetas, snrs)
    is_wide = width == "wide"
    rows, columns = (thetas, snrs) if is_wide else (snrs, thetas)
    figure = canvas(width, 2.9 if is_wide else 1.95, len(rows), len(columns))
    for place, axes in enumerate(figure.axes):
        row, column = rows[place // len(columns)], columns[place % len(columns)]
        theta, snr = (row, column) if is_wide else (column, row)
        sphere(axes, by_setting[theta, snr])
        heads = (f"SNR {snr:g}", with_greek_letters(method_label(theta)))
        if place < len(columns):
            axes.set_title(heads[0] if is_wide else heads[1], loc="center")
        if place % len(columns) == 0:
            axes.set_ylabel(heads[1] if is_wide else heads[0], fontweight="bold")
    return figure


def _check(clouds: Sequence[Cloud], thetas: list[float], snrs: list[float]) -> None:
    if not clouds:
        raise ValueError(
            "there are no clouds to draw: pass those of vasso.diagnostics.adversary.sphere"
        )
    pairs = [(c.theta, c.snr) for c in clouds]
    missing = [(t, s) for t in thetas for s in snrs if (t, s) not in pairs]
    if missing:
        theta, snr = missing[0]
        raise ValueError(f"the cloud of theta {theta:g} at SNR {snr:g} is missing: draw it too")
    if len(set(pairs)) < len(pairs):
        raise ValueError("two clouds have the same theta and SNR: pass one of them")
    flat = next((c for c in clouds if len(c.gradient) != 3), None)
    if flat is not None:
        raise ValueError(f"a sphere is drawn in 3 dimensions, this cloud has {len(flat.gradient)}")


def sphere(axes: Axes, cloud: Cloud) -> None:
    """One sphere with its adversaries and the true gradient."""
    rotation = view(cloud.gradient)
    _globe(axes)
    x, y, depth = (cloud.points @ rotation.T).T
    colour = look("SAM", cloud.theta).colour
    front = depth >= 0
    dot: dict[str, Any] = {"s": 15, "linewidths": 0.8, "alpha": 0.85}
    axes.scatter(x[~front], y[~front], facecolors="none", edgecolors=colour, zorder=2, **dot)
    axes.scatter(x[front], y[front], color=colour, zorder=4, **dot)
    tip = rotation @ (cloud.gradient / np.linalg.norm(cloud.gradient))
    arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (1.28 * tip[0], 1.28 * tip[1]), (0, 0), arrowprops=arrow, zorder=5)
    numbers = f"cosine {cloud.cosine().value:.2f}\n{100 * cloud.friends().value:.0f} % friends"
    axes.set_xlabel(numbers, fontsize=9)
    axes.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.3), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)


def view(gradient: Array) -> Array:
    """The rotation that turns the gradient up and tilts it towards the reader."""
    up = gradient / np.linalg.norm(gradient)
    away = np.eye(3)[np.argmin(np.abs(up))]
    right = np.cross(away, up) / np.linalg.norm(np.cross(away, up))
    ahead = np.cross(right, up)
    tilted_up = np.cos(TILT) * up - np.sin(TILT) * ahead
    to_reader = np.sin(TILT) * up + np.cos(TILT) * ahead
    return np.stack([right, tilted_up, to_reader])


def _globe(axes: Axes) -> None:
    """Outline, equator and two circles of latitude about the gradient, fainter behind the ball."""
    angle = np.linspace(0, 2 * np.pi, 181)
    axes.plot(np.cos(angle), np.sin(angle), color=INK, linewidth=0.9, zorder=3)
    for latitude, width in ((-45, 0.6), (0, 1.1), (45, 0.6)):
        radius, height = np.cos(np.radians(latitude)), np.sin(np.radians(latitude))
        side, front = radius * np.cos(angle), radius * np.sin(angle)
        y = np.cos(TILT) * height - np.sin(TILT) * front
        depth = np.sin(TILT) * height + np.cos(TILT) * front
        colour = INK if latitude == 0 else GRID
        for visible, alpha in ((depth >= 0, 0.9), (depth < 0, 0.35)):
            shown = np.where(visible, y, np.nan)
            axes.plot(side, shown, color=colour, linewidth=width, alpha=alpha, zorder=1)
