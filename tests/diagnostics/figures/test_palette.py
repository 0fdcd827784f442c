"""Colours of methods: fixed, and distinguishable on white, on black and by the colour-blind."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from vasso.diagnostics.figures.palette import COLOURS, GRID, INK, REST, look

# Machado, Oliveira & Fernandes (2009), severity 1, on linear RGB.
EYES = {
    "usual": np.eye(3),
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "no green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "no blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
THETAS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
MAIN = ("SGD", "SAM", "VaSSO theta=0.2", "VaSSO theta=0.4", "VaSSO theta=0.9", *list(COLOURS)[-3:])


def linear(colour: str) -> np.ndarray:
    x = np.array(to_rgb(colour))
    return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB, in which a distance of about 2 can just be seen."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("label", [*MAIN, *(f"VaSSO theta={theta}" for theta in THETAS)])
def test_every_method_is_seen_on_white_and_on_black(label: str) -> None:
    luminance = float(linear(look(label).colour) @ [0.2126, 0.7152, 0.0722])
    assert 1.05 / (luminance + 0.05) >= 3  # WCAG's bound for graphics
    assert (luminance + 0.05) / 0.05 >= 3


@pytest.mark.parametrize("eyes", EYES)
def test_any_eyes_tell_the_methods_apart(eyes: str) -> None:
    seen = {label: lab(np.array(EYES[eyes]) @ linear(look(label).colour)) for label in MAIN}
    nearest = min(np.linalg.norm(seen[a] - seen[b]) for a, b in combinations(MAIN, 2))
    assert nearest > 19


def test_ink_is_no_colour_of_data() -> None:
    data = {look(label).colour for label in (*MAIN, "unknown")} | set(REST)
    assert not {INK, GRID} & data


def test_vasso_is_sam_with_theta_below_one() -> None:
    assert look("VaSSO") == look("SAM", theta=0.4) == look("SAM rho=0.1 theta=0.4")
    assert look("VaSSO", theta=1.0) == look("SAM")
    assert look("VaSSO rho=0.05 theta=0.2") != look("VaSSO")


def test_suppressed_variance_keeps_a_methods_colour_and_dashes_it() -> None:
    plain, suppressed = look("GSAM rho=0.1 alpha=0.4"), look("GSAM rho=0.1 alpha=0.4 theta=0.4")
    assert plain.colour == suppressed.colour
    assert (plain.line, suppressed.line) == ("-", "--")


def test_a_method_we_do_not_know_has_a_look_that_stays() -> None:
    assert look("MySAM") == look("MySAM rho=3")
    assert look("MySAM").colour in REST


def test_the_base_alone_is_grey() -> None:
    assert look("SGD").colour == look("plain").colour == look("AdamW").colour
    assert look("SGD").marker != look("AdamW").marker


def test_a_theta_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"theta must be above 0 and at most 1, got 1\.2"):
        look("VaSSO theta=1.2")
