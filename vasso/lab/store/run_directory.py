"""The directory of one run: settings, metrics, checkpoint, weights and result.

`store.store` lists the files. A file that is written once is replaced as a whole, and the metrics
are appended to. An error about a damaged file names the file and the remedy.
"""

import hashlib
import io
import os
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch

from vasso.lab.store import atomic
from vasso.lab.store.json import as_json, table_in, table_of, unsealed
from vasso.lab.store.lock import BusyError as BusyError
from vasso.lab.store.lock import RunLock
from vasso.lab.store.lock import StoreError as StoreError
from vasso.lab.store.provenance import now

FORMAT = 1
Lines: TypeAlias = Sequence[Mapping[str, Any] | None]
CHECKPOINT, EARLIER = "checkpoint.pt", "checkpoint-earlier.pt"
_SEAL = b"\nsha256 "
"""Before the digest at the end of a file of tensors, where torch.load passes over it."""


class DivergedError(StoreError):
    """The weights of a run are not finite: there is nothing to measure."""


class DamagedError(StoreError):
    """The content of a file is not what was written."""


class RunDirectory:
    """The directory of one run in a store."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.path.name

    @contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[RunLock]:
        """Locks the run for this process; a lock that is held is waited for, so many seconds."""
        self.path.mkdir(exist_ok=True)
        with RunLock(self._file("lock"), self.id, patience) as lock:
            atomic.remove_leftovers(self.path)
            yield lock

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes `run.json`, or checks that it holds these settings.

        A run that an earlier version has begun may lack settings that are new. They have their
        defaults, since the id would differ otherwise.
        """
        path = self._file("run.json")
        if not path.exists():
            atomic.replace(path, as_json(settings, indent=1))
        else:
            self._check_is_of(settings["run"])

    def _check_is_of(self, run: Mapping[str, Any]) -> None:
        if not _agrees(self.settings.get("run"), unsealed(as_json(run))):
            path = self._file("run.json")
            raise StoreError(
                f"{path} holds other settings than {self.id} stands for. {self.remedy}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The content of `run.json`; an error if it is damaged or of a newer version."""
        path = self._file("run.json")
        if not path.exists():
            raise StoreError(f"{path} is not there. {self.remedy}")
        found = read_json(path, self.remedy)
        check_is_known(found.get("format", FORMAT), str(path))
        return found

    @property
    def remedy(self) -> str:
        """The remedy for damage: all files must go, as a result alone counts as a finished run."""
        return f"Remove the folder {self.path} to begin the run anew"

    def append(self, line: Mapping[str, Any]) -> None:
        """Adds a line to the metrics; `kind` and `step` identify it."""
        atomic.append_line(self._file("metrics.jsonl"), as_json(line).decode())

    def lines(self) -> list[dict[str, Any] | None]:
        """All lines of the metrics as they are; None for one that is torn or damaged."""
        path = self._file("metrics.jsonl")
        return [table_of(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def metrics(
        self, kind: str | None = None, lines: Lines | None = None
    ) -> list[Mapping[str, Any]]:
        """The lines of the metrics in order; of a line written again after a crash, the last.

        They are read unless `lines` are given.
        """
        found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        for number, entry in enumerate(self.lines() if lines is None else lines):
            if entry is None or (kind is not None and entry.get("kind") != kind):
                continue
            again = entry.get("kind"), entry.get("step")
            key = (number,) if entry.get("kind") == "start" else again
            found.pop(key, None)
            found[key] = entry
        return list(found.values())

    def damaged_lines(self, lines: Lines | None = None) -> list[int]:
        """Numbers, from 1, of damaged lines in the metrics of a finished run.

        A line that a crash has torn is not counted; the line after it is that of the next start.
        """
        found = self.lines() if lines is None else lines
        unread = [i for i, line in enumerate(found) if line is None]
        return [i + 1 for i in unread if not any(map(_is_start, found[i + 1 : i + 2]))]

    def note_failure(self, why: str) -> None:
        """Notes in the metrics why a process has given up a run that has been begun."""
        if self._file("run.json").exists():
            self.append({"kind": "failed", "time": now(), "why": why})

    def write_table(self, name: str, table: Mapping[str, Any]) -> None:
        """Writes a JSON file that is needed to use the weights, such as `vocabulary.json`."""
        atomic.replace(self._file(name), as_json(table, indent=1))

    def table(self, name: str) -> dict[str, Any] | None:
        """The content of such a file; None if there is none."""
        path = self._file(name)
        return read_json(path, self.remedy) if path.exists() else None

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes the result; with this the run is finished."""
        atomic.replace(self._file("result.json"), as_json(result, indent=1))

    @property
    def result(self) -> dict[str, Any] | None:
        """The result, None if the run is not finished; an error if it is damaged."""
        path = self._file("result.json")
        if not path.exists():
            return None
        found = read_json(path, self.remedy)
        if lacks := missing_entry(found):
            raise StoreError(f"{path} is damaged: it lacks {lacks}. {self.remedy}")
        return found

    def result_of(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result, after a check that this directory is whole and of these settings."""
        result = self.result
        if result is not None or self._file("run.json").exists():
            self._check_is_of(run)
        return result

    def write_measurement(self, name: str, table: Mapping[str, Any]) -> None:
        """Writes a measurement of the finished run: `settings`, `rows` and more."""
        atomic.replace(self._file(f"{name}.json"), as_json(table, indent=1))

    def measurement(self, name: str, settings: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The rows of a measurement; None if there are none with these settings."""
        path = self._file(f"{name}.json")
        if not path.exists():
            return None
        table = read_json(path, "Remove it to measure again")
        rows = table.get("rows")
        if not isinstance(rows, list) or not all(map(_is_row, rows)):
            raise StoreError(f"{path} is damaged: it has no rows. Remove it to measure again")
        return rows if table.get("settings") == unsealed(as_json(settings)) else None

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Writes a file of tensors, numbers, texts, and dicts, lists and tuples of them."""
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
        buffer.write(_SEAL + digest.encode())
        atomic.replace(self._file(name), buffer.getbuffer())

    def load(self, name: str) -> dict[str, Any] | None:
        """The content of such a file, on the CPU; None if there is none."""
        path = self._file(name)
        if not path.exists():
            return None
        content, _, digest = path.read_bytes().rpartition(_SEAL)
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise DamagedError(
                f"{path} is damaged: its digest is not that of its content. {self.remedy}"
            )
        try:
            state: dict[str, Any] = torch.load(
                io.BytesIO(content), map_location="cpu", weights_only=True
            )
        except Exception as error:
            raise StoreError(
                f"{path} cannot be read ({type(error).__name__}): it holds more than tensors. "
                f"{self.remedy}"
            ) from error
        return state

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Writes a checkpoint and keeps the one before it."""
        if (path := self._file(CHECKPOINT)).exists():
            os.replace(path, self._file(EARLIER))
        self.save(CHECKPOINT, state)

    def checkpoints(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The checkpoints that are not damaged, the newest first; a warning names the others."""
        for name in (CHECKPOINT, EARLIER):
            try:
                if (state := self.load(name)) is not None:
                    yield self.path / name, state
            except DamagedError:
                rest = "an earlier checkpoint, if there is one, else from the start"
                warnings.warn(
                    f"{self.path / name} is damaged and is not used: {self.id} goes on from {rest}",
                    stacklevel=2,
                )

    def drop_checkpoints(self) -> None:
        """Removes the checkpoints of a finished run."""
        for name in (CHECKPOINT, EARLIER):
            self._file(name).unlink(missing_ok=True)

    def weights(self) -> tuple[dict[str, Any], bool]:
        """The weights at the end of training, and whether they are averaged."""
        kept = self.load("weights.pt")
        if self.result is None:
            raise StoreError(
                f"{self.path} is not finished: train it first (vasso study, vasso train)"
            )
        if kept is None:
            raise StoreError(f"{self.path} has no weights.pt. {self.remedy}")
        averaged = kept.get("average") is not None
        found: dict[str, Any] = kept["average"] if averaged else kept["model"]
        if not all(torch.isfinite(value).all() for value in found.values()):
            raise DivergedError(f"the weights of {self.id} are not finite: it has diverged")
        return found, averaged

    def _file(self, name: str) -> Path:
        path = self.path / name
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return path
        if stat.S_ISLNK(mode):
            raise StoreError(f"{path} is a link and may lead out of the store: remove it")
        if not stat.S_ISREG(mode):
            raise StoreError(f"{path} is not a regular file. {self.remedy}")
        return path


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """The table in a JSON file; `remedy` says what to do if it is damaged."""
    try:
        return table_in(path)
    except ValueError as error:
        raise DamagedError(f"{path} is {error}" + (f". {remedy}" if remedy else "")) from None


def check_is_known(version: Any, what: str) -> None:
    """Raises if a newer version of this package wrote `what`."""
    if not isinstance(version, int):
        raise DamagedError(f"{what} is damaged: its format is {version!r}, not a number")
    if version > FORMAT:
        raise StoreError(
            f"{what} has format {version!r}, of a newer version; this version of vasso reads "
            f"{FORMAT} and older: update vasso, or name another store. Nothing has been changed"
        )


def missing_entry(result: Mapping[str, Any]) -> str | None:
    """The first entry that a result needs and lacks; None if it is complete.

    Example:
        >>> missing_entry({"last": {}, "cost": 3.0})
        'seconds'
    """
    if not isinstance(result.get("last"), Mapping):
        return "the last epoch"
    numbers = ("cost", "seconds")
    missing = (name for name in numbers if not isinstance(result.get(name), (int, float)))
    return next(missing, None)


def _is_row(row: Any) -> bool:
    """Whether a row of a measurement holds numbers, and texts that say of which run it is."""
    return isinstance(row, dict) and all(
        value is None or isinstance(value, int | float) or key in {"run", "method"}
        for key, value in row.items()
    )


def _is_start(line: Mapping[str, Any] | None) -> bool:
    return (line or {}).get("kind") == "start"


def _agrees(earlier: Any, now: Any) -> bool:
    """Whether all earlier entries are the same now."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        return all(key in now and _agrees(value, now[key]) for key, value in earlier.items())
    return bool(earlier == now)
