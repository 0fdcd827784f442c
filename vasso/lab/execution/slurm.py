"""Slurm: trains runs as tasks of array jobs, submitted by submitit.

A run that is preempted, requeued, or near its time limit writes a checkpoint. Near the limit it
also puts its job back into the queue, so a run may take many times the limit. Each time it goes at
least one step further, which bounds how often that happens. A job that leaves the queue without an
answer was lost.

The store has to be on a file system that all machines share; `.slurm` in it holds the scripts and
the output of the jobs.
"""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vasso.lab.execution.job import Answer, Job, StopRequest, train_until
from vasso.lab.execution.pool import environment_of_workers
from vasso.lab.schema import LabError
from vasso.optional import needs_extra

WARNING = 120
"""Seconds before the time limit at which Slurm sends SIGUSR2 (`sbatch --signal`)."""


@dataclass(frozen=True)
class SlurmRequest:
    """What is asked of Slurm for each run: see `vasso study --help`."""

    partition: str = ""
    account: str = ""
    time: str = ""
    cpus: int = 1
    gpus: int = 0
    nodes: int = 1

    def parameters(self) -> dict[str, Any]:
        """Parameters of submitit's SlurmExecutor."""
        found: dict[str, Any] = {
            "time": self.time or None,  # None: that of the partition
            "job_name": "vasso",
            "nodes": self.nodes,
            "ntasks_per_node": 1,
            "cpus_per_task": self.cpus,
            "signal_delay_s": WARNING,
            "stderr_to_stdout": True,
            "additional_parameters": {"requeue": True},
        }
        optional = {"partition": self.partition, "account": self.account}
        found |= {name: value for name, value in optional.items() if value}
        if self.gpus:
            found["gpus_per_node"] = self.gpus
        exports = environment_of_workers(self.cpus)
        found["setup"] = [f"export {name}={value}" for name, value in exports.items()]
        return found


class SlurmCluster:
    """Trains runs as array jobs; `local` uses processes of this machine, where Slurm is not."""

    interval, patience = 3.0, 150.0

    def __init__(self, root: Path, request: SlurmRequest, *, local: bool = False) -> None:
        with needs_extra("slurm"):
            import submitit
        if not local and shutil.which("sbatch") is None:
            raise LabError(
                "there is no sbatch on this machine: give the command on a login node of a Slurm "
                "cluster, or choose --on here or --on ray"
            )
        folder = root / ".slurm"
        self.executor: Any
        if local:
            self.interval = 0.3
            self.executor = submitit.LocalExecutor(folder)
            self.executor.update_parameters(timeout_min=24 * 60, signal_delay_s=WARNING)
        else:
            self.executor = submitit.SlurmExecutor(folder)
            self.executor.update_parameters(**request.parameters())
        self.local, self.stopping = local, False
        self.new: list[Job] = []
        self.dropped: list[Job] = []
        self.jobs: dict[str, tuple[Any, Job]] = {}

    def submit(self, job: Job) -> None:
        self.new.append(job)

    def answers(self) -> list[tuple[str, Answer]]:
        """Jobs submitted since the last call become one array."""
        if self.new:
            tasks = self.executor.map_array(train_on_slurm, self.new)
            self.jobs |= {
                task.job_id: (task, job) for task, job in zip(tasks, self.new, strict=True)
            }
            self.new = []
        time.sleep(self.interval)
        queued = self._queued()
        gone = [name for name in self.jobs if self._is_over(name, queued)]
        found = [(self.jobs[name][1].run.id, self._answer(name)) for name in gone]
        found += [(job.run.id, ("stopped", "not begun")) for job in self.dropped]
        self.dropped = []
        self.jobs = {name: job for name, job in self.jobs.items() if name not in gone}
        return found

    def _queued(self) -> set[str]:
        """Names of our jobs that Slurm still has: pending, running, or about to be requeued."""
        if self.local:
            return {name for name, (task, _) in self.jobs.items() if task._process.poll() is None}
        arrays = ",".join(sorted({name.partition("_")[0] for name in self.jobs}))
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={arrays}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "Invalid job id" not in done.stderr:
            return set(self.jobs)  # the controller does not answer: ask again later
        return set(done.stdout.split())

    def _is_over(self, name: str, queued: set[str]) -> bool:
        """Whether a job has answered or is gone; a process of this machine is waited for."""
        return name not in queued or (not self.local and self._has_answered(name))

    def _has_answered(self, name: str) -> bool:
        return bool(self.jobs[name][0].paths.result_pickle.exists())

    def _answer(self, name: str) -> Answer:
        task, _ = self.jobs[name]
        if self._has_answered(name):
            kind, detail = pickle.loads(task.paths.result_pickle.read_bytes())
            return detail if kind == "success" else ("lost", detail)
        if self.stopping:
            return "stopped", f"its job {name} was cancelled"
        return "lost", f"its job {name} left the queue without an answer; see {task.paths.stdout}"

    def stop(self) -> None:
        self.stopping = True
        self.dropped, self.new = self.new, []
        for task, _ in self.jobs.values():
            task.cancel(check=False)

    def close(self) -> None:
        self.stop()


def train_on_slurm(job: Job) -> Answer:
    """Train a run in a job of Slurm; if it is stopped there, it comes back or ends unanswered."""
    inside = os.environ.get("SLURM_JOB_ID", "")
    if int(os.environ.get("SLURM_RESTART_COUNT", 0)):
        job = replace(job, attempt=max(job.attempt, 2))
    if job.options.nodes > 1:
        job = replace(job, meeting=_meeting(int(inside)))
    with StopRequest() as stop:
        answer = train_until(job, stop)
    if answer[0] != "stopped" or not inside:
        return answer
    requeues = stop.received is signal.SIGUSR2 and os.environ.get("SLURM_PROCID") == "0"
    if requeues and subprocess.run(["scontrol", "requeue", job_name()], check=False).returncode:
        return answer  # not allowed here: it is submitted again
    sys.exit(f"{answer[1]}")


def job_name() -> str:
    """The name of this job; one run alone is no array."""
    array = [os.environ.get(f"SLURM_ARRAY_{part}_ID", "") for part in ("JOB", "TASK")]
    return "_".join(array) if all(array) else os.environ["SLURM_JOB_ID"]


def _meeting(job_id: int) -> str:
    """host:port on the first machine of a job, the same for all processes of the job."""
    command = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return f"{done.stdout.split()[0]}:{20_000 + job_id % 20_000}"
