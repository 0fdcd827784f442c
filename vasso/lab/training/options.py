"""Run options: devices, data directory and checkpoint frequency. They do not change the result.

This module imports neither torch nor Fabric, so that the command line can show its options at once.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from vasso.lab.schema import name_of
from vasso.optional import check_installed

FSDP2 = "fsdp2"
"""torch's `fully_shard` through Fabric."""
LOGGERS = ("tensorboard", "wandb", "mlflow")
MOST_PROCESSES = 16 * (os.cpu_count() or 1)
MINIMUM = {
    "devices": 1,
    "nodes": 1,
    "micro_batch": 0,
    "checkpoint_steps": 0,
    "checkpoint_seconds": 0,
    "workers": 0,
}


@dataclass(frozen=True)
class RunOptions:
    """Devices, data directory and checkpoint frequency of a run.

    Attributes:
        data_root: directory of data sets; default: $VASSO_DATA, else the user's cache.
        accelerator: cpu, cuda, mps or tpu; auto takes the fastest available.
        devices: processes of one run; more than one trains with DDP.
        strategy: auto, ddp or fsdp2, for more than one device.
        checkpoint_steps: steps between checkpoints within an epoch, 0 for none.
        checkpoint_seconds: longest time between checkpoints.
        nodes: machines of one run, each with so many devices; started by Slurm or torchrun.
        micro_batch: samples of one pass in each process, 0 for the whole batch; gradients are added
            up. Only BatchNorm and dropout see the difference.
        workers: processes that decode image files, for data sets that are not kept in memory.
        log: tensorboard, wandb or mlflow, to write the numbers of steps and epochs there too.
    """

    data_root: Path | None = None
    accelerator: str = "auto"
    devices: int = 1
    strategy: str = "auto"
    checkpoint_steps: int = 0
    checkpoint_seconds: float = 60.0
    nodes: int = 1
    micro_batch: int = 0
    workers: int = 4
    log: str = ""

    @property
    def processes(self) -> int:
        """Processes of one run."""
        return self.devices * self.nodes

    def check(self) -> None:
        """Raise ValueError if a number is out of range, or a logger or directory is missing."""
        for name, minimum in MINIMUM.items():
            if not getattr(self, name) >= minimum:
                raise ValueError(f"{name} must be at least {minimum}, got {getattr(self, name)}")
        if self.log:
            check_installed("loggers", name_of("logger", self.log, LOGGERS))
        for name in ("devices", "workers"):
            if getattr(self, name) > MOST_PROCESSES:
                message = f"at most {MOST_PROCESSES} on this machine, got {getattr(self, name)}"
                raise ValueError(f"{name} must be {message}")
        check_data_root(self.data_root)


def check_data_root(path: Path | None) -> None:
    """Raise ValueError if a data directory is given and does not exist."""
    if path is None or path.is_dir():
        return
    what = "is a file" if path.exists() else "does not exist"
    remedy = "name a directory" if path.exists() else f"create it (mkdir -p {path}), name another"
    raise ValueError(
        f"data directory {str(path)!r} {what}: {remedy} with --data-root, or leave the option out "
        "to use $VASSO_DATA or ~/.cache/vasso"
    )
