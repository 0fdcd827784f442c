"""How is a run trained? One loop, from wherever it was left to the end.

A run may be killed at any instant: what it is, in which order its data come, which random numbers
it draws and its learning rate are functions of its settings and the step, and the rest is in the
last checkpoint. It goes on and ends with the same weights, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import get_num_threads as threads

from vasso.lab.certificate import certificate, forget_peak, now, peak_memory
from vasso.lab.folder import FORMAT, Folder
from vasso.lab.how import FSDP2, How
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.training import Training

Watch = Callable[[int, int], bool]
"""Is told (completed steps, all steps) after each step; returns False to stop for now."""


class CannotBeginError(ValueError):
    """The settings of a run do not fit its data or this machine; nothing has been trained."""


class Stopped(Exception):  # noqa: N818 - it is no error
    """The run was asked to stop; a checkpoint holds where."""


def train(run: Run, store: Store, how: How | None = None, watch: Watch | None = None) -> Any:
    """Trains a run, or what is left of it.

    Args:
        run: what to train.
        store: where its results go, and where it is taken up again.
        how: devices, and how often checkpoints are written.
        watch: is told of progress.

    Returns:
        The result, as the store keeps it.

    Raises:
        CannotBeginError: the settings do not fit the data or the machine.
        Stopped: the watcher has said so.
    """
    how = how or How()
    with _beginning():
        fabric = how.fabric(run.task.precision)
    folder = store.folder(run.id)
    with folder.locked() if fabric.is_global_zero else nullcontext():
        fabric.barrier()
        if (ended := folder.result_of(run.in_full())) is not None:
            return ended
        with _beginning():
            training = Training(run, how, fabric)
        book = Book(folder, how, fabric.is_global_zero)
        book.open(training)
        while training.step < training.total:
            training.take_step()
            if training.is_at_end_of_epoch:
                book.note(training.end_epoch())
                book.save(training)
            elif book.is_due(training.step):
                book.save(training)
            if watch is not None and not watch(training.step, training.total):
                book.save(training)
                raise Stopped(f"{run.id} stopped after step {training.step}")
        return book.close(training)


@contextmanager
def _beginning() -> Iterator[None]:
    """What is found wrong inside is a setting's fault."""
    try:
        yield
    except ValueError as trouble:
        raise CannotBeginError(str(trouble)) from trouble


class Book:
    """What a run writes down; only one of several processes writes.

    Args:
        folder: where.
        how: how often checkpoints are written.
        writes: whether this process is the one.
    """

    def __init__(self, folder: Folder, how: How, writes: bool) -> None:
        self.folder, self.how, self.writes = folder, how, writes
        self.saved = time.monotonic()

    def open(self, training: Training) -> None:
        """Notes what the run is and where it starts, from a checkpoint if there is one.

        Args:
            training: the run.
        """
        state = self.folder.load("checkpoint.pt")
        if state is not None:
            training.resume(state)
        if self.writes:
            run = training.run
            settings = {"format": FORMAT, "id": run.id, "run": run.in_full()}
            self.folder.write_settings({**settings, "begun": now(), "certificate": certificate()})
            processes = training.fabric.world_size
            start = {"kind": "start", "step": training.step, "time": now(), "threads": threads()}
            self.folder.append({**start, "processes": processes, "certificate": certificate()})
        forget_peak()

    def note(self, line: dict[str, Any]) -> None:
        """Adds a line to the metrics.

        Args:
            line: of an epoch.
        """
        if self.writes:
            self.folder.append(line)

    def is_due(self, step: int) -> bool:
        """Whether it is time for a checkpoint.

        Args:
            step: completed steps.

        Returns:
            By steps or by time, whichever comes first.
        """
        every = self.how.checkpoint_steps
        late = time.monotonic() - self.saved >= self.how.checkpoint_seconds
        timely = late and self.how.strategy != FSDP2  # there all processes have to save at once
        return timely or bool(every and step % every == 0)

    def save(self, training: Training) -> None:
        """Writes a checkpoint.

        Args:
            training: the run.
        """
        if self.writes or training.is_sharded:
            state = training.state()
            if self.writes:
                self.folder.save("checkpoint.pt", state)
        self.saved = time.monotonic()

    def close(self, training: Training) -> dict[str, Any]:
        """Writes the weights and the result; with that the run is finished.

        Args:
            training: the run, at its end.

        Returns:
            The result.
        """
        result = {**training.result(), "peak_memory": peak_memory(), "ended": now()}
        weights = training.weights() if self.writes or training.is_sharded else {}
        if self.writes:
            self.folder.save("weights.pt", weights)
            for name, table in training.material.tables().items():
                self.folder.write_table(name, table)
            self.folder.write_result(result)
            self.folder.drop("checkpoint.pt")
        training.fabric.barrier()
        return result
