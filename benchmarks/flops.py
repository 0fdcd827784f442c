"""FLOPs of a study of images: python benchmarks/flops.py cifar10 --scale paper [--tflops 10]

Counted by torch on the meta device, so it needs no GPU and no data: one forward and one backward
pass of each model over one image, times the images, epochs and gradients a step of its runs. Data,
tests and all that is no matrix product or convolution are left out. GPU hours are an estimate:
these FLOPs divided by a speed that is assumed (`--tflops`, of one GPU in this kind of training).
"""

from __future__ import annotations

import argparse
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from vasso.lab.data import DATASETS
from vasso.lab.experiment.run import Run
from vasso.lab.models import build
from vasso.lab.studies import study as studies

SETS = {"cifar10": (50_000, 10), "cifar100": (50_000, 100), "imagenet": (1_281_167, 1000)}
"""Training images and classes."""


@cache
def flops_of_image(model: str, width: float, classes: int, size: int) -> float:
    """FLOPs of a forward and a backward pass over one image."""
    with torch.device("meta"):
        network = build(model, classes=classes, channels=3, size=size, width=width, seed=None)
        batch = torch.empty(2, 3, size, size)
    with FlopCounterMode(display=False) as counter:
        network(batch).sum().backward()
    return counter.get_total_flops() / 2


def flops_of_run(run: Run) -> float:
    """FLOPs of a whole run."""
    task, method = run.task, run.method
    images, classes = SETS[task.data]
    size = task.resized_crop or task.size or DATASETS[task.data].side
    each = flops_of_image(task.model, task.width, classes, size)
    passes = 1 if method.entry is None else 2  # of SAM, ASAM, FisherSAM, VaSSO, GSAM
    return each * (task.train_size or images) * task.epochs * passes


def main() -> None:
    """Prints a row for each model and the sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--tflops", type=float, default=10.0, help="assumed speed of one GPU")
    given = parser.parse_args()
    runs = studies.load(given.study).at(given.scale).runs
    models = dict.fromkeys(run.task.model for run in runs)
    total = 0.0
    for model in models:
        own = [run for run in runs if run.task.model == model]
        flops = sum(map(flops_of_run, own))
        total += flops
        print(
            f"{model:16} {len(own):4} runs {flops:10.2e} FLOPs {hours(flops, given.tflops):8.0f} h"
        )
    print(f"{'all':16} {len(runs):4} runs {total:10.2e} FLOPs {hours(total, given.tflops):8.0f} h")


def hours(flops: float, tflops: float) -> float:
    """Hours on one GPU of an assumed speed."""
    return flops / (tflops * 1e12) / 3600


if __name__ == "__main__":
    main()
