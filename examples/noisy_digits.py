"""Half of the labels are wrong. Does the network learn them by heart? SGD, SAM and VaSSO.

1,797 handwritten digits from scikit-learn, 8x8 pixels: 1,000 to train, of whose labels a share is
moved to one of the other nine classes; 297 to choose rho (validation) and 500 to test, both with
clean labels. A seed draws the split of train and validation, the wrong labels, the weights and the
order of batches. The 500 test images are the same for all, so that the choice of rho
never sees them.

Each method runs at its own best rho, because VaSSO turns less of rho into a rise of the loss: at
one rho for both, the comparison can come out either way. The defaults below were chosen by

    python examples/noisy_digits.py --tune

on validation accuracy at the last epoch, over seeds that the demo does not use. theta = 0.2 is the
paper's best under label noise; lr, momentum and batch size are shared and were not tuned.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vasso

try:
    import noisy_digits_report as report
    import sklearn.datasets
    from parallel_bars import in_parallel
except ModuleNotFoundError as missing:
    sys.exit(f"this demo needs {missing.name}: pip install 'vasso[demo]'")

GRID = (0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6)  # the rho that --tune tries, for both methods
TUNING_SEEDS = 1000  # where the seeds of --tune begin; those of the demo begin at 0
OPTIONS = (  # name, default, least, most, meaning
    ("rho-sam", 1.0, 0.001, 1000.0, "radius of SAM"),
    ("rho-vasso", 1.25, 0.001, 1000.0, "radius of VaSSO"),
    ("theta", 0.2, 0.001, 1.0, "weight of the newest gradient in VaSSO's slope"),
    ("noise", 0.5, 0.001, 0.89, "share of wrong labels"),
    ("epochs", 40, 1, 10000, "passes over the training images"),
    ("seeds", 10, 2, 1000, "runs of each method"),
    ("workers", min(2, os.cpu_count() or 1), 1, 256, "processes, of one thread each"),
)


@dataclass(frozen=True)
class Run:
    """All that a run depends on."""

    method: str
    rho: float
    theta: float
    noise: float
    epochs: int
    seed: int
    judged_on: str
    width: int = 256
    batch: int = 50
    lr: float = 0.05
    momentum: float = 0.9


def digits(run: Run, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Training images, their labels, which of these are wrong; images and labels to judge by."""
    x, y = map(torch.tensor, sklearn.datasets.load_digits(return_X_y=True))
    x = x.float() / 16
    test, rest = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([500, 1297])
    validation, train = rest[torch.randperm(1297, generator=draw)].split([297, 1000])
    labels = y[train]
    wrong = torch.randperm(1000, generator=draw)[: round(run.noise * 1000)]
    labels[wrong] = (labels[wrong] + torch.randint(1, 10, wrong.shape, generator=draw)) % 10
    judge = {"test": test, "validation": validation}[run.judged_on]
    return x[train], labels, wrong, x[judge], y[judge]


def network(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (64, width):
        layers += [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def optimizer(run: Run, model: nn.Module) -> torch.optim.Optimizer:
    base = torch.optim.SGD(model.parameters(), lr=run.lr, momentum=run.momentum)
    if run.method == "SGD":
        return base
    wrap = {"SAM": vasso.SAM, "VaSSO": vasso.VaSSO}[run.method]
    return wrap(base, rho=run.rho, theta=run.theta, model=model)


def percent_right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return 100 * int((model.eval()(x).argmax(1) == y).sum()) / len(y)


def train(run: Run) -> dict[str, Any]:
    """One run: its settings, the accuracy after each epoch, and what it took."""
    torch.manual_seed(run.seed)
    draw = torch.Generator().manual_seed(run.seed)
    x, y, wrong, x_judge, y_judge = digits(run, draw)
    model = network(run.width)
    opt = optimizer(run, model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, run.epochs)
    accuracy, steps, evaluations, seconds = [], 0, 0, 0.0
    for _ in range(run.epochs):
        model.train()
        began = time.process_time()  # of this process: neighbours on the machine do not count
        for batch in torch.randperm(len(x), generator=draw).split(run.batch):

            def closure(batch: Tensor = batch) -> Tensor:
                nonlocal evaluations
                evaluations += 1
                opt.zero_grad()
                loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                return loss

            opt.step(closure)
            steps += 1
        seconds += time.process_time() - began
        schedule.step()
        accuracy.append(percent_right(model, x_judge, y_judge))
    memorised = percent_right(model, x[wrong], y[wrong])
    found = {"accuracy": accuracy, "memorised": memorised, "wrong_labels": len(wrong)}
    took = {"steps": steps, "evaluations": evaluations, "cpu_seconds": seconds}
    return asdict(run) | found | took | {"cost": getattr(opt, "cost", None)}


def arguments() -> argparse.Namespace:
    title, _, rest = (__doc__ or "").partition("\n\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=title, epilog=rest, formatter_class=form)
    add = parser.add_argument
    for name, default, least, most, meaning in OPTIONS:
        told = f"{meaning}, {least:g} to {most:g} (default {default:g})"
        add(f"--{name}", type=type(default), default=default, metavar="N", help=told)
    add("--tune", action="store_true", help="choose rho on the validation images instead")
    add("--json", type=Path, metavar="FILE", help="write settings, versions and all runs")
    add("--figure", type=Path, metavar="FILE", help="draw accuracy over epochs, .svg or .png")
    args = parser.parse_args()
    for name, _, least, most, _ in OPTIONS:
        value = vars(args)[name.replace("-", "_")]
        if not least <= value <= most:
            parser.error(f"--{name} must be from {least:g} to {most:g}, got {value:g}")
    if args.tune and args.figure:
        parser.error("--figure draws the demo, not --tune")
    return args


def planned(args: argparse.Namespace) -> list[Run]:
    """What to train: each method at its rho, or SAM and VaSSO at each rho of the grid."""
    if args.tune:
        cells = [("SAM", rho, 1.0) for rho in GRID] + [("VaSSO", rho, args.theta) for rho in GRID]
        first, judge = TUNING_SEEDS, "validation"
    else:
        cells = [("SGD", 0.0, 1.0), ("SAM", args.rho_sam, 1.0)]
        cells += [("VaSSO", args.rho_vasso, args.theta)]
        first, judge = 0, "test"
    return [
        Run(method, rho, theta, args.noise, args.epochs, seed, judge)
        for seed in range(first, first + args.seeds)
        for method, rho, theta in cells
    ]


def main() -> None:
    args = arguments()
    report.refuse_early(args.json, args.figure)
    runs, began = planned(args), time.monotonic()
    kinds = [f"{run.method:5} {f'rho {run.rho:g}' if run.rho else ''}" for run in runs]
    try:
        results = in_parallel(
            train, runs, kinds=kinds, say=report.accuracy_so_far, workers=args.workers
        )
    except KeyboardInterrupt:
        sys.exit("stopped, nothing written")
    except BrokenProcessPool:
        sys.exit("a worker process was killed, nothing written; out of memory? Try --workers 1")
    report.show(results)
    print(f"{len(runs)} runs in {time.monotonic() - began:.0f} s, {args.workers} at a time.")
    if any(vars(args)[name] != default for name, default, *_ in OPTIONS[2:5]) and not args.tune:
        print("rho was chosen for other settings than these: --tune chooses it for yours.")
    if args.json:
        report.save(results, args.json)
    if args.figure:
        report.draw(results, args.figure)


if __name__ == "__main__":
    main()
