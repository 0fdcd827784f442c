"""What is a figure made of? Lines with bands, dots with intervals, legends: one for each method."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vasso.diagnostics.estimates import Array, Estimate
from vasso.diagnostics.figures.palette import INK, look
from vasso.diagnostics.figures.style import Width

T = TypeVar("T")
BAND = 0.18
"""How much of what is behind a band of intervals it hides."""


def given(what: str, found: Mapping[str, T]) -> Mapping[str, T]:
    """The results, if there are any.

    Args:
        what: they are.
        found: method -> result.

    Returns:
        The same.

    Raises:
        ValueError: there are none.
        TypeError: it is no mapping.

    Example:
        >>> given("curves", {})
        Traceback (most recent call last):
        ...
        ValueError: there are no curves to draw: pass {"SAM rho=0.1": ..., ...}
    """
    if not isinstance(found, Mapping):
        raise TypeError(
            f"{what} must be a mapping of methods' labels to results, got {type(found).__name__}"
        )
    if not found:
        raise ValueError(f'there are no {what} to draw: pass {{"SAM rho=0.1": ..., ...}}')
    return found


def told(label: str) -> str:
    """A method's label with the paper's letters.

    Args:
        label: as the lab writes it.

    Returns:
        As it stands in figures.

    Example:
        >>> told("VaSSO rho=0.1 theta=0.4")
        'VaSSO ρ=0.1 θ=0.4'
    """
    for word, letter in {"rho": "ρ", "theta": "θ", "alpha": "α", "eta": "η"}.items():
        label = re.sub(rf"\b{word}=", f"{letter}=", label)
    return label


def line(axes: Axes, label: str, x: Sequence[float] | Array, y: Sequence[Estimate]) -> None:
    """A method's estimates as a line, their intervals as a band.

    Args:
        axes: where.
        label: of the method; sets the look.
        x: places.
        y: what was estimated there.
    """
    seen = look(label)
    values = [e.value for e in y]
    marked = seen.marker if len(values) <= 30 else ""
    axes.plot(x, values, seen.line, color=seen.colour, marker=marked, label=label)
    low, high = finite([e.low for e in y]), finite([e.high for e in y])
    axes.fill_between(x, low, high, color=seen.colour, alpha=BAND, linewidth=0)


def finite(values: Sequence[float]) -> Array:
    """Numbers with a hole where an interval has no end.

    Args:
        values: some perhaps infinite.

    Returns:
        NaN in their place.
    """
    x = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(x), x, np.nan)


def dots(axes: Axes, found: Mapping[str, Estimate], digits: int = 3) -> None:
    """One estimate for each method, below each other, with interval and number.

    Args:
        axes: where.
        found: method -> estimate.
        digits: of the number.
    """
    for place, (label, e) in enumerate(found.items()):
        seen = look(label)
        low = e.low if math.isfinite(e.low) else e.value
        high = e.high if math.isfinite(e.high) else e.value
        axes.plot([low, high], [place, place], color=seen.colour, linewidth=2.4, alpha=0.55)
        axes.plot([e.value], [place], seen.marker, color=seen.colour, markersize=7, label=label)
        axes.annotate(
            f"{e.value:.{digits}g}",
            (e.value, place),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=INK,
        )
    axes.set_yticks(range(len(found)), labels=[told(label) for label in found])
    axes.set_ylim(len(found) - 0.5, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)


def legend(figure: Figure, width: Width) -> None:
    """One legend for all axes, above them.

    Args:
        figure: with labelled lines.
        width: how much room there is.
    """
    pairs = [axes.get_legend_handles_labels() for axes in figure.axes]
    found: dict[str, Artist] = {}
    for marks, texts in pairs:
        for mark, text in zip(marks, texts, strict=True):
            found.setdefault(told(text), mark)
    columns = 2 if width == "narrow" else 4
    if len(found) > 1:
        figure.legend(found.values(), found.keys(), loc="outside upper left", ncols=columns)
