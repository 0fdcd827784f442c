"""How does a probe look? One SVG for each measure that has something to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vasso.diagnostics.figures.at_weights import friendliness, method, rises_nearby, slope_errors
from vasso.diagnostics.figures.landscapes import surfaces
from vasso.diagnostics.figures.radii import rise_curves
from vasso.diagnostics.figures.spectra import densities, eigenvalues
from vasso.diagnostics.figures.style import save
from vasso.diagnostics.radius import RiseCurve
from vasso.lab.probing import Findings


def draw(findings: Findings, folder: Path) -> list[Path]:
    """Draws what was found; what cannot be drawn is noted.

    Args:
        findings: of a probe; its notes may become more.
        folder: where to.

    Returns:
        The files.
    """
    files = []
    for name, make in figures_of(findings.results):
        try:
            files.append(save(make(), folder / f"{name}.svg"))
        except ValueError as trouble:  # such as a landscape of NaN: the numbers are still good
            findings.notes.append(f"{name} could not be drawn: {trouble}")
            (folder / f"{name}.svg").unlink(missing_ok=True)  # of an earlier probe
    return files


def figures_of(results: Mapping[str, list[Any]]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The figures of a probe.

    Args:
        results: measure -> its results.

    Yields:
        Name, and what draws it.
    """
    curves = [x for x in results.get("radius", ()) if isinstance(x, RiseCurve)]
    if results.get("slope"):
        yield "slope", partial(slope_errors, results["slope"])
    if results.get("friendliness"):
        yield "friendliness", partial(friendliness, results["friendliness"])
    if curves:
        yield "radius", partial(rise_curves, {method(x.theta or 1.0): x for x in curves})
    if results.get("sharpness"):
        yield "sharpness", partial(rises_nearby, results["sharpness"])
    alone: dict[str, Callable[..., Any]] = {
        "eigenvalues": eigenvalues,
        "density": densities,
        "landscape": surfaces,
    }
    for name, figure in alone.items():
        if results.get(name):
            yield name, partial(figure, {"this model": results[name][0]}, width="narrow")
