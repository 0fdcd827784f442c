"""Ray: trains runs as tasks of a Ray cluster, one that is there or one started on this machine.

A task asks for the CPUs and GPUs of a run, and Ray shows it its own GPUs alone. Ray does not repeat
a task by itself: a run that is lost with its worker or its machine is submitted again, as with
every engine. The store has to be on a file system that all machines share.
"""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vasso.lab.execution.job import Answer, Job, train_run
from vasso.lab.execution.pool import environment_of_workers, worker_environment
from vasso.lab.schema import LabError
from vasso.optional import needs_extra

AS_HERE = {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
"""On this machine a run has the same priority as with `--on here` (Ray gives its workers the nice
value 15), and is not killed where other programs use up the memory."""


def train_task(job: Job) -> Answer:
    """Train one run in a worker of Ray, which heeds the Ctrl-C by which Ray cancels a task.

    A process ignores Ctrl-C if its parent did, as everything does that a script starts with `&`.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return train_run(job)


@contextmanager
def _signals_of_workers() -> Iterator[None]:
    """Processes that are started inside ignore SIGHUP, which stops the study and so its runs.

    They do not ignore SIGINT, whatever this process does: a task is cancelled by it.
    """
    wanted: dict[signal.Signals, Any] = {signal.SIGHUP: signal.SIG_IGN}
    wanted[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class RayCluster:
    """Trains runs as Ray tasks; `address` is that of a cluster, "" starts one here."""

    interval, patience = 0.5, 60.0

    def __init__(self, address: str, cpus: int, gpus: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if not address:
            for name, value in AS_HERE.items():
                os.environ.setdefault(name, value)
        with needs_extra("ray"):
            import ray
        self.ray: Any = ray
        self.jobs: dict[Any, Job] = {}
        environment = environment_of_workers(cpus)
        try:
            if address:
                ray.init(
                    address, runtime_env={"env_vars": environment}, logging_level=logging.ERROR
                )
            else:
                with worker_environment(cpus), _signals_of_workers():
                    ray.init("local", include_dashboard=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise LabError(f"no Ray cluster at {address or 'this machine'}: {error}") from error
        self._check_room(cpus, gpus)
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0}
        self.task = ray.remote(train_task).options(**options)

    def _check_room(self, cpus: int, gpus: int) -> None:
        """Raise if no machine of the cluster is large enough: Ray would wait for one for ever."""
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(one.get("CPU", 0) >= cpus and one.get("GPU", 0) >= gpus for one in machines):
            self.close()
            raise LabError(
                f"no machine of the Ray cluster has {cpus} CPUs and {gpus} GPUs: give a smaller "
                "--cpus-per-run or --gpus-per-run"
            )

    def submit(self, job: Job) -> None:
        self.jobs[self.task.remote(job)] = job

    def answers(self) -> list[tuple[str, Answer]]:
        ready, rest = self.ray.wait(list(self.jobs), num_returns=1, timeout=self.interval)
        if rest:
            ready += self.ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return [(self.jobs.pop(task).run.id, self._answer(task)) for task in ready]

    def _answer(self, task: Any) -> Answer:
        try:
            answer: Answer = self.ray.get(task)
        except self.ray.exceptions.TaskCancelledError:
            return "stopped", "its task was cancelled"
        except self.ray.exceptions.RayError as error:
            return "lost", f"its worker is gone ({type(error).__name__}: {error})"
        return answer

    def stop(self) -> None:
        for task in self.jobs:
            self.ray.cancel(task, force=False)  # Ctrl-C in the process of the task

    def close(self) -> None:
        self.ray.shutdown()
