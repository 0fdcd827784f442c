"""Four or eight short runs of a small study, and what their stores hold: for tests of engines."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tests.lab.execution import slow
from tests.lab.runs import weights
from tests.support import need
from vasso.lab.execution.engine import Outcome
from vasso.lab.execution.placement import Placement
from vasso.lab.experiment.run import Run
from vasso.lab.store.store import Store
from vasso.lab.training.loop import train
from vasso.lab.training.options import RunOptions

OFTEN = RunOptions(accelerator="cpu", checkpoint_steps=20, checkpoint_seconds=1e9)
TASK = {"train_size": 200, "batch": 20, "epochs": 12, "width": 0.1, "test_every": 4}
SLOW = {"loss": "tests.lab.execution.slow:loss"}


def need_package(name: str, variable: str) -> None:
    """The package of an engine."""
    need(find_spec(name), f"{name} is needed: pip install {name}", variable)


def grid(seeds: int, **task: Any) -> list[Run]:
    methods = {"name": "SGD"}, {"name": "VaSSO", "rho": 0.2, "theta": 0.4}
    return [
        Run.of({"task": TASK | task, "method": method, "seed": seed})
        for seed in range(seeds)
        for method in methods
    ]


def serial(root: Path, runs: list[Run]) -> Store:
    """The runs one after the other, in this process, without pauses."""
    store, pause = Store(root), slow.PAUSE
    slow.PAUSE = 0.0
    for run in runs:
        train(run, store, OFTEN)
    slow.PAUSE = pause
    return store


class Recording:
    """A display that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.steps: dict[str, list[int]] = {}
        self.runs: dict[int, Run] = {}

    def started(self, job: int, run: Run) -> None:
        assert job not in self.runs, "two runs have one number"
        self.runs[job] = run

    def advanced(self, job: int, step: int, total: int) -> None:
        self.steps.setdefault(self.runs[job].id, []).append(step)

    def lost(self, job: int, run: Run, why: str) -> None:
        assert self.runs.pop(job) == run
        self.told.append(("lost", run.id, why))

    def ended(self, job: int, run: Run, outcome: str, detail: Any) -> None:
        assert self.runs.pop(job) == run
        self.told.append((outcome, run.id, str(detail)))

    def of(self, kind: str) -> list[str]:
        return [why for found, _, why in self.told if found == kind]


def trained_on(
    placement: Placement, runs: list[Run], root: Path, jobs: int = 2, **options: Any
) -> tuple[Outcome, Recording]:
    display = Recording()
    Store(root)
    given = RunOptions(**{**vars(OFTEN), **options})
    return placement.train(runs, root, given, jobs, display), display


def check_same(one: Store, other: Store, runs: list[Run]) -> None:
    """Weights and results of two stores are the same, bit for bit, and nothing else is there."""
    for run in runs:
        mine, theirs = weights(one, run), weights(other, run)
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), (run.id, name)
        for key in ("last", "best", "cost", "steps"):
            assert one.folder(run.id).result[key] == other.folder(run.id).result[key]
        left = {path.name for path in other.folder(run.id).path.iterdir()}
        assert left == {"run.json", "metrics.jsonl", "weights.pt", "result.json"}


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)
    return found


def processes_of(root: Path) -> list[str]:
    """Command lines of processes that have a word in a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text().replace("\0", " ")
        except OSError:  # it has ended
            continue
        found += [words] * (str(root) in words)
    return found
