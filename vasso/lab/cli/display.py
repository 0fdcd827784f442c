"""Progress on the terminal: bars for runs in training, for the methods of the demo, for a probe."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vasso.lab.experiment.run import Run


class Bars:
    """Bars on standard error while the block runs; no bars where that is not a terminal.

    `ended_runs` and `total` count runs, for a line now and then where there are no bars.
    """

    ended_runs = total = 0

    def __init__(self, console: Console | None, *columns: ProgressColumn) -> None:
        self.console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def note_end(self, run: Run, outcome: str, detail: Any) -> None:
        """Prints a single run, and what has failed; without bars, how far all are, ten times."""
        self.ended_runs += 1
        if self.total == 1 or outcome != "done":
            line = outcome_line(run, outcome, detail)
            self.console.print(line, highlight=False, soft_wrap=True)
        elif not self.console.is_terminal and self._is_tenth():
            line = f"{self.ended_runs} of {self.total} runs"
            self.console.print(line, highlight=False)

    def note_lost(self, run: Run, why: str) -> None:
        """Prints that a run will be trained again, and why."""
        self.console.print(outcome_line(run, "lost", why), highlight=False, soft_wrap=True)

    def _is_tenth(self) -> bool:
        ended, total = self.ended_runs, self.total
        return 10 * ended // total > 10 * (ended - 1) // total


class RunBars(Bars):
    """A bar for each worker and one for all `total` runs."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        super().__init__(console, MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self.total, self.done = total, 0
        self.overall: TaskID | None = None
        self.bars: dict[int, TaskID] = {}
        self.shares: dict[int, float] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        if self.total > 1:
            self.overall = self.progress.add_task("all runs", total=self.total)
        return self

    def started(self, job: int, run: Run) -> None:
        if job in self.bars:
            self.progress.remove_task(self.bars[job])
        self.bars[job] = self.progress.add_task(f"{run.method.label} s{run.seed}", total=None)
        self.shares[job] = 0.0

    def advanced(self, job: int, step: int, total: int) -> None:
        ids = [task.id for task in self.progress.tasks]
        if self.progress.tasks[ids.index(self.bars[job])].total is None:
            self.progress.reset(self.bars[job], total=total, completed=step)
        self.progress.update(self.bars[job], completed=step, total=total)
        self.shares[job] = step / total
        self._update_overall()

    def lost(self, job: int, run: Run, why: str) -> None:
        self.shares[job] = 0.0
        self._update_overall()
        self.note_lost(run, why)

    def ended(self, job: int, run: Run, outcome: str, detail: Any) -> None:
        self.shares[job] = 0.0
        self.done += outcome == "done"
        self._update_overall()
        self.note_end(run, outcome, detail)

    def _update_overall(self) -> None:
        if self.overall is not None:
            self.progress.update(self.overall, completed=self.done + sum(self.shares.values()))


class MethodBars(Bars):
    """A bar for each method with its mean accuracy so far; `done` are results of earlier runs."""

    def __init__(
        self,
        runs: Iterable[Run],
        done: Mapping[Run, Mapping[str, Any]],
        console: Console | None = None,
    ) -> None:
        super().__init__(console, MofNCompleteColumn(), TextColumn("{task.fields[accuracy]}"))
        self.labels = [run.method.label for run in runs]
        self.total, self.ended_runs = len(self.labels), len(done)
        self.accuracies: dict[str, list[float]] = {label: [] for label in self.labels}
        self.bars: dict[str, TaskID] = {}
        self.running: dict[int, tuple[str, float]] = {}
        for run, result in done.items():
            self.accuracies[run.method.label].append(result["last"]["test_accuracy"])

    def __enter__(self) -> Self:
        for label in self.accuracies:
            total = self.labels.count(label)
            self.bars[label] = self.progress.add_task(label, total=total, accuracy="")
            self._update(label)
        return super().__enter__()

    def started(self, job: int, run: Run) -> None:
        self.running[job] = run.method.label, 0.0

    def advanced(self, job: int, step: int, total: int) -> None:
        label, _ = self.running[job]
        self.running[job] = label, step / total
        self._update(label)

    def lost(self, job: int, run: Run, why: str) -> None:
        del self.running[job]
        self._update(run.method.label)
        self.note_lost(run, why)

    def ended(self, job: int, run: Run, outcome: str, detail: Any) -> None:
        del self.running[job]
        if outcome == "done":
            self.accuracies[run.method.label].append(detail["last"]["test_accuracy"])
        self._update(run.method.label)
        self.note_end(run, outcome, detail)

    def _update(self, label: str) -> None:
        found = self.accuracies[label]
        share = sum(share for other, share in self.running.values() if other == label)
        text = f"accuracy {fmean(found):.1f} %" if found else ""
        self.progress.update(self.bars[label], completed=len(found) + share, accuracy=text)


class ProbeBar(Bars):
    """One bar for a probe, with an estimate of the time left."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self.task = self.progress.add_task("probe", total=None)
        self.costs: dict[str, float] = {}
        self.done = self.spent = self.expected = 0.0

    def plan(self, costs: dict[str, float]) -> None:
        self.costs = costs
        self.progress.update(self.task, total=sum(costs.values()))

    def begin(self, name: str) -> None:
        self.spent, self.expected = 0.0, self.costs[name]
        self.progress.update(self.task, description=f"{name:<12}")

    def tick(self, cost: float) -> None:
        self.spent = min(self.spent + cost, self.expected)  # an estimate may be too low
        self.progress.update(self.task, completed=self.done + self.spent)

    def end(self, name: str) -> None:
        self.done += self.expected
        self.progress.update(self.task, completed=self.done)


def outcome_line(run: Run, outcome: str, detail: Any) -> str:
    """How a run has ended, on one line for rich's console."""
    return f"{outcome:<8}{escape(run.id)}  {escape(describe_outcome(detail))}"


def describe_outcome(detail: Any) -> str:
    """A result in a few words, or the first line of a reason."""
    if not isinstance(detail, dict):
        return str(detail).strip().splitlines()[0] if str(detail).strip() else ""
    last, best = detail["last"], detail["best"]
    words = [f"test accuracy {percent(last.get('test_accuracy'))} (last epoch)"]
    if best is not None:
        chosen = f"epoch {best['epoch']}, chosen by validation"
        words.append(f"{percent(best['test_accuracy'])} ({chosen})")
    words.append(f"{detail['cost']:.0f} gradients in {detail['seconds']:.0f} s")
    if detail.get("skipped"):
        words.append(f"{detail['skipped']} steps skipped: gradients were not finite")
    return ", ".join(words)


def percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f} %"
