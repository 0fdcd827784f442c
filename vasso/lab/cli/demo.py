"""`vasso demo`: SGD, SAM and VaSSO on digits of which half the training labels are wrong.

Its runs are those of the study `noisy-digits`. The study `noisy-digits-radius` chose rho for each
method on validation images of other seeds. Each method has its own rho because an averaged slope
turns less of rho into a rise of the loss: at a common rho the comparison can come out either way.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from vasso.lab.cli.errors import FAILED, say, usage_errors
from vasso.lab.cli.paths import Jobs, ResultsOption
from vasso.lab.cli.study import report_outcome
from vasso.lab.execution.placement import Placement
from vasso.lab.experiment.method import MethodConfig
from vasso.lab.experiment.run import Run
from vasso.lab.schema import assignments
from vasso.lab.store.store import STORE, Store, run_status
from vasso.lab.studies import study as studies
from vasso.lab.training.options import RunOptions
from vasso.lab.training.setup import prepare_data
from vasso.parts.part import Range

if TYPE_CHECKING:
    from vasso.diagnostics.estimates import Estimate
    from vasso.lab.statistics import Standing

STUDY = "noisy-digits"
JOBS = min(2, os.cpu_count() or 1)
PAIRS = (("SAM", "SGD"), ("VaSSO", "SAM"))
SHARES = {0.25: "a quarter", 0.5: "half", 0.75: "three quarters"}
LEARNS, IGNORES = 20.0, 10.0
"""From this share of the wrong labels on a method is said to learn them, up to this to ignore them,
in %."""
VERDICTS: Mapping[Standing, str] = {
    "ahead": "{0} is ahead of {1} here",
    "behind": "{0} is behind {1} here",
    "no significant difference": "no significant difference between {0} and {1}",
    "too few seeds": "too few seeds to compare {0} and {1}, at least three are needed",
}
HEADS = ("method", "rho", "theta", "n", "test\naccuracy %", "wrong labels\nlearnt %")
COSTS = ("gradients\na step", "gradients\nin all")
FOOTNOTE = "Mean ± 95 % t-interval over n seeds at the last epoch; differences are paired by seed."

Finished: TypeAlias = Mapping[Run, Mapping[str, Any]]
"""run -> its result, as a store keeps it."""


@dataclass(frozen=True)
class DemoCommand:
    """Trains SGD, SAM and VaSSO on digits with half of the labels wrong: about two minutes.

    Ctrl-C stops it; run the same command again to continue.

    Try:
        vasso demo
        vasso demo --seeds 3 --no-open
        vasso demo --jobs 4 --store somewhere/else
    """

    seeds: int = 10
    """runs of each method"""
    jobs: Jobs = JOBS
    store: ResultsOption = STORE / "demo"
    open: bool = True
    """show the report in a browser, where there is a display"""
    set: tuple[str, ...] = ()
    """settings to change in every run that has them, as name=value; rho was chosen without"""

    def __call__(self) -> int:
        """Trains what is missing, prints the table, writes the report; returns the exit code."""
        from vasso.lab.report.findings import findings
        from vasso.lab.report.page import write_page

        with usage_errors():
            runs = studies.changed(planned(self.seeds), assignments(self.set))
            Range(least=1).check("jobs", self.jobs)
            prepare_data([run.task for run in runs], None)
            store = Store(self.store)
        if self.set:
            store.note_change(STUDY, "cpu", self.set)
        code = self.train(runs, store)
        results = run_status(runs, store).done
        if code == 0 and results:
            print_results(results)
            show_page(write_page(findings(self.store), store.root / "report.html"), self.open)
        return code

    def train(self, runs: list[Run], store: Store) -> int:
        """Trains what is missing, with a bar for each method; returns the exit code."""
        from vasso.lab.cli.display import MethodBars

        found = run_status(runs, store)
        counts = f"{len(runs)} runs, {len(found.missing)} to do{found.rest}"
        say("\n".join([studies.load(STUDY).question, *found.warnings(), counts]))
        wrong = FAILED if found.unread else 0
        if not found.missing:
            return wrong
        with MethodBars(runs, found.done) as bars:
            options = RunOptions(accelerator="cpu")
            outcome = Placement().train(found.missing, store.root, options, self.jobs, bars)
        return report_outcome(outcome, len(found.missing)) or wrong


def planned(seeds: int) -> list[Run]:
    """The runs of the demo for seeds 0, 1, ...: all methods of a seed together."""
    Range(least=2, most=1000).check("seeds", seeds)
    cells = dict.fromkeys((run.task, run.method) for run in studies.load(STUDY).at("cpu").runs)
    return [Run(task, method, seed) for seed in range(seeds) for task, method in cells]


def method_name(method: MethodConfig) -> str:
    """The name of a method without its settings, or that of the base."""
    return method.base if method.entry is None else method.name


@dataclass(frozen=True)
class Row:
    """The results of one method over its seeds, in %; `learnt` is the share of wrong labels learnt.

    `per_step` and `gradients` count gradient evaluations of a step and of a run.
    """

    method: MethodConfig
    accuracy: Estimate
    learnt: float
    per_step: float
    gradients: float

    @property
    def cells(self) -> tuple[str, ...]:
        settings = dict(self.method.settings)
        rho, theta = settings.get("rho"), settings.get("theta", 1)
        chosen = (f"{rho:g}", f"{theta:g}") if rho else ("–", "–")
        half = self.accuracy.high - self.accuracy.value
        numbers = f"{self.accuracy.n:.0f}", f"{self.accuracy.value:.1f} ± {half:.1f}"
        spent = f"{self.learnt:.1f}", f"{self.per_step:g}", f"{self.gradients:,.0f}"
        return method_name(self.method), *chosen, *numbers, *spent


def rows(results: Finished) -> list[Row]:
    """A row for each method, in the order of the runs."""
    return [
        _row(method, [found for run, found in results.items() if run.method == method])
        for method in dict.fromkeys(run.method for run in results)
    ]


def _row(method: MethodConfig, found: list[Mapping[str, Any]]) -> Row:
    from vasso.lab.statistics import mean  # imports scipy: slow

    accuracy = mean([result["last"]["test_accuracy"] for result in found])
    learnt = mean([result["last"]["wrong_accuracy"] for result in found]).value
    gradients = sum(result["cost"] for result in found)
    steps = sum(result["steps"] for result in found)
    return Row(method, accuracy, learnt, gradients / steps, gradients / len(found))


def verdicts(results: Finished) -> Iterator[str]:
    """A sentence for each pair of methods: paired by seed, p-values adjusted by Holm."""
    from vasso.lab.statistics import holm, paired, standing

    by_method: dict[str, dict[int, float]] = {}
    for run, result in results.items():
        accuracy = by_method.setdefault(method_name(run.method), {})
        accuracy[run.seed] = result["last"]["test_accuracy"]
    found = {pair: paired(*(by_method.get(name, {}) for name in pair)) for pair in PAIRS}
    compared = {pair: one for pair, one in found.items() if one is not None}
    adjusted = holm({pair: one.p for pair, one in compared.items()})
    for pair, one in compared.items():
        d, verdict = one.difference, VERDICTS[standing(one, adjusted[pair])].format(*pair)
        gap = f"{d.value:+.1f} points (95 % confidence interval {d.low:+.1f} to {d.high:+.1f})"
        yield f"{pair[0]} − {pair[1]} = {gap}: {verdict}."


def lesson(results: Finished) -> str:
    """What SGD and VaSSO make of the wrong labels, in two sentences; their test accuracies."""
    task = next(iter(results)).task
    share = SHARES.get(task.wrong, f"{100 * task.wrong:g} %")
    found = {method_name(row.method): row for row in rows(results)}
    said = [_fate(found[name].learnt) for name in ("SGD", "VaSSO")]
    sgd, vasso = (f"{found[name].accuracy.value:.0f} %" for name in ("SGD", "VaSSO"))
    also = " too" if said[0] == said[1] else ""
    return (
        f"With {share} of the labels wrong, plain SGD {said[0]} the wrong labels: {sgd} of the "
        f"test images right. VaSSO {said[1]} them{also}: {vasso}."
    )


def _fate(learnt: float) -> str:
    return "learns" if learnt >= LEARNS else "ignores" if learnt <= IGNORES else "learns some of"


def print_results(results: Finished) -> None:
    task = next(iter(results)).task
    title = f"{100 * task.wrong:g} % of the training labels wrong, {task.epochs} epochs"
    table = Table(title=title, box=box.SIMPLE_HEAD, collapse_padding=True)
    for head in (*HEADS, *COSTS):
        table.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
    for row in rows(results):
        table.add_row(*row.cells)
    console = Console()
    console.print(table)
    for text in (FOOTNOTE, *verdicts(results), f"\n[bold]{lesson(results)}[/bold]"):
        console.print(text, highlight=False, soft_wrap=True)


def can_open_browser() -> bool:
    """Whether there is a terminal and a display, outside of CI."""
    display = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return display and sys.stdout.isatty() and not os.environ.get("CI")


def show_page(path: Path, wanted: bool = True) -> None:
    """Opens a page in the browser if that is wanted and possible, and prints its path."""
    opened = wanted and can_open_browser() and webbrowser.open(path.as_uri())
    print(f"{'Opened' if opened else 'The report:'} {path}")
