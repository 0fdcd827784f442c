"""Figures show the results they are given, in the colours of their methods."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
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

from vasso.diagnostics.adversary.radius import RiseCurve
from vasso.diagnostics.adversary.sphere import cloud
from vasso.diagnostics.curvature.density import Density
from vasso.diagnostics.curvature.eigen import Eigenpairs
from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.figures.adversary import (
    friendliness,
    rise_curves,
    rises_nearby,
    slope_errors,
)
from vasso.diagnostics.figures.flatness import densities, eigenvalues, heights, slices, surfaces
from vasso.diagnostics.figures.palette import look
from vasso.diagnostics.figures.spheres import spheres, view
from vasso.diagnostics.figures.style import inline, save
from vasso.diagnostics.landscape import Slice, Surface
from vasso.lab.probe.pictures import draw as draw_all
from vasso.lab.probe.run import ProbeResults

METHODS = {"SAM rho=0.1": 1.0, "VaSSO rho=0.1 theta=0.4": 0.4, "VaSSO rho=0.1 theta=0.2": 0.2}


def about(value: float, reach: float) -> Estimate:
    return Estimate(value, value - reach, value + reach, 0.95, 20)


def curve(theta: float) -> RiseCurve:
    rhos = (0.01, 0.05, 0.1, 0.2, 0.4)
    own = tuple(about(r * (1 + 3 * theta) + r**2, 0.1 * r) for r in rhos)
    others = tuple(about(r * (1.2 - theta) + 2 * r**2, 0.2 * r) for r in rhos)
    return RiseCurve(rhos, own, others, theta, 8, 10)


def pairs(sharp: float) -> Eigenpairs:
    values = sharp / np.arange(1, 6) ** 0.7
    return Eigenpairs(values, np.eye(5), values / 50, 60, 2000)


def density(sharp: float, seed: int = 0) -> Density:
    generator = np.random.default_rng(seed)
    nodes = np.sort(
        np.concatenate([generator.normal(0, 0.3, (4, 36)), sharp * generator.random((4, 4))], 1)
    )
    weights = np.concatenate([np.full((4, 36), 1 / 36), np.full((4, 4), 1e-4)], 1)
    return Density(nodes, weights / weights.sum(1, keepdims=True), 10_000, 160, 2000)


def along(sharp: float) -> Slice:
    at = np.linspace(-1, 1, 51)
    losses = 0.2 + sharp * at**2 + 0.1 * at**3
    return Slice(at, losses, 0.02 + 0.05 * np.abs(at), 2000)


def plane(sharp: float) -> Surface:
    at = np.linspace(-1, 1, 25)
    losses = 0.2 + sharp * (at[:, None] ** 2 + 0.6 * (at[None, :] + 0.3 * at[:, None]) ** 2)
    return Surface(at, at, losses, np.full_like(losses, 0.01), 2000)


CURVES = {label: curve(theta) for label, theta in METHODS.items()}
ENDED = {"SGD": 80.0, "SAM rho=0.1": 26.0, "VaSSO rho=0.1 theta=0.4": 23.0}
CLOUDS = [cloud(snr, theta) for theta in (1.0, 0.4) for snr in (5.0, 1.0, 0.1)]

FIGURES: dict[str, Callable[..., Figure]] = {
    "spheres": lambda **k: spheres(CLOUDS, **k),
    "rises": lambda **k: rise_curves(CURVES, **k),
    "eigenvalues": lambda **k: eigenvalues({m: pairs(x) for m, x in ENDED.items()}, **k),
    "densities": lambda **k: densities({m: density(x) for m, x in ENDED.items()}, **k),
    "slices": lambda **k: slices({m: along(x / 20) for m, x in ENDED.items()}, **k),
    "surfaces": lambda **k: surfaces({m: plane(x / 20) for m, x in ENDED.items()}, **k),
}


@cache
def figure_of(name: str, width: str) -> Figure:
    return FIGURES[name](width=width)


def lines_of(axes: Axes, *labels: str) -> dict[str, str]:
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
    x, y, depth = turn @ np.array([0.2, -0.1, 0.6])
    assert abs(x) < 1e-12
    assert 0 < depth < y


def test_what_cannot_stand_on_a_sphere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"theta 0\.4 at SNR 0\.1 is missing"):
        spheres(CLOUDS[:-1])
    with pytest.raises(ValueError, match="same theta and SNR"):
        spheres([CLOUDS[0], CLOUDS[0]])
    with pytest.raises(ValueError, match="3 dimensions, this cloud has 2"):
        spheres([cloud(1.0, gradient=(1.0, 0.0), variances=(1.0, 1.0))])
    with pytest.raises(ValueError, match="no clouds"):
        spheres([])


def test_an_infinite_interval_leaves_a_gap_in_the_band() -> None:
    whole = curve(1.0)
    points = list(whole.own)
    points[1] = Estimate(0.3, -math.inf, math.inf, 0.95, 1)
    axes = rise_curves({"SAM": replace(whole, own=tuple(points))}).axes[0]
    assert np.isfinite(axes.get_ylim()).all()
    assert axes.lines[0].get_ydata()[1] == 0.3


def test_rises_are_drawn_on_own_and_on_other_batches() -> None:
    own, others = rise_curves(CURVES).axes
    assert (own.get_title(loc="left"), others.get_title(loc="left")) == (
        "on its own batch",
        "on batches it has not seen",
    )
    for axes, kind in ((own, "own"), (others, "others")):
        assert lines_of(axes, *CURVES) == {label: look(label).colour for label in CURVES}
        for drawn, one in zip(axes.lines, CURVES.values(), strict=False):
            assert drawn.get_ydata() == pytest.approx([e.value for e in getattr(one, kind)])
    assert own.get_ylim() == others.get_ylim()


def test_eigenvalues_and_densities_have_the_colours_of_their_methods() -> None:
    (left,), (right,) = (FIGURES[name]().axes for name in ("eigenvalues", "densities"))
    for axes in (left, right):
        colours = [to_hex(str(x.get_color())) for x in axes.lines[: len(ENDED)]]
        assert colours == [look(label).colour for label in ENDED]
    assert left.lines[0].get_ydata() == pytest.approx(pairs(80.0).values)
    where, drawn = right.lines[0].get_data()
    assert np.trapezoid(drawn, where) == pytest.approx(1, abs=1e-3)
    assert right.get_yscale() == "log"


def test_slices_have_a_line_and_a_band_for_each_method() -> None:
    (axes,) = FIGURES["slices"]().axes
    assert lines_of(axes, *ENDED) == {label: look(label).colour for label in ENDED}
    assert len(axes.collections) == 3
    (axes,) = slices({"SAM": along(1.0)}, highest=0.7).axes
    assert axes.get_ylim()[1] == 0.7


def test_maps_share_their_colours() -> None:
    figure = FIGURES["surfaces"]()
    maps = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in maps] == [
        "SGD", "SAM ρ=0.1", "VaSSO ρ=0.1 θ=0.4"
    ]  # fmt: skip
    levels = [tuple(axes.collections[0].levels) for axes in maps]  # type: ignore[attr-defined]
    assert len(set(levels)) == 1
    rising = heights({"a": plane(1.0)}, 1.0)
    assert (rising[0], rising[-1]) == (pytest.approx(0.2, abs=0.01), 1.0)
    assert (np.diff(rising) > 0).all()
    with pytest.raises(ValueError, match="highest must be above the lowest loss"):
        heights({"a": plane(1.0)}, 0.1)


@pytest.mark.parametrize("draw", [rise_curves, eigenvalues, densities, slices, surfaces])
def test_nothing_to_draw_is_said(draw: Any) -> None:
    with pytest.raises(ValueError, match=r"there are no \w+ to draw"):
        draw({})
    with pytest.raises(
        TypeError, match="must be a mapping of methods' labels to results, got list"
    ):
        draw([1])


@pytest.mark.parametrize("draw", [friendliness, rises_nearby, slope_errors])
def test_an_empty_list_is_refused(draw: Any) -> None:
    with pytest.raises(ValueError, match="to draw: pass at least one"):
        draw([])


def square(*losses: float) -> Surface:
    sides = np.array([0.0, 1.0])
    return Surface(sides, sides, np.array(losses).reshape(2, 2), np.zeros((2, 2)), 1)


@pytest.mark.parametrize("loss", [0.0, -3.0, 1e6])
def test_levels_of_a_flat_surface_rise(loss: float) -> None:
    levels = heights({"SAM": square(loss, loss, loss, loss)}, None)
    assert levels[0] == loss
    assert (np.diff(levels) > 0).all()


def test_levels_are_of_the_losses_that_are_finite() -> None:
    levels = heights({"SAM": square(1.0, math.nan, math.inf, 5.0)}, None)
    assert (levels[0], levels[-1]) == (1.0, 5.0)


def test_what_cannot_be_drawn_is_noted_and_the_rest_is_drawn(tmp_path: Path) -> None:
    nans, flat = square(*[math.nan] * 4), square(1.0, 1.0, 1.0, 1.0)
    findings = ProbeResults(results={"landscape": [nans]})
    assert draw_all(findings, tmp_path) == []
    assert findings.notes == [
        "landscape could not be drawn: no loss of the surfaces is finite: there is nothing to draw"
    ]
    assert draw_all(ProbeResults(results={"landscape": [flat]}), tmp_path) == [
        tmp_path / "landscape.svg"
    ]
