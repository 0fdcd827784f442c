"""Where are the results, and what is left after a crash? A directory of runs, always readable.

    store/
      store.json            which format this is
      <run id>/
        run.json            settings, versions, commit, hardware: written once
        metrics.jsonl       one line per epoch, appended; a torn line is passed over
        checkpoint.pt       where to go on from, replaced as a whole
        weights.pt          the weights at the end
        vocabulary.json     of a translator: what its numbers stand for
        result.json         last epoch, best epoch by validation, cost: written last
        lock                held by the process that works on the run
        spectrum.json ...   what was measured afterwards; see `vasso.lab.measurements`

What is read from a store is data: JSON, and tensors by `weights_only=True`. Nothing of it is run,
and no name in it leads out of it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from vasso.lab import atomic
from vasso.lab.folder import FORMAT, Folder, StoreError, check_is_known, read_json

_ID = re.compile(r"[a-z0-9][a-z0-9.+-]{0,150}")


class Store:
    """A directory of runs.

    Args:
        root: the directory; made if it is not there.

    Raises:
        StoreError: it is something else, or of a newer version of this package.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser().absolute()
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(
                f"{self.root} is a file: a store is a directory, name another by --store"
            )
        self.root.mkdir(parents=True, exist_ok=True)
        self._check_format()

    def _check_format(self) -> None:
        path = self.root / "store.json"
        if not path.exists():
            self._check_is_free()
            atomic.replace(path, json.dumps({"format": FORMAT}).encode())
            return
        kept = "Remove it: the runs beside it stay, and it is written anew"
        check_is_known(read_json(path, kept).get("format"), f"the store {self.root}")

    def _check_is_free(self) -> None:
        """Raises if things lie here that are neither runs nor stores, as that of `vasso demo`."""
        there = [p for p in self.root.iterdir() if not p.name.startswith(".")]
        others = sorted(p.name for p in there if not (p / "store.json").is_file())
        if others and not any((self.root / name / "run.json").exists() for name in others):
            raise StoreError(
                f"{self.root} holds other things ({others[0]}, ...) and is no store: name an empty "
                "or a new directory by --store"
            )

    def folder(self, run_id: str) -> Folder:
        """The place of one run, whether it is there yet or not.

        Args:
            run_id: its id.

        Returns:
            The place.

        Raises:
            StoreError: the id is not one, or leads out of the store.
        """
        if not _ID.fullmatch(run_id):
            raise StoreError(f"{run_id!r} is not the id of a run")
        path = self.root / run_id
        if path.is_symlink() or not path.resolve().is_relative_to(self.root.resolve()):
            raise StoreError(f"{path} leads out of the store {self.root}")
        return Folder(path)

    def folders(self) -> list[Folder]:
        """The places of all runs that have been begun, by id.

        Returns:
            Those with settings.
        """
        names = sorted(p.name for p in self.root.iterdir() if _ID.fullmatch(p.name))
        real = [name for name in names if not (self.root / name).is_symlink()]
        return [self.folder(name) for name in real if (self.root / name / "run.json").is_file()]
