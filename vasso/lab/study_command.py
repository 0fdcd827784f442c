"""The command `vasso study`: many runs in processes of their own, and what is measured of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tyro
from rich.console import Console

from vasso.lab import measures
from vasso.lab import study as studies
from vasso.lab.census import Census, census
from vasso.lab.exits import FAILED, INTERRUPTED
from vasso.lab.jobs import Crew
from vasso.lab.place import Place
from vasso.lab.runs import Run
from vasso.lab.settings import assignments
from vasso.lab.store import Store
from vasso.lab.tasks import NotThereYetError, prepare_data
from vasso.lab.usage import concluded, say, usage


@dataclass(frozen=True)
class Study:
    """Trains what is missing of a study: one that comes with the package, or a TOML file.

    Stop it with Ctrl-C and give the same command again: it goes on where it was.

    Try:
        vasso study label-noise --scale cpu --jobs 2
        vasso study radius --seeds 0 1 --set epochs=12
        vasso study my-study.toml --dry-run
    """

    name: tyro.conf.Positional[str]
    """name of a study, or path of a TOML file"""
    scale: str = "cpu"
    """paper: the authors' settings, for a GPU; cpu: the same question on a small machine"""
    jobs: int = 1
    """runs side by side, each a process with one thread"""
    seeds: tuple[int, ...] = ()
    """other seeds than the study's"""
    set: tuple[str, ...] = ()
    """settings to change in every run that has them, as name=value"""
    only: str = ""
    """only runs whose id contains this"""
    dry_run: bool = False
    """show the runs and what is missing, train nothing"""
    place: tyro.conf.OmitArgPrefixes[Place] = field(default_factory=Place)

    def __call__(self) -> int:
        """Trains what is missing.

        Returns:
            The exit code.
        """
        with usage():
            study = studies.load(self.name)
            runs = self.runs(study)
            how = self.place.how()
            if self.dry_run:
                return self.show(study, runs)
            from vasso.lab.accelerators import check_accelerator, check_strategy  # imports Fabric

            check_accelerator(self.place.accelerator)
            check_strategy(self.place.strategy)
            study.check_is_there(self.scale)
            settings = self.settings(study, runs)
            prepare_data([run.task for run in runs], self.place.data_root)
            store = Store(self.place.store)
        found = census(runs, store)
        counts = f"{len(runs)} runs, {len(found.missing)} to do{found.rest}, into {store.root}"
        say("\n".join([study.question, *found.complaints(), counts]))
        code = train_all(found.missing, store, how, self.jobs)
        if settings is not None and code != INTERRUPTED:
            measure_all(settings, runs, store, how)
        return code or (FAILED if found.unread else 0)

    def settings(self, study: studies.Study, runs: list[Run]) -> measures.Settings | None:
        """What is to be measured of the runs.

        Args:
            study: the study.
            runs: those asked for.

        Returns:
            Settings of the measurement; None where accuracy is all.
        """
        if study.measure not in measures.MEASURES:
            return None
        table, where = study.at(self.scale).measurement, f"study {study.name}, measurement"
        return measures.settings_of(study.measure, table, runs, where)

    def runs(self, study: studies.Study) -> list[Run]:
        """The runs that are asked for.

        Args:
            study: the study.

        Returns:
            With other seeds and settings where wanted.

        Raises:
            ValueError: there is none, or a setting is wrong.
        """
        if self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}")
        runs = list(study.at(self.scale).runs)
        if not runs and not (self.seeds or self.set or self.only):
            return []  # a study that trains nothing
        if self.seeds:
            each = (studies.changed(runs, {"seed": seed}) for seed in self.seeds)
            runs = list({run.id: run for some in each for run in some}.values())
        runs = studies.changed(runs, assignments(self.set))
        chosen = [run for run in runs if self.only.casefold() in run.id]
        if not chosen:
            raise ValueError(f"no run of {study.name} has {self.only!r} in its id: try --dry-run")
        return chosen

    def show(self, study: studies.Study, runs: list[Run]) -> int:
        """Prints the runs.

        Args:
            study: the study.
            runs: those asked for.

        Returns:
            The exit code.
        """
        is_there = self.place.store.exists()
        found = census(runs, Store(self.place.store)) if is_there else Census(missing=runs)
        for run in runs:
            print(f"{found.word(run):<7}", run.id)
        if runs:
            counts = f"{len(found.done)} done, {len(found.missing)} missing{found.rest}"
            say("\n".join([*found.complaints(), f"{len(runs)} runs, {counts}"]))
        else:
            say(f"{study.name} trains nothing: without --dry-run it measures the {study.measure}")
        try:
            study.check_is_there(self.scale)
        except NotThereYetError as reason:
            say(str(reason))
        return FAILED if found.unread else 0


def train_all(runs: list[Run], store: Store, how: dict[str, Any], jobs: int) -> int:
    """Trains runs in processes of their own.

    Args:
        runs: what is missing.
        store: where their results go.
        how: settings of `vasso.lab.how.How`.
        jobs: how many at a time.

    Returns:
        The exit code.
    """
    from vasso.lab.display import Bars

    if not runs:
        return 0
    with Bars(len(runs)) as bars:
        outcome = Crew(store.root, how, jobs, bars).work(runs)
    return concluded(outcome, len(runs))


def measure_all(
    settings: measures.Settings, runs: list[Run], store: Store, how: dict[str, Any]
) -> None:
    """Measures what is missing of finished runs, and shows all of it.

    Args:
        settings: of the measurement.
        runs: the runs; those that are not finished are passed over.
        store: where they are.
        how: settings of `vasso.lab.how.How`.
    """
    from vasso.lab.how import How
    from vasso.lab.measured import table
    from vasso.lab.measurements import measure

    finished = list(census(runs, store).done)
    if runs and not finished:
        say("no run is finished: there is nothing to measure yet")
        return
    one = How(**{**how, "devices": 1, "strategy": "auto"})
    device = one.fabric("32-true").device if finished else "cpu"
    rows = measure(settings, finished, store, data=one.data, device=device, tell=say)
    if not rows:
        say("there is nothing to show")
        return
    console = Console()
    console.width = max(console.width, 130)  # a table that is cut off is of no use
    console.print(table(settings, rows))
