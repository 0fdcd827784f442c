"""Reading a store: every run that was begun, its measurements and probe, and what is damaged.

A store is a directory of runs (`store.store`), or of compact copies: files `runs.jsonl` written by
`vasso export`, one run per line:

    {"id": ..., "run": {...}, "begun": ..., "certificate": {...}, "epochs": {"epoch": [1, 2], ...},
     "result": {...}, "measured": {"spectrum": {"settings": {...}, "rows": {...}}}, "probe": {...}}

A line leaves out default settings, stores epochs as columns rounded to six digits, and holds no
weights. Results and measurements, which tables show, keep every digit. Runs that were not measured
or probed lack the last two keys. In a store, measurements and probes are files next to the run:

    <run id>/spectrum.json  noise.json  bleu.json        see `vasso.lab.studies.measurements`
    <run id>/probe/probe.json                            see `vasso probe`
    measured-spread-<hash>/spread.json                   adversaries on a sphere, of no run

Reading writes nothing. A damaged file costs its own content, not the run, and is always reported.
"""

from __future__ import annotations

import json
import marshal
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from vasso.lab.experiment.method import not_built
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.schema import printable
from vasso.lab.store.json import parsed, table_in, table_of
from vasso.lab.store.run_directory import (
    FORMAT,
    DamagedError,
    Lines,
    RunDirectory,
    StoreError,
    missing_entry,
)
from vasso.lab.store.store import CHANGES, LINES, Store

DIGITS = 6
MEASUREMENTS = ("spectrum", "noise", "bleu")
SPREADS = "measured-spread-*/spread.json"
PROBE = Path("probe") / "probe.json"
RUN_COLUMNS = ("run", "method", "seed")
"""Columns of a measurement that only repeat which run it is."""
RESULT_COUNTS = "the result counts. Remove the folder to begin the run anew"
RUN_FILES = ("run.json", "metrics.jsonl", "result.json")
"""By any of these a directory is that of a run."""
TEXTS = ("kind", "ended")
"""What is no number in an epoch or a result."""
CURVES = ("epoch", "step", "test_accuracy", "validation_perplexity")
"""What a page shows of every epoch."""
TRAINING = "training_loss"
SHOWN_OF_RESULT = ("cost", "seconds", "skipped", "steps", "ended")
NUMBERS = frozenset({int, float, bool, type(None)})
DAMAGED = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class ReadError:
    """A file or folder of the store (`where`) that could not be read, and the reason (`why`)."""

    where: str
    why: str


@dataclass(frozen=True)
class Measurement:
    """A measurement of a run: its settings and the rows it gave."""

    settings: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]

    def as_table(self) -> dict[str, Any]:
        """The measurement for JSON, rows as columns with every digit."""
        return {"settings": dict(self.settings), "rows": to_columns(self.rows, digits=None)}


@dataclass(frozen=True)
class Attachments:
    """Measurements and probe of one run, and errors of those that could not be read."""

    measured: Mapping[str, Measurement]
    probe: Mapping[str, Any] | None
    errors: tuple[ReadError, ...]


class PackedEpochs(Sequence[Mapping[str, Any]]):
    """Epochs as bytes, a fraction of the size of their tables; they are unpacked at each use."""

    def __init__(self, epochs: Iterable[Mapping[str, Any]]) -> None:
        found: Any = tuple(epochs)
        self._length, self._packed = len(found), zlib.compress(marshal.dumps(found), level=1)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._unpacked()[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._unpacked())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._unpacked() == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _unpacked(self) -> tuple[Mapping[str, Any], ...]:
        found: tuple[Mapping[str, Any], ...] = marshal.loads(zlib.decompress(self._packed))
        return found


@dataclass(frozen=True)
class TrainedRun:
    """A run as far as it has come; `result` is None until it is finished."""

    run: Run
    begun: str
    certificate: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any] | None
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None

    def line(self) -> str:
        """The run as one line of JSON, without a newline."""
        table = {
            "format": FORMAT,
            "id": self.run.id,
            "run": self.run.as_table(),
            "begun": self.begun,
            "certificate": dict(self.certificate),
            "epochs": to_columns(self.epochs),
            "result": self.result,
        }
        noted = noise_in_epochs(self.epochs)  # already in "epochs"
        rest = {name: one.as_table() for name, one in self.measured.items() if name not in noted}
        table |= {"measured": rest} if rest else {}
        table |= {"probe": self.probe} if self.probe is not None else {}
        return json.dumps(table, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def packed(self) -> TrainedRun:
        """This run with its epochs in less memory."""
        return replace(self, epochs=PackedEpochs(self.epochs))

    def shown(self) -> TrainedRun:
        """This run with no more than a page shows: its curves and the numbers of its result."""
        epochs, result = tuple(shown_epochs(self.epochs)), self.result
        return replace(self, epochs=epochs, result=result and _shown_result(result)).packed()

    def merged(self, other: TrainedRun) -> TrainedRun:
        """This run with measurements and probe that only another copy of it has."""
        probe = self.probe if self.probe is not None else other.probe
        return replace(self, measured={**other.measured, **self.measured}, probe=probe)

    @property
    def probe_sentences(self) -> list[str]:
        """What the probe of this run says, and what it could not measure."""
        probe = self.probe or {"sentences": (), "notes": ()}
        lines = [*map(str, probe["sentences"]), *(f"Note: {note}" for note in probe["notes"])]
        return [printable(line) for line in lines]


@dataclass(frozen=True)
class Contents:
    """What a store holds: runs by id, read errors, spreads of adversaries on a sphere, and changes:
    study, scale and the settings that `vasso study --set` has changed.
    """

    runs: Mapping[str, TrainedRun]
    errors: tuple[ReadError, ...]
    spreads: tuple[Measurement, ...] = ()
    changes: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def by_task(self) -> Mapping[Task, list[TrainedRun]]:
        """The runs of each task."""
        found: dict[Task, list[TrainedRun]] = {}
        for trained in self.runs.values():
            found.setdefault(trained.run.task, []).append(trained)
        return found


Loaded: TypeAlias = tuple[TrainedRun, tuple[ReadError, ...]]


def read_store(root: str | Path, *, whole: bool = True) -> Contents:
    """Reads a store or compact copies of one, run by run.

    Unless `whole`, only what a page shows of a run is kept: see `shown_epochs`. Of a run found
    twice the finished copy counts, with the measurements of both. Raises `StoreError` if the
    directory does not exist or was written by a newer version.
    """
    root = Path(root).expanduser()
    if not root.is_dir():
        what = "is a file" if root.exists() else "is not there"
        raise StoreError(f"{root} {what}: name the directory that `vasso study` wrote into")
    runs: dict[str, TrainedRun] = {}
    errors: list[ReadError] = []
    if (root / "store.json").exists():
        try:
            Store(root, writes=False)  # checks the format
        except DamagedError as error:
            errors.append(ReadError("store.json", _relative(error, root)))
    for where, load in _entries(root):
        try:
            trained, further = load(where)
            trained = trained.packed() if whole else trained.shown()
        except Exception as error:  # whatever it is, it is of this run alone
            errors.append(ReadError(printable(where), _relative(error, root)))
            continue
        errors += further
        known = runs.get(trained.run.id)
        if known is None:
            runs[trained.run.id] = trained
        elif known.result is None:
            runs[trained.run.id] = trained.merged(known)
        else:
            runs[trained.run.id] = known.merged(trained)
    spreads, changes = list(_spreads(root)), list(_changes(root))
    errors += [one for one in (*spreads, *changes) if isinstance(one, ReadError)]
    measured = tuple(one for one in spreads if isinstance(one, Measurement))
    changed = tuple(one for one in changes if not isinstance(one, ReadError))
    return Contents(dict(sorted(runs.items())), tuple(errors), measured, changed)


def _changes(root: Path) -> Iterator[Mapping[str, Any] | ReadError]:
    """The studies that were trained here with other settings."""
    path = root / CHANGES
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        yield ReadError(CHANGES, f"not readable ({error.strerror})")
        return
    for number, line in enumerate(lines, 1):
        table = table_of(line) or {}
        if table.keys() >= {"study", "scale", "set"} and isinstance(table["set"], list):
            yield table
        else:
            yield ReadError(f"{CHANGES}, line {number}", "it is damaged: remove the line")


def _entries(root: Path) -> Iterator[tuple[str, Callable[[str], Loaded]]]:
    """Every place where a run is expected, with the function that reads it."""
    copies = [*root.glob(LINES)]
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        names = set(os.listdir(folder))
        if LINES in names:
            copies.append(folder / LINES)
        if names.isdisjoint(RUN_FILES):
            continue
        if folder.is_symlink() or (folder / "run.json").is_symlink():
            yield folder.name, partial(_refuse, "a link, which may lead out of the store")
        else:
            yield folder.name, partial(_from_folder, RunDirectory(folder), names)
    for path in sorted(copies):
        where = str(path.relative_to(root))
        if not path.is_file():
            yield where, partial(_refuse, "not a regular file")
            continue
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            yield where, partial(_refuse, f"not readable ({error.strerror})")
            continue
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{where}, line {number}", partial(_from_line, line)


def _refuse(why: str, where: str) -> Loaded:
    raise StoreError(why)


def _from_folder(folder: RunDirectory, names: set[str], where: str) -> Loaded:
    settings = folder.settings
    run = _checked_run(settings["run"], folder.id)
    lines = folder.lines()
    epochs = _checked_epochs(folder.metrics("epoch", lines))
    more = _attachments_in(folder.path, names, run)
    trained = TrainedRun(
        run,
        str(settings.get("begun", "")),
        _shared_table(json.dumps(settings.get("certificate", {}))),
        epochs,
        _checked_result(folder.result, run),
        {**noise_in_epochs(epochs), **more.measured},
        more.probe,
    )
    return trained, (*_damaged_epochs(trained, folder, lines), *more.errors)


def _damaged_epochs(trained: TrainedRun, folder: RunDirectory, lines: Lines) -> Iterator[ReadError]:
    """What is damaged in the metrics of a finished run, whose result counts all the same."""
    if trained.result is None:
        return
    where = f"{folder.id}/metrics.jsonl"
    count = trained.result["last"].get("epoch", 0)
    noted = {epoch.get("epoch") for epoch in trained.epochs}
    if missing := [epoch for epoch in range(1, count + 1) if epoch not in noted]:
        why = f"{len(missing)} of {count} epochs are not in it; {RESULT_COUNTS}"
        yield ReadError(where, why)
    elif damaged := folder.damaged_lines(lines):
        yield ReadError(
            where, f"line {damaged[0]} is damaged: not a table in JSON; {RESULT_COUNTS}"
        )


def from_line(line: bytes | str) -> TrainedRun:
    """The run of a line; the inverse of `TrainedRun.line` but for rounding.

    Raises `ValueError` if any part of the line is damaged or of a newer version.
    """
    trained, errors = _from_line(line, "")
    for error in errors:
        raise ValueError(f"{error.where.removeprefix(', ')}: {error.why}")
    return trained


def _from_line(line: bytes | str, where: str) -> Loaded:
    table = parsed(line)
    if not isinstance(table, dict) or not isinstance(table.get("format"), int):
        raise ValueError("not a run")
    if table["format"] > FORMAT:
        raise ValueError(f"of format {table['format']}, this version of vasso reads {FORMAT}")
    run = _checked_run(table["run"], table["id"])
    epochs = _checked_epochs(from_columns(table["epochs"]))
    more = _attachments_of_line(table, run, where)
    trained = TrainedRun(
        run,
        str(table["begun"]),
        _shared_table(json.dumps(table["certificate"])),
        epochs,
        _checked_result(table["result"], run),
        {**noise_in_epochs(epochs), **more.measured},
        more.probe,
    )
    return trained, more.errors


@lru_cache(maxsize=1024)
def _shared_table(text: str) -> Mapping[str, Any]:
    """One table for all runs with the same versions and hardware."""
    return dict(json.loads(text))


@lru_cache(maxsize=4096)
def _shared_run(text: str) -> Run:
    """Task and method as the same objects for all seeds, checked once."""
    with not_built():
        return Run.of(json.loads(text))


def _checked_run(settings: Any, name: str) -> Run:
    cell = {part: settings[part] for part in ("task", "method") if part in settings}
    run = replace(_shared_run(json.dumps(cell)), seed=int(settings.get("seed", 0)))
    if run.id != name:
        raise ValueError(f"its settings are those of {run.id}, not those its name stands for")
    return run


def _checked_result(result: Mapping[str, Any] | None, run: Run) -> Mapping[str, Any] | None:
    """A result that holds everything the report relies on; None if the run is not finished."""
    if result is None:
        return None
    if lacks := missing_entry(result):
        raise ValueError(f"damaged: its result lacks {lacks}")
    last, best = result["last"], result.get("best") or {}
    for row in (last, best, {k: v for k, v in result.items() if k not in {"last", "best"}}):
        _check_numbers(row)
    for row in (last, best):
        if not 0 <= row.get("epoch", 0) <= run.task.epochs:
            raise ValueError(f"damaged: epoch {row['epoch']} of {run.task.epochs}")
    return result


def _checked_epochs(epochs: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Epochs, if each value in them is a number where the report needs one."""
    checked = tuple(epochs)
    for epoch in checked:
        if not isinstance(epoch.get("epoch"), int):
            raise ValueError("damaged: an epoch without a number")
        _check_numbers(epoch, but=(*TEXTS, "adversary", "snr"))
        for inner in (epoch.get("adversary", {}), epoch.get("snr", {})):
            _check_numbers(inner, but=(*TEXTS, "others"))
            _check_numbers(dict(enumerate(inner.get("others", []))))
    return checked


def _check_numbers(row: Mapping[Any, Any], but: Sequence[str] = TEXTS) -> None:
    for key, value in row.items():
        if type(value) not in NUMBERS and key not in but:
            raise ValueError(f"damaged: {key} is {str(value)[:40]!r}, not a number")


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def shown_epochs(epochs: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """What a page shows of epochs: curves, the rise in the first, adversaries in the first half.

    Of the rises on other batches the mean is kept.
    """
    for place, epoch in enumerate(epochs):
        kept = {name: epoch[name] for name in CURVES if epoch.get(name) is not None}
        if place == 0 and epoch.get("rise") is not None:
            kept["rise"] = epoch["rise"]
        if 2 * place < len(epochs) and (adversary := epoch.get("adversary")):
            others = mean_of_known(adversary.get("others", ()))
            kept["adversary"] = {"own": adversary.get("own"), "others": [others]}
        yield kept


def _shown_result(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What pages show of a result, of losses only that in training; names are shared by runs."""
    kept = {sys.intern(key): x for key, x in result.items() if key in SHOWN_OF_RESULT}
    for which in ("last", "best"):
        row = (result.get(which) or {}).items()
        shown = {sys.intern(k): x for k, x in row if k == TRAINING or not k.endswith("_loss")}
        kept[which] = shown or None
    return kept


def _attachments_in(folder: Path, names: set[str], run: Run) -> Attachments:
    found: dict[str, Any] = {}
    errors = []
    files = {name: folder / f"{name}.json" for name in MEASUREMENTS} | {"probe": folder / PROBE}
    for name, path in files.items():
        if path.relative_to(folder).parts[0] not in names:
            continue
        if not path.exists() and not path.is_symlink():
            continue
        try:
            table = _read_json(path, folder)
            found[name] = _probe(table, run) if name == "probe" else _measurement(table)
        except (*DAMAGED, OSError) as error:
            where = str(path.relative_to(folder.parent))
            errors.append(ReadError(where, _describe(error)))
    return Attachments(found, found.pop("probe", None), tuple(errors))


def _attachments_of_line(table: Mapping[str, Any], run: Run, where: str) -> Attachments:
    found: dict[str, Measurement] = {}
    probe, errors = None, []
    given = table.get("measured", {})
    names = list(given) if isinstance(given, Mapping) else ["measurements"]
    for name in [*names, *(["probe"] if "probe" in table else [])]:
        try:
            if name == "probe":
                probe = _probe(table["probe"], run)
            else:
                rows = from_columns(given[name]["rows"])
                found[name] = _measurement({"settings": given[name]["settings"], "rows": rows})
        except DAMAGED as error:
            errors.append(ReadError(f"{where}, {name}", _describe(error)))
    return Attachments(found, probe, tuple(errors))


def _spreads(root: Path) -> Iterator[Measurement | ReadError]:
    from vasso.lab.report.terminal import spread_lines  # reads every value that is shown

    for path in sorted(root.glob(SPREADS)):
        try:
            found = _measurement(_read_json(path, root))
            list(spread_lines(found.rows))
            yield found
        except (*DAMAGED, OSError) as error:
            yield ReadError(str(path.relative_to(root)), _describe(error))


def noise_in_epochs(epochs: Iterable[Mapping[str, Any]]) -> dict[str, Measurement]:
    """The measurement "noise" that training noted: the SNR at the start of each epoch, from 0."""
    noted = [epoch for epoch in epochs if isinstance(epoch.get("snr"), Mapping)]
    rows = tuple({"epoch": epoch["epoch"] - 1, **epoch["snr"]} for epoch in noted)
    return {"noise": Measurement({}, rows)} if rows else {}


def _relative(error: Exception, root: Path) -> str:
    """What is wrong, with paths as they are in the store."""
    why = _describe(error).replace(f"{root.absolute()}/", "").replace(f"{root}/", "")
    return printable(why)


def _describe(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{str(error)[1:-1]} is missing"
    if isinstance(error, StoreError | ValueError):
        return str(error)
    return f"damaged ({type(error).__name__}: {error})"


def _read_json(path: Path, within: Path) -> Mapping[str, Any]:
    if path.is_symlink() or not path.resolve().is_relative_to(within.resolve()):
        raise ValueError("a link, which may lead out of the store")
    return table_in(path)


def _measurement(table: Mapping[str, Any]) -> Measurement:
    version, rows = table.get("format", FORMAT), table["rows"]
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(f"of format {version}, this version of vasso reads {FORMAT}")
    if not isinstance(rows, list) or not rows or not all(isinstance(r, Mapping) for r in rows):
        raise ValueError("damaged: it has no rows. Remove it to measure again")
    short = [{k: v for k, v in row.items() if k not in RUN_COLUMNS} for row in rows]
    for row in short:
        _check_numbers(row)
    return Measurement(dict(table["settings"]), tuple(short))


def _probe(table: Any, run: Run) -> Mapping[str, Any]:
    from vasso.lab.probe.results import results_of  # imports scipy, and few stores hold probes

    if not isinstance(table, Mapping):
        raise ValueError("damaged: not a table")
    if table["subject"] != run.id:
        raise ValueError(f"it is a probe of {table['subject']}")
    results_of(table)
    return table


def to_columns(
    rows: Iterable[Mapping[str, Any]], digits: int | None = DIGITS
) -> dict[str, list[Any]]:
    """Rows as columns, rounded to significant digits; None stands for values a row lacks.

    Example:
        >>> to_columns([{"epoch": 1, "loss": 0.12345678}, {"epoch": 2, "adversary": {"own": 3.0}}])
        {'epoch': [1, 2], 'loss': [0.123457, None], 'adversary.own': [None, 3.0]}
    """
    flat = [_flat(row) for row in rows]
    names = dict.fromkeys(name for row in flat for name in row)
    return {name: [_rounded(row.get(name), digits) for row in flat] for name in names}


def from_columns(table: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Columns as rows; the inverse of `to_columns` but for rounding.

    Example:
        >>> from_columns({"epoch": [1, 2], "adversary.own": [None, 3.0]})
        [{'epoch': 1}, {'epoch': 2, 'adversary': {'own': 3.0}}]
    """
    lengths = {len(values) for values in table.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns of epochs differ in length: {sorted(lengths)}")
    found: list[dict[str, Any]] = [{} for _ in range(max(lengths, default=0))]
    for name, values in table.items():
        outer, dot, inner = name.partition(".")
        for row, value in zip(found, values, strict=True):
            if value is not None and dot:
                row.setdefault(outer, {})[inner] = value
            elif value is not None:
                row[name] = value
    return found


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": item for inner, item in value.items()}
        elif name != "kind":
            found[name] = value
    return found


def _rounded(value: Any, digits: int | None) -> Any:
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    rounds = isinstance(value, float) and digits is not None
    return float(f"{value:.{digits}g}") if rounds else value
