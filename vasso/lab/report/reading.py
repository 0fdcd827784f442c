"""What does a store hold? Every run that was begun, finished or not; and what could not be read.

A store is a directory of runs (`vasso.lab.store`), or one of compact copies: `runs.jsonl` in it or
in its folders (`vasso export`). Nothing is written, and what is damaged is named, never dropped in
silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vasso.lab.folder import FORMAT, Folder, StoreError, lacking
from vasso.lab.report import beside, compact
from vasso.lab.report.beside import Measured, Trouble
from vasso.lab.runs import Run
from vasso.lab.store import Store

LINES = "runs.jsonl"
COUNTS = "the result counts. Remove the folder to begin the run anew"
__all__ = ["LINES", "Contents", "Measured", "Trained", "Trouble", "from_line", "read"]


@dataclass(frozen=True)
class Trained:
    """A run, as far as it has come.

    Attributes:
        run: what it is.
        begun: when, in UTC.
        certificate: versions, commit and hardware.
        epochs: what was noted at the end of each.
        result: how it has ended; None if it has not.
        measured: name -> what was measured besides.
        probe: what `vasso probe` found at its weights; None if nobody has looked.
    """

    run: Run
    begun: str
    certificate: Mapping[str, Any]
    epochs: tuple[Mapping[str, Any], ...]
    result: Mapping[str, Any] | None
    measured: Mapping[str, Measured] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None

    def line(self) -> str:
        """The run in one line of JSON.

        Returns:
            Text without a newline.
        """
        table = {
            "format": FORMAT,
            "id": self.run.id,
            "run": self.run.as_table(),
            "begun": self.begun,
            "certificate": dict(self.certificate),
            "epochs": compact.columns(self.epochs),
            "result": self.result,
        }
        noted = beside.of_training(self.epochs)  # which epochs tell already
        more = {name: one.as_table() for name, one in self.measured.items() if name not in noted}
        table |= {"measured": more} if more else {}
        table |= {"probe": self.probe} if self.probe is not None else {}
        return json.dumps(table, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def with_more(self, other: Trained) -> Trained:
        """The run with what was measured of another copy of it.

        Args:
            other: the same run.

        Returns:
            What both have is this one's.
        """
        probe = self.probe if self.probe is not None else other.probe
        return replace(self, measured={**other.measured, **self.measured}, probe=probe)


@dataclass(frozen=True)
class Contents:
    """What a store holds.

    Attributes:
        runs: by id.
        troubles: what could not be read.
        spreads: what was measured of no run: adversaries on a sphere.
    """

    runs: Mapping[str, Trained]
    troubles: tuple[Trouble, ...]
    spreads: tuple[Measured, ...] = ()


def read(root: str | Path) -> Contents:
    """Reads a store or compact copies of one; writes nothing.

    Args:
        root: the directory.

    Returns:
        What it holds; of a run that is there twice, the finished one, with what was measured of
        either.

    Raises:
        StoreError: there is no such directory, or it is of a newer version.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        what = "is a file" if root.exists() else "is not there"
        raise StoreError(f"{root} {what}: name the directory that `vasso study` wrote into")
    if (root / "store.json").exists():
        Store(root)  # whose format may be too new
    runs: dict[str, Trained] = {}
    troubles: list[Trouble] = []
    for where, load in _entries(root):
        try:
            trained, further = load(where)
        except (StoreError, ValueError, KeyError, TypeError, AttributeError) as trouble:
            troubles.append(Trouble(where, _told(trouble, root)))
            continue
        troubles += further
        known = runs.get(trained.run.id)
        takes = known is None or known.result is None
        first, second = (trained, known) if takes else (known, trained)
        assert first is not None
        runs[trained.run.id] = first if second is None else first.with_more(second)
    spreads = list(beside.spreads_in(root))
    troubles += [one for one in spreads if isinstance(one, Trouble)]
    clouds = tuple(one for one in spreads if isinstance(one, Measured))
    return Contents(dict(sorted(runs.items())), tuple(troubles), clouds)


Loaded = tuple[Trained, tuple[Trouble, ...]]


def _entries(root: Path) -> Iterator[tuple[str, Callable[[str], Loaded]]]:
    """Every place where there should be a run, and how to read it."""
    for path in sorted(root.glob("*/run.json")):
        if path.parent.is_symlink() or path.is_symlink():
            yield path.parent.name, partial(_refused, "a link, which may lead out of the store")
        else:
            yield path.parent.name, partial(_from_folder, Folder(path.parent))
    for path in sorted([*root.glob(LINES), *root.glob(f"*/{LINES}")]):
        where = str(path.relative_to(root))
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if line.strip():
                yield f"{where}, line {number}", partial(_from_line, line)


def _refused(why: str, where: str) -> Loaded:
    raise StoreError(why)


def _from_folder(folder: Folder, where: str) -> Loaded:
    settings = folder.settings
    run = _named(Run.of(settings["run"]), folder.id)
    epochs = tuple(folder.metrics("epoch"))
    more = beside.in_folder(folder.path, run)
    trained = Trained(
        run,
        str(settings.get("begun", "")),
        dict(settings.get("certificate", {})),
        epochs,
        folder.result,
        {**beside.of_training(epochs), **more.measured},
        more.probe,
    )
    return trained, (*_lost(trained, folder), *more.troubles)


def _lost(trained: Trained, folder: Folder) -> Iterator[Trouble]:
    """What is damaged in the metrics of a finished run; its result counts all the same."""
    if trained.result is None:
        return
    where = f"{folder.id}/metrics.jsonl"
    count = trained.result["last"].get("epoch", 0)
    noted = {epoch.get("epoch") for epoch in trained.epochs}
    if missing := [epoch for epoch in range(1, count + 1) if epoch not in noted]:
        yield Trouble(where, f"{len(missing)} of {count} epochs are not in it; {COUNTS}")
    elif lines := folder.unread_lines():
        yield Trouble(where, f"line {lines[0]} is damaged: not a table in JSON; {COUNTS}")


def from_line(line: bytes | str) -> Trained:
    """A run from its line; the inverse of `Trained.line` but for rounding.

    Args:
        line: JSON.

    Returns:
        The run.

    Raises:
        ValueError: it is damaged, or of a newer version.
    """
    trained, troubles = _from_line(line, "")
    for trouble in troubles:
        raise ValueError(f"{trouble.where.removeprefix(', ')}: {trouble.why}")
    return trained


def _from_line(line: bytes | str, where: str) -> Loaded:
    table = json.loads(line)
    if not isinstance(table, dict) or not isinstance(table.get("format"), int):
        raise ValueError("not a run")
    if table["format"] > FORMAT:
        raise ValueError(f"of format {table['format']}, this version of vasso reads {FORMAT}")
    run = _named(Run.of(table["run"]), table["id"])
    epochs = tuple(compact.rows(table["epochs"]))
    more = beside.in_line(table, run, where)
    trained = Trained(
        run,
        table["begun"],
        table["certificate"],
        epochs,
        _ended(table["result"]),
        {**beside.of_training(epochs), **more.measured},
        more.probe,
    )
    return trained, more.troubles


def _named(run: Run, name: str) -> Run:
    if run.id != name:
        raise ValueError(f"its settings are those of {run.id}, not those its name stands for")
    return run


def _ended(result: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A result with what everything else takes for granted."""
    if result is None:
        return None
    if lacks := lacking(result):
        raise ValueError(f"its result says nothing of {lacks}")
    return result


def _told(trouble: Exception, root: Path) -> str:
    return beside.told(trouble).replace(f"{root.absolute()}/", "").replace(f"{root}/", "")
