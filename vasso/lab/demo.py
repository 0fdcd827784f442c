"""Half of the labels are wrong: does a network learn them by heart? What `vasso demo` shows.

Its runs are those of the study `noisy-digits`; rho was chosen by `noisy-digits-radius` on
validation images of other seeds, for each method by itself, because an averaged slope turns less of
rho into a rise of the loss: at one rho for both the comparison can come out either way.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from vasso.diagnostics.estimates import Estimate
from vasso.lab import study as studies
from vasso.lab.census import census
from vasso.lab.methods import Method
from vasso.lab.runs import Run
from vasso.lab.statistics import Standing, holm, mean, paired, standing
from vasso.lab.store import Store
from vasso.parts import Range

STUDY = "noisy-digits"
PAIRS = (("SAM", "SGD"), ("VaSSO", "SAM"))
SAYS: Mapping[Standing, str] = {
    "ahead": "{0} is ahead of {1} here",
    "behind": "{0} is behind {1} here",
    "cannot tell": "these runs cannot tell {0} from {1}",
    "no verdict": "too few seeds to tell {0} from {1}, three at least",
}
HEADS = ("method", "rho", "theta", "n", "test\naccuracy %", "wrong labels\nlearnt %")
COSTS = ("gradients\na step", "gradients\nin all")

Finished: TypeAlias = Mapping[Run, Mapping[str, Any]]
"""run -> its result, as a store keeps it."""


def planned(seeds: int) -> list[Run]:
    """The runs of the demo, all methods of a seed together.

    Args:
        seeds: how many, from 0 on; an interval needs two.

    Returns:
        The cells of the study with these seeds.

    Example:
        >>> [(run.method.label, run.seed) for run in planned(2)][2:4]
        [('VaSSO rho=1.25 theta=0.2', 0), ('SGD', 1)]
    """
    Range(least=2, most=1000).check("seeds", seeds)
    cells = dict.fromkeys((run.task, run.method) for run in studies.load(STUDY).at("cpu").runs)
    return [Run(task, method, seed) for seed in range(seeds) for task, method in cells]


def finished(store: Store, runs: list[Run]) -> dict[Run, dict[str, Any]]:
    """What a store knows of runs.

    Args:
        store: the store.
        runs: which.

    Returns:
        Those that have ended, with their results.
    """
    return census(runs, store).done


def name_of(method: Method) -> str:
    """A method without its settings.

    Args:
        method: the method.

    Returns:
        Its name, or that of the base.
    """
    return method.base if method.entry is None else method.name


@dataclass(frozen=True)
class Row:
    """What the runs of one method say; they differ in nothing but the seed.

    Attributes:
        method: which.
        accuracy: on test images at the last epoch, in %, with Student's 95 % interval.
        learnt: the share of wrong labels that were learnt by heart, in %.
        per_step: gradient evaluations a step.
        gradients: gradient evaluations of a run.
    """

    method: Method
    accuracy: Estimate
    learnt: float
    per_step: float
    gradients: float

    @property
    def cells(self) -> tuple[str, ...]:
        """As a line of the table."""
        settings = dict(self.method.settings)
        rho, theta = settings.get("rho"), settings.get("theta", 1)
        told = (f"{rho:g}", f"{theta:g}") if rho else ("–", "–")
        half = self.accuracy.high - self.accuracy.value
        numbers = f"{self.accuracy.n:.0f}", f"{self.accuracy.value:.1f} ± {half:.1f}"
        spent = f"{self.learnt:.1f}", f"{self.per_step:g}", f"{self.gradients:,.0f}"
        return name_of(self.method), *told, *numbers, *spent


def rows(results: Finished) -> list[Row]:
    """The lines of the table.

    Args:
        results: finished runs.

    Returns:
        One for each method, in the order of the runs.
    """
    return [
        _row(method, [found for run, found in results.items() if run.method == method])
        for method in dict.fromkeys(run.method for run in results)
    ]


def _row(method: Method, found: list[Mapping[str, Any]]) -> Row:
    accuracy = mean([result["last"]["test_accuracy"] for result in found])
    learnt = mean([result["last"]["wrong_accuracy"] for result in found]).value
    gradients = sum(result["cost"] for result in found)
    steps = sum(result["steps"] for result in found)
    return Row(method, accuracy, learnt, gradients / steps, gradients / len(found))


def table(results: Finished) -> Table:
    """What came out.

    Args:
        results: finished runs.

    Returns:
        To be printed.
    """
    task = next(iter(results)).task
    title = f"{100 * task.wrong:g} % of the training labels wrong, {task.epochs} epochs"
    drawn = Table(title=title, box=box.SIMPLE_HEAD, collapse_padding=True)
    for head in (*HEADS, *COSTS):
        drawn.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
    for row in rows(results):
        drawn.add_row(*row.cells)
    return drawn


def verdicts(results: Finished) -> Iterator[str]:
    """Who is ahead of whom, if that can be told: paired by seed, p-values adjusted by Holm.

    Args:
        results: finished runs.

    Yields:
        A sentence for each pair of methods.
    """
    by_method: dict[str, dict[int, float]] = {}
    for run, result in results.items():
        accuracy = by_method.setdefault(name_of(run.method), {})
        accuracy[run.seed] = result["last"]["test_accuracy"]
    found = {pair: paired(*(by_method.get(name, {}) for name in pair)) for pair in PAIRS}
    compared = {pair: one for pair, one in found.items() if one is not None}
    adjusted = holm({pair: one.p for pair, one in compared.items()})
    for pair, one in compared.items():
        d, says = one.difference, SAYS[standing(one, adjusted[pair])].format(*pair)
        gap = f"{d.value:+.1f} points (95 % interval {d.low:+.1f} to {d.high:+.1f})"
        yield f"{pair[0]} − {pair[1]} = {gap}: {says}."


def tell(results: Finished) -> None:
    """Prints the table and what it says.

    Args:
        results: finished runs.
    """
    console = Console()
    console.print(table(results))
    told = "Mean ± 95 % t-interval over n seeds at the last epoch; differences are paired by seed."
    console.print("\n".join([told, *verdicts(results)]), highlight=False)


def can_show_pages() -> bool:
    """Whether there is somebody to open a browser for.

    Returns:
        Not in CI, not without a terminal, not without a display.
    """
    display = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return display and sys.stdout.isatty() and not os.environ.get("CI")


def show_page(path: Path, wanted: bool = True) -> None:
    """Opens a page in the browser, and says where it is.

    Args:
        path: the page.
        wanted: False only says where.
    """
    opened = wanted and can_show_pages() and webbrowser.open(path.as_uri())
    print(f"{'Opened' if opened else 'The report:'} {path}")
