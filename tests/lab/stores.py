"""Stores of runs that were never trained: numbers by a formula, so that every answer is known."""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np

from vasso.diagnostics.adversary.equal_effect import EqualEffect
from vasso.diagnostics.adversary.friendliness import Friendliness
from vasso.diagnostics.adversary.radius import RiseCurve
from vasso.diagnostics.adversary.slope_error import SlopeError
from vasso.diagnostics.adversary.snr import Snr
from vasso.diagnostics.curvature.density import Density
from vasso.diagnostics.curvature.eigen import Eigenpairs
from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.landscape import Surface
from vasso.diagnostics.sharpness import Sharpness
from vasso.lab.experiment.run import Run
from vasso.lab.probe.results import document, write
from vasso.lab.probe.run import Depth
from vasso.lab.probe.run import ProbeResults as Probed
from vasso.lab.report.read import Measurement, TrainedRun, noise_in_epochs
from vasso.lab.store.json import as_json, table_in, unsealed
from vasso.lab.store.run_directory import FORMAT, RunDirectory
from vasso.lab.store.store import LINES, Store
from vasso.lab.studies import study as studies

CERTIFICATE = {
    "vasso": "0.1.0",
    "python": "3.11.7",
    "packages": {"torch": "2.13.0", "numpy": "2.4.6", "lightning": "2.6.6"},
    "commit": "0123456789abcdef",
    "machine": "x86_64",
    "system": "Linux",
    "processor": "A <b>processor</b>",
    "cores": 2,
    "devices": [],
}


def effective(run: Run) -> float:
    """rho, less of it the smaller theta is."""
    settings = dict(run.method.settings)
    rho = settings.get("rho", 0.0)
    theta = float(settings.get("theta", 1.0))
    return float(rho) * theta**0.3 if isinstance(rho, float) else 0.1


def accuracy(run: Run) -> float:
    e = effective(run)
    bump = math.exp(-((math.log(e / 0.12)) ** 2)) if e else 0.0
    return 55.0 - 40.0 * run.task.wrong + 15.0 * run.task.wrong * bump + 2.0 * bump


def trained(run: Run, *, finished: bool = True, gain: float = 0.0) -> TrainedRun:
    """A run that gives `accuracy` and `gain` with some noise of its seed and less of its own."""
    seed, own = np.random.default_rng(run.seed), np.random.default_rng(crc32(run.id.encode()))
    test = accuracy(run) + gain + float(seed.normal(0, 1)) + float(own.normal(0, 0.1))
    epochs = [epoch(run, i, test) for i in range(1, (run.task.epochs if finished else 2) + 1)]
    begun = f"2026-01-0{1 + run.seed % 9}T10:00:00+00:00"
    return TrainedRun(
        run, begun, CERTIFICATE, tuple(epochs), result(run, test) if finished else None
    )


def epoch(run: Run, i: int, test: float) -> dict[str, Any]:
    share = i / run.task.epochs
    line: dict[str, Any] = {"kind": "epoch", "step": 78 * i, "epoch": i, "train_loss": 2.3 - share}
    line |= {"cost": 156.0 * i, "seconds": 4.2, "validation_accuracy": test * share}
    if i % run.task.test_every == 0 or share == 1:
        line["test_accuracy"] = test * min(1.0, 0.4 + share)
    if (e := effective(run)) and run.task.others:
        carried = 0.1 + 0.3 * (1 - float(dict(run.method.settings).get("theta", 1.0)))
        own = 2 * e / (1 + share)
        adversary = {"own": own, "others": [carried * own] * 4, "cos_dg": 0.9, "epsilon_norm": e}
        line |= {"rise": own, "adversary": adversary}
    return line


def result(run: Run, test: float) -> dict[str, Any]:
    passes = 1 if run.method.name == "plain" else 2
    last = {"epoch": run.task.epochs, "test_accuracy": test, "training_accuracy": 60.5}
    if run.task.validation:
        last["validation_accuracy"] = test - 0.3
    if run.task.wrong:
        last["wrong_accuracy"] = max(0.0, 100 - 1.5 * test)
    best = {"epoch": min(5, run.task.epochs), "test_accuracy": test + 1.25}
    cost: dict[str, Any] = {
        "cost": 1872.0 * passes,
        "seconds": 50.5 * passes,
        "skipped": 0,
        "steps": 1872,
    }
    return {
        "last": last,
        "best": best if run.task.validation else None,
        **cost,
        "ended": "2026-01-09T12:00:00+00:00",
    }


# -- what is measured besides accuracy -------------------------------------------------------------
def luck(run: Run) -> float:
    """Noise of the seed, and less of the run's own."""
    own = np.random.default_rng(crc32(run.id.encode()))
    return float(np.random.default_rng(run.seed).normal(0, 0.3)) + float(own.normal(0, 0.05))


def translator(run: Run, *, scored: bool = True, bleu: float = 0.0) -> TrainedRun:
    """A run on sentences: BLEU of 35, more by `bleu` for VaSSO, whose perplexity is less by 0.5."""
    vasso = run.method.name == "VaSSO"
    perplexity = 5.0 - 0.5 * vasso - 0.1 * luck(run)
    count = run.task.epochs
    epochs = [
        {"kind": "epoch", "step": 495 * i, "epoch": i, "train_loss": 4.0 - i / count}
        | {"validation_perplexity": perplexity + 8 * (count - i) / i, "test_accuracy": 50.0 + i}
        for i in range(1, count + 1)
    ]
    last = {"epoch": count, "validation_perplexity": perplexity, "test_accuracy": 50.0 + count}
    passes = 1 if run.method.name == "plain" else 2
    result = {"last": last, "best": None, "cost": 2475.0 * passes, "seconds": 900.0 * passes}
    row = {"bleu": 35.0 + bleu * vasso + luck(run), "detokenised": 34.0 + luck(run)}
    row |= {"brevity_penalty": 1.0, "length_ratio": 1.01, "perplexity": perplexity, "sentences": 9}
    settings = {"beam": 5, "length_penalty": 1.0, "sentences": 0}
    measured = {"bleu": Measurement(settings, (row,))} if scored else {}
    return TrainedRun(
        run, "2026-01-01T10:00:00+00:00", CERTIFICATE, tuple(epochs), result, measured
    )


MEASURED_ON = studies.load("hessian").at("cpu").measurement["images"]


def flattened(run: Run, *, images: int = MEASURED_ON) -> TrainedRun:
    """A run with eigenvalues 40 / k for SGD, 30 / k for SAM and 20 / k for VaSSO, about."""
    top = {"SAM": 30.0, "VaSSO": 20.0}.get(run.method.name, 40.0) + luck(run)
    row = {f"lambda{k}": top / k for k in range(1, 6)} | {"lambda1/lambda5": 5.0}
    row |= {f"residual{k}": 0.001 for k in range(1, 6)} | {"products": 40, "samples": images}
    settings = {"eigenvalues": 5, "images": images, "tolerance": 0.001}
    return replace(trained(run), measured={"spectrum": Measurement(settings, (row,))})


def noisy(run: Run) -> TrainedRun:
    """A run that notes its signal-to-noise ratio, 0.5 / epoch, as training does."""
    one = trained(run)
    epochs = []
    for i, line in enumerate(one.epochs, 1):
        found = Snr(Estimate(0.5 / i, 0.3 / i, 0.8 / i, 0.95, 50), *[around(1.0)] * 2, batches=50)
        epochs.append({**line, "snr": found.row()})
    return replace(one, epochs=tuple(epochs), measured=noise_in_epochs(epochs))


def around(value: float) -> Estimate:
    return Estimate(value, 0.8 * value, 1.2 * value, 0.95, 8)


def found_by_a_probe() -> Probed:
    thetas, rhos, open_ended = (1.0, 0.4), (0.05, 0.1, 0.2), Estimate(2.0, 1.0, math.inf, 0.95, 8)
    apart = [around(value) for value in (0.3, 0.1, 0.4, 0.2)]
    grid = np.linspace(-1, 1, 5)
    losses = 1 + grid[:, None] ** 2 + grid[None, :] ** 2
    curves: list[Any] = [
        RiseCurve(rhos, tuple(map(around, rhos)), tuple(map(around, rhos)), theta, 8, 4)
        for theta in thetas
    ]
    equal = [EqualEffect(on, 0.4, 0.1, around(0.1), open_ended) for on in ("own", "others")]
    values = np.array([9.0, 4.0, 1.0])
    nodes = np.array([[0.1, 9.0], [0.2, 8.0]])
    results: dict[str, list[Any]] = {
        "snr": [Snr(*[around(1.0)] * 3, batches=32)],
        "slope": [SlopeError(theta, *apart, 2.0, 30) for theta in thetas],
        "friendliness": [Friendliness(0.1, theta, *apart, 8, 4) for theta in thetas],
        "radius": curves + equal,
        "sharpness": [
            Sharpness(around(0.2), 0.1, "l2", False, search, 64, 16, 99)
            for search in ("one-step", "apgd", "average")
        ],
        "eigenvalues": [Eigenpairs(values, np.eye(3), values / 1000, 30, 256)],
        "density": [Density(nodes, np.array([[0.9, 0.1], [0.8, 0.2]]), 500, 80, 256)],
        "landscape": [Surface(grid, grid, losses, losses / 100, 256)],
    }
    return Probed(results, notes=["trace could not be measured: <b>nothing</b>"])


def probe_of(run: Run) -> dict[str, Any]:
    subject: Any = SimpleNamespace(name=run.id, about={"kind": "run"}, count=32, others=[1, 2])
    whole = document(subject, Depth(0.1, (1.0, 0.4)), found_by_a_probe())
    return unsealed(as_json(whole))


def rewritten(path: Path, **changes: Any) -> None:
    path.write_bytes(as_json(table_in(path) | changes))


# -- runs and stores -------------------------------------------------------------------------------
def runs_of(
    name: str, scale: str = "cpu", seeds: int | None = None, wrong: Any = None
) -> list[Run]:
    """Runs of a study, fewer seeds and only some shares of wrong labels if wanted."""
    found = studies.load(name).at(scale).runs
    some = (run for run in found if seeds is None or run.seed < seeds)
    return [run for run in some if wrong is None or run.task.wrong in wrong]


def as_lines(root: Path, runs: Iterable[TrainedRun], name: str = "some") -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LINES).write_text("".join(f"{one.line()}\n" for one in runs))
    return root


def as_store(root: Path, runs: Iterable[TrainedRun]) -> Store:
    store = Store(root)
    for one in runs:
        folder: RunDirectory = store.folder(one.run.id)
        folder.path.mkdir()
        about = {"format": FORMAT, "id": one.run.id, "run": one.run.in_full()}
        folder.write_settings({**about, "begun": one.begun, "certificate": one.certificate})
        for line in one.epochs:
            folder.append(line)
        if one.result is not None:
            folder.write_result(one.result)
        for name, found in one.measured.items():
            named = {"run": one.run.id, "method": one.run.method.label, "seed": one.run.seed}
            rows = [{**named, **row} for row in found.rows]
            folder.write_measurement(
                name, {"format": FORMAT, "settings": found.settings, "rows": rows}
            )
        if one.probe is not None:
            write(folder.path / "probe" / "probe.json", one.probe)
    return store
