"""Friendliness of VaSSO's and SAM's adversaries, measured during trainings by SAM.

    VASSO_DATA=<folder> python records/resnet-probe/run.py                 # train, measure, write
    VASSO_DATA=<folder> python records/resnet-probe/run.py --labels clean --seeds 1
    python records/resnet-probe/run.py --show                              # README and figures only

Lines of JSON go to `lines-<labels>-s<seed>.jsonl`; a file with an `end` line is complete and is not
measured again. README.md and the figures are made of these files alone.
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vasso.diagnostics.adversary.alongside import SlopesAtStep, SlopeTracker, compare_adversaries
from vasso.diagnostics.adversary.slope_error import update_slope, warm_up
from vasso.diagnostics.adversary.snr import SnrMeter
from vasso.diagnostics.passes import Objective, objective
from vasso.lab.experiment.run import Run
from vasso.lab.probe.target import RandomBatches
from vasso.lab.store.provenance import certificate, now
from vasso.lab.training.host import start_fabric
from vasso.lab.training.options import RunOptions
from vasso.lab.training.setup import build_criterion
from vasso.lab.training.state import Training

HERE = Path(__file__).parent
THETAS = (1.0, 0.9, 0.4, 0.2)
RHO = 0.11
LABELS = {"clean": 0.0, "wrong": 0.75}
EPOCHS = (1, 2, 3, 5, 7, 10, 13, 16, 20, 24)
"""Measurements are in the second half of these epochs, and at the initial weights."""
PLACES = (45, 53, 61, 69, 77)
"""Measured steps of an epoch. With (1 - 0.2)^8 = 0.17 their slopes are nearly independent."""
OTHERS = 8
"""Other batches: the first of the same epoch. With (1 - 0.2)^38 = 0.0002 no slope has them."""
FIXED = 61
"""Gradients at fixed weights: 16 for the warm-up of theta 0.2, then 45 that are measured."""

TASK = {
    "data": "cifar10",
    "model": "resnet8",
    "size": 16,
    "train_size": 10000,
    "validation": 1000,
    "epochs": 24,
    "batch": 128,
    "reestimate": 2000,
    "test_every": 4,
}
METHOD = {"name": "SAM", "rho": RHO, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}


def run_of(labels: str, seed: int, **changes: Any) -> Run:
    """The setting of study `radius` at scale cpu, SAM at the first of its radii."""
    task = TASK | {"wrong": LABELS[labels]} | changes
    return Run.of({"task": task, "method": METHOD, "seed": seed})


# -- measurements ---------------------------------------------------------------------------------


class Measurements:
    """Measures adversaries at chosen steps of a training, which it does not change.

    Epochs count from 1. `write` is called with each line.
    """

    def __init__(
        self,
        training: Training,
        write: Callable[[dict[str, Any]], None],
        epochs: tuple[int, ...] = EPOCHS,
        places: tuple[int, ...] = PLACES,
        others: int = OTHERS,
        fixed: int = FIXED,
    ) -> None:
        self.training, self.write = training, write
        self.epochs, self.places, self.count, self.fixed = epochs, places, others, fixed
        criterion = build_criterion(training.run.task)
        self.loss = lambda output, y: criterion(output, y).mean()

    def when(self, step: int) -> bool:
        epoch, place = divmod(step, self.training.per_epoch)
        return epoch + 1 in self.epochs and place in self.places

    def batch(self, step: int) -> Any:
        return self.training.batches.at(step)[:2]

    def others(self, step: int) -> list[Any]:
        first = step - step % self.training.per_epoch
        return [self.batch(first + i) for i in range(self.count)]

    def at_training_step(self, at_step: SlopesAtStep) -> None:
        """Compares adversaries of the slopes that follow the training, at one of its steps."""
        with self.objective(at_step.params) as f:
            batch, others = self.batch(at_step.step), self.others(at_step.step)
            compared = compare_adversaries(f, at_step, batch, others, RHO)
        for at, effects in compared.items():
            for effect in effects:
                self.write_line("followed", at_step.step, at, asdict(effect))
        if at_step.step % self.training.per_epoch == self.places[-1]:
            self.at_fixed_weights(at_step.step, at_step.params)

    def objective(self, params: Any) -> Any:
        settings: dict[str, Any] = {"batchnorm": "batch", "dropout": True, "params": params}
        return objective(self.training.bare, self.loss, **settings)

    def at_fixed_weights(self, step: int, params: Any = None) -> None:
        """Compares adversaries of slopes of new batches at these weights; and measures the SNR."""
        with torch.no_grad(), self.objective(params) as f:
            meter, others = SnrMeter(), self.others(step)
            for at_step, batch in self.slopes_at_fixed_weights(f, meter):
                for at, effects in compare_adversaries(f, at_step, batch, others, RHO).items():
                    for effect in effects:
                        self.write_line("held", step, at, asdict(effect))
        self.write_line("snr", step, "", meter.result().row())

    def slopes_at_fixed_weights(
        self, f: Objective, meter: SnrMeter
    ) -> Iterator[tuple[SlopesAtStep, Any]]:
        slopes: dict[float, Any] = {theta: [] for theta in THETAS}
        gap = self.places[1] - self.places[0] if len(self.places) > 1 else 1
        for key, batch in enumerate(self.new_batches()):
            g = f.gradient(batch)
            meter.add(g)
            chosen = key >= warm_up(min(THETAS)) and (self.fixed - 1 - key) % gap == 0
            before = {t: [x.clone() for x in d] for t, d in slopes.items()} if chosen else {}
            slopes = {t: update_slope(d, g, t) for t, d in slopes.items()}
            if chosen:
                yield SlopesAtStep(key, f.params, g, slopes, before), batch

    def new_batches(self) -> RandomBatches:
        """Random batches of images that are not in the other batches of this epoch."""
        batches = self.training.batches
        step = self.training.step
        first = step - step % self.training.per_epoch
        kept = torch.cat([batches.at(first + i)[2] for i in range(self.count)]).cpu()
        places = torch.arange(len(batches.y))
        return RandomBatches(batches, places[~torch.isin(places, kept)], batches.size, self.fixed)

    def write_line(self, kind: str, step: int, at: str, row: dict[str, Any]) -> None:
        epoch = (step + 1) / self.training.per_epoch if step else 0.0
        self.write({"kind": kind, "step": step, "epoch": round(epoch, 3), "at": at, **row})


def fingerprint(training: Training) -> str:
    """A hash of all bits of the weights."""
    digest = hashlib.sha256()
    for value in training.bare.state_dict().values():
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def start_training(run: Run) -> Training:
    """A run at its first step, on the CPU."""
    options = RunOptions(accelerator="cpu")
    return Training(run, options, start_fabric(options, run.task.precision))


def train(training: Training, measurements: Measurements | None, write: Callable[..., None]) -> str:
    """Trains a run, with or without measurements; the fingerprint of its last weights."""
    if measurements is not None:
        measurements.at_fixed_weights(0)
        callback, when = measurements.at_training_step, measurements.when
        with SlopeTracker(training.optimizer, callback, when, THETAS):
            take_all_steps(training, write)
    else:
        take_all_steps(training, write)
    return fingerprint(training)


def take_all_steps(training: Training, write: Callable[..., None]) -> None:
    while training.step < training.total:
        training.take_step()
        if training.is_at_end_of_epoch:
            write(training.end_epoch())


def measure(labels: str, seed: int, folder: Path = HERE) -> None:
    """Measures one run and writes its lines; does nothing if its file is complete."""
    path = folder / f"lines-{labels}-s{seed}.jsonl"
    if path.exists() and any(x["kind"] == "end" for x in lines(path)):
        return
    path.unlink(missing_ok=True)

    def write(line: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if line["kind"] == "epoch":
            print(labels, seed, "epoch", line["epoch"], line.get("test_accuracy"), flush=True)

    run = run_of(labels, seed)
    write({"kind": "start", "time": now(), "run": run.in_full(), "certificate": certificate()})
    training = start_training(run)
    mark = train(training, Measurements(training, write), write)
    result = training.result()
    write({"kind": "end", "time": now(), "weights": mark, "result": result})


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Measures what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", nargs="*", choices=LABELS, default=list(LABELS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--show", action="store_true", help="measure nothing")
    args = parser.parse_args()
    for seed in () if args.show else args.seeds:
        for labels in args.labels:
            measure(labels, seed)
    from page import write_page

    write_page(HERE)


if __name__ == "__main__":
    main()
