"""Benchmark of the lab's loop against a loop by hand and one that augments sample by sample.

Three loops train the same network on the same images (CIFAR-10, crop and flip) with the same VaSSO:

* `lab`: the loop of `vasso.lab`, with all its records;
* `by hand`: a plain loop with batched augmentation;
* `DataLoader`: a plain loop whose loader crops, flips and normalises one sample at a time.

The speed of the batches alone is measured too: on a GPU a small network waits for them.

They take turns, a few steps each, in one process with one thread; the figure is the median over the
turns of the time of this process, so that other processes disturb little.

    python benchmarks/lab.py --data DIR
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Dataset

from vasso import VaSSO
from vasso.lab.data import Augmentation, Images, load, order
from vasso.lab.experiment.run import Run
from vasso.lab.models import build
from vasso.lab.training.host import start_fabric
from vasso.lab.training.options import RunOptions
from vasso.lab.training.state import Training

TASK = {"data": "cifar10", "model": "resnet8", "train_size": 10000, "batch": 128, "epochs": 100}
METHOD = {"name": "VaSSO", "rho": 0.1, "theta": 0.4, "weight_decay": 1e-3}
TAKE_STEP = Callable[[], object]


def lab(root: Path | None, size: int) -> TAKE_STEP:
    run = Run.of({"task": {**TASK, "size": size, "crop": 2, "flip": True}, "method": METHOD})
    options = RunOptions(data_root=root, accelerator="cpu")
    return Training(run, options, start_fabric(options, run.task.precision)).take_step


def by_hand(batches: Iterator[tuple[Tensor, Tensor]], size: int) -> TAKE_STEP:
    model = build("resnet8", classes=10, size=size, seed=0)
    model = model.to(memory_format=torch.channels_last)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    opt = VaSSO(base, rho=0.1, theta=0.4, model=model)

    def take_step() -> None:
        x, y = next(batches)
        x = x.contiguous(memory_format=torch.channels_last)

        def closure() -> Tensor:
            opt.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)

    return take_step


def whole_batches(images: Images) -> Iterator[tuple[Tensor, Tensor]]:
    augment = Augmentation(crop=2, flip=True)
    for epoch in range(10**9):
        for index in torch.split(order(len(images.train_y), 0, epoch), 128)[:-1]:
            x = images.train_x[index]
            keys = {"seed": 0, "epoch": epoch, "mean": images.mean, "std": images.std}
            yield augment(x, index, **keys), images.train_y[index]


class OneByOne(Dataset[tuple[Tensor, Tensor]]):
    """Crops, flips and normalises a sample when it is asked for, as most training code does."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.mean = torch.tensor(images.mean)[:, None, None]
        self.std = torch.tensor(images.std)[:, None, None]

    def __len__(self) -> int:
        return len(self.images.train_y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = self.images.train_x[index]
        side = x.shape[-1]
        top, left = torch.randint(5, (2,)).tolist()
        x = pad(x, (2, 2, 2, 2))[:, top : top + side, left : left + side]
        if torch.rand(()) < 0.5:
            x = x.flip(-1)
        return (x.float().div(255) - self.mean) / self.std, self.images.train_y[index]


def sample_batches(images: Images) -> Iterator[tuple[Tensor, Tensor]]:
    loader = DataLoader(OneByOne(images), batch_size=128, shuffle=True, drop_last=True)
    while True:
        yield from loader


def timed(step: TAKE_STEP, steps: int) -> float:
    """Images a second of this process's time."""
    started = time.process_time()
    for _ in range(steps):
        step()
    return 128 * steps / (time.process_time() - started)


def compare(root: Path | None, size: int, turns: int, steps: int) -> dict[str, float]:
    """Images a second of each loop, and their ratios: medians over the turns."""
    images = load("cifar10", root=root, size=size, train_size=10000)
    loops = {
        "lab": lab(root, size),
        "by hand": by_hand(whole_batches(images), size),
        "DataLoader": by_hand(sample_batches(images), size),
    }
    for step in loops.values():
        timed(step, 3)
    rounds = [{name: timed(step, steps) for name, step in loops.items()} for _ in range(turns)]
    found = {name: statistics.median(r[name] for r in rounds) for name in loops}
    found["data of lab"] = timed(partial(next, whole_batches(images)), 50)
    found["data of DataLoader"] = timed(partial(next, sample_batches(images)), 10)
    for name in ("by hand", "DataLoader"):
        ratios = (r["lab"] / r[name] for r in rounds)
        found[f"lab over {name}"] = statistics.median(ratios)
    found["data over DataLoader"] = found["data of lab"] / found["data of DataLoader"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=None, help="where data are")
    parser.add_argument("--size", type=int, default=16, help="pixels a side")
    parser.add_argument("--turns", type=int, default=15, help="how often each loop has its turn")
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--output", type=Path, default=None, help="a JSON file for the figures")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = compare(given.data, given.size, given.turns, given.steps)
    for name, value in found.items():
        print(f"{name:<22}{value:10.3f}" if "over" in name else f"{name:<22}{value:10.0f} images/s")
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
