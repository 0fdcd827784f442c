"""The store: a directory with one directory for each run, readable at any time.

    store/
      store.json            format version
      index.json            finished runs that need not be read again; see `store.index`
      studies.jsonl         studies that were trained with other settings (`vasso study --set`)
      <run id>/
        run.json            settings, versions, commit, hardware: written once
        metrics.jsonl       one line per epoch, appended; a torn line is skipped
        checkpoint.pt       training state, replaced as a whole; checkpoint-earlier.pt: before it
        weights.pt          the weights at the end
        vocabulary.json     merges and dictionaries, of a translator
        result.json         last epoch, best epoch by validation, cost: written last
        lock                the process that trains the run, and its last sign of life
        spectrum.json ...   later measurements; see `vasso.lab.studies.measurements`

Every file ends with a digest of its content, as does every line of the metrics. What is damaged is
named and not used.

A store is read as data: JSON, and tensors with `weights_only=True`. No code in it is run, and no
name in it leads out of it.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vasso.lab.experiment.run import Run
from vasso.lab.store import atomic
from vasso.lab.store.index import INDEX, Index, files_of
from vasso.lab.store.json import as_json
from vasso.lab.store.run_directory import (
    FORMAT,
    RunDirectory,
    StoreError,
    check_is_known,
    read_json,
)

CHANGES, LINES = "studies.jsonl", "runs.jsonl"
STORE = Path("runs")
"""Where results go unless --store names another directory."""
UNREAD = "could not be read: "
"""Begins each sentence about a damaged file."""
_ID = re.compile(r"[a-z0-9][a-z0-9.+-]{0,150}")


class Store:
    """A directory of runs, made if it is not there unless it is only read (`writes` is false).

    Raises StoreError if it is something else, or of a newer version of this package.
    """

    def __init__(self, root: str | os.PathLike[str], *, writes: bool = True) -> None:
        self.root, self.writes = Path(root).expanduser().absolute(), writes
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(
                f"{self.root} is a file: a store is a directory, name another by --store"
            )
        if writes:
            self.root.mkdir(parents=True, exist_ok=True)
        self._check_format(writes)

    def _check_format(self, writes: bool) -> None:
        path = self.root / "store.json"
        if not path.exists():
            self._check_is_free()
            if writes:
                atomic.replace(path, as_json({"format": FORMAT}))
            return
        kept = "Remove it: the runs stay, and it is written again"
        check_is_known(read_json(path, kept).get("format"), f"the store {self.root}")

    def _check_is_free(self) -> None:
        """Raises if the directory holds other things than runs and stores (as the demo makes)."""
        there = [p for p in self.root.iterdir() if not p.name.startswith(".")]
        others = sorted(p.name for p in there if not (p / "store.json").is_file())
        if others and not any((self.root / name / "run.json").exists() for name in others):
            raise StoreError(
                f"{self.root} holds other things ({others[0]}, ...) and is no store: name an empty "
                "or a new directory by --store"
            )

    def note_change(self, study: str, scale: str, words: Iterable[str]) -> None:
        """Notes that runs here are those of a study with settings `name=value`, for the report."""
        path = self.root / CHANGES
        line = as_json({"study": study, "scale": scale, "set": list(words)}).decode()
        if not path.exists() or line not in path.read_text(encoding="utf-8").splitlines():
            atomic.append_line(path, line)

    def folder(self, run_id: str) -> RunDirectory:
        """The directory of one run, which need not exist yet."""
        if not _ID.fullmatch(run_id):
            raise StoreError(f"{run_id!r} is not the id of a run")
        path = self.root / run_id
        if path.is_symlink():
            raise StoreError(f"{path} leads out of the store {self.root}")
        return RunDirectory(path)

    def folders(self) -> list[RunDirectory]:
        """The directories of all runs that have been begun, by id."""
        names = sorted(p.name for p in self.root.iterdir() if _ID.fullmatch(p.name))
        real = [name for name in names if not (self.root / name).is_symlink()]
        return [self.folder(name) for name in real if (self.root / name / "run.json").is_file()]


def check_replaces_none(path: Path) -> None:
    """Raises ValueError if a user's output would replace a file of a store, or lie among a run's.

    Example:
        >>> check_replaces_none(Path("report.html"))
    """
    folders = path.resolve().parents[:2]
    of_a_run = any((folder / "run.json").exists() for folder in folders)
    if of_a_run or (path.exists() and path.name in ("store.json", INDEX, CHANGES, LINES)):
        raise ValueError(f"{str(path)!r} is a place for files of a store: choose another path")


@dataclass(frozen=True)
class RunStatus:
    """Which runs are finished in a store: done with their results, missing, or unread.

    A result that was not read again is empty. Unread runs have damaged files, which are left as
    they are; each has its error.
    """

    done: dict[Run, dict[str, Any]] = field(default_factory=dict)
    missing: list[Run] = field(default_factory=list)
    unread: dict[Run, str] = field(default_factory=dict)

    def warnings(self) -> list[str]:
        """One sentence for each run that cannot be read."""
        return [f"{UNREAD}{why}" for why in self.unread.values()]

    @property
    def rest(self) -> str:
        """The end of a line of counts: how many runs cannot be read."""
        return f", {len(self.unread)} could not be read" if self.unread else ""

    def status_of(self, run: Run) -> str:
        """One word: done, unread or missing."""
        return "done" if run in self.done else "unread" if run in self.unread else "missing"


def run_status(runs: Iterable[Run], store: Store, *, results: bool = True) -> RunStatus:
    """Looks up runs in a store; without `results`, finished runs that its index knows are not read.

    What has been read is noted in the index then.
    """
    status, index = RunStatus(), None if results else Index(store.root)
    for run in runs:
        try:
            folder = store.folder(run.id)
            if index is not None and index.seconds(folder.path) is not None:
                status.done[run] = {}
                continue
            files = files_of(folder.path)
            result = folder.result_of(run.in_full())
        except StoreError as error:
            status.unread[run] = str(error)
            continue
        if result is None:
            status.missing.append(run)
        else:
            status.done[run] = result
            if index is not None:
                index.note(folder.path, files, result["seconds"])
    if index is not None and store.writes:
        index.write()
    return status
