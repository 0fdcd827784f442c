"""What is kept of one run, and how is it found damaged? A directory of it, always readable.

`vasso.lab.store` says which files there are. What is written once is replaced as a whole, what
grows is appended to, and what cannot be read is named with its remedy.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vasso.lab import atomic
from vasso.lab.json_text import as_json, table_in, table_of

FORMAT = 1


class StoreError(RuntimeError):
    """A store cannot be used as it is; the message says what to do."""


class DivergedError(StoreError):
    """The weights of a run are not numbers any more: there is nothing to measure."""


class BusyError(StoreError):
    """Another process works on this run."""


class Folder:
    """What a store holds of one run.

    Args:
        path: its directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.path.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run for this process; the lock goes when the process does, however it ends.

        Yields:
            Nothing.

        Raises:
            BusyError: another process holds it.
        """
        self.path.mkdir(exist_ok=True)
        descriptor = os.open(self._file("lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
                raise BusyError(f"process {holder} works on {self.id} already") from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            atomic.remove_leftovers(self.path)
            yield
        finally:
            os.close(descriptor)

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Keeps what the run is; once.

        A run that an earlier version has begun may lack settings that are new; they have their
        defaults, or its id would be another.

        Args:
            settings: as JSON may hold them, `run` among them.

        Raises:
            StoreError: what is there is of other settings, damaged or of a newer version.
        """
        path = self._file("run.json")
        if not path.exists():
            atomic.replace(path, as_json(settings, indent=1))
        else:
            self._check_is_of(settings["run"])

    def _check_is_of(self, run: Mapping[str, Any]) -> None:
        """Raises if these are not the settings that are kept here."""
        if not _agrees(self.settings.get("run"), json.loads(as_json(run))):
            path = self._file("run.json")
            raise StoreError(
                f"{path} holds other settings than {self.id} stands for. {self._remedy}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What `run.json` says; an error if it is damaged or of a newer version."""
        path = self._file("run.json")
        if not path.exists():
            raise StoreError(f"{path} is not there. {self._remedy}")
        found = read_json(path, self._remedy)
        check_is_known(found.get("format", FORMAT), str(path))
        return found

    @property
    def _remedy(self) -> str:
        """What is to be done about damage; one file less would not do: a result ends a run."""
        return f"Remove the folder {self.path} to begin the run anew"

    def append(self, line: Mapping[str, Any]) -> None:
        """Adds a line to the metrics.

        Args:
            line: what to note; `kind` and `step` say what it is about.
        """
        atomic.append_line(self._file("metrics.jsonl"), as_json(line).decode())

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """All lines, in order of time; of one that was written again after a crash, the last.

        Args:
            kind: only these.

        Returns:
            The lines; torn ones are left out.
        """
        path = self._file("metrics.jsonl")
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else ()):
            entry = table_of(line)
            if entry is None or (kind is not None and entry.get("kind") != kind):
                continue
            again = entry.get("kind"), entry.get("step")
            key = (number,) if entry.get("kind") == "start" else again
            found.pop(key, None)
            found[key] = entry
        return list(found.values())

    def unread_lines(self) -> list[int]:
        """Lines of the metrics of a finished run that cannot be read and that no crash explains.

        After a line that a crash has torn stands that of the next start.

        Returns:
            Their numbers, from 1.
        """
        path = self._file("metrics.jsonl")
        lines = path.read_bytes().splitlines() if path.exists() else []
        unread = [i for i, line in enumerate(lines) if table_of(line) is None]
        return [i + 1 for i in unread if not any(map(_is_start, lines[i + 1 : i + 2]))]

    def write_table(self, name: str, table: Mapping[str, Any]) -> None:
        """Keeps something that the weights of the run are of no use without.

        Args:
            name: the file, such as `vocabulary.json`.
            table: as JSON may hold it.
        """
        atomic.replace(self._file(name), as_json(table, indent=1))

    def table(self, name: str) -> dict[str, Any] | None:
        """Such a thing.

        Args:
            name: the file.

        Returns:
            What is in it, None if there is no such file.
        """
        path = self._file(name)
        return read_json(path) if path.exists() else None

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Keeps how the run has ended; with this it is finished.

        Args:
            result: as JSON may hold it.
        """
        atomic.replace(self._file("result.json"), as_json(result, indent=1))

    @property
    def result(self) -> dict[str, Any] | None:
        """How the run has ended, None if it has not; an error if that is damaged."""
        path = self._file("result.json")
        if not path.exists():
            return None
        found = read_json(path, self._remedy)
        if lacks := lacking(found):
            raise StoreError(f"{path} is damaged: it says nothing of {lacks}. {self._remedy}")
        return found

    def result_of(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        """How a run has ended, after a look at whether this folder is its own, and whole.

        Args:
            run: all its settings.

        Returns:
            The result, None if it has not ended; an error if that cannot be told.
        """
        result = self.result
        if result is not None or self._file("run.json").exists():
            self._check_is_of(run)
        return result

    def write_measurement(self, name: str, table: Mapping[str, Any]) -> None:
        """Keeps what was measured of the run after it had ended.

        Args:
            name: of the measurement.
            table: as JSON may hold it: `settings` and `rows` among it.
        """
        atomic.replace(self._file(f"{name}.json"), as_json(table, indent=1))

    def measurement(self, name: str, settings: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """What was measured.

        Args:
            name: of the measurement.
            settings: those it is wanted for.

        Returns:
            Rows; None if there is nothing of these settings.

        Raises:
            StoreError: the file is damaged.
        """
        path = self._file(f"{name}.json")
        if not path.exists():
            return None
        table = read_json(path, "Remove it to measure again")
        rows = table.get("rows")
        if not isinstance(rows, list):
            raise StoreError(f"{path} is damaged: it has no rows. Remove it to measure again")
        return rows if table.get("settings") == json.loads(as_json(settings)) else None

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Keeps tensors.

        Args:
            name: the file, such as `checkpoint.pt`.
            state: tensors, numbers, texts, and dictionaries, lists and tuples of them.
        """
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        atomic.replace(self._file(name), buffer.getvalue())

    def load(self, name: str) -> dict[str, Any] | None:
        """Tensors that were kept, on the CPU.

        Args:
            name: the file.

        Returns:
            The state, None if there is none.

        Raises:
            StoreError: the file is damaged, or holds more than data.
        """
        path = self._file(name)
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as trouble:
            raise StoreError(
                f"{path} cannot be read ({type(trouble).__name__}): it is damaged or holds more "
                f"than tensors. {self._remedy}"
            ) from trouble
        return state

    def weights(self) -> tuple[dict[str, Any], bool]:
        """Where training ended: averaged weights where there are some.

        Returns:
            For `load_state_dict`; and whether they are averaged.

        Raises:
            StoreError: it has not ended, or its weights are gone.
            DivergedError: training has lost them.
        """
        kept = self.load("weights.pt")
        if self.result is None:
            raise StoreError(
                f"{self.path} is not finished: train it first (vasso study, vasso train)"
            )
        if kept is None:
            raise StoreError(f"{self.path} has no weights.pt. {self._remedy}")
        averaged = kept.get("average") is not None
        found: dict[str, Any] = kept["average"] if averaged else kept["model"]
        if not all(torch.isfinite(value).all() for value in found.values()):
            raise DivergedError(f"the weights of {self.id} are not finite: it has diverged")
        return found, averaged

    def drop(self, name: str) -> None:
        """Removes a file that is no longer needed.

        Args:
            name: the file.
        """
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        path = self.path / name
        if path.is_symlink():
            raise StoreError(f"{path} is a link and may lead out of the store: remove it")
        return path


def read_json(path: Path, remedy: str = "") -> dict[str, Any]:
    """A table that was kept.

    Args:
        path: the file.
        remedy: what is to be done where it is damaged.

    Returns:
        What is in it.

    Raises:
        StoreError: it is damaged.
    """
    try:
        return table_in(path)
    except ValueError as trouble:
        raise StoreError(f"{path} is {trouble}" + (f". {remedy}" if remedy else "")) from None


def check_is_known(version: Any, what: str) -> None:
    """Raises if a newer version of this package has written it.

    Args:
        version: the format it says it has.
        what: the thing, for the message.

    Raises:
        StoreError: it has, or that cannot be told.
    """
    if not isinstance(version, int) or version > FORMAT:
        raise StoreError(
            f"{what} has format {version!r}, of a newer version; this version of vasso reads "
            f"{FORMAT} and older: update vasso, or name another store. Nothing has been changed"
        )


def lacking(result: Mapping[str, Any]) -> str | None:
    """What a result does not tell, of what everything else takes for granted.

    Args:
        result: how a run has ended.

    Returns:
        The first such thing, None if nothing is lacking.

    Example:
        >>> lacking({"last": {}, "cost": 3.0}), lacking({"last": {}, "cost": 3.0, "seconds": 1.5})
        ('its seconds', None)
    """
    if not isinstance(result.get("last"), Mapping):
        return "the last epoch"
    numbers = ("cost", "seconds")
    lost = (f"its {name}" for name in numbers if not isinstance(result.get(name), (int, float)))
    return next(lost, None)


def _is_start(line: bytes) -> bool:
    return (table_of(line) or {}).get("kind") == "start"


def _agrees(earlier: Any, now: Any) -> bool:
    """Whether everything that is said earlier still is."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        return all(key in now and _agrees(value, now[key]) for key, value in earlier.items())
    return bool(earlier == now)
