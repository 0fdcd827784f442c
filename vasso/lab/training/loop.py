"""Training loop: trains a run from its last checkpoint, or from the start, to the end.

A run may be killed at any moment. Its settings, the order of its data, its random numbers and its
learning rate are functions of the run and the step; all else is in the last checkpoint. So it goes
on and ends with the same weights, bit for bit.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from vasso.lab.experiment.run import Run
from vasso.lab.store.lock import BusyError, RunLock, StoreError
from vasso.lab.store.run_directory import RunDirectory
from vasso.lab.store.store import Store
from vasso.lab.training.checkpoint import RunRecorder
from vasso.lab.training.host import Fabric, start_fabric
from vasso.lab.training.loggers import logged
from vasso.lab.training.options import RunOptions
from vasso.lab.training.state import Training

ProgressCallback = Callable[[int, int], bool]
"""Called with (completed steps, all steps) after each step; False stops the run."""


class SetupError(ValueError):
    """The settings of a run do not fit its data or this machine; nothing has been trained."""


class Stopped(Exception):  # noqa: N818 - it is no error
    """The run was asked to stop; a checkpoint holds its state."""


def train(
    run: Run,
    store: Store,
    options: RunOptions | None = None,
    on_step: ProgressCallback | None = None,
    patience: float = 0.0,
) -> Any:
    """Trains a run, or what is left of it; returns the result as it is in the store.

    `on_step` is called with completed and all steps after each step; where it returns False,
    `Stopped` is raised, in all processes of the run. A run that another process holds is waited
    for, `patience` seconds. `SetupError` says that the settings do not fit the data or the machine.
    """
    options = options or RunOptions()
    with _as_setup_error():
        fabric = start_fabric(options, run.task.precision)
    directory = store.folder(run.id)
    with _locked(directory, fabric, patience) as lock, ExitStack() as logs:
        if (finished := directory.result_of(run.in_full())) is not None:
            return finished
        with _as_setup_error():
            training = Training(run, options, fabric)
        recorder = RunRecorder(directory, options, lock)
        recorder.open(training)
        _agreed(fabric, f"{run.id} at step {training.step}")
        log_epoch = logs.enter_context(logged(options.log, training, directory.path))
        while training.step < training.total:
            training.take_step()
            recorder.note(training)
            if training.is_at_end_of_epoch:
                recorder.append(line := training.end_epoch())
                log_epoch(line)
                recorder.save(training)
            elif recorder.is_checkpoint_due(training.step):
                recorder.save(training)
            stops = on_step is not None and not on_step(training.step, training.total)
            if _any(fabric, stops):
                recorder.save(training)
                raise Stopped(f"{run.id} stopped after step {training.step}: a checkpoint holds it")
        return recorder.close(training)


@contextmanager
def _locked(directory: RunDirectory, fabric: Fabric, patience: float) -> Iterator[RunLock | None]:
    """Lock a run in the first process; if that fails, or another has another run, all raise.

    An error is noted in the metrics of a run that has been begun.
    """
    with ExitStack() as stack:
        problem: Exception | None = None
        lock: RunLock | None = None
        if fabric.is_global_zero:
            try:
                lock = stack.enter_context(directory.locked(patience))
            except (StoreError, OSError) as error:
                problem = error
        if (failure := fabric.broadcast(problem)) is not None:
            raise failure
        _agreed(fabric, directory.id)
        try:
            yield lock
        except Exception as error:
            if lock is not None and not isinstance(error, Stopped | BusyError):
                with suppress(OSError, StoreError):  # the disk may be full: the error says it
                    directory.note_failure(f"{type(error).__name__}: {error}")
            raise


def _any(fabric: Fabric, here: bool) -> bool:
    """Whether it is so in any of the processes."""
    if fabric.world_size == 1:
        return here
    flag = torch.tensor(float(here), device=fabric.device)
    torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
    return bool(flag)


def _agreed(fabric: Fabric, state: str) -> None:
    """Raise in all processes unless they are in the same state of the same run."""
    states = [state] * fabric.world_size
    if fabric.world_size > 1:
        torch.distributed.all_gather_object(states, state)
    if len(set(states)) > 1:
        raise SetupError(
            f"the processes of one run were started for different ones ({', '.join(states)}): "
            "nothing has been stored; give all of them the same command and the same store"
        )


@contextmanager
def _as_setup_error() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise SetupError(str(error)) from error
