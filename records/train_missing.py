"""Trains the runs that the records lack, in order of worth; stop it at any time and start it again.

    python records/train_missing.py --store runs --jobs 2       # or: make evidence
    vasso export runs records                                   # copies what is finished

A run that is in `records/*/runs.jsonl` is not trained again. The speed of the machine is measured
first, to say how long the rest will take; other programs on it make that longer.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import tyro
from torch.nn.functional import cross_entropy

from vasso.lab.cli.errors import INTERRUPTED, say
from vasso.lab.cli.study import measure_all, train_all
from vasso.lab.data import DATASETS, side_of
from vasso.lab.execution.placement import Placement
from vasso.lab.experiment.method import PLAIN
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.models import build
from vasso.lab.report.text import format_duration
from vasso.lab.store.store import STORE, Store, run_status
from vasso.lab.studies import measurement_settings
from vasso.lab.studies import study as studies
from vasso.lab.training.options import RunOptions

RECORDS = Path(__file__).parent
ALL_FIVE, ONE = range(5), range(1)
MAIN = {"name": ["SGD", "SAM", "VaSSO"]}
WITHOUT_RADIUS = {"name": ["SGD"]}
SHARED = {**MAIN, "rho": [None, 0.1], "theta": [None, 0.4, 0.2], "epochs": [12]}
"""Of Tables 1, 2 and 5, Figures 1a and 1b: the same runs."""
HALVES = {"name": ["SGD", "SAM", "Half-SAM", "VaSSO", "Half-VaSSO"], "batch": [128]}
NOISY = {"wrong": [0.75]}, {"wrong": [0.5]}, {"wrong": [0.25]}, {"wrong": [0.0]}
GRID = {"name": ["SAM", "VaSSO"], "theta": [None, 0.4, 0.2], "rho": [0.1, 0.2, 0.3, 0.5]}
Settings = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Part:
    """Runs of a study at a scale: those with these settings (a value of each list) and seeds."""

    study: str
    scale: str
    only: Settings
    seeds: Sequence[int]

    def runs(self) -> list[Run]:
        """The runs, seed by seed."""
        found = studies.load(self.study).at(self.scale).runs
        chosen = [r for r in found if r.seed in self.seeds and _has(r, self.only)]
        return sorted(chosen, key=lambda run: run.seed)


QUEUE = (
    Part("hessian", "cpu", {}, ALL_FIVE),
    Part("friendly-adversary", "cpu", {"rho": [None, 0.1]}, ALL_FIVE),
    Part("noisy-adversary", "cpu", {"rho": [None, 0.1]}, ALL_FIVE),
    Part("cifar10", "cpu", {"rho": [None, 0.1, 0.5]}, ALL_FIVE),
    Part("snr", "cpu", {}, range(3)),
    Part("cifar100", "cpu", SHARED, ALL_FIVE),
    Part("cifar10", "cpu", {}, ALL_FIVE),
    Part("hessian-equal-loss", "cpu", {}, ALL_FIVE),
    Part("imagenet", "cpu", {"model": ["resnet8"]}, ALL_FIVE),
    Part("label-noise-human", "cpu", {}, ALL_FIVE),
    Part("cifar100", "cpu", {}, ALL_FIVE),
    Part("label-noise", "cpu", {"wrong": [0.75, 0.5], "epochs": [48]}, ALL_FIVE),
    Part("label-noise", "cpu", {"epochs": [48]}, ALL_FIVE),
    Part("frontier", "cpu", {"data": ["digits"]}, range(3)),
    Part("m-sharpness", "cpu", {}, range(3)),
    Part("label-noise", "desk", {"wrong": [0.75, 0.5], **WITHOUT_RADIUS}, ONE),
    *(Part("label-noise", "desk", {**GRID, **noise}, ONE) for noise in NOISY),
    Part("frontier", "cpu", {**HALVES, "data": ["fashion-mnist"]}, ALL_FIVE),
    Part("frontier", "cpu", {**HALVES, "data": ["cifar10"], "wrong": [0.75, 0.0]}, ALL_FIVE),
    Part("frontier", "cpu", {**HALVES, "data": ["cifar10", "cifar100"]}, ALL_FIVE),
    *(
        Part("label-noise", "desk", {**GRID, **noise, "rho": [0.2, 0.3]}, ALL_FIVE)
        for noise in NOISY
    ),
    Part("label-noise", "desk", WITHOUT_RADIUS, ALL_FIVE),
    Part("imagenet", "cpu", {"model": ["vit_s4"]}, range(3)),
    Part("translation", "cpu", {}, ALL_FIVE),
    Part("frontier", "cpu", {}, ALL_FIVE),
    Part("normalisation", "cpu", {}, ALL_FIVE),
    Part("language-model", "cpu", {}, range(3)),
    Part("lora", "cpu", {}, range(3)),
)
"""What gives a verdict soonest comes first."""


def _has(run: Run, only: Settings) -> bool:
    """Whether each setting of a run has one of these values; None stands for no such setting."""
    full = run.in_full()
    found = {**full["task"], **full["method"], **full["method"]["settings"]}
    found["name"] = run.method.base if run.method.name == PLAIN else run.method.name
    return all(found.get(name) in values for name, values in only.items())


def kept() -> set[str]:
    """The ids of the runs of all records."""
    files = RECORDS.glob("*/runs.jsonl")
    return {json.loads(line)["id"] for file in files for line in file.read_text().splitlines()}


# -- how long it takes -----------------------------------------------------------------------------


def gradients(run: Run) -> int:
    """About how many gradients of a batch a run computes: one in a cheap step, else two."""
    images = run.task.train_size or _images(run.task) - run.task.validation
    steps = images // run.task.batch * run.task.epochs
    entry = run.method.entry
    return steps * (1 if entry is None or entry.price == "1" else 2)


def _images(task: Task) -> int:
    return int(DATASETS[task.data].images.split()[0].replace(",", ""))


@cache
def seconds_of_gradient(model: str, width: float, size: int, batch: int) -> float:
    """Measured here and now: the mean over ten gradients of a batch, after three others."""
    net = build(model, classes=10, width=width, size=size, seed=0)
    net = net.to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
    y = torch.zeros(batch, dtype=torch.int64)
    times = [time.perf_counter()]
    for _ in range(13):
        cross_entropy(net(x), y).backward()
        times.append(time.perf_counter())
    return (times[-1] - times[3]) / 10


def describe_rest(runs: Sequence[Run], jobs: int) -> str:
    """How many runs and gradients are left, and how long those of images take at this speed."""
    images = [run for run in runs if run.task.data in DATASETS]
    costs: Counter[tuple[str, float, int, int]] = Counter()
    for task, count in ((run.task, gradients(run)) for run in images):
        costs[task.model, task.width, task.size or side_of(task.data), task.batch] += count
    rest = sum(count * seconds_of_gradient(*kind) for kind, count in costs.items()) / jobs
    said = f"{len(images)} runs, {costs.total():,} gradients: {format_duration(rest)}"
    sentences = len(runs) - len(images)
    return said + (f"; and {sentences} runs of sentences, not estimated" if sentences else "")


# -- training --------------------------------------------------------------------------------------


def missing(done: set[str], store: Store) -> Iterator[tuple[Part, list[Run]]]:
    """The parts with the runs that are neither in a record nor finished in the store, each once."""
    seen = set(done)
    for part in QUEUE:
        status = run_status(part.runs(), store, results=False)
        runs = [run for run in status.missing if run.id not in seen]
        seen |= {run.id for run in runs}
        yield part, runs


def measure(part: Part, store: Store, options: RunOptions) -> None:
    """Measures the finished runs of a study that measures more than accuracy."""
    study, runs = studies.load(part.study), part.runs()
    if study.measure in measurement_settings.MEASURES:
        table = study.at(part.scale).measurement
        settings = measurement_settings.parse_settings(study.measure, table, runs, part.study)
        measure_all(settings, runs, store, options)


def main(store: Path = STORE, jobs: int = 1, dry_run: bool = False) -> int:
    """Trains, part by part; Ctrl-C stops it after a checkpoint.

    Args:
        store: directory of runs.
        jobs: runs in parallel, each in a process with one thread.
        dry_run: only say what is missing.
    """
    torch.set_num_threads(1)
    place, options, code = Store(store), RunOptions(accelerator="cpu"), 0
    found = list(missing(kept(), place))
    say(describe_rest([run for _, runs in found for run in runs], jobs))
    for part, runs in found:
        say(f"{part.study}, {part.scale}, {dict(part.only)}: {describe_rest(runs, jobs)}")
        if runs and not dry_run:
            code = train_all(runs, place, options, jobs, Placement()) or code
            if code == INTERRUPTED:
                break
            measure(part, place, options)
    return code


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
