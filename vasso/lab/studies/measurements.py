"""Measurements of finished runs besides accuracy; results are kept in the store.

    store/<run id>/spectrum.json        in the directory of the run
    store/<run id>/noise.json
    store/<run id>/bleu.json
    store/measured-spread-<hash>/spread.json    a measurement that has no run

Each file holds its settings. A result with the same settings is not measured again, and an
interrupted study goes on with the next run.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vasso.diagnostics.adversary.sphere import cloud
from vasso.diagnostics.curvature.eigen import top_eigenpairs
from vasso.diagnostics.curvature.products import Hessian
from vasso.lab.experiment.run import Run
from vasso.lab.store.provenance import certificate
from vasso.lab.store.run_directory import FORMAT, DivergedError, RunDirectory, StoreError
from vasso.lab.store.store import Store
from vasso.lab.studies.bleu import Bleu, bleu_of_run
from vasso.lab.studies.measurement_settings import Noise, Settings, Spectrum, Spread
from vasso.lab.training.image_batches import build_training_examples
from vasso.lab.training.images import reestimated_statistics
from vasso.lab.training.setup import build_criterion, build_image_model, load_split

Row: TypeAlias = dict[str, Any]


def run_measurements(
    settings: Settings,
    runs: Sequence[Run],
    store: Store,
    *,
    data_root: Path | None = None,
    device: torch.device | str = "cpu",
    log: Callable[[str], None] = lambda text: None,
    failures: list[str] | None = None,
) -> list[Row]:
    """Measure what is missing, and return the rows of all finished runs.

    The type of the settings says what is measured. A run that has diverged has no row. `log` gets a
    line before each measurement that takes time. `failures` gets a sentence for each run with
    damaged files; without it the first one is an error.
    """
    if isinstance(settings, Spread):
        return measure_spread(settings, store)
    rows: list[Row] = []
    for number, run in enumerate(runs, 1):
        directory, name = store.folder(run.id), f"run {number} of {len(runs)}: {run.id}"
        try:
            if isinstance(settings, Noise):
                rows += measure_noise(run, directory)
            elif isinstance(settings, Bleu):
                if directory.measurement("bleu", asdict(settings)) is None:
                    log(f"translations of {name}")
                rows += measure_bleu(settings, run, directory, data_root, device)
            else:
                if directory.measurement("spectrum", asdict(settings)) is None:
                    log(f"Hessian of {name}")
                rows += measure_spectrum(settings, run, directory, data_root, device)
        except DivergedError as error:
            log(f"not measured: {error}")
        except (StoreError, OSError) as error:
            if failures is None:
                raise
            failures.append(str(error))
    return rows


def measure_spread(settings: Spread, store: Store) -> list[Row]:
    """The spread of adversaries on a sphere: a row for every theta and every SNR."""
    asked = asdict(settings)
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:10]
    directory = store.folder(f"measured-spread-{digest}")
    directory.path.mkdir(exist_ok=True)

    def measure() -> list[Row]:
        rest = {key: asked[key] for key in ("gradient", "variances", "adversaries", "seed")}
        return [cloud(snr, theta, **rest).row() for theta in settings.theta for snr in settings.snr]

    return _cached(directory, "spread", asked, measure)


def measure_noise(run: Run, directory: RunDirectory) -> list[Row]:
    """The signal-to-noise ratio before each epoch (counted from 0), as training recorded it."""

    def measure() -> list[Row]:
        lines = [line for line in directory.metrics("epoch") if "snr" in line]
        if not lines:
            raise StoreError(
                f"{directory.path} has no signal-to-noise ratio: train the run with task snr "
                "above 0"
            )
        return [{**_labels(run), "epoch": line["epoch"] - 1, **line["snr"]} for line in lines]

    return _cached(directory, "noise", {}, measure)


def measure_bleu(
    settings: Bleu,
    run: Run,
    directory: RunDirectory,
    data_root: Path | None,
    device: torch.device | str,
) -> list[Row]:
    """BLEU of the translations of a run, and its perplexity in validation: one row."""

    def measure() -> list[Row]:
        last = (directory.result or {}).get("last", {})
        perplexity = {"perplexity": last.get("validation_perplexity")}
        bleu = bleu_of_run(settings, run, directory, data_root, device)
        return [{**_labels(run), **bleu, **perplexity}]

    return _cached(directory, "bleu", asdict(settings), measure)


def measure_spectrum(
    settings: Spectrum,
    run: Run,
    directory: RunDirectory,
    data_root: Path | None,
    device: torch.device | str,
) -> list[Row]:
    """The largest eigenvalues of the Hessian of the training loss at a run's weights: one row.

    Images are not augmented. BatchNorm uses the statistics of the run's tests: running ones, or
    those of training images where the task re-estimates them. Averaged weights are used if any.
    """

    def measure() -> list[Row]:
        model, batches, statistics = _load_trained(
            run, directory, data_root, device, settings.images
        )
        criterion = build_criterion(run.task)
        with statistics(model):
            H = Hessian(model, lambda out, y: criterion(out, y).mean(), batches)
            found = top_eigenpairs(H, settings.eigenvalues, tolerance=settings.tolerance)
        return [{**_labels(run), **found.row()}]

    return _cached(directory, "spectrum", asdict(settings), measure)


def _load_trained(
    run: Run,
    directory: RunDirectory,
    data_root: Path | None,
    device: torch.device | str,
    images: int,
) -> tuple[nn.Module, list[tuple[Tensor, Tensor]], Callable[[nn.Module], Any]]:
    """The model of a finished run, training images, and a context with the statistics of tests."""
    weights, averaged = directory.weights()
    split = load_split(run.task, run.seed, data_root)
    model = build_image_model(run.task, split.data, run.seed).to(device)
    model.load_state_dict(weights)

    def to_device(x: Tensor) -> Tensor:
        return x.to(device)

    examples = build_training_examples(split.data, split.train, split.y)
    batches = [(to_device(x), to_device(y)) for x, y in examples.some(images).chunks()]
    if averaged or not run.task.reestimate:
        return model, batches, lambda model: nullcontext()
    some = examples.some(run.task.reestimate)
    return model, batches, lambda model: reestimated_statistics(model, some, to_device)


def _labels(run: Run) -> Row:
    return {"run": run.id, "method": run.method.label, "seed": run.seed}


def _cached(
    directory: RunDirectory, name: str, settings: Row, measure: Callable[[], list[Row]]
) -> list[Row]:
    rows = directory.measurement(name, settings)
    if rows is None:
        table = {"format": FORMAT, "settings": settings, "certificate": certificate()}
        directory.write_measurement(name, {**table, "rows": measure()})
        rows = directory.measurement(name, settings)
        assert rows is not None
    return rows
