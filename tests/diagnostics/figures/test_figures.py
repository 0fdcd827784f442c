"""A figure shows what it was given: so many lines, in the colours of their methods, named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests.diagnostics.figures import results as made
from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.landscapes import heights, interpolations, slices, surfaces
from vasso.diagnostics.figures.palette import look
from vasso.diagnostics.figures.radii import radii_of_equal_effect, rise_curves, sharpnesses
from vasso.diagnostics.figures.spectra import densities, eigenvalues, spectra
from vasso.diagnostics.figures.spheres import spheres, view
from vasso.diagnostics.figures.style import inline, save
from vasso.diagnostics.figures.training import friendliness_over_training, snr_over_training
from vasso.diagnostics.sphere import cloud

METHODS = made.METHODS
CURVES = {label: made.curve(theta) for label, theta in METHODS.items()}
ENDED = {"SGD": 80.0, "SAM rho=0.1": 26.0, "VaSSO rho=0.1 theta=0.4": 23.0}
CLOUDS = [cloud(snr, theta) for theta in (1.0, 0.4) for snr in (5.0, 1.0, 0.1)]

FIGURES: dict[str, Callable[..., Figure]] = {
    "spheres": lambda **k: spheres(CLOUDS, **k),
    "snr": lambda **k: snr_over_training({"SAM": made.snrs(), "SGD": made.snrs(0.5)}, **k),
    "friendliness": lambda **k: friendliness_over_training(
        {label: made.friendly(theta) for label, theta in METHODS.items()}, **k
    ),
    "rises": lambda **k: rise_curves(CURVES, **k),
    "radii": lambda **k: radii_of_equal_effect(CURVES, 0.05, **k),
    "sharpnesses": lambda **k: sharpnesses({"SGD": made.sharp(0.5), "SAM": made.sharp(0.3)}, **k),
    "eigenvalues": lambda **k: eigenvalues({m: made.pairs(x) for m, x in ENDED.items()}, **k),
    "densities": lambda **k: densities({m: made.density(x) for m, x in ENDED.items()}, **k),
    "spectra": lambda **k: spectra(
        {m: made.pairs(x) for m, x in ENDED.items()},
        {m: made.density(x) for m, x in ENDED.items()},
        **k,
    ),
    "slices": lambda **k: slices({m: made.along(x / 20) for m, x in ENDED.items()}, **k),
    "interpolations": lambda **k: interpolations({"SGD": made.between(1.0)}, **k),
    "surfaces": lambda **k: surfaces({m: made.plane(x / 20) for m, x in ENDED.items()}, **k),
}


@cache
def figure_of(name: str, width: str) -> Figure:
    return FIGURES[name](width=width)


def lines_of(axes: Axes, *labels: str) -> dict[str, str]:
    """Label -> colour of the lines that have one."""
    named = {str(x.get_label()): to_hex(str(x.get_color())) for x in axes.lines}
    return {label: named[label] for label in labels}


def words(figure: Figure) -> list[str]:
    root = ElementTree.fromstring(inline(figure, title="T"))
    return ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_results_are_the_same_bytes(name: str, tmp_path: Path) -> None:
    first = save(figure_of(name, "narrow"), tmp_path / "a.svg").read_bytes()
    again = save(FIGURES[name](width="narrow"), tmp_path / "b.svg").read_bytes()
    assert first == again


@pytest.mark.parametrize("width", ["narrow", "wide"])
@pytest.mark.parametrize("name", FIGURES)
def test_no_text_is_cut_off_or_smaller_than_nine_points(name: str, width: str) -> None:
    """By the wider letters of DejaVu; those of most systems are narrower."""
    figure = figure_of(name, width)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.get_tightbbox(canvas.get_renderer())  # inches
    assert min(box.x0, box.y0) > -0.03
    assert box.x1 < figure.get_figwidth() + 0.03
    assert box.y1 < figure.get_figheight() + 0.03
    sizes = re.findall(r"font-size: ([0-9.]+)px", inline(figure, title="T"))
    assert min(map(float, sizes)) >= 9


# -- spheres ---------------------------------------------------------------------------------------


def test_spheres_have_a_row_for_each_theta_and_a_column_for_each_snr() -> None:
    figure = FIGURES["spheres"]()
    assert len(figure.axes) == 6
    assert [a.get_title(loc="center") for a in figure.axes[:3]] == ["SNR 5", "SNR 1", "SNR 0.1"]
    assert [figure.axes[i].get_ylabel() for i in (0, 3)] == ["SAM", "VaSSO θ=0.4"]
    narrow = FIGURES["spheres"](width="narrow")
    assert [a.get_title(loc="center") for a in narrow.axes[:2]] == ["SAM", "VaSSO θ=0.4"]


def test_a_sphere_shows_every_adversary_once_and_the_gradient_up() -> None:
    figure = spheres([CLOUDS[2]])
    (axes,) = figure.axes
    behind, front = axes.collections
    assert len(behind.get_offsets()) + len(front.get_offsets()) == 100
    assert to_hex(front.get_facecolor()[0]) == look("SAM").colour
    assert len(behind.get_facecolor()) == 0
    turned = CLOUDS[2].points @ view(CLOUDS[2].gradient).T
    heights_seen = np.concatenate([behind.get_offsets(), front.get_offsets()])[:, 1]
    assert sorted(heights_seen) == pytest.approx(sorted(turned[:, 1]))
    assert f"cosine {CLOUDS[2].cosine().value:.2f}" in axes.get_xlabel()


def test_the_view_is_a_rotation() -> None:
    turn = view(np.array([0.2, -0.1, 0.6]))
    assert turn @ turn.T == pytest.approx(np.eye(3), abs=1e-12)
    assert np.linalg.det(turn) == pytest.approx(1)


def test_what_cannot_stand_on_a_sphere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"theta 0\.4 at SNR 0\.1 is missing"):
        spheres(CLOUDS[:-1])
    with pytest.raises(ValueError, match="same theta and SNR"):
        spheres([CLOUDS[0], CLOUDS[0]])
    with pytest.raises(ValueError, match="3 dimensions, this cloud has 2"):
        spheres([cloud(1.0, gradient=(1.0, 0.0), variances=(1.0, 1.0))])
    with pytest.raises(ValueError, match="no clouds"):
        spheres([])


# -- over training ---------------------------------------------------------------------------------


def test_snr_has_a_line_and_a_band_for_each_method() -> None:
    measured = {"SAM rho=0.1": made.snrs(), "SGD": made.snrs(0.5)}
    (axes,) = snr_over_training(measured, published=(0.01, 0.1)).axes
    assert lines_of(axes, *measured) == {m: look(m).colour for m in measured}
    assert axes.lines[0].get_ydata() == pytest.approx([s.snr.value for _, s in made.snrs()])
    assert len(axes.collections) == 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "SNR of a batch gradient")
    assert axes.get_yscale() == "log"
    low, high = axes.get_ylim()
    assert 0 < low < 0.01
    assert high > 0.17
    assert "published: 0.01 to 0.1" in words(snr_over_training(measured, published=(0.01, 0.1)))


def test_pairs_out_of_order_are_drawn_in_order() -> None:
    (axes,) = snr_over_training({"SAM": made.snrs()[::-1]}).axes
    assert list(axes.lines[0].get_xdata()) == list(range(24))


@pytest.mark.parametrize(("quantity", "at"), [("rate", 0.5), ("carried", 1.0), ("own_gain", None)])
def test_friendliness_shows_the_quantity_asked_for(quantity: Any, at: float | None) -> None:
    measured = {label: made.friendly(theta) for label, theta in METHODS.items()}
    (axes,) = friendliness_over_training(measured, quantity=quantity).axes
    for drawn, pairs in zip(axes.lines, measured.values(), strict=False):
        assert drawn.get_ydata() == pytest.approx([getattr(f, quantity).value for _, f in pairs])
    levels = [list(x.get_ydata()) for x in axes.lines[len(measured) :]]
    assert levels == ([] if at is None else [[at, at]])


def test_an_infinite_interval_leaves_a_hole_in_the_band() -> None:
    pairs = made.friendly(1.0, 3)
    open_ended = Estimate(0.3, -math.inf, math.inf, 0.95, 1)
    pairs[1] = (1.0, type(pairs[1][1])(**{**vars(pairs[1][1]), "rate": open_ended}))
    (axes,) = friendliness_over_training({"SAM": pairs}).axes
    assert np.isfinite(axes.get_ylim()).all()
    assert axes.lines[0].get_ydata()[1] == 0.3


# -- radii -----------------------------------------------------------------------------------------


def test_rises_are_drawn_on_own_and_on_other_batches() -> None:
    own, others = rise_curves(CURVES).axes
    assert (own.get_title(loc="left"), others.get_title(loc="left")) == (
        "on its own batch",
        "on batches it has not seen",
    )
    for axes, kind in ((own, "own"), (others, "others")):
        assert lines_of(axes, *CURVES) == {label: look(label).colour for label in CURVES}
        for drawn, curve in zip(axes.lines, CURVES.values(), strict=False):
            assert drawn.get_ydata() == pytest.approx([e.value for e in getattr(curve, kind)])
    assert own.get_ylim() == others.get_ylim()


def test_radii_of_equal_effect_are_those_of_the_curves() -> None:
    figure = radii_of_equal_effect(CURVES, 0.05)
    (axes,) = figure.axes
    drawn = {str(x.get_label()): x.get_xdata()[0] for x in axes.lines}
    assert {label: drawn[label] for label in CURVES} == pytest.approx({
        label: curve.radius_at(0.05).value for label, curve in CURVES.items()
    })
    assert {"SAM ρ=0.1", "VaSSO ρ=0.1 θ=0.4"} <= set(words(figure))


def test_different_kinds_of_sharpness_are_not_compared() -> None:
    with pytest.raises(ValueError, match="not one kind of sharpness"):
        sharpnesses({"SGD": made.sharp(0.5), "SAM": made.sharp(0.5, rho=0.2)})


# -- spectra and landscapes ------------------------------------------------------------------------


def test_spectra_show_eigenvalues_beside_densities() -> None:
    left, right = FIGURES["spectra"]().axes
    for axes in (left, right):
        colours = [to_hex(str(x.get_color())) for x in axes.lines[: len(ENDED)]]
        assert colours == [look(label).colour for label in ENDED]
    assert left.lines[0].get_ydata() == pytest.approx(made.pairs(80.0).values)
    where, drawn = right.lines[0].get_data()
    assert np.trapezoid(drawn, where) == pytest.approx(1, abs=1e-3)
    assert right.get_yscale() == "log"


def test_slices_and_interpolations() -> None:
    (axes,) = FIGURES["slices"]().axes
    assert lines_of(axes, *ENDED) == {label: look(label).colour for label in ENDED}
    assert len(axes.collections) == 3
    (axes,) = slices({"SAM": made.along(1.0)}, highest=0.7).axes
    assert axes.get_ylim()[1] == 0.7
    (axes,) = interpolations({"SGD": made.between(1.0)}).axes
    (label,) = (str(x.get_label()) for x in axes.lines if "barrier" in str(x.get_label()))
    assert label == "SGD, barrier 1"
    assert to_hex(str(axes.lines[0].get_color())) == look("SGD").colour


def test_maps_share_their_colours() -> None:
    figure = FIGURES["surfaces"]()
    maps = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in maps] == [
        "SGD", "SAM ρ=0.1", "VaSSO ρ=0.1 θ=0.4"
    ]  # fmt: skip
    levels = [tuple(axes.collections[0].levels) for axes in maps]  # type: ignore[attr-defined]
    assert len(set(levels)) == 1
    rising = heights({"a": made.plane(1.0)}, 1.0)
    assert (rising[0], rising[-1]) == (pytest.approx(0.2, abs=0.01), 1.0)
    assert (np.diff(rising) > 0).all()
    with pytest.raises(ValueError, match="highest must be above the lowest loss"):
        heights({"a": made.plane(1.0)}, 0.1)


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw", [snr_over_training, friendliness_over_training, rise_curves, eigenvalues, densities,
             slices, interpolations, surfaces, sharpnesses]
)  # fmt: skip
def test_nothing_to_draw_is_said(draw: Any) -> None:
    with pytest.raises(ValueError, match=r"there are no \w+ to draw"):
        draw({})
    with pytest.raises(
        TypeError, match="must be a mapping of methods' labels to results, got list"
    ):
        draw([1])


def test_other_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="nothing was measured of 'SAM'"):
        snr_over_training({"SAM": []})
    with pytest.raises(ValueError, match=r"quantity must be one of .* Did you mean 'carried'"):
        friendliness_over_training({"SAM": made.friendly(1.0)}, quantity="caried")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="width must be one of"):
        rise_curves(CURVES, width="huge")  # type: ignore[arg-type]
