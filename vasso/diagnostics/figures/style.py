"""What have all figures in common? Size, letters, lines; and how they become files and web pages.

A figure is drawn in points with letters of 9 to 11, 345 points wide for a phone (`NARROW`) and 720
for a page (`WIDE`), and grows with the space it is given. Text stays text. Nothing in a file tells
when or where it was made, so the same figure is the same bytes.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from vasso.checks import one_of
from vasso.diagnostics.figures.palette import GRID, INK, Look, look
from vasso.diagnostics.figures.svg import for_file, for_page

P = ParamSpec("P")
Width: TypeAlias = Literal["narrow", "wide"]
NARROW, WIDE = 4.8, 10.0
"""Inches; a point is 1/72 of one, and a pixel of a page at its natural size."""
RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "vasso",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.35,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "lines.solid_capstyle": "round",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
__all__ = ["GRID", "INK", "NARROW", "RC", "WIDE", "Look", "Width", "inline", "look", "save"]


@contextmanager
def _our_settings() -> Iterator[None]:
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A drawing function in our style, whatever the caller's settings of matplotlib are.

    Args:
        draw: makes a figure.

    Returns:
        The same function; matplotlib's settings are as before when it returns.
    """

    @functools.wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with _our_settings():
            return draw(*args, **kwargs)

    return in_style


def canvas(width: Width, height: float, rows: int = 1, columns: int = 1, **options: Any) -> Figure:
    """An empty figure with axes; draw on `figure.axes`.

    Args:
        width: "narrow" for a phone or beside text, "wide" for a page.
        height: of each row, in inches.
        rows: of axes.
        columns: of axes.
        **options: of `Figure.subplots`.

    Returns:
        The figure.
    """
    one_of("width", width, "narrow", "wide")
    inches = NARROW if width == "narrow" else WIDE
    figure = Figure(figsize=(inches, height * rows), layout="constrained")
    figure.subplots(rows, columns, **options)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as SVG, the same bytes for the same figure, seen on white and on black.

    Args:
        figure: what to write.
        path: where to; folders are made.

    Returns:
        The path.

    Raises:
        ValueError: the file is not to be an SVG.

    Example:
        >>> import tempfile
        >>> figure = canvas("narrow", 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(figure, f"{folder}/empty.svg").read_text()[:38]
        '<?xml version="1.0" encoding="utf-8"?>'
    """
    path = Path(path)
    if path.suffix != ".svg":
        raise ValueError(f"figures are saved as SVG: name the file {path.stem}.svg, got {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(for_file(_drawn(figure)), encoding="utf-8", newline="\n")
    return path


def inline(figure: Figure, *, title: str, description: str = "", name: str | None = None) -> str:
    """A figure as an `<svg>` element for a web page, light or dark.

    Text and axes have the page's text colour, lines behind the data `var(--figure-grid)`; the
    background is the page's. It fills the width it is given, up to 1.6 times its natural size.

    Args:
        figure: what to show.
        title: what it is, for those who do not see it; browsers show it on hovering.
        description: what is to be seen in it, for those who do not see it.
        name: makes ids unique in the page; by default the figure's content does.

    Returns:
        The element.

    Raises:
        ValueError: the title is empty.

    Example:
        >>> element = inline(canvas("narrow", 2), title="Nothing yet")
        >>> 'viewBox="0 0 345.6 144"' in element, "<title" in element, "width=" in element
        (True, True, False)
    """
    if not title.strip():
        raise ValueError("title is empty: say what the figure is, for those who do not see it")
    return for_page(_drawn(figure), title=title, description=description, name=name)


def _drawn(figure: Figure) -> str:
    if not isinstance(figure, Figure):
        raise TypeError(f"figure must be a matplotlib Figure, got {type(figure).__name__}")
    text = io.StringIO()
    with _our_settings():  # ticks are made when a figure is drawn, by the settings of that moment
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


# -- axes ------------------------------------------------------------------------------------------


def plain_log(axis: Axis) -> None:
    """Labels of a logarithmic axis as numbers one reads, 0.01 and 10⁻⁵, not as formulas.

    Args:
        axis: `axes.xaxis` or `axes.yaxis`.
    """
    axis.set_major_locator(LogLocator(numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axis.set_minor_formatter(NullFormatter())


def power(value: float) -> str:
    """A number on a logarithmic axis.

    Args:
        value: above 0.

    Returns:
        The number between 0.001 and 1000, else mantissa and power of ten.

    Example:
        >>> power(0.01), power(1e-5), power(3e6)
        ('0.01', '10⁻⁵', '3·10⁶')
    """
    if 1e-3 <= value <= 1e3 or value <= 0:
        return f"{value:g}"
    mantissa, exponent = f"{value:.0e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if mantissa == "1" else f"{mantissa}·10{raised}"


def reference_line(axes: Axes, value: float, *, vertical: bool = False) -> None:
    """A thin line in ink at a value that means something: 0, 1, a radius.

    Args:
        axes: where.
        value: at which the line stands.
        vertical: whether the value is on the x axis.
    """
    line = axes.axvline if vertical else axes.axhline
    line(value, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
