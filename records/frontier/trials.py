"""Rules for rho and theta that are not in the package, on digits; writes `trials.jsonl`.

    python records/frontier/trials.py radii 0 1 2         # rules for rho, with these seeds
    python records/frontier/trials.py thetas 0 1 2        # the weight of the newest gradient

`RADII` are rules that set rho for Half-SAM; `THETAS` are weights of the newest gradient for VaSSO,
at two gradients a step. A run takes three seconds; what has been run is not run again.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vasso import FromGap, SharpnessAware
from vasso.engine.batchnorm import BatchNormStatistics
from vasso.lab.experiment.run import Run
from vasso.lab.training.host import start_fabric
from vasso.lab.training.options import RunOptions
from vasso.lab.training.state import Training
from vasso.numerics.vectors import Vector, norm
from vasso.parts.context import StepContext
from vasso.parts.directions import Direction, Ema
from vasso.parts.memory import PartState
from vasso.parts.plans import FORWARD, Fraction, Same

LINES = Path(__file__).parent / "trials.jsonl"
TASK: dict[str, Any] = {
    **{"data": "digits", "model": "mlp", "width": 0.5, "validation": 297},
    **{"epochs": 40, "batch": 50, "test_every": 40},
}
BASE = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
HELD_OUT = 100
KEYS = ("kind", "rule", "at", "wrong", "seed")

Make = Callable[[Training], FromGap]
"""A rule for the radius of a training, whose held-out images it may use."""
Trained = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""The name of a run and what trains it."""


# -- rules for rho --------------------------------------------------------------------------------


def gap(kappa: float, rule: type[FromGap] = FromGap, mode: bool = False, **settings: Any) -> Make:
    """A rule by the gap; `mode` takes the held-out loss in training mode, in batches of 25."""

    def make(training: Training) -> FromGap:
        loss = InTrainingMode(training) if mode else training._held_out_loss()
        assert loss is not None
        return rule(loss, training.total, kappa, **{"start": 0.5, **settings})

    return make


@dataclass
class InTrainingMode:
    """The held-out loss by the statistics of its own small batches, as the batches' loss is."""

    training: Training
    cost: float = FORWARD * HELD_OUT / 50

    def __call__(self) -> float:
        (x, y), model = held_out(self.training), self.training.bare
        with BatchNormStatistics(model).held():
            model.train()
            pairs = zip(x.split(25), y.split(25), strict=True)
            losses = [cross_entropy(model(a), b) for a, b in pairs]
        return float(torch.stack(losses).mean())


def held_out(training: Training) -> tuple[Tensor, Tensor]:
    """The held-out images and their labels."""
    workload: Any = training.workload
    chunks = [(workload._to_device(x), y) for x, y in workload.held_out.chunks()]
    return torch.cat([x for x, _ in chunks]), torch.cat([y for _, y in chunks])


@dataclass(frozen=True)
class Later(FromGap):
    """The rule by the gap, which leaves rho alone for the first tenth of the training."""

    def _control(self, numbers: dict[str, float], kappa: float) -> None:
        if numbers["rho_next_check"] > 0.1 * self.total:
            super()._control(numbers, kappa)


FAST = {"speed": 80.0, "memory": 0.01, "checks": 200}
RHOS = (0.35, 0.5, 0.7, 1.0)
KAPPAS = (1.0, 1.5, 2.0, 3.0)
RADII: dict[str, dict[float, Make | float]] = {
    "fixed rho": {rho: rho for rho in RHOS},
    "fixed rho, R and G watched": {rho: gap(1.0, start=rho, speed=1e-9) for rho in (0.25, 0.5, 1)},
    "FromGap": {kappa: gap(kappa) for kappa in KAPPAS},
    "FromGap, start 0.05": {kappa: gap(kappa, start=0.05) for kappa in KAPPAS[:2]},
    "four times as fast": {kappa: gap(kappa, **FAST) for kappa in KAPPAS[:2]},
    "the same, held out in training mode": {
        kappa: gap(kappa, mode=True, **FAST) for kappa in KAPPAS[:2]
    },
    "rho fixed for a tenth": {kappa: gap(kappa, Later) for kappa in KAPPAS[:2]},
}


# -- theta by a Kalman gain -----------------------------------------------------------------------


@dataclass(frozen=True)
class Kalman(Direction):
    """The slope with the gain of a Kalman filter, one for all weights.

    g_t = f_t + noise of variance S and f_t = f_{t-1} + drift of variance Q, so that
    E ||g_t - g_{t-1}||^2 = 2 S + Q and E ||g_t - g_{t-2}||^2 = 2 S + 2 Q. With r = Q / S the gain
    at rest is theta = (sqrt(r^2 + 4 r) - r) / 2. Both means are moving averages over 20 steps.
    """

    remembers: ClassVar[tuple[str, ...]] = ("d", "last", "before")
    counts: ClassVar[Mapping[str, float]] = {"one": 0.0, "two": 0.0, "theta": 1.0}

    def __call__(
        self, g: Vector | None, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Vector:
        assert g is not None
        if context.step >= 2:
            for name, old in (("one", "last"), ("two", "before")):
                pairs: Any = zip(g, memory.recall(old), strict=True)
                apart = float(norm([a - b for a, b in pairs])) ** 2
                memory.numbers[name] += (apart - memory.numbers[name]) / min(context.step - 1, 20)
        memory.numbers["theta"] = theta = gain(memory.numbers["one"], memory.numbers["two"])
        pairs = zip(memory.recall("d"), g, strict=True)
        d = [x if old is None else torch.lerp(old, x, theta) for old, x in pairs]
        memory.keep("before", memory.recall("last"))
        memory.keep("last", list(g))
        memory.keep("d", list(d))
        return d


def gain(one: float, two: float) -> float:
    """theta from the mean squared distances of gradients one and two steps apart."""
    drift, noise = max(two - one, 0.0), max(one - two / 2, 0.0)
    if noise == 0:
        return 1.0
    r = drift / noise
    return min(max((math.sqrt(r * r + 4 * r) - r) / 2, 0.02), 1.0)


THETAS: dict[str, Direction] = {
    "1": Ema(1.0),
    "0.9": Ema(0.9),
    "0.4": Ema(0.4),
    "0.2": Ema(0.2),
    "Kalman": Kalman(),
}
RADII_OF_THETAS: dict[str, Make | float] = {
    "auto, kappa 1": gap(1.0),
    **{str(rho): rho for rho in (0.7, 1.0, 1.4)},
}


# -- runs -----------------------------------------------------------------------------------------


def trained(
    radius: Make | float, direction: Direction, half: bool, wrong: float, seed: int
) -> dict[str, Any]:
    """Trains digits with some wrong labels; images are held out for rules alone."""
    own = {"rho": f"auto(held_out={HELD_OUT})"} if callable(radius) else {}
    run = Run.of({
        **{"task": {**TASK, "wrong": wrong}, "method": {**BASE, "name": "SAM", **own}},
        "seed": seed,
    })
    options = RunOptions(accelerator="cpu")
    training = Training(run, options, start_fabric(options, run.task.precision))
    training.optimizer = SharpnessAware(
        run.method.build_base(training.model),
        rho=radius(training) if callable(radius) else radius,
        direction=direction,
        plan=Fraction(0.5, seed) if half else Same(),
        model=training.model,
    )
    ratios, started = [], time.process_time()
    while training.step < training.total:
        training.take_step()
        if training.is_at_end_of_epoch:
            training.end_epoch()
            if training.step // training.per_epoch in (8, 20, 40) and callable(radius):
                seen = training.optimizer.last.radius
                ratios.append(round(seen["R"] / seen["G"], 2))
    found = training.result()
    return {
        "test": found["last"]["test_accuracy"],
        "validation": found["last"]["validation_accuracy"],
        "gradients": found["cost"] / found["steps"],
        "rho": training.optimizer.last.radius.get("rho"),
        "R over G": ratios,
        "theta": training.optimizer._groups.numbers().get("theta"),
        "seconds": round(time.process_time() - started, 2),
    }


def radii(seed: int) -> Iterator[Trained]:
    """Every run of the rules for rho."""
    for wrong in (0.75, 0.5, 0.0):
        for rule, settings in RADII.items():
            for value, radius in settings.items():
                name = dict(zip(KEYS, ("radii", rule, value, wrong, seed), strict=True))
                yield name, lambda r=radius, w=wrong: trained(r, Ema(1.0), True, w, seed)


def thetas(seed: int) -> Iterator[Trained]:
    """Every run of the weights of the newest gradient, with half of the labels wrong."""
    for value, radius in RADII_OF_THETAS.items():
        for rule, direction in THETAS.items():
            name = dict(zip(KEYS, ("thetas", rule, value, 0.5, seed), strict=True))
            yield name, lambda r=radius, d=direction: trained(r, d, False, 0.5, seed)


def lines() -> list[dict[str, Any]]:
    """What has been run."""
    return [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []


def main() -> None:
    """Runs what is missing."""
    torch.set_num_threads(1)
    kind, *seeds = sys.argv[1:]
    done = [{key: line[key] for key in KEYS} for line in lines()]
    for seed in map(int, seeds):
        for name, train in {"radii": radii, "thetas": thetas}[kind](seed):
            if name not in done:
                found = {**name, **train()}
                with LINES.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(found, flush=True)


if __name__ == "__main__":
    main()
