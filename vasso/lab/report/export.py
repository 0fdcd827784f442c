"""Export: compact copies of finished runs for a repository, one file of lines for each study.

Measurements of a run are copied with it, and a probe of up to 40 kB. A copy that is already there
gets new measurements and keeps those that the store lacks. A run that was trained again with
another result replaces its copy only on request.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vasso.lab.report.read import DAMAGED, TrainedRun, from_line, read_store
from vasso.lab.report.sections import OTHER, shipped
from vasso.lab.store import atomic
from vasso.lab.store.run_directory import StoreError
from vasso.lab.store.store import LINES, UNREAD
from vasso.lab.studies import study as studies

LARGEST = 40_000
"""Bytes of the largest probe that is copied."""
TIMES = ("seconds", "images_per_second")
"""What may differ between two trainings that agree in every bit."""


def export(
    root: str | Path,
    to: str | Path,
    chosen: Iterable[str] = (),
    notify: Callable[[str], None] = lambda text: None,
    *,
    again: bool = False,
) -> dict[Path, int]:
    """Writes compact copies of finished runs and returns the number of runs by file.

    A run of several studies is copied for each, so that every folder answers its question alone.
    Each file is replaced as a whole. `notify` gets a sentence for each probe left out and each file
    that cannot be read. Raises `StoreError`, with nothing written, if there is no finished run, an
    existing copy is damaged, or one has another result and `again` is false.
    """
    contents = read_store(root)
    for error in contents.errors:
        notify(f"{UNREAD}{error.where}: {error.why}")
    finished = [t for t in contents.runs.values() if t.result is not None]
    done = [_without_large_probe(trained, notify) for trained in finished]
    by_study = _by_study(done, list(chosen))
    if not by_study:
        raise StoreError(f"{root} holds no finished run of these studies: there is nothing to copy")
    merged = {}
    for name, runs in by_study.items():
        path = Path(to).expanduser() / name / LINES
        known = _read_lines(path)
        if not again:
            _check_agree(path, runs, known)
        merged[path] = known | {trained.run.id: _line(trained, known) for trained in runs}
    for path, lines in merged.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{lines[name]}\n" for name in sorted(lines))
        atomic.replace(path, text.encode())
    return {path: len(lines) for path, lines in merged.items()}


def _check_agree(path: Path, runs: Iterable[TrainedRun], known: Mapping[str, str]) -> None:
    """Raises if runs have other results than their copies, as they may on another processor."""
    pairs = ((trained, known.get(trained.run.id)) for trained in runs)
    other = [t.run.id for t, line in pairs if line and _last(t) != _last(from_line(line))]
    if other:
        raise StoreError(
            f"{len(other)} of the runs in {path} have other results than those of the store "
            f"({other[0]}, ...): they were trained again, or elsewhere. --again replaces "
            "the copies; or name another directory. Nothing has been written"
        )


def _last(trained: TrainedRun) -> dict[str, Any]:
    """The last epoch to the last digit, without times; copies round the earlier ones."""
    last = (trained.result or {})["last"]
    return {name: value for name, value in last.items() if name not in TIMES}


def _without_large_probe(trained: TrainedRun, notify: Callable[[str], None]) -> TrainedRun:
    size = len(json.dumps(trained.probe, separators=(",", ":"), ensure_ascii=False).encode())
    if trained.probe is None or size <= LARGEST:
        return trained
    notify(f"the probe of {trained.run.id} is {size / 1e3:,.0f} kB and is not copied")
    return replace(trained, probe=None)


def _line(trained: TrainedRun, known: dict[str, str]) -> str:
    before = known.get(trained.run.id)
    return (trained if before is None else trained.merged(from_line(before))).line()


def _by_study(done: list[TrainedRun], chosen: list[str]) -> dict[str, list[TrainedRun]]:
    found: dict[str, list[TrainedRun]] = {}
    left = {trained.run.id: trained for trained in done}
    for study in [studies.load(name) for name in chosen] or shipped():
        keys = {run.cell_key for scale in study.scales.values() for run in scale.runs}
        for trained in done:
            if trained.run.cell_key in keys:
                found.setdefault(study.name, []).append(trained)
                left.pop(trained.run.id, None)
    if left and not chosen:
        found[OTHER] = list(left.values())
    return found


def _read_lines(path: Path) -> dict[str, str]:
    found = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            found[from_line(line).run.id] = line
        except DAMAGED as error:
            raise StoreError(
                f"{path}, line {number} is damaged ({error}): repair or remove it. Nothing has "
                "been written"
            ) from error
    return found
