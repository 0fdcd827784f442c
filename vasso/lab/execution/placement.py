"""Placement: where the runs of a study are trained, and what each of them gets there."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vasso.lab.execution.engine import Display, Engine, Outcome, RunTracker
from vasso.lab.execution.job import LAUNCHED, Job
from vasso.lab.experiment.run import Run
from vasso.lab.training.options import RunOptions
from vasso.optional import check_installed

ONLY_CPUS = "cpu", "mps"


@dataclass(frozen=True)
class Placement:
    """Where the runs of a study are trained, and what each of them gets.

    Attributes:
        on: here, in processes of this machine (see --jobs); ray, on a Ray cluster; slurm, as jobs.
        gpus_per_run: GPUs of one run on each machine; default: 1 here where there is one, else 0.
        cpus_per_run: threads of one run.
        ray_address: auto, host:port or ray://host:port; default: a cluster started here.
        partition: partition of Slurm.
        time: longest time of a job, as sbatch takes it; a run that needs more goes back in the
            queue.
        account: account of Slurm.
    """

    on: Literal["here", "ray", "slurm"] = "here"
    gpus_per_run: int | None = None
    cpus_per_run: int = 1
    ray_address: str = ""
    partition: str = ""
    time: str = ""
    account: str = ""

    def check(self, options: RunOptions) -> None:
        """Raise ValueError if the settings do not fit together, or an extra is missing."""
        for name, least in {"gpus_per_run": 0, "cpus_per_run": 1}.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.on == "ray":
            check_installed("ray", "ray")
        if self.on == "slurm":
            check_installed("slurm", "submitit")
        if options.nodes > 1 and self.on != "slurm":
            raise ValueError(
                f"nodes={options.nodes} needs --on slurm. Without Slurm, on each machine: "
                "torchrun --nnodes N --no-python vasso train --nodes N"
            )
        gpus = self.gpus_per_run or 0
        if gpus and options.accelerator in ONLY_CPUS:
            raise ValueError(f"gpus_per_run={gpus} does not fit accelerator={options.accelerator}")
        if gpus and options.devices not in (1, gpus):
            raise ValueError(f"devices={options.devices} does not fit gpus_per_run={gpus}")
        if LAUNCHED in os.environ:
            raise ValueError(
                "vasso study starts the processes of each run itself: give the command without "
                "torchrun"
            )

    def gpus(self, options: RunOptions) -> int:
        """GPUs of one run on each machine."""
        if self.gpus_per_run is not None:
            return self.gpus_per_run
        if self.on != "here" or options.accelerator in ONLY_CPUS:
            return 0
        import torch

        return options.devices if torch.cuda.is_available() else 0

    def options_of_run(self, options: RunOptions) -> RunOptions:
        """The options with a process for each GPU; without GPUs, no run looks for one."""
        gpus = self.gpus(options)
        on_cpu = not gpus and options.accelerator == "auto" and self._may_see_others()
        return replace(
            options,
            devices=max(gpus, options.devices),
            accelerator="cpu" if on_cpu else options.accelerator,
        )

    def _may_see_others(self) -> bool:
        """Whether a run may see GPUs that it was not given."""
        return self.on != "here" or self.gpus_per_run == 0

    def engine(self, options: RunOptions, root: Path, jobs: int) -> Engine:
        """The engine; imports Ray or submitit if it is one of theirs."""
        gpus = self.gpus(options)
        if self.on == "ray":
            from vasso.lab.execution.ray_cluster import RayCluster

            return RayCluster(self.ray_address, self.cpus_per_run * options.devices, gpus)
        if self.on == "slurm":
            from vasso.lab.execution.slurm import SlurmCluster, SlurmRequest

            request = SlurmRequest(
                partition=self.partition,
                account=self.account,
                time=self.time,
                cpus=self.cpus_per_run * options.devices,
                gpus=gpus,
                nodes=options.nodes,
            )
            return SlurmCluster(root, request)
        from vasso.lab.execution.pool import WorkerPool, gpus_of_workers

        return WorkerPool(jobs, self.cpus_per_run, gpus_of_workers(gpus, options.accelerator))

    def train(
        self, runs: list[Run], root: Path, options: RunOptions, jobs: int, display: Display
    ) -> Outcome:
        """Train runs into the store at `root`."""
        options = self.options_of_run(options)
        if options.data_root is not None:
            options = replace(options, data_root=options.data_root.absolute())

        def job_of(run: Run, attempt: int) -> Job:
            return Job(run.as_table(), root, options, self.cpus_per_run, attempt=attempt)

        engine = self.engine(options, root, jobs)
        return RunTracker(engine, root, job_of, display).train(runs)
