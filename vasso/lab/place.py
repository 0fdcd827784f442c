"""Where are results and data, and how are runs carried out? Flags that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORE = Path("runs")


@dataclass(frozen=True)
class Place:
    """Where things are and how runs are carried out.

    Attributes:
        store: directory for results.
        data_root: directory of data sets; else VASSO_DATA, else the cache of the user.
        accelerator: cpu, cuda, ... as Lightning Fabric calls it.
        devices: processes of one run; more than one trains with DDP.
        strategy: auto, ddp, ... as Lightning Fabric calls it.
        checkpoint_steps: steps between checkpoints within an epoch, 0 for none.
        checkpoint_seconds: longest time between checkpoints.
        workers: processes that decode image files, where a data set is not in memory.
    """

    store: Path = STORE
    data_root: Path | None = None
    accelerator: str = "auto"
    devices: int = 1
    strategy: str = "auto"
    checkpoint_steps: int = 0
    checkpoint_seconds: float = 60.0
    workers: int = 4

    def how(self) -> dict[str, Any]:
        """Settings of `vasso.lab.how.How`.

        Returns:
            name -> value.

        Raises:
            ValueError: one is out of range.
        """
        for name in ("devices", "checkpoint_steps", "checkpoint_seconds", "workers"):
            if getattr(self, name) < (name == "devices"):
                raise ValueError(f"{name} must not be {getattr(self, name)}")
        if self.data_root is not None and not self.data_root.is_dir():
            raise ValueError(f"there is no data folder {str(self.data_root)!r}")
        rest = {
            key: value for key, value in vars(self).items() if key not in {"store", "data_root"}
        }
        return {"data": self.data_root, **rest}
