"""The command `vasso demo`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vasso.lab import study as studies
from vasso.lab.census import census
from vasso.lab.exits import FAILED
from vasso.lab.jobs import Crew
from vasso.lab.place import STORE, Place
from vasso.lab.runs import Run
from vasso.lab.settings import assignments
from vasso.lab.store import Store
from vasso.lab.tasks import prepare_data
from vasso.lab.usage import concluded, say, usage
from vasso.parts import Range


@dataclass(frozen=True)
class Demo:
    """Digits with half of the labels wrong, learnt with SGD, SAM and VaSSO: about two minutes.

    Stop it with Ctrl-C and give the same command again: it goes on where it was.

    Try:
        vasso demo
        vasso demo --seeds 3 --no-open
        vasso demo --jobs 4 --store somewhere/else
    """

    seeds: int = 10
    """runs of each method"""
    jobs: int = min(2, os.cpu_count() or 1)
    """runs side by side, each a process with one thread"""
    store: Path = STORE / "demo"
    """directory for results"""
    open: bool = True
    """show the report in a browser, where there is a display"""
    set: tuple[str, ...] = ()
    """settings to change in every run that has them, as name=value; rho was chosen without"""

    def __call__(self) -> int:
        """Trains what is missing, then prints the table and writes the report.

        Returns:
            The exit code.
        """
        from vasso.lab import demo
        from vasso.lab.report import write_report

        with usage():
            runs = studies.changed(demo.planned(self.seeds), assignments(self.set))
            Range(least=1).check("jobs", self.jobs)
            prepare_data([run.task for run in runs], None)
            store = Store(self.store)
        code = self.train(runs, store)
        results = demo.finished(store, runs)
        if code == 0 and results:
            demo.tell(results)
            page = store.root / "report.html"
            write_report(self.store, page)
            demo.show_page(page, self.open)
        return code

    def train(self, runs: list[Run], store: Store) -> int:
        """Trains what is missing, with a bar for each method.

        Args:
            runs: all of them.
            store: where their results go.

        Returns:
            The exit code.
        """
        from vasso.lab.demo import STUDY
        from vasso.lab.display import MethodBars

        found = census(runs, store)
        counts = f"{len(runs)} runs, {len(found.missing)} to do{found.rest}"
        say("\n".join([studies.load(STUDY).question, *found.complaints(), counts]))
        wrong = FAILED if found.unread else 0
        if not found.missing:
            return wrong
        with MethodBars(runs, found.done) as bars:
            how = Place(accelerator="cpu").how()
            outcome = Crew(store.root, how, self.jobs, bars).work(found.missing)
        return concluded(outcome, len(found.missing)) or wrong
