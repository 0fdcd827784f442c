"""How are many runs trained side by side? Workers of one thread, a run at a time.

A worker keeps the data in memory from run to run. One that dies loses nothing but the steps since
its last checkpoint: its run is reported, and the others go on. Ctrl-C asks all to stop at the next
step, with a checkpoint.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from vasso.lab.runs import Run

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Two busy processes of two threads each are many times slower than with one."""
PATIENCE = 60.0
"""Seconds that a worker has to come to the end of a step when asked to stop."""


class Display(Protocol):
    """Who is told how the work goes."""

    def begun(self, job: int, run: Run) -> None:
        """A worker takes up a run."""

    def at(self, job: int, step: int, total: int) -> None:
        """How far its run is."""

    def ended(self, job: int, run: Run, outcome: str, detail: Any) -> None:
        """A run is done, busy (another process has it), failed or stopped."""


@dataclass
class Outcome:
    """How a study went.

    Attributes:
        done: runs that are finished now.
        busy: runs that another process works on.
        failed: what went wrong with which.
        stopped: whether Ctrl-C was pressed.
    """

    done: list[Run] = field(default_factory=list)
    busy: list[Run] = field(default_factory=list)
    failed: list[tuple[Run, str]] = field(default_factory=list)
    stopped: bool = False


@dataclass
class Job:
    """One worker.

    Attributes:
        number: from 0.
        process: it.
        line: to talk to it.
        run: what it works on, None if nothing.
    """

    number: int
    process: BaseProcess
    line: Connection
    run: Run | None = None


class Crew:
    """Some workers and what they have to do.

    Args:
        store: the directory of the store.
        how: settings of `vasso.lab.how.How`.
        jobs: how many workers.
        display: who is told.
    """

    def __init__(self, store: Path, how: Mapping[str, Any], jobs: int, display: Display) -> None:
        self.store, self.how, self.jobs, self.display = store, dict(how), jobs, display
        self.outcome = Outcome()
        self.context = get_context("forkserver")  # heavy modules are imported once for all
        self.context.set_forkserver_preload(["vasso.lab.train"])

    def work(self, runs: list[Run]) -> Outcome:
        """Trains all runs.

        Args:
            runs: in this order.

        Returns:
            How it went.
        """
        waiting = list(reversed(runs))
        with one_thread_each():
            crew = [self._hire(number) for number in range(min(self.jobs, len(runs)))]
            try:
                for job in crew:
                    self._give(job, waiting)
                while busy := [job for job in crew if job.run is not None]:
                    ready = wait([job.line for job in busy])
                    for job in [job for job in busy if job.line in ready]:
                        self._listen(job, waiting)
            except KeyboardInterrupt:
                self.outcome.stopped = True
                self._stop(crew)
            finally:
                dismiss(crew)
        return self.outcome

    def _hire(self, number: int) -> Job:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=worker, args=(theirs, self.store, self.how))
        process.start()
        theirs.close()
        return Job(number, process, ours)

    def _give(self, job: Job, waiting: list[Run]) -> None:
        job.run = waiting.pop() if waiting else None
        if job.run is not None:
            self.display.begun(job.number, job.run)
            job.line.send(job.run.as_table())

    def _listen(self, job: Job, waiting: list[Run]) -> None:
        """One message of a worker; silence for ever means that it has died."""
        assert job.run is not None
        try:
            word, detail = job.line.recv()
        except (EOFError, ConnectionResetError):
            job.process.join()
            code = job.process.exitcode
            self._note(job, "failed", f"its process ended with code {code} (killed? memory?)")
            fresh = self._hire(job.number)
            job.process, job.line = fresh.process, fresh.line
            self._give(job, waiting)
            return
        if word == "at":
            self.display.at(job.number, *detail)
            return
        self._note(job, word, detail)
        self._give(job, waiting)

    def _note(self, job: Job, word: str, detail: Any) -> None:
        assert job.run is not None
        if word == "done":
            self.outcome.done.append(job.run)
        elif word == "busy":
            self.outcome.busy.append(job.run)
        elif word == "failed":
            self.outcome.failed.append((job.run, str(detail)))
        self.display.ended(job.number, job.run, word, detail)
        job.run = None

    def _stop(self, crew: list[Job]) -> None:
        """Asks for a checkpoint and waits for it."""
        asked = [job for job in crew if job.run is not None]
        for job in asked:
            job.line.send("stop")
        deadline = time.monotonic() + PATIENCE
        for job in asked:
            while job.run is not None and job.line.poll(max(0.0, deadline - time.monotonic())):
                self._listen(job, [])


def worker(line: Connection, store: Path, how: Mapping[str, Any]) -> None:
    """Trains the runs it is sent, one after the other, until it is sent None.

    Args:
        line: to the one who hired it.
        store: the directory of the store.
        how: settings of `vasso.lab.how.How`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who hired it is asked, and asks us
    import torch

    from vasso.lab.folder import BusyError, StoreError
    from vasso.lab.heap import keep_freed
    from vasso.lab.how import How
    from vasso.lab.store import Store
    from vasso.lab.train import CannotBeginError, Stopped, train

    torch.set_num_threads(1)
    keep_freed()
    watch = Teller(line)
    for table in iter(lambda: received(line), None):
        try:
            run = Run.of(table)
            answer = "done", train(run, Store(store), How(**how), watch)
        except BusyError as trouble:
            answer = "busy", str(trouble)
        except Stopped as reason:
            answer = "stopped", str(reason)
        except (CannotBeginError, StoreError) as trouble:
            answer = "failed", str(trouble)
        except Exception as trouble:
            told = "".join(traceback.format_exception(trouble)[-3:])
            answer = "failed", f"{type(trouble).__name__}: {trouble}\n{told}"
        try:
            line.send(answer)
        except BrokenPipeError:
            return


class Teller:
    """Tells how far a run is, a few times a second, and hears when it is to stop.

    Args:
        line: to the one who hired the worker.
    """

    def __init__(self, line: Connection) -> None:
        self.line, self.told = line, 0.0

    def __call__(self, step: int, total: int) -> bool:
        """After each step.

        Args:
            step: completed steps.
            total: all steps.

        Returns:
            Whether to go on: not if asked to stop, or if nobody listens any more.
        """
        try:
            if time.monotonic() - self.told > 0.2 or step == total:
                self.told = time.monotonic()
                self.line.send(("at", (step, total)))
            return not (self.line.poll() and self.line.recv() == "stop")
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return False


def received(line: Connection) -> Any:
    """What comes next; None when nobody is there any more.

    Args:
        line: to the one who hired the worker.

    Returns:
        The message; one that came too late, after the run had ended, is passed over.
    """
    try:
        message = line.recv()
        return message if message != "stop" else received(line)
    except (EOFError, ConnectionResetError):
        return None


def dismiss(crew: list[Job]) -> None:
    """Ends all workers.

    Args:
        crew: the workers.
    """
    for job in crew:
        if job.process.is_alive():
            if job.run is None:
                job.line.send(None)
            else:
                job.process.terminate()
        job.line.close()
    for job in crew:
        job.process.join(PATIENCE)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Inside, processes that are started have one thread.

    Yields:
        Nothing.
    """
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
