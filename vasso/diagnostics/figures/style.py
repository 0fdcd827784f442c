"""Functions shared by all figures: sizes, fonts, lines, dots, legends, and output as SVG.

A figure is drawn in points with letters of 9 to 11, 345 points wide for a phone (`NARROW`) and 720
for a page (`WIDE`), and is scaled to the space it gets. Text stays text. A file holds no date and
no program version, so the same figure is the same bytes.
"""

import functools
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from vasso.diagnostics.estimates import Array, Estimate
from vasso.diagnostics.figures.palette import GRID, INK, Look, look
from vasso.diagnostics.figures.svg import for_file, for_page
from vasso.validation import one_of

P = ParamSpec("P")
Width: TypeAlias = Literal["narrow", "wide"]
NARROW, WIDE = 4.8, 10.0
"""Inches; a point is 1/72 of an inch, and one pixel of a page at natural size."""
BAND = 0.18
"""Opacity of a band of intervals."""
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
    """A drawing function that uses our matplotlib settings and leaves the caller's unchanged."""

    @functools.wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with _our_settings():
            return draw(*args, **kwargs)

    return in_style


def canvas(width: Width, height: float, rows: int = 1, columns: int = 1, **options: Any) -> Figure:
    """An empty figure with rows x columns axes, `height` inches each row; draw on `figure.axes`.

    "narrow" is for a phone or next to text, "wide" for a page; options go to `Figure.subplots`.
    """
    one_of("width", width, "narrow", "wide")
    inches = NARROW if width == "narrow" else WIDE
    figure = Figure(figsize=(inches, height * rows), layout="constrained")
    figure.subplots(rows, columns, **options)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure as SVG, the same bytes for the same figure, readable on white and black.

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

    Text and axes have the page's text colour, lines behind the data `var(--figure-grid)`, methods
    lighter colours where the page's `color-scheme` is dark. The element fills the available width,
    up to 1.6 times its natural size. Title and description are for readers who do not see the
    figure. `name` is the prefix of its ids, by default a hash.

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
        writer: Any = FigureCanvasSVG(figure)  # savefig draws once more, for the layout
        writer.print_svg(text, metadata={"Date": None, "Creator": None})
    return text.getvalue()


def plain_log(axis: Axis) -> None:
    """Labels a logarithmic axis with plain numbers, 0.01 and 10⁻⁵, not with formulas."""
    axis.set_major_locator(LogLocator(numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axis.set_minor_formatter(NullFormatter())


def power(value: float) -> str:
    """A number between 0.001 and 1000 as it is, else mantissa and power of ten.

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
    """A thin line at a value of reference, such as 0, 1 or a radius."""
    draw = axes.axvline if vertical else axes.axhline
    draw(value, color=INK, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)


def require_results(what: str, results: Mapping[str, Any]) -> None:
    """Raises unless `results` is a mapping with at least one result."""
    if not isinstance(results, Mapping):
        raise TypeError(
            f"{what} must be a mapping of methods' labels to results, got {type(results).__name__}"
        )
    if not results:
        raise ValueError(f'there are no {what} to draw: pass {{"SAM rho=0.1": ..., ...}}')


def with_greek_letters(label: str) -> str:
    """A method's label with the paper's letters.

    Example:
        >>> with_greek_letters("VaSSO rho=0.1 theta=0.4")
        'VaSSO ρ=0.1 θ=0.4'
    """
    for word, letter in {"rho": "ρ", "theta": "θ", "alpha": "α", "eta": "η"}.items():
        label = re.sub(rf"\b{word}=", f"{letter}=", label)
    return label


def line(axes: Axes, label: str, x: Sequence[float] | Array, y: Sequence[Estimate]) -> None:
    """A method's estimates as a line, their intervals as a band with gaps where they are infinite.

    The label determines colour, marker and line style.
    """
    style = look(label)
    values = [e.value for e in y]
    marker = style.marker if len(values) <= 30 else ""
    axes.plot(x, values, style.line, color=style.colour, marker=marker, label=label)
    ends = np.asarray([[e.low for e in y], [e.high for e in y]], dtype=np.float64)
    low, high = np.where(np.isfinite(ends), ends, np.nan)
    axes.fill_between(x, low, high, color=style.colour, alpha=BAND, linewidth=0)


def dots(axes: Axes, estimates: Mapping[str, Estimate], digits: int = 3) -> None:
    """One row for each method: a dot with its number, and the interval as a bar."""
    for row, (label, e) in enumerate(estimates.items()):
        style = look(label)
        low = e.low if math.isfinite(e.low) else e.value
        high = e.high if math.isfinite(e.high) else e.value
        axes.plot([low, high], [row, row], color=style.colour, linewidth=2.4, alpha=0.55)
        axes.plot([e.value], [row], style.marker, color=style.colour, markersize=7, label=label)
        axes.annotate(
            f"{e.value:.{digits}g}",
            (e.value, row),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=INK,
        )
    labels = [with_greek_letters(label) for label in estimates]
    axes.set_yticks(range(len(estimates)), labels=labels)
    axes.set_ylim(len(estimates) - 0.5, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)


def legend(figure: Figure, width: Width) -> None:
    """One legend for all axes, above them; none for a single entry."""
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        for artist, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(with_greek_letters(label), artist)
    columns = 2 if width == "narrow" else 4
    if len(entries) > 1:
        figure.legend(entries.values(), entries.keys(), loc="outside upper left", ncols=columns)
