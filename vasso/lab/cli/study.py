"""`vasso study`: trains the missing runs of a study in parallel, then measures them."""

import shlex
from dataclasses import dataclass, field, replace
from typing import Any

import tyro
from rich.console import Console

from vasso.lab.cli.errors import FAILED, INTERRUPTED, say, usage_errors
from vasso.lab.cli.paths import Jobs, ResultsOption
from vasso.lab.execution.engine import Outcome
from vasso.lab.execution.placement import Placement
from vasso.lab.experiment.run import Run
from vasso.lab.schema import UnsupportedError, assignments
from vasso.lab.store.store import STORE, RunStatus, Store, run_status
from vasso.lab.studies import measurement_settings
from vasso.lab.studies import study as studies
from vasso.lab.training.options import RunOptions
from vasso.lab.training.setup import prepare_data


@dataclass(frozen=True)
class StudyCommand:
    """Trains the missing runs of a study: one that comes with the package, or a TOML file.

    Ctrl-C stops it; run the same command again to continue.

    Try:
        vasso study label-noise --scale cpu --jobs 2
        vasso study label-noise --scale paper --on slurm --gpus-per-run 1 --time 12:00:00
        vasso study radius --seeds 0 1 --set epochs=12
        vasso study my-study.toml --dry-run
    """

    name: tyro.conf.Positional[str]
    """name of a study, or path of a TOML file"""
    scale: str = "cpu"
    """paper: the authors' settings, for a GPU; desk: all images and a small network, some minutes a
    run on one core; cpu: fewer images, about a minute a run"""
    jobs: Jobs = 1
    seeds: tuple[int, ...] = ()
    """seeds to use instead of the study's"""
    set: tuple[str, ...] = ()
    """settings to change in every run that has them, as name=value"""
    only: str = ""
    """only runs whose id contains this text"""
    dry_run: bool = False
    """list the runs and which are missing; train nothing"""
    store: ResultsOption = STORE
    execution: tyro.conf.OmitArgPrefixes[RunOptions] = field(default_factory=RunOptions)
    placement: tyro.conf.OmitArgPrefixes[Placement] = field(default_factory=Placement)

    def __call__(self) -> int:
        with usage_errors():
            study = studies.load(self.name)
            runs = self.runs(study)
            self.execution.check()
            self.placement.check(self.execution)
            if self.dry_run:
                return self.show(study, runs)
            from vasso.lab.training.host import (  # imports Fabric: slow
                check_accelerator,
                check_strategy,
            )

            check_accelerator(self.execution.accelerator)
            check_strategy(self.execution.strategy)
            study.check_supported(self.scale)
            settings = self.settings(study, runs)
            prepare_data([run.task for run in runs], self.execution.data_root)
            store = Store(self.store)
        planned = list(study.at(self.scale).runs)
        if studies.changed(planned, assignments(self.set)) != planned:
            store.note_change(study.name, self.scale, self.set)
        found = run_status(runs, store, results=False)
        counts = f"{len(runs)} runs, {len(found.missing)} to do{found.rest}, into {store.root}"
        say("\n".join([study.question, *found.warnings(), counts]))
        code = train_all(found.missing, store, self.execution, self.jobs, self.placement)
        if settings is not None and code != INTERRUPTED:
            measured = measure_all(settings, runs, store, self.execution)
            code = code or measured
        if code == 0 and runs:
            say(f"Next: {shlex.join(['vasso', 'report', str(self.store), '--study', self.name])}")
        return code or (FAILED if found.unread else 0)

    def settings(
        self, study: studies.Study, runs: list[Run]
    ) -> measurement_settings.Settings | None:
        """Settings of the measurement; None for a study that measures accuracy alone."""
        if study.measure not in measurement_settings.MEASURES:
            return None
        table, where = study.at(self.scale).measurement, f"study {study.name}, measurement"
        return measurement_settings.parse_settings(study.measure, table, runs, where)

    def runs(self, study: studies.Study) -> list[Run]:
        """The runs asked for, with the given seeds and settings; a ValueError if there is none."""
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
        """Prints the status of each run and returns the exit code."""
        exists = self.store.exists()
        store = Store(self.store, writes=False) if exists else None
        found = run_status(runs, store, results=False) if store else RunStatus(missing=runs)
        for run in runs:
            print(f"{found.status_of(run):<7}", run.id)
        if runs:
            counts = f"{len(found.done)} done, {len(found.missing)} missing{found.rest}"
            say("\n".join([*found.warnings(), f"{len(runs)} runs, {counts}"]))
        else:
            say(f"{study.name} trains nothing: without --dry-run it measures the {study.measure}")
        try:
            study.check_supported(self.scale)
        except UnsupportedError as error:
            say(str(error))
        else:
            say("Next: the same command without --dry-run")
        return FAILED if found.unread else 0


def train_all(
    runs: list[Run], store: Store, options: RunOptions, jobs: int, placement: Placement
) -> int:
    """Trains runs, here `jobs` of them in parallel, and returns the exit code."""
    from vasso.lab.cli.display import RunBars

    if not runs:
        return 0
    with RunBars(len(runs)) as bars:
        outcome = placement.train(runs, store.root, options, jobs, bars)
    return report_outcome(outcome, len(runs))


def report_outcome(outcome: Outcome, wanted: int) -> int:
    """Says which runs failed and how many are left; returns the exit code."""
    for run, reason in outcome.failed:
        say(f"\n{run.id} failed: {reason}")
    if outcome.busy:
        say(f"runs in training by another process: {len(outcome.busy)}")
    if outcome.checkpoints:
        say(f"stopped; runs with a checkpoint: {len(outcome.checkpoints)}")
    left = wanted - len(outcome.done)
    if left:
        say(f"{left} of {wanted} runs are left: run the same command again to continue")
    if outcome.stopped:
        return INTERRUPTED
    return FAILED if left else 0


def measure_all(
    settings: measurement_settings.Settings, runs: list[Run], store: Store, options: RunOptions
) -> int:
    """Measures what is missing of the finished runs, prints all, and returns the exit code."""
    from vasso.lab.report.terminal import measurement_table
    from vasso.lab.studies.measurements import run_measurements
    from vasso.lab.training.host import start_fabric

    finished = list(run_status(runs, store, results=False).done)
    if runs and not finished:
        say("no run is finished: there is nothing to measure yet")
        return 0
    one = replace(options, devices=1, strategy="auto")
    device = start_fabric(one, "32-true").device if finished else "cpu"
    failures: list[str] = []
    given: Any = {"data_root": one.data_root, "device": device, "log": say, "failures": failures}
    rows = run_measurements(settings, finished, store, **given)
    for failure in failures:
        say(f"vasso: not measured: {failure}")
    if not rows:
        say("there is nothing to show")
        return FAILED if failures else 0
    console = Console()
    console.width = max(console.width, 130)  # a table that is cut off is of no use
    console.print(measurement_table(settings, rows))
    return FAILED if failures else 0
