"""A translator that is killed in the middle of an epoch ends with the same weights, bit for bit."""

import multiprocessing
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from vasso.lab.how import How
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.train import train
from vasso.lab.translation.vocabulary import FILE

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__])
CPU = How(accelerator="cpu", checkpoint_seconds=1e9)
SELDOM = How(accelerator="cpu", checkpoint_seconds=1e9, checkpoint_steps=3)
"""A kill mostly comes between two checkpoints: some steps are taken again."""
EPOCHS = 3


def a_run(same_rng: bool) -> Run:
    """Dropout, label smoothing, an averaged slope, Adam's moments, a rate that rises and falls."""
    task = {
        "data": "tests.lab.tiny_texts:texts",
        "model": "tests.lab.tiny_texts:model",
        "batch": 100,
        "epochs": EPOCHS,
        "label_smoothing": 0.1,
    }
    method = {
        **{"name": "VaSSO", "rho": 0.05, "theta": 0.4, "same_rng": same_rng},
        **{"base": "AdamW", "lr": 5e-3, "beta2": 0.98, "weight_decay": 1e-4},
        **{"schedule": "inverse-sqrt", "warm_up": 10},
    }
    return Run.of({"task": task, "method": method})


def train_and_tell(store: Path, same_rng: bool, line: Connection | None) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    def watch(step: int, total: int) -> bool:
        if line is not None:
            line.send(step)
        return True

    train(a_run(same_rng), Store(store), SELDOM, watch)


def begin(store: Path, same_rng: bool, line: Connection | None = None) -> Any:
    process = FORKED.Process(target=train_and_tell, args=(store, same_rng, line))
    process.start()
    return process


def killed_after(store: Path, same_rng: bool, step: int, wait: float) -> int | None:
    """Trains in a process that gets SIGKILL some time after it has told of a step."""
    ours, theirs = FORKED.Pipe(duplex=False)
    process = begin(store, same_rng, theirs)
    theirs.close()
    while ours.recv() < step:
        pass
    process.join(wait)
    process.kill()
    process.join()
    return process.exitcode


def check_kills(tmp_path: Path, same_rng: bool, kills: int, seed: int) -> None:
    run, whole = a_run(same_rng), Store(tmp_path / "whole")
    result = train(run, whole, CPU)
    per_epoch = result["steps"] // EPOCHS
    assert per_epoch > 5
    draw, landed = random.Random(seed), 0
    for number in range(kills):
        place = tmp_path / f"killed-{number}"
        inside = draw.randrange(1, per_epoch - 2) + per_epoch * draw.randrange(EPOCHS)
        code = killed_after(place, same_rng, inside, draw.uniform(0, 0.02))
        landed += code == -signal.SIGKILL and Store(place).folder(run.id).result is None
        going_on = begin(place, same_rng)  # in a process that knows nothing
        going_on.join()
        assert going_on.exitcode == 0
        check_same(whole, Store(place), run)
    assert landed > kills / 2


def check_same(whole: Store, killed: Store, run: Run) -> None:
    one, other = whole.folder(run.id), killed.folder(run.id)
    right, found = one.load("weights.pt"), other.load("weights.pt")
    assert right is not None
    assert found is not None
    assert right["model"].keys() == found["model"].keys()
    for name, value in right["model"].items():
        assert torch.equal(value, found["model"][name]), name
    assert one.result is not None
    assert other.result is not None
    for name in ("last", "best", "cost", "skipped", "steps"):
        assert other.result[name] == one.result[name], name
    assert one.result["cost"] == 2 * one.result["steps"]
    lines = [[line["train_loss"] for line in folder.metrics("epoch")] for folder in (one, other)]
    assert lines[0] == lines[1]
    assert other.table(FILE) == one.table(FILE)


@pytest.mark.parametrize("same_rng", [False, True], ids=["other dropout", "same dropout"])
def test_a_translator_that_is_killed_ends_the_same(same_rng: bool, tmp_path: Path) -> None:
    check_kills(tmp_path, same_rng, kills=1, seed=int(same_rng))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("same_rng", [False, True], ids=["other dropout", "same dropout"])
def test_translators_that_are_killed_anywhere_end_the_same(same_rng: bool, tmp_path: Path) -> None:
    check_kills(tmp_path, same_rng, kills=10, seed=2 + same_rng)
