"""How do runs go into a repository? Compact copies, one file of lines for each study.

What was measured of a run goes with it, and so does a probe of up to 40 kB. A copy that is there
already gets what was measured since, and keeps what the store does not have. A run that has been
trained again and came out otherwise takes the place of its copy only if that is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vasso.lab import atomic
from vasso.lab import study as studies
from vasso.lab.folder import StoreError
from vasso.lab.report.cells import key_of
from vasso.lab.report.reading import LINES, Trained, from_line, read
from vasso.lab.report.sections import OTHER, shipped

LARGEST = 40_000
"""Bytes of a probe that goes along; a repository is no place for larger ones."""
TIMES = ("seconds", "images_per_second")
"""What two trainings may differ in that are the same in every bit."""


def export(
    root: str | Path,
    to: str | Path,
    chosen: Iterable[str] = (),
    tell: Callable[[str], None] = lambda text: None,
    *,
    again: bool = False,
) -> dict[Path, int]:
    """Writes compact copies of finished runs, beside those that are there already.

    A run of several studies is copied for each, so that every folder answers its question alone.
    Each file is replaced as a whole; what is damaged in one that is there stops everything.

    Args:
        root: the store.
        to: a directory; made if it is not there.
        chosen: only these studies.
        tell: is told of probes that stay behind, and of what cannot be read.
        again: runs with other results than their copies take the places of these.

    Returns:
        File -> how many runs it holds now.

    Raises:
        StoreError: there is no finished run, a file that is there is damaged, or a copy has
            another result and `again` is not said. Nothing has been written.
    """
    contents = read(root)
    for trouble in contents.troubles:
        tell(f"could not be read: {trouble.where}: {trouble.why}")
    there = contents.runs.values()
    done = [_light(trained, tell) for trained in there if trained.result is not None]
    sorted_runs = _by_study(done, list(chosen))
    if not sorted_runs:
        raise StoreError(f"{root} holds no finished run of these studies: there is nothing to copy")
    merged = {}
    for name, runs in sorted_runs.items():
        path = Path(to).expanduser() / name / LINES
        known = _there(path)
        if not again:
            _check_agree(path, runs, known)
        merged[path] = known | {trained.run.id: _line(trained, known) for trained in runs}
    for path, lines in merged.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{lines[name]}\n" for name in sorted(lines))
        atomic.replace(path, text.encode())
    return {path: len(lines) for path, lines in merged.items()}


def _check_agree(path: Path, runs: Iterable[Trained], known: Mapping[str, str]) -> None:
    """Raises if runs ended otherwise than their copies, as they may on another processor."""
    there = ((trained, known.get(trained.run.id)) for trained in runs)
    other = [t.run.id for t, line in there if line and not _alike(t, from_line(line))]
    if other:
        raise StoreError(
            f"{len(other)} of the runs in {path} have other results than those of the store "
            f"({other[0]}, ...): they were trained again, or elsewhere. --again puts the new ones "
            "into their places; or name another directory. Nothing has been written"
        )


def _alike(one: Trained, other: Trained) -> bool:
    """Whether two copies of a run have ended alike; how long that took may differ."""
    return _ended(one) == _ended(other)


def _ended(trained: Trained) -> dict[str, Any]:
    """The last epoch to the last digit, without times; earlier ones are rounded in copies."""
    last = (trained.result or {})["last"]
    return {name: value for name, value in last.items() if name not in TIMES}


def _light(trained: Trained, tell: Callable[[str], None]) -> Trained:
    """A run without its probe, if that is large."""
    size = len(json.dumps(trained.probe, separators=(",", ":"), ensure_ascii=False).encode())
    if trained.probe is None or size <= LARGEST:
        return trained
    tell(f"the probe of {trained.run.id} is {size / 1e3:,.0f} kB and stays behind")
    return replace(trained, probe=None)


def _line(trained: Trained, known: dict[str, str]) -> str:
    """The line of a run, with what only the one that is there knows."""
    before = known.get(trained.run.id)
    return (trained if before is None else trained.with_more(from_line(before))).line()


def _by_study(done: list[Trained], chosen: list[str]) -> dict[str, list[Trained]]:
    """Runs by the names of their studies, those of none apart."""
    found: dict[str, list[Trained]] = {}
    left = {trained.run.id: trained for trained in done}
    for study in [studies.load(name) for name in chosen] or shipped():
        keys = {key_of(run) for scale in study.scales.values() for run in scale.runs}
        for trained in done:
            if key_of(trained.run) in keys:
                found.setdefault(study.name, []).append(trained)
                left.pop(trained.run.id, None)
    if left and not chosen:
        found[OTHER] = list(left.values())
    return found


def _there(path: Path) -> dict[str, str]:
    """The lines of a file by run."""
    found = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            found[from_line(line).run.id] = line
        except (ValueError, KeyError, TypeError, AttributeError, json.JSONDecodeError) as trouble:
            raise StoreError(
                f"{path}, line {number} is damaged ({trouble}): mend or remove it. Nothing has "
                "been written"
            ) from trouble
    return found
