"""Engines: where the runs of a study are trained, and what becomes of a run that is lost.

An engine only decides where `train_run` is called: in worker processes here (`pool`), on a Ray
cluster (`ray_cluster`), or by Slurm (`slurm`). The rest is the same for all and is in this module.
Progress is read from the locks in the store, which the runs write wherever they are. A run whose
process dies, or that fails for a reason which may pass, goes on from its checkpoint: three attempts
in all, then it is reported with its last error. The other runs go on.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from vasso.lab.execution.job import Answer, Job
from vasso.lab.experiment.run import Run
from vasso.lab.store.lock import Holder, holder_of
from vasso.lab.store.run_directory import CHECKPOINT

ATTEMPTS = 3
"""How often a run is trained that is lost again and again."""


class Display(Protocol):
    """Shows the progress of the runs; `job` numbers those in training, from 0."""

    def started(self, job: int, run: Run, /) -> None:
        """A run is in training."""

    def advanced(self, job: int, step: int, total: int, /) -> None:
        """A run has completed `step` of `total` steps."""

    def lost(self, job: int, run: Run, why: str, /) -> None:
        """A run was lost and will be trained again, from its last checkpoint."""

    def ended(self, job: int, run: Run, outcome: str, detail: Any, /) -> None:
        """A run is done, busy (another process trains it), failed or stopped."""


class Engine(Protocol):
    """Calls `train_run` somewhere, for as many jobs at a time as there is room for."""

    interval: float
    """Seconds between two looks at the runs."""
    patience: float
    """Seconds that runs have to write a checkpoint when asked to stop."""

    def submit(self, job: Job) -> None:
        """Train a run as soon as there is room."""

    def answers(self) -> list[tuple[str, Answer]]:
        """Ids of runs that have ended since the last call, and how; waits for `interval`."""

    def stop(self) -> None:
        """Ask all runs to write a checkpoint and stop; all of them still answer."""

    def close(self) -> None:
        """Leave no process behind."""


@dataclass
class Outcome:
    """The runs of a study by how they ended; `stopped` means that it was asked to stop.

    `checkpoints` are runs that were stopped and have a checkpoint.
    """

    done: list[Run] = field(default_factory=list)
    busy: list[Run] = field(default_factory=list)
    failed: list[tuple[Run, str]] = field(default_factory=list)
    checkpoints: list[Run] = field(default_factory=list)
    stopped: bool = False


@dataclass
class _Open:
    """A run that has not ended: its attempts, the holder of its lock before, its place on show."""

    run: Run
    attempt: int
    before: Holder | None
    place: int | None = None


class RunTracker:
    """Has an engine train runs into the store at `root`: shows progress, tries again."""

    def __init__(
        self, engine: Engine, root: Path, job_of: Callable[[Run, int], Job], display: Display
    ) -> None:
        self.engine, self.root, self.job_of, self.display = engine, root, job_of, display
        self.outcome = Outcome()
        self.open: dict[str, _Open] = {}

    def train(self, runs: list[Run]) -> Outcome:
        """Train the runs; Ctrl-C, SIGTERM and SIGHUP have them stop with a checkpoint."""
        try:
            with _interrupted_by_signals():
                try:
                    for run in runs:
                        self._submit(run)
                    while self.open:
                        self._look()
                except KeyboardInterrupt:
                    self.outcome.stopped = True
                    self.engine.stop()
                    deadline = time.monotonic() + self.engine.patience
                    while self.open and time.monotonic() < deadline:
                        self._look()
        finally:
            self.engine.close()
        return self.outcome

    def _submit(self, run: Run, attempt: int = 1) -> None:
        self.open[run.id] = _Open(run, attempt, self._holder(run))
        self.engine.submit(self.job_of(run, attempt))

    def _look(self) -> None:
        for run_id, answer in self.engine.answers():
            self._end(self.open.pop(run_id), *answer)
        for entry in self.open.values():
            holder = self._holder(entry.run)
            if holder is not None and holder != entry.before and holder.total:
                self.display.advanced(self._place(entry), holder.step, holder.total)

    def _holder(self, run: Run) -> Holder | None:
        found = holder_of(self.root / run.id / "lock")
        return found[0] if found else None

    def _place(self, entry: _Open) -> int:
        """The number of a run in training; the lowest that is free if it has none yet."""
        if entry.place is None:
            taken = {other.place for other in self.open.values()}
            entry.place = next(number for number in count() if number not in taken)
            self.display.started(entry.place, entry.run)
        return entry.place

    def _end(self, entry: _Open, kind: str, detail: Any) -> None:
        run, place = entry.run, self._place(entry)
        if kind in {"lost", "stopped"} and not self.outcome.stopped:
            attempt = entry.attempt + (kind == "lost")
            if attempt <= ATTEMPTS:
                again = f"attempt {attempt} of {ATTEMPTS} follows" if kind == "lost" else "goes on"
                self.display.lost(place, run, f"{_first_line(detail)}; {again}")
                self._submit(run, max(attempt, 2))
                return
            kind, detail = "failed", f"{ATTEMPTS} attempts, the last: {detail}"
        if kind == "lost":
            kind = "failed"
        if kind == "failed":
            self.outcome.failed.append((run, str(detail)))
        elif kind == "stopped":
            self.outcome.checkpoints += [run] * (self.root / run.id / CHECKPOINT).exists()
        else:
            {"done": self.outcome.done, "busy": self.outcome.busy}[kind].append(run)
        self.display.ended(place, run, kind, detail)


def _first_line(detail: Any) -> str:
    return str(detail).strip().partition("\n")[0]


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, unless they are ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    wanted = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
