"""Is VaSSO's adversary less of a friend? One training by SAM, looked at as it goes.

    VASSO_DATA=<folder> python records/resnet-probe/run.py                 # train, measure, write
    VASSO_DATA=<folder> python records/resnet-probe/run.py --labels clean --seeds 1
    python records/resnet-probe/run.py --show                              # README and figures only

Lines of JSON go to `lines-<labels>-s<seed>.jsonl`; a file with an `end` line is complete and is not
measured again. README.md and the figures are made of these files alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vasso.diagnostics.alongside import Alongside, Moment, meet
from vasso.diagnostics.passes import Objective, objective
from vasso.diagnostics.slope_error import follow, warm_up
from vasso.diagnostics.snr import SnrMeter
from vasso.lab.certificate import certificate, now
from vasso.lab.how import How
from vasso.lab.runs import Run
from vasso.lab.subject import Drawn
from vasso.lab.training import Training

HERE = Path(__file__).parent
THETAS = (1.0, 0.9, 0.4, 0.2)
RHO = 0.11
LABELS = {"clean": 0.0, "wrong": 0.75}
EPOCHS = (1, 2, 3, 5, 7, 10, 13, 16, 20, 24)
"""Instants: the second half of these epochs; and the initial weights."""
PLACES = (45, 53, 61, 69, 77)
"""Steps of an epoch at which adversaries meet; (1 - 0.2)^8 = 0.17: they are nearly independent."""
OTHERS = 8
"""The first batches of the same epoch: (1 - 0.2)^38 = 0.0002, no slope remembers them."""
STILL = 61
"""Gradients at held weights: 16 until a slope of theta 0.2 forgets its first, 45 to look at."""

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


# -- looking --------------------------------------------------------------------------------------


class Looker:
    """Looks at a training at chosen steps; nothing of it is touched.

    Args:
        training: the run under way.
        write: is given each line.
        epochs: at which epochs, from 1.
        places: at which steps of these.
        others: other batches.
        still: gradients at held weights.
    """

    def __init__(
        self,
        training: Training,
        write: Callable[[dict[str, Any]], None],
        epochs: tuple[int, ...] = EPOCHS,
        places: tuple[int, ...] = PLACES,
        others: int = OTHERS,
        still: int = STILL,
    ) -> None:
        self.training, self.write = training, write
        self.epochs, self.places, self.count, self.still = epochs, places, others, still
        criterion = training.run.task.criterion
        self.loss = lambda output, y: criterion(output, y).mean()

    def when(self, step: int) -> bool:
        epoch, place = divmod(step, self.training.per_epoch)
        return epoch + 1 in self.epochs and place in self.places

    def batch(self, step: int) -> Any:
        return self.training.batches.at(step)[:2]

    def others(self, step: int) -> list[Any]:
        first = step - step % self.training.per_epoch
        return [self.batch(first + i) for i in range(self.count)]

    def look(self, moment: Moment) -> None:
        """Slopes that followed the training, at one of its steps."""
        with self.objective(moment.params) as f:
            met = meet(f, moment, self.batch(moment.step), self.others(moment.step), RHO)
        for at, meetings in met.items():
            for meeting in meetings:
                self.tell("followed", moment.step, at, asdict(meeting))
        if moment.step % self.training.per_epoch == self.places[-1]:
            self.hold_still(moment.step, moment.params)

    def objective(self, params: Any) -> Any:
        settings: dict[str, Any] = {"batchnorm": "batch", "dropout": True, "params": params}
        return objective(self.training.bare, self.loss, **settings)

    def hold_still(self, step: int, params: Any = None) -> None:
        """Slopes of as many fresh batches at the weights of this step, and the SNR."""
        with torch.no_grad(), self.objective(params) as f:
            meter, others = SnrMeter(), self.others(step)
            for moment, batch in self.moments(f, meter):
                for at, meetings in meet(f, moment, batch, others, RHO).items():
                    for meeting in meetings:
                        self.tell("held", step, at, asdict(meeting))
        found = meter.result()
        self.tell("snr", step, "", found.row())

    def moments(self, f: Objective, meter: SnrMeter) -> Iterator[tuple[Moment, Any]]:
        slopes: dict[float, Any] = {theta: [] for theta in THETAS}
        gap = self.places[1] - self.places[0] if len(self.places) > 1 else 1
        for key, batch in enumerate(self.drawn()):
            g = f.gradient(batch)
            meter.add(g)
            chosen = key >= warm_up(min(THETAS)) and (self.still - 1 - key) % gap == 0
            before = {t: [x.clone() for x in d] for t, d in slopes.items()} if chosen else {}
            slopes = {t: follow(d, g, t) for t, d in slopes.items()}
            if chosen:
                yield Moment(key, f.params, g, slopes, before), batch

    def drawn(self) -> Drawn:
        """Fresh batches of images that are not in the others of this epoch."""
        batches = self.training.batches
        step = self.training.step
        first = step - step % self.training.per_epoch
        kept = torch.cat([batches.at(first + i)[2] for i in range(self.count)]).cpu()
        places = torch.arange(len(batches.y))
        return Drawn(batches, places[~torch.isin(places, kept)], batches.size, self.still)

    def tell(self, kind: str, step: int, at: str, row: dict[str, Any]) -> None:
        epoch = (step + 1) / self.training.per_epoch if step else 0.0
        self.write({"kind": kind, "step": step, "epoch": round(epoch, 3), "at": at, **row})


def fingerprint(training: Training) -> str:
    """Of the weights, bit for bit."""
    digest = hashlib.sha256()
    for value in training.bare.state_dict().values():
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def begun(run: Run) -> Training:
    """A run at its first step, on the CPU."""
    how = How(accelerator="cpu")
    return Training(run, how, how.fabric(run.task.precision))


def trained(training: Training, looker: Looker | None, write: Callable[..., None]) -> str:
    """Trains a run, looked at or not.

    Returns:
        The fingerprint of its last weights.
    """
    if looker is not None:
        looker.hold_still(0)
        with Alongside(training.optimizer, looker.look, looker.when, THETAS):
            steps(training, write)
    else:
        steps(training, write)
    return fingerprint(training)


def steps(training: Training, write: Callable[..., None]) -> None:
    while training.step < training.total:
        training.take_step()
        if training.is_at_end_of_epoch:
            write(training.end_epoch())


def measure(labels: str, seed: int, folder: Path = HERE) -> None:
    """Measures one run unless that has been done, and writes its lines."""
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
    training = begun(run)
    mark = trained(training, Looker(training, write), write)
    result = training.result()
    write({"kind": "end", "time": now(), "weights": mark, "result": result})


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Measures what is missing, then writes the page."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--labels", nargs="*", choices=LABELS, default=list(LABELS))
    words.add_argument("--seeds", nargs="*", type=int, default=[0])
    words.add_argument("--show", action="store_true", help="measure nothing")
    given = words.parse_args()
    for seed in () if given.show else given.seeds:
        for labels in given.labels:
            measure(labels, seed)
    from page import write_page

    write_page(HERE)


if __name__ == "__main__":
    main()
