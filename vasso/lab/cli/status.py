"""`vasso status`: what is done in a store, what runs where, what failed, how long the rest takes.

Everything is read from the store: the locks that the runs write every second, and their metrics.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import tyro

from vasso.lab.cli.errors import FAILED, say, usage_errors
from vasso.lab.cli.list import aligned
from vasso.lab.cli.paths import StoreOption
from vasso.lab.store.index import Index
from vasso.lab.store.lock import TAKEOVER, Holder, StoreError, holder_of, is_alive
from vasso.lab.store.run_directory import CHECKPOINT, RunDirectory
from vasso.lab.store.store import STORE, Store
from vasso.lab.studies import study as studies

SILENT = 10.0
"""Seconds after which the age of the last sign of life is shown."""


@dataclass(frozen=True)
class RunState:
    """One run: done, running, stopped, failed or unread; seconds that it took or will take yet."""

    id: str
    kind: str
    about: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class StatusCommand:
    """Shows what is done in a store, what runs where, what failed, how long the rest takes.

    Runs that other machines train into the same store are shown too.

    Try:
        vasso status runs
        vasso status runs --study label-noise --scale paper
    """

    store: tyro.conf.Positional[StoreOption] = STORE
    study: str = ""
    """count the runs that are missing of this study too; a name, or the path of a TOML file"""
    scale: str = "cpu"
    """scale of the study: paper, desk or cpu"""

    def __call__(self) -> int:
        with usage_errors():
            wanted = studies.load(self.study).at(self.scale).runs if self.study else ()
            if not self.store.is_dir():
                raise ValueError(f"{self.store} is not there: name the directory of a study")
        store = Store(self.store, writes=False)
        folders = {folder.id: folder for folder in store.folders()}
        if wanted:
            folders = {run.id: folders[run.id] for run in wanted if run.id in folders}
        index = Index(store.root)
        states = [state_of(folder, index) for folder in folders.values()]
        shown = [state for state in states if state.kind != "done"]
        if shown:
            print(aligned((state.kind, state.id, state.about) for state in shown))
        missing = sum(run.id not in folders for run in wanted)
        say(", ".join(counts(states, missing)))
        if left := rest(states, missing):
            say(f"the rest takes about {duration(left)} with the runs that train now")
        return FAILED if any(state.kind in {"failed", "unread"} for state in states) else 0


def state_of(folder: RunDirectory, index: Index) -> RunState:
    """The state of a run that has been begun; a finished run that the index knows is not read."""
    if (took := index.seconds(folder.path)) is not None:
        return RunState(folder.id, "done", seconds=took)
    try:
        result = folder.result
        if result is not None:
            return RunState(folder.id, "done", seconds=float(result["seconds"]))
        found = holder_of(folder.path / "lock")
        if found is not None and _lives(*found):
            return _running(folder.id, *found)
        lines = folder.metrics()
    except StoreError as error:
        return RunState(folder.id, "unread", str(error))
    notes = [line for line in lines if line.get("kind") in {"start", "failed"}]
    if notes and notes[-1]["kind"] == "failed":
        return RunState(folder.id, "failed", str(notes[-1].get("why")).strip().partition("\n")[0])
    kept = "a checkpoint holds it" if (folder.path / CHECKPOINT).exists() else "no checkpoint"
    if found is None:
        return RunState(folder.id, "stopped", kept)
    about = f"{found[0]} ended without a word at step {found[0].step}; {kept}"
    return RunState(folder.id, "stopped", about)


def _lives(holder: Holder, last: float) -> bool:
    if holder.host == Holder().host:
        return is_alive(holder.process)
    return time.time() - last <= TAKEOVER


def _running(run_id: str, holder: Holder, last: float) -> RunState:
    done, silent = holder.step - holder.first, time.time() - last
    left = None
    if done > 0:
        left = (holder.total - holder.step) * max(last - holder.since, 0.0) / done
    words = [str(holder), f"step {holder.step} of {holder.total}"]
    words += [f"{duration(left)} left"] if left is not None else []
    words += [f"silent for {silent:.0f} s"] if silent > SILENT else []
    return RunState(run_id, "running", ", ".join(words), left)


def counts(states: list[RunState], missing: int) -> Iterator[str]:
    """How many runs are in each state."""
    for kind in ("done", "running", "stopped", "failed", "unread"):
        number = sum(state.kind == kind for state in states)
        if number or kind == "done":
            yield f"{number} {kind}"
    if missing:
        yield f"{missing} not begun"


def rest(states: list[RunState], missing: int) -> float | None:
    """Seconds that the rest takes if as many runs train as now; None if nothing tells.

    A run that is not in training is taken to need the mean of those that are done.
    """
    running = [state for state in states if state.kind == "running"]
    took = [state.seconds for state in states if state.kind == "done" and state.seconds is not None]
    waiting = missing + sum(state.kind == "stopped" for state in states)
    lefts = [state.seconds for state in running if state.seconds is not None]
    if not lefts or (waiting and not took):
        return None
    return max((sum(lefts) + waiting * fmean(took or [0.0])) / len(running), max(lefts))


def duration(seconds: float) -> str:
    """A duration in two units at most.

    Example:
        >>> duration(45), duration(600), duration(7500)
        ('45 s', '10 min', '2 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
