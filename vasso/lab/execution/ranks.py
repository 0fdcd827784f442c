"""Processes of one run: started by torch's elastic launcher, with a rendezvous of their own.

On one machine the launcher listens on a free port for this run alone, so that the processes of two
runs side by side cannot meet. On several machines (`Job.meeting`) each has a launcher, and they
meet at the first of them, under a name that only this run has.

Each process is `python -m vasso.lab.execution.ranks DIRECTORY`: it reads the job there and writes
its answer there. All processes of a run end alike, so the first answer counts.
"""

import logging
import os
import pickle
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from vasso.lab.execution.job import STOPPING, Answer, Job, StopRequest, train_here

GRACE = 60
"""Seconds that the processes have for their step and their checkpoint when asked to stop."""
JOB, ANSWER = "job.pickle", "answer.pickle"


def launch(job: Job, stop: StopRequest) -> Answer:
    """Train a run in several processes; those on this machine have ended when this returns.

    The launcher sets a handler of its own for SIGTERM. It passes the signal on and waits.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="vasso-run-") as folder:
        place = Path(folder)
        (place / JOB).write_bytes(pickle.dumps(job))
        one_machine = job.options.nodes == 1
        config = LaunchConfig(
            min_nodes=job.options.nodes,
            max_nodes=job.options.nodes,
            nproc_per_node=job.options.devices,
            run_id=f"{job.run.id}-{place.name if one_machine else job.meeting}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0" if one_machine else job.meeting,
            max_restarts=0,
            local_addr="localhost" if one_machine else None,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        config.signals_to_handle = "SIGTERM"  # torch before 2.8 has no such argument
        os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(GRACE)
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        why = "its processes ended without a word (killed? memory?)"
        with StopRequest() as inner:
            _forward(inner)
            try:
                elastic_launch(config, sys.executable)("-m", __name__, folder)
            except SignalException:
                stop.received = inner.received or signal.SIGTERM
                why = "its processes were stopped before the first step"
            except ChildFailedError as error:
                _, failure = error.get_first_failure()
                why = f"one of its processes ended with code {failure.exitcode} (killed? memory?)"
            except (RuntimeError, OSError) as error:  # the rendezvous
                why = f"its processes did not meet ({type(error).__name__}: {error})"
        answer = place / ANSWER
        told: Answer = pickle.loads(answer.read_bytes()) if answer.exists() else ("lost", why)
        return told


def _forward(stop: StopRequest) -> None:
    """Turn every signal that asks for an end into one SIGTERM, which the launcher passes on."""

    def forward(number: int, frame: object) -> None:
        if stop.received is None:
            stop.received = signal.Signals(number)
            signal.raise_signal(signal.SIGTERM)

    for number in set(STOPPING) - {signal.SIGTERM}:
        if signal.getsignal(number) == stop._note:
            signal.signal(number, forward)


def main(folder: Path) -> None:
    """Train as one process of a run, and answer."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher gets these too and sends SIGTERM
    job: Job = pickle.loads((folder / JOB).read_bytes())
    with StopRequest(started=True) as stop:
        answer = train_here(job, stop)
        _answer(folder, answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # gloo aborts now and then when Python ends


def _answer(folder: Path, answer: Answer) -> None:
    """Write an answer as a whole, unless another process has."""
    mine = folder / f"answer-{os.getpid()}"
    mine.write_bytes(pickle.dumps(answer))
    with suppress(FileExistsError):
        os.link(mine, folder / ANSWER)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
