"""Figures of a probe: one SVG for each measure that has something to show."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vasso.diagnostics.adversary.radius import RiseCurve
from vasso.diagnostics.figures.adversary import (
    friendliness,
    rise_curves,
    rises_nearby,
    slope_errors,
)
from vasso.diagnostics.figures.flatness import densities, eigenvalues, surfaces
from vasso.diagnostics.figures.palette import method_label
from vasso.diagnostics.figures.style import save
from vasso.lab.probe.run import ProbeResults


def draw(findings: ProbeResults, folder: Path) -> list[Path]:
    """Draws the results and returns the files; adds a note for each figure that fails."""
    files = []
    for name, make in figures_of(findings.results):
        try:
            files.append(save(make(), folder / f"{name}.svg"))
        except ValueError as error:  # such as a landscape of NaN: the numbers are still good
            findings.notes.append(f"{name} could not be drawn: {error}")
            (folder / f"{name}.svg").unlink(missing_ok=True)  # of an earlier probe
    return files


def figures_of(results: Mapping[str, list[Any]]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The name of each figure and the function that draws it."""
    curves = [x for x in results.get("radius", ()) if isinstance(x, RiseCurve)]
    if results.get("slope"):
        yield "slope", partial(slope_errors, results["slope"])
    if results.get("friendliness"):
        yield "friendliness", partial(friendliness, results["friendliness"])
    if curves:
        yield "radius", partial(rise_curves, {method_label(x.theta or 1.0): x for x in curves})
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
