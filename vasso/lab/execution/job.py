"""Job: one run to be trained into one store, and the one function that every engine calls for it.

A signal that asks the process to end (Ctrl-C, or what schedulers and closed terminals send) lets
the run complete its step and write a checkpoint. A signal that the process ignores, as under
`nohup`, stays ignored.
"""

import os
import signal
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeAlias

from vasso.lab.experiment.run import Run
from vasso.lab.schema import UNEXPECTED, LabError, known_cause
from vasso.lab.store.atomic import DiskFullError
from vasso.lab.store.lock import TAKEOVER
from vasso.lab.training.options import RunOptions

Answer: TypeAlias = tuple[str, Any]
"""How a run has ended, and its result or the reason: done, busy (another process trains it),
stopped (a checkpoint holds it), failed (it would fail again), or lost (worth another attempt)."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
"""Ctrl-C, the end of a job, a closed terminal, and what Slurm sends before the time is up."""
LAUNCHED = "LOCAL_RANK"
"""The environment variable by which launchers tell a process its number on a machine."""


@dataclass(frozen=True)
class Job:
    """A run as a table, the store at `root`, and the options of training; small and picklable.

    `folder` is where modules of the user are looked for, beside `sys.path`. A further `attempt`
    waits until the process of the one before has let go of the run. `meeting` is host:port where
    the processes of a run on several machines meet.
    """

    table: dict[str, Any]
    root: Path
    options: RunOptions
    threads: int = 1
    folder: Path = field(default_factory=Path.cwd)
    attempt: int = 1
    meeting: str = ""

    @property
    def run(self) -> Run:
        """The run."""
        return Run.of(self.table)

    @property
    def patience(self) -> float:
        """Seconds to wait for the lock of the run."""
        return 0.0 if self.attempt == 1 else TAKEOVER + 30.0


class StopRequest:
    """A context in which signals ask the run to stop instead of ending this process.

    Called after each step, as the loop does, it says whether to go on. A process that another one
    has started (`started`) stops too when that one is gone.
    """

    def __init__(self, started: bool = False) -> None:
        self.received: signal.Signals | None = None
        self._parent = os.getppid() if started else None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            wanted = [s for s in STOPPING if signal.getsignal(s) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in wanted}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)

    def __call__(self, step: int, total: int) -> bool:
        """Whether to go on after a step."""
        return self.received is None and self._parent in (None, os.getppid())


def train_run(job: Job) -> Answer:
    """Train one run into one store, in this process or in as many as it wants."""
    with StopRequest(started=True) as stop:
        return train_until(job, stop)


def train_until(job: Job, stop: StopRequest) -> Answer:
    """Train a run unless there is a request to stop."""
    if stop.received:
        return "stopped", f"{job.run.id} has not begun"
    if job.options.processes == 1 or LAUNCHED in os.environ:
        return train_here(job, stop)
    from vasso.lab.execution.ranks import launch

    return launch(job, stop)


def train_here(job: Job, stop: StopRequest) -> Answer:
    """Train a run in this process; every error becomes an answer."""
    import torch

    from vasso.lab.experiment import user_functions
    from vasso.lab.store.lock import BusyError
    from vasso.lab.store.store import Store
    from vasso.lab.training.loop import SetupError, Stopped, train

    torch.set_num_threads(job.threads)
    try:
        user_functions.look_in(job.folder)
        return "done", train(job.run, Store(job.root), job.options, stop, job.patience)
    except BusyError as error:
        return "busy", str(error)
    except Stopped as reason:
        why = f" ({stop.received.name})" if stop.received else ""
        return "stopped", f"{reason}{why}"
    except (SetupError, LabError, DiskFullError) as error:
        return "failed", str(error)
    except OSError as error:
        return "lost", str(error)
    except Exception as error:
        trace = "".join(traceback.format_exception(error)[-3:])
        unexpected = f"{type(error).__name__}: {error}\n{trace}{UNEXPECTED}"
        return "lost", known_cause(error) or unexpected
