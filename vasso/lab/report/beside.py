"""What lies beside a run? What was measured of it afterwards, and a probe of its weights.

    <run id>/spectrum.json  noise.json  bleu.json        see `vasso.lab.measurements`
    <run id>/probe/probe.json                            see `vasso probe`
    measured-spread-<hash>/spread.json                   of no run: adversaries on a sphere

A file that is damaged costs what is in it, never the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vasso.lab.folder import FORMAT
from vasso.lab.json_text import table_in
from vasso.lab.report import compact
from vasso.lab.runs import Run

KEPT = ("spectrum", "noise", "bleu")
SPREADS = "measured-spread-*/spread.json"
PROBE = Path("probe") / "probe.json"
OF_THE_RUN = ("run", "method", "seed")
"""Columns that only say of which run a row is."""


@dataclass(frozen=True)
class Measured:
    """A measurement of a run.

    Attributes:
        settings: how it was made.
        rows: what was found.
    """

    settings: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]

    def as_table(self) -> dict[str, Any]:
        """The measurement in few bytes: rows by columns, to the last digit.

        Returns:
            As JSON may hold it.
        """
        return {"settings": dict(self.settings), "rows": compact.columns(self.rows, digits=None)}


@dataclass(frozen=True)
class Trouble:
    """Something that could not be read.

    Attributes:
        where: file or folder, within the store.
        why: what is wrong with it.
    """

    where: str
    why: str


@dataclass(frozen=True)
class Beside:
    """What lies beside one run.

    Attributes:
        measured: name -> measurement.
        probe: what `vasso probe` wrote, None if nothing.
        troubles: what could not be read.
    """

    measured: Mapping[str, Measured]
    probe: Mapping[str, Any] | None
    troubles: tuple[Trouble, ...]


def in_folder(folder: Path, run: Run) -> Beside:
    """What lies in the folder of a run.

    Args:
        folder: the folder.
        run: whose it is.

    Returns:
        All that can be read.
    """
    found: dict[str, Any] = {}
    troubles = []
    files = {name: folder / f"{name}.json" for name in KEPT} | {"probe": folder / PROBE}
    for name, path in files.items():
        if not path.exists() and not path.is_symlink():
            continue
        try:
            table = _read(path, folder)
            found[name] = _probed(table, run) if name == "probe" else _measured(table)
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as trouble:
            where = str(path.relative_to(folder.parent))
            troubles.append(Trouble(where, told(trouble)))
    return Beside(found, found.pop("probe", None), tuple(troubles))


def in_line(table: Mapping[str, Any], run: Run, where: str) -> Beside:
    """What stands in the line of a run.

    Args:
        table: the line.
        run: whose it is.
        where: the line is, for messages.

    Returns:
        All that can be read; nothing for lines of before there was such.
    """
    found: dict[str, Measured] = {}
    probe, troubles = None, []
    given = table.get("measured", {})
    names = list(given) if isinstance(given, Mapping) else ["measurements"]
    for name in [*names, *(["probe"] if "probe" in table else [])]:
        try:
            if name == "probe":
                probe = _probed(table["probe"], run)
            else:
                found[name] = _from_columns(given[name])
        except (ValueError, KeyError, TypeError, AttributeError) as trouble:
            troubles.append(Trouble(f"{where}, {name}", told(trouble)))
    return Beside(found, probe, tuple(troubles))


def spreads_in(root: Path) -> Iterator[Measured | Trouble]:
    """What was measured of no run: adversaries on a sphere.

    Args:
        root: the store.

    Yields:
        Each, or why it cannot be read.
    """
    from vasso.lab.measured import spread_lines  # which has to find all it shows

    for path in sorted(root.glob(SPREADS)):
        try:
            found = _measured(_read(path, root))
            list(spread_lines(found.rows))
            yield found
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as trouble:
            yield Trouble(str(path.relative_to(root)), told(trouble))


def of_training(epochs: Iterable[Mapping[str, Any]]) -> dict[str, Measured]:
    """What training itself has noted: the signal-to-noise ratio at the beginning of each epoch.

    Args:
        epochs: what was noted at the end of each.

    Returns:
        The measurement "noise", epochs counted from 0; nothing where training noted none.
    """
    noted = [epoch for epoch in epochs if isinstance(epoch.get("snr"), Mapping)]
    rows = tuple({"epoch": epoch["epoch"] - 1, **epoch["snr"]} for epoch in noted)
    return {"noise": Measured({}, rows)} if rows else {}


def told(trouble: Exception) -> str:
    """What is wrong, in words.

    Args:
        trouble: what was raised.

    Returns:
        A sentence.
    """
    return f"{str(trouble)[1:-1]} is missing" if isinstance(trouble, KeyError) else str(trouble)


def _read(path: Path, within: Path) -> Mapping[str, Any]:
    if path.is_symlink() or not path.resolve().is_relative_to(within.resolve()):
        raise ValueError("a link, which may lead out of the store")
    return table_in(path)


def _checked(table: Any) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise ValueError("damaged: not a table")
    return table


def _measured(table: Mapping[str, Any]) -> Measured:
    version, rows = table.get("format", FORMAT), table["rows"]
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(f"of format {version}, this version of vasso reads {FORMAT}")
    if not isinstance(rows, list) or not rows or not all(isinstance(r, Mapping) for r in rows):
        raise ValueError("damaged: it has no rows. Remove it to measure again")
    short = [{k: v for k, v in row.items() if k not in OF_THE_RUN} for row in rows]
    for key, value in (pair for row in short for pair in row.items()):
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"damaged: {key} is {value!r}, not a number")
    return Measured(dict(table["settings"]), tuple(short))


def _from_columns(table: Any) -> Measured:
    return _measured({"settings": table["settings"], "rows": compact.rows(table["rows"])})


def _probed(table: Any, run: Run) -> Mapping[str, Any]:
    from vasso.lab.probe_reading import results_of  # scipy and more, for few

    _checked(table)
    if table["subject"] != run.id:
        raise ValueError(f"it is a probe of {table['subject']}")
    results_of(table)
    found: Mapping[str, Any] = table
    return found
