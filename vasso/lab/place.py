"""Where are results and data, and how are runs carried out? Flags that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

STORE = Path("runs")
LEAST = {"devices": 1, "checkpoint_steps": 0, "checkpoint_seconds": 0, "workers": 0}


def check_data_root(path: Path | None) -> None:
    """Whether what is named as the folder of data sets is one.

    Args:
        path: as given; None leaves the choice to us.

    Raises:
        ValueError: it is not there, or a file.
    """
    if path is None or path.is_dir():
        return
    what = "is a file" if path.exists() else "is not there"
    make = "name a directory" if path.exists() else f"make it (mkdir -p {path}), name another"
    raise ValueError(
        f"there is no data folder {str(path)!r}: it {what}; {make} by --data-root, or leave that "
        "out for VASSO_DATA or ~/.cache/vasso"
    )


@dataclass(frozen=True)
class Place:
    """Where things are and how runs are carried out.

    Attributes:
        store: directory for results.
        data_root: directory of data sets; else VASSO_DATA, else the cache of the user.
        accelerator: cpu, cuda, mps or tpu; auto takes the best there is.
        devices: processes of one run; more than one trains with DDP.
        strategy: auto, ddp or fsdp2, for more than one device.
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
        for name, least in LEAST.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        check_data_root(self.data_root)
        rest = {
            key: value for key, value in vars(self).items() if key not in {"store", "data_root"}
        }
        return {"data": self.data_root, **rest}
