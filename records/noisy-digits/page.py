"""Writes README.md (page.md with numbers), demo.svg, and its table in the project's README.

    vasso demo --store runs/demo --no-open
    vasso study noisy-digits-radius --store runs/radius --jobs 2
    vasso export runs/demo records --study noisy-digits
    vasso export runs/radius records --study noisy-digits-radius
    python records/noisy-digits/page.py

Everything is read from the runs; words that depend on numbers are chosen by the numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vasso.diagnostics.figures.style import INK, canvas, look, save, styled
from vasso.lab import demo
from vasso.lab.report.markdown import page_of, put_into, row, rows
from vasso.lab.report.reading import Trained, read
from vasso.lab.statistics import chosen, mean

HERE = Path(__file__).parent
RADIUS = HERE.parent / "noisy-digits-radius"
BLOCK = "records/noisy-digits/page.py"
"""The part of the project's README that is written here."""
HEADS = ("method", "rho", "theta", "n", "test accuracy %", "wrong labels learnt %")


def finished(folder: Path) -> list[Trained]:
    """The runs of a record, by seed."""
    runs = [trained for trained in read(folder).runs.values() if trained.result is not None]
    order = ("SGD", "SAM", "VaSSO")
    return sorted(runs, key=lambda t: (order.index(demo.name_of(t.run.method)), t.run.seed))


# -- each at its own rho ---------------------------------------------------------------------------


def results(runs: list[Trained]) -> dict[Any, Any]:
    """As the demo has them."""
    return {trained.run: trained.result for trained in runs}


def table(runs: list[Trained]) -> list[str]:
    """The table that the demo ends with."""
    heads = (*HEADS, "gradients a step", "gradients in all")
    return rows(heads, (line.cells for line in demo.rows(results(runs))))


def peak(runs: list[Trained]) -> str:
    """Where the mean curve of SGD is highest."""
    curves = accuracies(runs)["SGD"].mean(axis=0)
    best = int(curves.argmax())
    return f"{curves[best]:.1f} % after {best + 1} epochs"


def accuracies(runs: list[Trained]) -> dict[str, Any]:
    """Method -> test accuracy by seed and epoch."""
    found: dict[str, list[list[float]]] = {}
    for trained in runs:
        curve = [epoch["test_accuracy"] for epoch in trained.epochs]
        found.setdefault(demo.name_of(trained.run.method), []).append(curve)
    return {method: np.array(curves) for method, curves in found.items()}


@styled
def curves(runs: list[Trained]) -> Figure:
    """Test accuracy over epochs: the mean of each method and its 95 % interval as a band."""
    figure = canvas("wide", 3.4)
    (axes,) = figure.axes
    labels = {demo.name_of(t.run.method): t.run.method.label for t in runs}
    for method, values in accuracies(runs).items():
        points = [mean(list(at_epoch)) for at_epoch in values.T]
        epochs, colour = np.arange(1, len(points) + 1), look(labels[method]).colour
        middle = [point.value for point in points]
        axes.plot(epochs, middle, color=colour, label=f"{method}  {middle[-1]:.1f}")
        low, high = ([getattr(point, end) for point in points] for end in ("low", "high"))
        axes.fill_between(epochs, low, high, color=colour, alpha=0.25, lw=0)
    axes.legend(loc="lower left")
    axes.set_title(f"Test accuracy (%), {100 * runs[0].run.task.wrong:g} % of the labels wrong")
    axes.set_xlabel("epoch (digits; mean and 95 % interval over seeds)", color=INK)
    axes.set_xlim(1, len(middle))
    return figure


# -- how rho was chosen ----------------------------------------------------------------------------


def by_radius(runs: list[Trained]) -> dict[str, dict[float, list[float]]]:
    """Method -> rho -> validation accuracy at the last epoch, by seed."""
    found: dict[str, dict[float, list[float]]] = {}
    for trained in runs:
        method, rho = trained.run.method, float(dict(trained.run.method.settings)["rho"])
        here = found.setdefault(demo.name_of(method), {}).setdefault(rho, [])
        here.append((trained.result or {})["last"]["validation_accuracy"])
    return found


def radii(grid: dict[str, dict[float, list[float]]]) -> Iterator[str]:
    """The grid as a table, the chosen radius of each method in bold."""
    columns = sorted({rho for cells in grid.values() for rho in cells})
    yield row(["rho", *(f"{rho:g}" for rho in columns)])
    yield row(["---"] * (1 + len(columns)))
    for method, cells in grid.items():
        best = chosen(cells)
        yield row([method, *(_cell(cells.get(rho), rho == best) for rho in columns)])


def _cell(values: list[float] | None, best: bool) -> str:
    if not values:
        return "–"
    found = mean(values)
    text = f"{found.value:.1f} ± {found.high - found.value:.1f}"
    return f"**{text}**" if best else text


def at_one_radius(grid: dict[str, dict[float, list[float]]]) -> str:
    """What a comparison at one shared rho would have said, at the two extremes."""
    gaps = {
        rho: mean(values).value - mean(grid["VaSSO"][rho]).value
        for rho, values in grid["SAM"].items()
        if rho in grid["VaSSO"]
    }
    low, high = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
    return (
        "At one shared rho the table could say what one likes: SAM − VaSSO is "
        f"{gaps[high]:+.1f} points at {high:g} and {gaps[low]:+.1f} at {low:g}."
    )


def checked(grid: dict[str, dict[float, list[float]]], runs: list[Trained]) -> None:
    """Refuses a record whose demo does not run at the chosen radii."""
    for trained in runs:
        method = trained.run.method
        used, best = dict(method.settings).get("rho"), chosen(grid.get(demo.name_of(method), {}))
        if used != best:
            sys.exit(f"{method.label}: rho {best} is best on validation data, not {used}")


# -- the page --------------------------------------------------------------------------------------


def certificates(runs: list[Trained]) -> str:
    """Where the numbers come from."""
    found = {(t.certificate["commit"], t.certificate["packages"]["torch"]) for t in runs}
    told = (f"{(commit or 'no commit')[:7]} with torch {torch}" for commit, torch in sorted(found))
    return ", ".join(told)


def page(shown: list[Trained], tuned: list[Trained]) -> str:
    """The text of README.md: page.md with numbers."""
    grid, seeds = by_radius(tuned), sorted({trained.run.seed for trained in tuned})
    return page_of(
        HERE,
        __doc__,
        table="\n".join(table(shown)),
        verdicts="\n".join(f"- {sentence}" for sentence in demo.verdicts(results(shown))),
        peak=peak(shown),
        seeds=f"{seeds[0]} to {seeds[-1]}",
        radii="\n".join(radii(grid)),
        at_one_radius=at_one_radius(grid),
        shown=certificates(shown),
        tuned=certificates(tuned),
    )


def result(shown: list[Trained]) -> str:
    """The result for the project's README."""
    lines = ((*line.cells[:3], *line.cells[4:7]) for line in demo.rows(results(shown)))
    heads = (*HEADS[:3], *HEADS[4:], "gradients a step")
    verdicts = " ".join(demo.verdicts(results(shown)))
    return "\n\n" + "\n".join([*rows(heads, lines), "", verdicts]) + "\n\n"


def main() -> None:
    shown, tuned = finished(HERE), finished(RADIUS)
    checked(by_radius(tuned), shown)
    save(curves(shown), HERE / "demo.svg")
    (HERE / "README.md").write_text(page(shown, tuned))
    readme = HERE.parents[1] / "README.md"
    readme.write_text(put_into(readme.read_text(), BLOCK, result(shown)))


if __name__ == "__main__":
    main()
