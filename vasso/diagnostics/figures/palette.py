"""Which colour has a method? The same in every figure, on white and on black, for any eyes.

| method | colour |
|---|---|
| the base alone (SGD, AdamW) | grey |
| SAM | orange |
| VaSSO | from dark green (theta near 0) over light blue (0.2) and blue (0.4) to violet (0.9) |
| ASAM, FisherSAM, GSAM | plum, moss, sand |

Each contrasts at least 3 : 1 with white and with black, and with theta < 1 a method other than SAM
keeps its colour and is dashed. Markers differ too, for those who see no colours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

from matplotlib.colors import to_hex, to_rgb

INK = "#787878"
"""Text and axes, read on white and on black; `currentColor` in a web page."""
GRID = "#a3a3a1"
"""Lines behind the data; the CSS variable `--figure-grid` in a web page."""
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
OTHERS = {"ASAM": "#a02b7c", "FisherSAM": "#46651d", "GSAM": "#a58454"}
REST = ("#c0392b", "#a06a8c", "#5f8a8b", "#7a7f3c", "#b0654a", "#6474a8")
BASES = ("plain", "SGD", "AdamW")
MARKERS = {"plain": "s", "SGD": "s", "AdamW": "P", "SAM": "o", "ASAM": "v", "FisherSAM": "^"}
REST_MARKERS = ("X", "h", "<", ">", "p", "*")
PUBLISHED_THETA = 0.4


@dataclass(frozen=True)
class Look:
    """How a method is drawn.

    Attributes:
        colour: as "#rrggbb".
        marker: as matplotlib names it.
        line: "-" or "--".
    """

    colour: str
    marker: str
    line: str = "-"


def look(method: str, theta: float | None = None) -> Look:
    """The look of a method, the same everywhere.

    Args:
        method: its name, or a label of the lab such as "VaSSO rho=0.1 theta=0.4".
        theta: weight of the newest gradient, where the name does not tell; 1 is SAM.

    Returns:
        Colour, marker and line.

    Raises:
        ValueError: theta is not in (0, 1].

    Example:
        >>> look("SAM").colour, look("VaSSO rho=0.1 theta=0.4").colour
        ('#cb7618', '#2d5bb4')
        >>> look("SAM", theta=0.4) == look("VaSSO")
        True
        >>> look("GSAM theta=0.4").line
        '--'
    """
    name, told = _read(method)
    theta = told if theta is None else theta
    if name.casefold() == "vasso":
        name, theta = "SAM", PUBLISHED_THETA if theta is None else theta
    theta = 1.0 if theta is None else theta
    if not 0 < theta <= 1:
        raise ValueError(f"theta must be above 0 and at most 1, got {theta}")
    if name == "SAM" and theta < 1:
        return Look(_between(theta), next(m for most, m in THETA_MARKERS if theta <= most))
    return Look(_colour(name), _marker(name), "-" if theta == 1 else "--")


def _read(method: str) -> tuple[str, float | None]:
    """Name and theta of a label."""
    name = re.split(r"\s+\w+=", method, maxsplit=1)[0].strip()
    told = re.search(r"\btheta=([-+.\deE]+)", method)
    return name, float(told[1]) if told else None


def _between(theta: float) -> str:
    """The colour of VaSSO at theta, on the line through the colours given."""
    pieces = pairwise(VASSO)
    (low, first), (high, second) = next(p for p in pieces if theta <= p[1][0])
    share = (theta - low) / (high - low)
    pairs = zip(to_rgb(first), to_rgb(second), strict=True)
    red, green, blue = (a + share * (b - a) for a, b in pairs)
    return to_hex((red, green, blue))


def _colour(name: str) -> str:
    if name in BASES:
        return BASE
    return SAM if name == "SAM" else OTHERS.get(name) or REST[crc32(name.encode()) % len(REST)]


def _marker(name: str) -> str:
    return MARKERS.get(name) or REST_MARKERS[crc32(name.encode()) % len(REST_MARKERS)]
