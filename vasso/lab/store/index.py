"""Index of a store: finished runs whose files have been read and checked, and need not be again.

`index.json` notes how the settings and the result of a run lie on disk: size, times and inode. What
it lacks, and what lies there otherwise, is read from the folder of the run. So it is never trusted
over the folders, and is written anew if it is removed or damaged.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import vasso
from vasso.lab.store import atomic
from vasso.lab.store.json import as_json, table_in

INDEX = "index.json"
FILES = ("run.json", "result.json")


class Index:
    """The index of the store at `root`, as this version of vasso has written it."""

    def __init__(self, root: Path) -> None:
        self.path = root / INDEX
        self._runs: dict[str, Any] = {}
        self._changed = False
        with suppress(ValueError):
            table = table_in(self.path)
            if table.get("vasso") == vasso.__version__ and isinstance(table.get("runs"), dict):
                self._runs = table["runs"]

    def seconds(self, folder: Path) -> float | None:
        """How long a finished run took, if its files are as they were when they were checked."""
        entry = self._runs.get(folder.name)
        if not isinstance(entry, dict) or entry.get("files") != files_of(folder):
            return None
        took = entry.get("seconds")
        return float(took) if isinstance(took, int | float) else None

    def note(self, folder: Path, files: list[int] | None, seconds: float) -> None:
        """Notes a run that is finished; `files` are those of before it was read."""
        if files is not None and files == files_of(folder):
            self._runs[folder.name] = {"files": files, "seconds": seconds}
            self._changed = True

    def write(self) -> None:
        """Writes what has been noted; a store that cannot be written to has no index."""
        if self._changed:
            with suppress(OSError):
                atomic.replace(self.path, as_json({"vasso": vasso.__version__, "runs": self._runs}))


def files_of(folder: Path) -> list[int] | None:
    """How the files of a run lie on disk; None if it is not finished."""
    found: list[int] = []
    for name in FILES:
        try:
            one = os.lstat(folder / name)
        except OSError:
            return None
        if not stat.S_ISREG(one.st_mode):
            return None
        found += [one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino]
    return found
