"""Stores of runs that were never trained: numbers by a formula, so that every answer is known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from vasso.lab import study as studies
from vasso.lab.report.reading import LINES, Trained
from vasso.lab.runs import Run
from vasso.lab.store import FORMAT, Folder, Store

CERTIFICATE = {
    "vasso": "0.1.0",
    "python": "3.11.7",
    "packages": {"torch": "2.13.0", "numpy": "2.4.6", "lightning": "2.6.6"},
    "commit": "0123456789abcdef",
    "machine": "x86_64",
    "system": "Linux",
    "processor": "A <b>processor</b>",
    "cores": 2,
    "devices": [],
}


def effective(run: Run) -> float:
    """rho, less of it the smaller theta is."""
    settings = dict(run.method.settings)
    rho = settings.get("rho", 0.0)
    theta = float(settings.get("theta", 1.0))
    return float(rho) * theta**0.3 if isinstance(rho, float) else 0.1


def accuracy(run: Run) -> float:
    """Best near an effective radius of 0.12, without noise."""
    e = effective(run)
    bump = math.exp(-((math.log(e / 0.12)) ** 2)) if e else 0.0
    return 55.0 - 40.0 * run.task.wrong + 15.0 * run.task.wrong * bump + 2.0 * bump


def trained(run: Run, *, finished: bool = True, gain: float = 0.0) -> Trained:
    """A run that gives `accuracy` and `gain` with some noise of its seed and less of its own."""
    seed, own = np.random.default_rng(run.seed), np.random.default_rng(crc32(run.id.encode()))
    test = accuracy(run) + gain + float(seed.normal(0, 1)) + float(own.normal(0, 0.1))
    epochs = [epoch(run, i, test) for i in range(1, (run.task.epochs if finished else 2) + 1)]
    begun = f"2026-01-0{1 + run.seed % 9}T10:00:00+00:00"
    return Trained(run, begun, CERTIFICATE, tuple(epochs), result(run, test) if finished else None)


def epoch(run: Run, i: int, test: float) -> dict[str, Any]:
    share = i / run.task.epochs
    line: dict[str, Any] = {"kind": "epoch", "step": 78 * i, "epoch": i, "train_loss": 2.3 - share}
    line |= {"cost": 156.0 * i, "seconds": 4.2, "validation_accuracy": test * share}
    if i % run.task.test_every == 0 or share == 1:
        line["test_accuracy"] = test * min(1.0, 0.4 + share)
    if (e := effective(run)) and run.task.others:
        carried = 0.1 + 0.3 * (1 - float(dict(run.method.settings).get("theta", 1.0)))
        own = 2 * e / (1 + share)
        adversary = {"own": own, "others": [carried * own] * 4, "cos_dg": 0.9, "epsilon_norm": e}
        line |= {"rise": own, "adversary": adversary}
    return line


def result(run: Run, test: float) -> dict[str, Any]:
    passes = 1 if run.method.name == "plain" else 2
    last = {"epoch": run.task.epochs, "test_accuracy": test, "training_accuracy": 60.5}
    if run.task.validation:
        last["validation_accuracy"] = test - 0.3
    if run.task.wrong:
        last["wrong_accuracy"] = max(0.0, 100 - 1.5 * test)
    best = {"epoch": 5, "test_accuracy": test + 1.25} if run.task.validation else None
    cost = {"cost": 1872.0 * passes, "seconds": 50.5 * passes, "skipped": 0}
    return {"last": last, "best": best, **cost, "ended": "2026-01-09T12:00:00+00:00"}


def runs_of(
    name: str, scale: str = "cpu", seeds: int | None = None, wrong: Any = None
) -> list[Run]:
    """Runs of a study, fewer seeds and only some shares of wrong labels if wanted."""
    found = studies.load(name).at(scale).runs
    some = (run for run in found if seeds is None or run.seed < seeds)
    return [run for run in some if wrong is None or run.task.wrong in wrong]


def as_lines(root: Path, runs: Iterable[Trained], name: str = "some") -> Path:
    """A store of compact copies."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LINES).write_text("".join(f"{one.line()}\n" for one in runs))
    return root


def as_store(root: Path, runs: Iterable[Trained]) -> Store:
    """A store as training leaves it."""
    store = Store(root)
    for one in runs:
        folder: Folder = store.folder(one.run.id)
        folder.path.mkdir()
        about = {"format": FORMAT, "id": one.run.id, "run": one.run.in_full()}
        folder.write_settings({**about, "begun": one.begun, "certificate": one.certificate})
        for line in one.epochs:
            folder.append(line)
        if one.result is not None:
            folder.write_result(one.result)
    return store
