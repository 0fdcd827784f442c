"""How is a run carried out? On which devices, by which strategy, with how many checkpoints."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vasso.lab.accelerators import check_accelerator, check_strategy
from vasso.lab.fabric import Fabric, ModelParallelStrategy
from vasso.lab.shards import sharded

FSDP2 = "fsdp2"


@dataclass(frozen=True)
class How:
    """How a run is carried out: nothing here changes what it is.

    Args:
        data: where data are; None for VASSO_DATA or the cache of the user.
        accelerator: as Fabric calls it.
        devices: how many; each is a process.
        strategy: as Fabric calls it; or "fsdp2", torch's `fully_shard` through Fabric.
        checkpoint_steps: steps from checkpoint to checkpoint; 0 for none within an epoch.
        checkpoint_seconds: at most so long from checkpoint to checkpoint.
        workers: processes that decode image files, where a data set is not in memory.
    """

    data: Path | None = None
    accelerator: str = "auto"
    devices: int = 1
    strategy: str = "auto"
    checkpoint_steps: int = 0
    checkpoint_seconds: float = 60.0
    workers: int = 4

    def fabric(self, precision: Any) -> Fabric:
        """The host.

        Args:
            precision: of the passes.

        Returns:
            Launched, if there are several processes.
        """
        check_accelerator(self.accelerator)
        check_strategy(self.strategy)
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        strategy: Any = self.strategy
        if self.strategy == FSDP2:
            strategy = ModelParallelStrategy(sharded, self.devices, tensor_parallel_size=1)
        fabric = Fabric(
            accelerator=self.accelerator,
            devices=self.devices,
            strategy=strategy,
            precision=precision,
        )
        if self.devices > 1:
            fabric.launch()
        return fabric
