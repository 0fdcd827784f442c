"""Writes README.md (page.md with numbers) and demo.svg, the picture of the project's README.

    vasso demo --store runs/demo --no-open
    vasso study noisy-digits-radius --store runs/radius --jobs 2
    vasso export runs/demo records --study noisy-digits
    vasso export runs/radius records --study noisy-digits-radius
    python records/noisy-digits/page.py

Everything is read from the runs; words that depend on numbers are chosen by the numbers.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `records`

import numpy as np
from matplotlib.figure import Figure

from records.markdown_pages import fill_page, table_lines, table_row
from vasso.diagnostics.figures.style import INK, canvas, look, save, styled
from vasso.lab.cli import demo
from vasso.lab.report.read import TrainedRun, read_store
from vasso.lab.statistics import chosen, mean

HERE = Path(__file__).parent
RADIUS = HERE.parent / "noisy-digits-radius"
HEADS = ("method", "rho", "theta", "n", "test accuracy %", "wrong labels learnt %")


def finished(folder: Path) -> list[TrainedRun]:
    """The runs of a record, by seed."""
    runs = [trained for trained in read_store(folder).runs.values() if trained.result is not None]
    order = ("SGD", "SAM", "VaSSO")
    return sorted(runs, key=lambda t: (order.index(demo.method_name(t.run.method)), t.run.seed))


# -- each at its own rho ---------------------------------------------------------------------------


def results(runs: list[TrainedRun]) -> dict[Any, Any]:
    """As the demo has them."""
    return {trained.run: trained.result for trained in runs}


def table(runs: list[TrainedRun]) -> list[str]:
    """The table that the demo ends with."""
    heads = (*HEADS, "gradients a step", "gradients in all")
    return table_lines(heads, (line.cells for line in demo.rows(results(runs))))


def peak(runs: list[TrainedRun]) -> str:
    """Where the mean curve of SGD is highest."""
    curves = accuracies(runs)["SGD"].mean(axis=0)
    best = int(curves.argmax())
    return f"{curves[best]:.1f} % after {best + 1} epochs"


def accuracies(runs: list[TrainedRun]) -> dict[str, Any]:
    """Method -> test accuracy by seed and epoch."""
    found: dict[str, list[list[float]]] = {}
    for trained in runs:
        curve = [epoch["test_accuracy"] for epoch in trained.epochs]
        found.setdefault(demo.method_name(trained.run.method), []).append(curve)
    return {method: np.array(curves) for method, curves in found.items()}


@styled
def curves(runs: list[TrainedRun]) -> Figure:
    """Test accuracy over epochs: the mean of each method and its 95 % interval as a band."""
    figure = canvas("narrow", 2.7)
    (axes,) = figure.axes
    labels = {demo.method_name(t.run.method): t.run.method.label for t in runs}
    for method, values in accuracies(runs).items():
        points = [mean(list(at_epoch)) for at_epoch in values.T]
        epochs, colour = np.arange(1, len(points) + 1), look(labels[method]).colour
        middle = [point.value for point in points]
        axes.plot(epochs, middle, color=colour, label=f"{method}  {middle[-1]:.1f}")
        low, high = ([getattr(point, end) for point in points] for end in ("low", "high"))
        axes.fill_between(epochs, low, high, color=colour, alpha=0.25, lw=0)
    axes.legend(loc=(0.7, 0.52))  # between the curves
    axes.set_title(f"Test accuracy (%), {100 * runs[0].run.task.wrong:g} % of the labels wrong")
    axes.set_xlabel("epoch (mean and 95 % interval over seeds)", color=INK)
    axes.set_xlim(1, len(middle))
    return figure


# -- how rho was chosen ----------------------------------------------------------------------------


def by_radius(runs: list[TrainedRun]) -> dict[str, dict[float, list[float]]]:
    """Method -> rho -> validation accuracy at the last epoch, by seed."""
    found: dict[str, dict[float, list[float]]] = {}
    for trained in runs:
        method, rho = trained.run.method, float(dict(trained.run.method.settings)["rho"])
        here = found.setdefault(demo.method_name(method), {}).setdefault(rho, [])
        here.append((trained.result or {})["last"]["validation_accuracy"])
    return found


def radii(grid: dict[str, dict[float, list[float]]]) -> Iterator[str]:
    """The grid as a table, the chosen radius of each method in bold."""
    columns = sorted({rho for cells in grid.values() for rho in cells})
    yield table_row(["rho", *(f"{rho:g}" for rho in columns)])
    yield table_row(["---"] * (1 + len(columns)))
    for method, cells in grid.items():
        best = chosen(cells)
        yield table_row([method, *(_cell(cells.get(rho), rho == best) for rho in columns)])


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
        "At one shared rho either method can win: SAM − VaSSO is "
        f"{gaps[high]:+.1f} points at {high:g} and {gaps[low]:+.1f} at {low:g}."
    )


def checked(grid: dict[str, dict[float, list[float]]], runs: list[TrainedRun]) -> None:
    """Refuses a record whose demo does not run at the chosen radii."""
    for trained in runs:
        method = trained.run.method
        used = dict(method.settings).get("rho")
        best = chosen(grid.get(demo.method_name(method), {}))
        if used != best:
            sys.exit(f"{method.label}: rho {best} is best on validation data, not {used}")


# -- the page --------------------------------------------------------------------------------------


def certificates(runs: list[TrainedRun]) -> str:
    """Where the numbers come from."""
    found = {(t.certificate["commit"], t.certificate["packages"]["torch"]) for t in runs}
    versions = (
        f"{(commit or 'no commit')[:7]} with torch {torch}" for commit, torch in sorted(found)
    )
    return ", ".join(versions)


def page(shown: list[TrainedRun], tuned: list[TrainedRun]) -> str:
    """The text of README.md: page.md with numbers."""
    grid, seeds = by_radius(tuned), sorted({trained.run.seed for trained in tuned})
    return fill_page(
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


def main() -> None:
    shown, tuned = finished(HERE), finished(RADIUS)
    checked(by_radius(tuned), shown)
    save(curves(shown), HERE / "demo.svg")
    (HERE / "README.md").write_text(page(shown, tuned))


if __name__ == "__main__":
    main()
