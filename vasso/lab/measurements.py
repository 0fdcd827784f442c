"""What do finished runs tell besides accuracy? One function per measure; results stay in the store.

    store/<run id>/spectrum.json        beside the run it was measured of
    store/<run id>/noise.json
    store/<run id>/bleu.json
    store/measured-spread-<hash>/spread.json    what has no run

A file holds its settings: what is there with the same ones is not measured again, and what was
interrupted goes on with the next run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from vasso.diagnostics.eigen import top_eigenpairs
from vasso.diagnostics.products import Hessian
from vasso.diagnostics.sphere import cloud
from vasso.lab.certificate import certificate
from vasso.lab.evaluate import reestimated
from vasso.lab.folder import FORMAT, DivergedError, Folder, StoreError
from vasso.lab.measures import Noise, Settings, Spectrum, Spread
from vasso.lab.pixels import examples_of
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.translation.bleu import Bleu, of_run

Row: TypeAlias = dict[str, Any]


def measure(
    settings: Settings,
    runs: Sequence[Run],
    store: Store,
    *,
    data: Path | None = None,
    device: torch.device | str = "cpu",
    tell: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Measures what is missing, and gives all of it.

    Args:
        settings: of the measurement; they say which one it is.
        runs: finished ones.
        store: where they are, and where results go.
        data: where data are.
        device: for what needs a network.
        tell: is told before each run that takes time.

    Returns:
        Rows of a table; a run that has diverged has none.
    """
    if isinstance(settings, Spread):
        return spread(settings, store)
    rows: list[Row] = []
    for number, run in enumerate(runs, 1):
        try:
            place = f"run {number} of {len(runs)}: {run.id}"
            rows += _of_run(settings, run, store.folder(run.id), data, device, tell, place)
        except DivergedError as trouble:
            tell(f"not measured: {trouble}")
    return rows


def _of_run(
    settings: Noise | Spectrum | Bleu,
    run: Run,
    folder: Folder,
    data: Path | None,
    device: torch.device | str,
    tell: Callable[[str], None],
    place: str,
) -> list[Row]:
    if isinstance(settings, Noise):
        return noise(run, folder)
    if isinstance(settings, Bleu):
        if folder.measurement("bleu", asdict(settings)) is None:
            tell(f"translations of {place}")
        return bleu(settings, run, folder, data, device)
    if folder.measurement("spectrum", asdict(settings)) is None:
        tell(f"Hessian of {place}")
    return spectrum(settings, run, folder, data, device)


# -- adversaries on a sphere -----------------------------------------------------------------------


def spread(settings: Spread, store: Store) -> list[Row]:
    """How far adversaries spread, for every theta and every SNR.

    Args:
        settings: what to draw.
        store: where the result goes.

    Returns:
        A row for each cloud.
    """
    asked = asdict(settings)
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:10]
    folder = store.folder(f"measured-spread-{digest}")
    folder.path.mkdir(exist_ok=True)

    def make() -> list[Row]:
        rest = {key: asked[key] for key in ("gradient", "variances", "adversaries", "seed")}
        clouds = [cloud(snr, theta, **rest) for theta in settings.theta for snr in settings.snr]
        return [found.row() for found in clouds]

    return _kept(folder, "spread", asked, make)


# -- signal and noise as training went -------------------------------------------------------------


def noise(run: Run, folder: Folder) -> list[Row]:
    """The signal-to-noise ratio at the beginning of each epoch, as training noted it.

    Args:
        run: a finished run.
        folder: its place.

    Returns:
        A row for each epoch, counted from 0.

    Raises:
        StoreError: the run noted none.
    """

    def make() -> list[Row]:
        lines = [line for line in folder.metrics("epoch") if "snr" in line]
        if not lines:
            raise StoreError(
                f"{folder.path} notes no signal-to-noise ratio: train the run with task snr above 0"
            )
        return [{**_named(run), "epoch": line["epoch"] - 1, **line["snr"]} for line in lines]

    return _kept(folder, "noise", {}, make)


# -- translations ----------------------------------------------------------------------------------


def bleu(
    settings: Bleu, run: Run, folder: Folder, data: Path | None, device: torch.device | str
) -> list[Row]:
    """How good the translations of a run are, and its perplexity in validation.

    Args:
        settings: how they are made.
        run: a finished run.
        folder: its place.
        data: where data are.
        device: where they are made.

    Returns:
        One row.
    """

    def make() -> list[Row]:
        last = (folder.result or {}).get("last", {})
        perplexity = {"perplexity": last.get("validation_perplexity")}
        return [{**_named(run), **of_run(settings, run, folder, data, device), **perplexity}]

    return _kept(folder, "bleu", asdict(settings), make)


# -- the Hessian where training ended --------------------------------------------------------------


def spectrum(
    settings: Spectrum, run: Run, folder: Folder, data: Path | None, device: torch.device | str
) -> list[Row]:
    """The largest eigenvalues of the Hessian of the training loss at the weights of a run.

    Without augmentation, BatchNorm as the run is tested: running statistics, or those of training
    images where the task estimates them anew. Averaged weights where there are some.

    Args:
        settings: how many, on how many images.
        run: a finished run.
        folder: its place.
        data: where data are.
        device: where the products are computed.

    Returns:
        One row.
    """

    def make() -> list[Row]:
        model, batches, tested = _at_the_end(run, folder, data, device, settings.images)
        with tested(model):
            H = Hessian(model, lambda out, y: run.task.criterion(out, y).mean(), batches)
            found = top_eigenpairs(H, settings.eigenvalues, tolerance=settings.tolerance)
        return [{**_named(run), **found.row()}]

    return _kept(folder, "spectrum", asdict(settings), make)


def _at_the_end(
    run: Run, folder: Folder, data: Path | None, device: torch.device | str, images: int
) -> tuple[nn.Module, list[tuple[Tensor, Tensor]], Callable[[nn.Module], Any]]:
    """The model of a finished run, training images, and the statistics it is tested with."""
    weights, averaged = folder.weights()
    prepared = run.task.prepare(run.seed, data)
    model = run.task.build_model(prepared.data, run.seed).to(device)
    model.load_state_dict(weights)

    def place(x: Tensor) -> Tensor:
        return x.to(device)

    taught = examples_of(prepared.data, prepared.train, prepared.y)
    batches = [(place(x), place(y)) for x, y in taught.some(images).chunks()]
    anew = 0 if averaged else run.task.reestimate
    if not anew:
        return model, batches, lambda model: nullcontext()
    seen = taught.some(anew)
    return model, batches, lambda model: reestimated(model, seen, place)


# -- keeping ---------------------------------------------------------------------------------------


def _named(run: Run) -> Row:
    return {"run": run.id, "method": run.method.label, "seed": run.seed}


def _kept(folder: Folder, name: str, asked: Row, make: Callable[[], list[Row]]) -> list[Row]:
    """Rows that are there for these settings, else made and kept."""
    found = folder.measurement(name, asked)
    if found is None:
        table = {"format": FORMAT, "settings": asked, "certificate": certificate(), "rows": make()}
        folder.write_measurement(name, table)
        found = folder.measurement(name, asked)
        assert found is not None
    return found
