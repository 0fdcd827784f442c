"""Colours and markers of methods: the same in every figure, on white and on black backgrounds.

| method | colour |
|---|---|
| the base alone (SGD, AdamW) | grey |
| SAM | orange |
| VaSSO | from dark green (theta near 0) over light blue (0.2) and blue (0.4) to violet (0.9) |
| ASAM, FisherSAM, GSAM | plum, moss, sand |

Each colour has a contrast of at least 3 : 1 with white and with black; `on_dark` is the one that
dark pages show instead, with at least 4.5 : 1. With theta < 1 a method
other than SAM keeps its colour and its line is dashed. Markers differ too, for readers who see no
colours.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

from matplotlib.colors import to_hex, to_rgb

INK = "#787878"
"""Text and axes, readable on white and on black; `currentColor` in a web page."""
GRID = "#a3a3a1"
"""Lines behind the data; the CSS variable `--figure-grid` in a web page."""
DARK = "#1b2025"
"""What is behind a figure in a dark page, at its lightest."""
BASE = "#868686"
SAM = "#cb7618"
VASSO = (
    (0.0, "#0a6a50"),
    (0.1, "#0a7060"),
    (0.2, "#0e9fcc"),
    (0.4, "#2d5bb4"),
    (0.9, "#8c2af0"),
    (1.0, "#a03cf0"),
)
THETA_MARKERS = ((0.15, "^"), (0.3, "D"), (0.6, "d"), (1.0, "H"))
COLOURS = {
    **dict.fromkeys(("plain", "SGD", "AdamW"), BASE),
    **{"SAM": SAM, "ASAM": "#a02b7c", "FisherSAM": "#46651d", "GSAM": "#a58454"},
}
REST = ("#c0392b", "#a06a8c", "#5f8a8b", "#7a7f3c", "#b0654a", "#6474a8")
MARKERS = {"plain": "s", "SGD": "s", "AdamW": "P", "SAM": "o", "ASAM": "v", "FisherSAM": "^"}
REST_MARKERS = ("X", "h", "<", ">", "p", "*")
PUBLISHED_THETA = 0.4


@dataclass(frozen=True)
class Look:
    """How a method is drawn: colour as "#rrggbb", marker and line style of matplotlib."""

    colour: str
    marker: str
    line: str = "-"


def look(method: str, theta: float | None = None) -> Look:
    """The look of a method, given by its name or a label such as "VaSSO rho=0.1 theta=0.4".

    `theta`, the weight of the newest gradient, overrides the label; 1 is SAM.

    Example:
        >>> look("SAM").colour, look("VaSSO rho=0.1 theta=0.4").colour
        ('#cb7618', '#2d5bb4')
        >>> look("SAM", theta=0.4) == look("VaSSO")
        True
        >>> look("GSAM theta=0.4").line
        '--'
    """
    name, labelled = _name_and_theta(method)
    theta = labelled if theta is None else theta
    if name.casefold() == "vasso":
        name, theta = "SAM", PUBLISHED_THETA if theta is None else theta
    theta = 1.0 if theta is None else theta
    if not 0 < theta <= 1:
        raise ValueError(f"theta must be above 0 and at most 1, got {theta}")
    if name == "SAM" and theta < 1:
        return Look(_interpolated(theta), next(m for most, m in THETA_MARKERS if theta <= most))
    number = crc32(name.encode())
    colour = COLOURS.get(name) or REST[number % len(REST)]
    marker = MARKERS.get(name) or REST_MARKERS[number % len(REST_MARKERS)]
    return Look(colour, marker, "-" if theta == 1 else "--")


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2, from 0 for black to 1 for white."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(part * c for part, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    """The contrast of two colours, from 1 to 21.

    Example:
        >>> round(contrast("#000000", "#ffffff"))
        21
    """
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def on_dark(colour: str) -> str:
    """The colour, mixed with as much white as a contrast of 4.5 : 1 with `DARK` takes."""
    red, green, blue = to_rgb(colour)
    shares = (n / 50 for n in range(51))
    mixed = (
        to_hex((red + s * (1 - red), green + s * (1 - green), blue + s * (1 - blue)))
        for s in shares
    )
    return next(each for each in mixed if contrast(each, DARK) >= 4.5)


def method_label(theta: float) -> str:
    """The label of SAM or VaSSO with this theta, as the lab writes it.

    Example:
        >>> method_label(1.0), method_label(0.4)
        ('SAM', 'VaSSO theta=0.4')
    """
    return "SAM" if theta == 1 else f"VaSSO theta={theta:g}"


def _name_and_theta(label: str) -> tuple[str, float | None]:
    name = re.split(r"\s+\w+=", label, maxsplit=1)[0].strip()
    theta = re.search(r"\btheta=([-+.\deE]+)", label)
    return name, float(theta[1]) if theta else None


def _interpolated(theta: float) -> str:
    """The colour of VaSSO at theta, on the line through the colours of `VASSO`."""
    pieces = pairwise(VASSO)
    (low, first), (high, second) = next(p for p in pieces if theta <= p[1][0])
    share = (theta - low) / (high - low)
    pairs = zip(to_rgb(first), to_rgb(second), strict=True)
    red, green, blue = (a + share * (b - a) for a, b in pairs)
    return to_hex((red, green, blue))
