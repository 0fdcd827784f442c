"""The command `vasso`: a demo, what there is, a run, a study, what runs say, a look at a model.

Every setting is checked before anything starts. Exit codes: 0 done, 1 something failed, 2 a setting
or a name is wrong, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from vasso.lab import measures
from vasso.lab import study as studies
from vasso.lab.catalogues import KINDS, about_study, listed
from vasso.lab.data import DataError
from vasso.lab.flags import RunFlags
from vasso.lab.jobs import Crew, Outcome
from vasso.lab.probe_command import Probe
from vasso.lab.report.command import Export, Report
from vasso.lab.runs import Run
from vasso.lab.settings import assignments, name_of
from vasso.lab.store import Store, StoreError
from vasso.lab.tasks import NotThereYetError, prepare_data
from vasso.lab.translate_command import Translate
from vasso.lab.usage import UsageError, say, usage
from vasso.parts import Range

STORE = Path("runs")
WRONG, FAILED, INTERRUPTED = 2, 1, 130


@dataclass(frozen=True)
class Place:
    """Where things are and how runs are carried out.

    Attributes:
        store: directory for results.
        data_root: directory of data sets; else VASSO_DATA, else the cache of the user.
        accelerator: cpu, cuda, ... as Lightning Fabric calls it.
        devices: processes of one run; more than one trains with DDP.
        strategy: auto, ddp, ... as Lightning Fabric calls it.
        checkpoint_steps: steps between checkpoints within an epoch, 0 for none.
        checkpoint_seconds: longest time between checkpoints.
        workers: processes that decode image files, where a data set is not in memory.
    """

    store: Path = STORE
    data_root: Path | None = None
    accelerator: str = "auto"
    devices: int = 1
    strategy: str = "auto"
    checkpoint_steps: int = 0
    checkpoint_seconds: float = 60.0
    workers: int = 4

    def how(self) -> dict[str, Any]:
        """Settings of `vasso.lab.training.How`.

        Returns:
            name -> value.

        Raises:
            ValueError: one is out of range.
        """
        for name in ("devices", "checkpoint_steps", "checkpoint_seconds", "workers"):
            if getattr(self, name) < (name == "devices"):
                raise ValueError(f"{name} must not be {getattr(self, name)}")
        if self.data_root is not None and not self.data_root.is_dir():
            raise ValueError(f"there is no data folder {str(self.data_root)!r}")
        rest = {
            key: value for key, value in vars(self).items() if key not in {"store", "data_root"}
        }
        return {"data": self.data_root, **rest}


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
            write_report(store.root, page)
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
        from vasso.lab.demo import STUDY, finished
        from vasso.lab.display import MethodBars

        done = finished(store, runs)
        missing = [run for run in runs if run not in done]
        say(f"{studies.load(STUDY).question}\n{len(runs)} runs, {len(missing)} to do")
        if not missing:
            return 0
        with MethodBars(runs, done) as bars:
            how = Place(accelerator="cpu").how()
            outcome = Crew(store.root, how, self.jobs, bars).work(missing)
        return concluded(outcome, len(missing))


@dataclass(frozen=True)
class List:
    """Shows what there is: methods, data, models or studies; or one study in full.

    Try:

        vasso list

        vasso list methods

        vasso list studies label-noise
    """

    kind: tyro.conf.Positional[str] = "studies"
    """methods, data, models or studies"""
    name: tyro.conf.Positional[str] = ""
    """a study, to see its question, its runs and the published figures"""

    def __call__(self) -> int:
        """Prints it.

        Returns:
            The exit code.
        """
        with usage():
            kind = name_of("list", self.kind, KINDS)
            found = studies.load(self.name) if self.name else None
        text = listed(kind) if found is None else about_study(found)
        Console().print(text, highlight=False, markup=False, soft_wrap=True)
        return 0


@dataclass(frozen=True)
class Train:
    """Trains one run, or goes on with it where it was left.

    Try:

        vasso train

        vasso train --method VaSSO --rho 0.1 --theta 0.4 --wrong 0.5 --epochs 20

        vasso train --data cifar10 --model resnet8 --size 16 --method LookSAM --set k=5 alpha=0.7

        vasso train --data my_module:my_data --model my_module:my_model --method SGD
    """

    run: tyro.conf.OmitArgPrefixes[RunFlags]
    place: tyro.conf.OmitArgPrefixes[Place] = field(default_factory=Place)

    def __call__(self) -> int:
        """Trains it.

        Returns:
            The exit code.
        """
        with usage():
            run = Run.of(self.run.as_tables())
            how = self.place.how()
            prepare_data([run.task], self.place.data_root)
            store = Store(self.place.store)
        return train_here(run, store, how)


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
            study.check_is_there(self.scale)
            settings = self.settings(study, runs)
            prepare_data([run.task for run in runs], self.place.data_root)
            store = Store(self.place.store)
        missing = [run for run in runs if store.folder(run.id).result is None]
        say(f"{study.question}\n{len(runs)} runs, {len(missing)} to do, into {store.root}")
        code = train_all(missing, store, how, self.jobs)
        if settings is not None and code != INTERRUPTED:
            measure_all(settings, runs, store, how)
        return code

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
        store = Store(self.place.store) if self.place.store.exists() else None
        for run in runs:
            done = store is not None and store.folder(run.id).result is not None
            print("done   " if done else "missing", run.id)
        try:
            study.check_is_there(self.scale)
        except NotThereYetError as reason:
            say(str(reason))
        return 0


def train_here(run: Run, store: Store, how: dict[str, Any]) -> int:
    """Trains a run in this process, with a bar.

    Args:
        run: the run.
        store: where its results go.
        how: settings of `vasso.lab.training.How`.

    Returns:
        The exit code.
    """
    from vasso.lab.display import Bars
    from vasso.lab.train import train
    from vasso.lab.training import How

    with Bars(1) as bars:
        bars.begun(0, run)

        def watch(step: int, total: int) -> bool:
            bars.at(0, step, total)
            return True

        result = train(run, store, How(**how), watch)
        bars.ended(0, run, "done", result)
    print(store.folder(run.id).path)
    return 0


def train_all(runs: list[Run], store: Store, how: dict[str, Any], jobs: int) -> int:
    """Trains runs in processes of their own.

    Args:
        runs: what is missing.
        store: where their results go.
        how: settings of `vasso.lab.training.How`.
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
        how: settings of `vasso.lab.training.How`.
    """
    from vasso.lab.measured import table
    from vasso.lab.measurements import measure
    from vasso.lab.training import How

    finished = [run for run in runs if store.folder(run.id).result is not None]
    if runs and not finished:
        say("no run is finished: there is nothing to measure yet")
        return
    one = How(**{**how, "devices": 1, "strategy": "auto"})
    device = one.fabric("32-true").device if finished else "cpu"
    rows = measure(settings, finished, store, data=one.data, device=device, tell=say)
    console = Console()
    console.width = max(console.width, 110)  # a table that is cut off is of no use
    console.print(table(settings, rows))


def concluded(outcome: Outcome, wanted: int) -> int:
    """Says what is left to do.

    Args:
        outcome: how it went.
        wanted: how many runs were to be done.

    Returns:
        The exit code.
    """
    for run, reason in outcome.failed:
        say(f"\n{run.id} failed: {reason}")
    if outcome.busy:
        say(f"{len(outcome.busy)} runs are being trained by another process")
    left = wanted - len(outcome.done)
    if left:
        say(f"{left} of {wanted} runs are left: the same command goes on with them")
    if outcome.stopped:
        return INTERRUPTED
    return FAILED if outcome.failed else 0


COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": Demo,
    "list": List,
    "train": Train,
    "study": Study,
    "report": Report,
    "export": Export,
    "probe": Probe,
    "translate": Translate,
}


def main(arguments: list[str] | None = None) -> None:
    """The command `vasso`.

    Args:
        arguments: words of the command line; None for those of this process.

    Raises:
        SystemExit: always, with the exit code.
    """
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="vasso",
            description="Sharpness-aware training: the lab.",
            args=arguments,
        )
        code = command()
    except UsageError as trouble:
        say(f"vasso: {trouble}")
        code = WRONG
    except (StoreError, DataError, OSError) as trouble:
        say(f"vasso: {trouble}")
        code = FAILED
    except KeyboardInterrupt:
        say("vasso: stopped; the same command goes on from the last checkpoint")
        code = INTERRUPTED
    raise SystemExit(code)
