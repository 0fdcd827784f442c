"""Worker pool: trains runs on this machine, several at a time, each in a process of its own.

A worker keeps the data in memory from run to run. A worker that dies costs one run the steps since
its checkpoint: it is replaced, and no other run is touched. Pools of the standard library give up
all their runs then.
"""

import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from vasso.lab.execution.job import Answer, Job, StopRequest, train_until
from vasso.lab.schema import LabError

PRELOADED = ["vasso.lab.training.loop"]
"""Imported once in the forkserver, for all workers. A module that does not exist is ignored."""
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
"""Bytes, for glibc: freed memory stays with the process for the next step.

By default glibc returns it to the system, and the next step gets it back as zeroed pages: thousands
of page faults in each pass of a small transformer (`benchmarks/heap.py`). glibc reads these
variables when a process starts. Other C libraries ignore them.
"""
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass
class Worker:
    """A worker process, the connection to it, its GPUs, and the job it works on (None if idle)."""

    process: BaseProcess
    connection: Connection
    gpus: tuple[str, ...]
    job: Job | None = None


class WorkerPool:
    """Trains runs in `jobs` worker processes, each with so many threads and GPUs of its own."""

    interval, patience = 0.3, 60.0

    def __init__(self, jobs: int, threads: int = 1, gpus: list[tuple[str, ...]] | None = None):
        self.jobs, self.threads, self.gpus = jobs, threads, gpus or [()]
        self.waiting: deque[Job] = deque()
        self.ended: list[tuple[str, Answer]] = []
        self.workers: list[Worker] = []
        self.leaving: list[Worker] = []
        self.stopping = False
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(PRELOADED)

    def submit(self, job: Job) -> None:
        self.waiting.append(job)

    def answers(self) -> list[tuple[str, Answer]]:
        while self.waiting and (worker := self._idle()) is not None:
            worker.job = self.waiting.popleft()
            with suppress(BrokenPipeError, ConnectionResetError):  # `_receive` finds it dead
                worker.connection.send(worker.job)
        busy = {worker.connection: worker for worker in self.workers if worker.job is not None}
        for ready in wait(list(busy), 0 if self.ended else self.interval):
            self._receive(busy[ready])  # type: ignore[index]
        found, self.ended = self.ended, []
        return found

    def stop(self) -> None:
        self.stopping = True
        self.ended += [(job.run.id, ("stopped", "not begun")) for job in self.waiting]
        self.waiting.clear()
        for worker in self.workers:
            if worker.job is not None:
                worker.process.terminate()

    def close(self) -> None:
        for worker in self.workers:
            if worker.job is not None:
                worker.process.kill()
            worker.connection.close()  # an idle worker ends
        for worker in [*self.workers, *self.leaving]:
            worker.process.join(self.patience)

    def _idle(self) -> Worker | None:
        """A worker without a job, started if there is room for another."""
        found = next((worker for worker in self.workers if worker.job is None), None)
        if found is None and len(self.workers) < self.jobs:
            self.workers.append(found := self._start_worker())
        return found

    def _start_worker(self) -> Worker:
        used = [worker.gpus for worker in self.workers]
        gpus = min(self.gpus, key=used.count)
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=work, args=(theirs, gpus))
        try:
            with worker_environment(self.threads):
                process.start()
        except (OSError, EOFError) as error:
            raise LabError(
                f"a process for the runs could not be started ({type(error).__name__}: {error}): "
                "was one killed, or are there too many? Give the same command again"
            ) from error
        theirs.close()
        return Worker(process, ours, gpus)

    def _receive(self, worker: Worker) -> None:
        """Take the answer of a worker; a closed connection means that it has died."""
        assert worker.job is not None
        run_id = worker.job.run.id
        try:
            answer = worker.connection.recv()
            self.ended.append((run_id, answer))
            worker.job = None
            if answer[0] == "stopped":  # by a signal: it takes no other job
                self.workers.remove(worker)
                self.leaving.append(worker)
        except (EOFError, ConnectionResetError):
            worker.process.join()
            self.workers.remove(worker)
            code = worker.process.exitcode
            why = f"its process ended with code {code} (killed? memory?)"
            early = self.stopping and code == -signal.SIGTERM  # before it could handle the signal
            self.ended.append((run_id, ("stopped", "not begun") if early else ("lost", why)))


def gpus_of_workers(each: int, accelerator: str) -> list[tuple[str, ...]]:
    """The GPUs of this machine in groups of `each`, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    if each == 0 or accelerator in {"cpu", "mps"}:
        return [()]
    there = torch.cuda.device_count()
    names = (
        os.environ.get(VISIBLE, "").split(",") if VISIBLE in os.environ else map(str, range(there))
    )
    visible = list(names)[:there]
    if each > len(visible):
        raise ValueError(f"gpus_per_run must be at most {len(visible)} on this machine, got {each}")
    return [tuple(visible[i : i + each]) for i in range(0, len(visible) - each + 1, each)]


@contextmanager
def worker_environment(threads: int) -> Iterator[None]:
    """Set the environment of processes that are started inside: threads, freed memory kept."""
    added = environment_of_workers(threads)
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def environment_of_workers(threads: int) -> dict[str, str]:
    """Variables for a process that trains.

    Two busy processes of two threads each are many times slower than of one thread each.
    """
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} | KEEP_FREED_MEMORY


def work(connection: Connection, gpus: tuple[str, ...]) -> None:
    """Train the runs that are received, one after the other, until the pool is gone."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the pool too, which sends SIGTERM
    if gpus:
        os.environ[VISIBLE] = ",".join(gpus)
    with StopRequest(started=True) as stop:
        while stop.received is None and (job := _next_job(connection)) is not None:
            answer = train_until(job, stop)
            with suppress(BrokenPipeError):  # the pool is gone, and no job follows
                connection.send(answer)


def _next_job(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        return None
