"""Small runs, the weights they end with, and trainings that are stopped or killed."""

import multiprocessing
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from vasso.lab.experiment.run import Run
from vasso.lab.store.store import Store
from vasso.lab.training.host import start_fabric
from vasso.lab.training.loop import Stopped, train
from vasso.lab.training.options import RunOptions
from vasso.lab.training.state import Training

CPU = RunOptions(accelerator="cpu", checkpoint_seconds=1e9)
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__])
VASSO = {"name": "VaSSO", "rho": 0.2, "theta": 0.4}
TINY_TEXTS = {
    "data": "tests.lab.translation.tiny_texts:texts",
    "model": "tests.lab.translation.tiny_texts:model",
}


def on_digits(method: dict[str, Any], seed: int = 3, **task: Any) -> Run:
    small = {"train_size": 200, "validation": 50, "batch": 50, "epochs": 2}
    return Run.of({"task": {**small, **task}, "method": method, "seed": seed})


def training_of(run: Run) -> Training:
    return Training(run, CPU, start_fabric(CPU, run.task.precision))


def weights(store: Store, run: Run) -> dict[str, torch.Tensor]:
    state = store.folder(run.id).load("weights.pt")
    assert state is not None
    return state["model"]


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def stops_after(steps: int) -> Any:
    return lambda step, total: step < steps


def train_to(run: Run, store: Store, *stops: int, options: RunOptions = CPU) -> None:
    for stop in stops:
        with pytest.raises(Stopped):
            train(run, store, options, stops_after(stop))


def train_and_tell(line: Connection | None, run: Run, store: Path, options: RunOptions) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    train(run, Store(store), options, lambda step, total: line is None or line.send(step) or True)


def killed_at(step: int, wait: float, run: Run, store: Path, options: RunOptions) -> int | None:
    """Trains in a process that gets SIGKILL `wait` seconds after it has told of a step."""
    ours, theirs = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=train_and_tell, args=(theirs, run, store, options))
    process.start()
    theirs.close()
    while ours.recv() < step:
        pass
    process.join(wait)
    process.kill()
    process.join()
    return process.exitcode


def check_kills(run: Run, place: Path, kills: int, seed: int, options: RunOptions) -> None:
    """A training killed anywhere, gone on with in another process, ends as if left alone.

    Kills come in a step, in a checkpoint, in a test.
    """
    whole, draw, landed = Store(place / "whole"), random.Random(seed), 0
    steps = train(run, whole, CPU)["steps"]
    for number in range(kills):
        store = Store(place / f"killed-{number}")
        step, wait = draw.randrange(1, int(0.8 * steps)), draw.uniform(0, 0.03)
        code = killed_at(step, wait, run, store.root, options)
        landed += code == -signal.SIGKILL and store.folder(run.id).result is None
        again = FORKED.Process(target=train_and_tell, args=(None, run, store.root, options))
        again.start()
        again.join()
        assert again.exitcode == 0
        assert_same(weights(whole, run), weights(store, run))
        one, other = whole.folder(run.id), store.folder(run.id)
        for name in ("last", "best", "cost", "skipped", "steps"):
            assert other.result[name] == one.result[name], name
        lines = [[(x["epoch"], x["train_loss"]) for x in f.metrics("epoch")] for f in (one, other)]
        assert lines[0] == lines[1]
    assert landed > kills / 2
