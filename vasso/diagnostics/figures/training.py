"""How did it go over training? Lines over epochs, each with the band of its interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vasso.checks import one_of
from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.marks import given, legend, line
from vasso.diagnostics.figures.palette import INK
from vasso.diagnostics.figures.style import Width, canvas, plain_log, reference_line, styled
from vasso.diagnostics.friendliness import Friendliness
from vasso.diagnostics.snr import Snr

Quantity: TypeAlias = Literal["rate", "carried", "cross_gain", "own_gain"]
QUANTITIES: Mapping[Quantity, str] = {
    "rate": "Share of other batches whose loss falls at the adversary",
    "carried": "Rise on other batches over that on the own",
    "cross_gain": "Rise of the loss on other batches, over ρ",
    "own_gain": "Rise of the loss on the own batch, over ρ",
}
MEANINGFUL: Mapping[Quantity, float] = {"rate": 0.5, "carried": 1.0, "cross_gain": 0.0}
"""Where a quantity says something by itself: a coin, an adversary of all data, no rise at all."""


@styled
def snr_over_training(
    measured: Mapping[str, Sequence[tuple[float, Snr]]],
    *,
    published: tuple[float, float] | None = None,
    width: Width = "narrow",
) -> Figure:
    """The signal-to-noise ratio of batch gradients over epochs: Figure 2 (e).

    Args:
        measured: method -> pairs of epoch and SNR.
        published: the range that a paper reports, shaded.
        width: "narrow" or "wide".

    Returns:
        The figure; where an interval reaches 0, its band ends at the lower end of the axis.
    """
    figure = canvas(width, 3.1)
    (axes,) = figure.axes
    _lines(axes, given("measurements", measured), lambda found: found.snr)
    axes.set_yscale("log")
    axes.set_ylim(*_ends(axes, measured, published))
    plain_log(axes.yaxis)
    axes.set(xlabel="epoch", ylabel="SNR of a batch gradient")
    if published is not None:
        axes.axhspan(*published, color=INK, alpha=0.13, linewidth=0, zorder=0)
        at = (axes.get_xlim()[1], published[1])
        axes.annotate(
            f"published: {published[0]:g} to {published[1]:g}",
            at,
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
    legend(figure, width)
    return figure


def _ends(
    axes: Axes,
    measured: Mapping[str, Sequence[tuple[float, Snr]]],
    published: tuple[float, float] | None,
) -> tuple[float, float]:
    """Of a logarithmic axis: intervals may reach 0, values of 0 sit at its lower end."""
    each = [snr.snr for pairs in measured.values() for _, snr in pairs]
    values = [e.value for e in each if e.value > 0] + list(published or ())
    low = max(min(values, default=1e-3), max(values, default=1.0) / 1e4)
    return low / 3, max([*values, *(e.high for e in each)], default=1.0) * 1.6


@styled
def friendliness_over_training(
    measured: Mapping[str, Sequence[tuple[float, Friendliness]]],
    *,
    quantity: Quantity = "rate",
    width: Width = "narrow",
) -> Figure:
    """How friendly adversaries are to other data, over epochs.

    Args:
        measured: method -> pairs of epoch and friendliness.
        quantity: which of the fields of `Friendliness`.
        width: "narrow" or "wide".

    Returns:
        The figure.
    """
    one_of("quantity", quantity, *QUANTITIES)
    figure = canvas(width, 3.1)
    (axes,) = figure.axes
    _lines(axes, given("measurements", measured), lambda found: getattr(found, quantity))
    if quantity in MEANINGFUL:
        reference_line(axes, MEANINGFUL[quantity])
    axes.set_xlabel("epoch")
    axes.set_title(QUANTITIES[quantity], fontsize=10, fontweight="normal")
    legend(figure, width)
    return figure


def _lines(
    axes: Axes,
    measured: Mapping[str, Sequence[tuple[float, Any]]],
    of: Callable[[Any], Estimate],
) -> None:
    for label, pairs in measured.items():
        if not pairs:
            raise ValueError(f"nothing was measured of {label!r}: leave it out")
        ordered = sorted(pairs, key=lambda pair: pair[0])
        line(axes, label, [epoch for epoch, _ in ordered], [of(found) for _, found in ordered])
