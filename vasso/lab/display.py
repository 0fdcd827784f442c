"""What does one see while runs are trained? A bar for each job, or one for each method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vasso.lab.runs import Run


class Shown:
    """Bars that are taken down at the end, whatever happened."""

    progress: Progress

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()


class Bars(Shown):
    """Bars on a terminal; elsewhere a line for each run that has ended.

    Args:
        total: how many runs there are to do.
        console: where to.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.total, self.done = total, 0
        self.overall: TaskID | None = None
        self.bars: dict[int, TaskID] = {}
        self.shares: dict[int, float] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        if self.total > 1:
            self.overall = self.progress.add_task("all runs", total=self.total)
        return self

    def begun(self, job: int, run: Run) -> None:
        """A worker takes up a run.

        Args:
            job: its number.
            run: the run.
        """
        if job in self.bars:
            self.progress.remove_task(self.bars[job])
        self.bars[job] = self.progress.add_task(f"{run.method.label} s{run.seed}", total=None)
        self.shares[job] = 0.0

    def at(self, job: int, step: int, total: int) -> None:
        """How far its run is.

        Args:
            job: its number.
            step: completed steps.
            total: all steps.
        """
        if self.progress.tasks[self._place(job)].total is None:
            self.progress.reset(self.bars[job], total=total, completed=step)
        self.progress.update(self.bars[job], completed=step, total=total)
        self.shares[job] = step / total
        self._update_overall()

    def ended(self, job: int, run: Run, outcome: str, detail: Any) -> None:
        """A run has ended.

        Args:
            job: its number.
            run: the run.
            outcome: done, busy, failed or stopped.
            detail: the result, or why.
        """
        self.shares[job] = 0.0
        self.done += outcome == "done"
        self._update_overall()
        self.console.print(ending(run, outcome, detail), highlight=False)

    def _place(self, job: int) -> int:
        return [task.id for task in self.progress.tasks].index(self.bars[job])

    def _update_overall(self) -> None:
        if self.overall is not None:
            self.progress.update(self.overall, completed=self.done + sum(self.shares.values()))


class MethodBars(Shown):
    """A bar for each method, with its accuracy so far; off a terminal a line for each ended run.

    Args:
        runs: all there are.
        done: those that had ended before, with their results.
        console: where to.
    """

    def __init__(
        self,
        runs: Iterable[Run],
        done: Mapping[Run, Mapping[str, Any]],
        console: Console | None = None,
    ) -> None:
        self.console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.wanted = [run.method.label for run in runs]
        self.right: dict[str, list[float]] = {label: [] for label in self.wanted}
        self.bars: dict[str, TaskID] = {}
        self.under_way: dict[int, tuple[str, float]] = {}
        for run, result in done.items():
            self.right[run.method.label].append(result["last"]["test_accuracy"])

    def __enter__(self) -> MethodBars:
        for label in self.right:
            total = self.wanted.count(label)
            self.bars[label] = self.progress.add_task(label, total=total, said="")
            self._update(label)
        self.progress.start()
        return self

    def begun(self, job: int, run: Run) -> None:
        """A worker takes up a run.

        Args:
            job: its number.
            run: the run.
        """
        self.under_way[job] = run.method.label, 0.0

    def at(self, job: int, step: int, total: int) -> None:
        """How far its run is.

        Args:
            job: its number.
            step: completed steps.
            total: all steps.
        """
        label, _ = self.under_way[job]
        self.under_way[job] = label, step / total
        self._update(label)

    def ended(self, job: int, run: Run, outcome: str, detail: Any) -> None:
        """A run has ended.

        Args:
            job: its number.
            run: the run.
            outcome: done, busy, failed or stopped.
            detail: the result, or why.
        """
        del self.under_way[job]
        if outcome == "done":
            self.right[run.method.label].append(detail["last"]["test_accuracy"])
        self._update(run.method.label)
        if not self.console.is_terminal:
            self.console.print(ending(run, outcome, detail), highlight=False)

    def _update(self, label: str) -> None:
        right = self.right[label]
        share = sum(share for other, share in self.under_way.values() if other == label)
        said = f"{fmean(right):.1f} % right" if right else ""
        self.progress.update(self.bars[label], completed=len(right) + share, said=said)


def ending(run: Run, outcome: str, detail: Any) -> str:
    """How a run has ended, on one line.

    Args:
        run: the run.
        outcome: done, busy, failed or stopped.
        detail: the result, or why.

    Returns:
        Fit for rich's console.
    """
    return f"{outcome:<8}{escape(run.id)}  {escape(told(detail))}"


def told(detail: Any) -> str:
    """A result in a few words, or the first line of a reason.

    Args:
        detail: what a run has ended with.

    Returns:
        One line.
    """
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
    """A share in %.

    Args:
        value: times 100.

    Returns:
        With two digits.
    """
    return "not measured" if value is None else f"{value:.2f} %"
