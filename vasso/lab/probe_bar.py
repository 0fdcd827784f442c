"""How far is a probe? A bar with an estimate of the time left."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vasso.lab.display import Shown
from vasso.lab.probing import Silent


class Bar(Shown, Silent):
    """A bar on a terminal with an estimate of the time left; elsewhere nothing."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("probe", total=None)
        self.costs: dict[str, float] = {}
        self.done = self.within = self.of_this = 0.0

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def plan(self, costs: dict[str, float]) -> None:
        """What each measure will cost, about.

        Args:
            costs: measure -> cost.
        """
        self.costs = costs
        self.progress.update(self.task, total=sum(costs.values()))

    def begin(self, name: str) -> None:
        """A measure begins.

        Args:
            name: which.
        """
        self.within, self.of_this = 0.0, self.costs[name]
        self.progress.update(self.task, description=f"{name:<12}")

    def tick(self, cost: float) -> None:
        """A pass has begun.

        Args:
            cost: of it.
        """
        self.within = min(self.within + cost, self.of_this)  # an estimate may be too low
        self.progress.update(self.task, completed=self.done + self.within)

    def end(self, name: str) -> None:
        """A measure has ended.

        Args:
            name: which.
        """
        self.done += self.of_this
        self.progress.update(self.task, completed=self.done)
