"""What studies measure besides accuracy: right, kept once, without a trace in the training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.lab.calls import called
from tests.lab.runs import CPU, VASSO, on_digits, train_to, training_of, weights
from vasso.diagnostics.adversary.snr import SnrMeter
from vasso.diagnostics.adversary.sphere import cloud
from vasso.lab.store.json import as_json
from vasso.lab.store.run_directory import StoreError
from vasso.lab.store.store import Store
from vasso.lab.studies import measurements
from vasso.lab.studies import study as studies
from vasso.lab.studies.measurement_settings import (
    NOISE,
    SPECTRUM,
    SPREAD,
    Noise,
    Spectrum,
    Spread,
    parse_settings,
)
from vasso.lab.training.hooks import FIRST_DRAW
from vasso.lab.training.loop import train
from vasso.lab.training.setup import build_image_model, load_split

SPHERE = Spread([0.2, -0.1, 0.6], [0.2, 1.0, 2.0], [1.0, 0.1], [1.0, 0.4], 20)


def test_the_snr_of_an_epoch_is_that_of_its_first_weights_by_hand() -> None:
    training = training_of(on_digits({"name": "SGD"}, snr=5))
    for _ in range(training.per_epoch):
        training.take_step()
    training.end_epoch()
    model, step = training.bare, training.step
    weights = list(model.parameters())
    meter = SnrMeter()
    for number in range(5):
        x, y, _ = training.batches.drawn(step, FIRST_DRAW + number)
        meter.add(list(torch.autograd.grad(cross_entropy(model(x), y), weights)))
    training.take_step()
    assert training.snr is not None
    assert training.snr["snr"] == pytest.approx(meter.result().snr.value, rel=1e-4)
    assert (training.snr["batches"], training.snr["batch_size"]) == (5, 50)


def test_a_run_stopped_within_an_epoch_keeps_what_was_measured(tmp_path: Path) -> None:
    run = on_digits(VASSO, snr=4)
    whole, torn = Store(tmp_path / "whole"), Store(tmp_path / "torn")
    train(run, whole, CPU)
    train_to(run, torn, 6)
    train(run, torn, CPU)
    rows = [measurements.run_measurements(Noise(), [run], store) for store in (whole, torn)]
    assert rows[0] == rows[1]
    assert [row["epoch"] for row in rows[0]] == [0, 1]
    assert all(row["snr_low"] <= row["snr"] <= row["snr_high"] for row in rows[0])


def test_several_processes_are_refused() -> None:
    training = training_of(on_digits(VASSO, snr=4))
    training.batches.world = 2
    with pytest.raises(ValueError, match="in one process: use snr=0 or devices=1"):
        training._snr_hook()


def test_a_run_without_the_setting_says_so(tmp_path: Path) -> None:
    run, store = on_digits({"name": "SGD"}), Store(tmp_path)
    train(run, store, CPU)
    with pytest.raises(StoreError, match="has no signal-to-noise ratio: train the run with"):
        measurements.run_measurements(Noise(), [run], store)


def small_model(classes: int, channels: int, size: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(6), nn.Linear(6, classes))


def test_eigenvalues_are_those_of_the_whole_matrix(tmp_path: Path) -> None:
    run = on_digits({"name": "SGD", "lr": 0.01}, model=f"{__name__}:small_model", epochs=1)
    store = Store(tmp_path)
    train(run, store, CPU)
    (row,) = measurements.run_measurements(Spectrum(3, 120, 1e-6), [run], store)

    prepared = load_split(run.task, run.seed)
    data: Any = prepared.data
    model = build_image_model(run.task, data, run.seed).double()
    model.load_state_dict(weights(store, run))
    rows = prepared.train[torch.arange(120) * 200 // 120]
    x = (data.train_x[rows].double() / 255 - data.mean[0]) / data.std[0]
    names, w = zip(*model.named_parameters(), strict=True)
    y = data.train_y[rows]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = torch.split(flat, [p.numel() for p in w])
        shaped = [part.view(p.shape) for part, p in zip(parts, w, strict=True)]
        out = torch.func.functional_call(model, dict(zip(names, shaped, strict=True)), (x,))
        return cross_entropy(out, y)

    here = torch.cat([p.detach().flatten() for p in w])
    H = torch.autograd.functional.hessian(loss, here)
    expected = np.linalg.eigvalsh(H.numpy())[::-1][:3]  # type: ignore[union-attr]
    assert [row[f"lambda{i}"] for i in (1, 2, 3)] == pytest.approx(expected, rel=1e-4)
    assert row["lambda1/lambda3"] == pytest.approx(expected[0] / expected[2], rel=1e-3)
    assert (row["samples"], row["method"], row["seed"]) == (120, "SGD", 3)


def test_nothing_is_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, store = on_digits(VASSO, epochs=1), Store(tmp_path)
    train(run, store, CPU)
    settings = Spectrum(2, 50)
    recorded: list[str] = []
    first = measurements.run_measurements(settings, [run], store, log=recorded.append)
    file = store.folder(run.id).path / "spectrum.json"
    content = file.read_bytes()
    monkeypatch.setattr(measurements, "top_eigenpairs", None)
    assert measurements.run_measurements(settings, [run], store, log=recorded.append) == first
    assert file.read_bytes() == content
    assert len(recorded) == 1
    monkeypatch.undo()
    measurements.run_measurements(Spectrum(3, 50), [run], store)
    assert json.loads(file.read_text())["settings"]["eigenvalues"] == 3
    assert json.loads(content)["certificate"]["vasso"]
    file.unlink()
    assert measurements.run_measurements(settings, [run], store) == first  # deterministic


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not finished: train it first"):
        measurements.run_measurements(Spectrum(), [on_digits(VASSO)], Store(tmp_path))


def test_the_sphere_has_a_place_of_its_own_in_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = measurements.run_measurements(SPHERE, [], store)
    expected = [cloud(s, t, adversaries=20).row() for t in (1.0, 0.4) for s in (1.0, 0.1)]
    assert rows == expected
    (place,) = tmp_path.glob("measured-spread-*/spread.json")
    content = place.read_bytes()
    assert measurements.run_measurements(SPHERE, [], store) == expected
    assert place.read_bytes() == content
    assert store.folders() == []
    place.write_bytes(as_json({"settings": 3}))
    with pytest.raises(StoreError, match=r"has no rows\. Remove it to measure again"):
        measurements.run_measurements(SPHERE, [], store)


@pytest.mark.parametrize(
    ("measure", "table", "message"),
    [
        (SPECTRUM, {"eigenvalue": 5}, "has no setting 'eigenvalue'. Did you mean 'eigenvalues'?"),
        (SPECTRUM, {"images": 0}, "images must be at least 1, got 0"),
        (SPECTRUM, {"tolerance": "small"}, "tolerance must be a number, got 'small'"),
        (SPREAD, {"snr": [1.0]}, "missing 3 required positional arguments"),
        (SPREAD, {**vars(SPHERE), "theta": [1.5]}, "theta must be above 0 and at most 1"),
        (SPREAD, {**vars(SPHERE), "snr": ["much"]}, "snr must be a list of numbers"),
        (NOISE, {"batches": 50}, "has no setting 'batches'"),
    ],
)
def test_wrong_settings_are_named_with_their_place(
    measure: str, table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="mine") as reason:
        parse_settings(measure, table, [], "mine")
    assert message in str(reason.value)


@pytest.mark.parametrize("name", ["sphere", "snr", "hessian"])
@pytest.mark.parametrize("scale", ["paper", "cpu"])
def test_studies_of_the_package_can_be_measured(name: str, scale: str) -> None:
    study = studies.load(name)
    at = study.at(scale)
    assert parse_settings(study.measure, at.measurement, at.runs, name)


def test_a_study_that_trains_nothing_is_answered_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("study", "sphere", "--store", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert shown.count("VaSSO theta=0.4") == 4
    assert "…" not in shown
    assert "0.0" in shown


def test_a_study_trains_then_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        'question = "?"\nmeasure = "MEASURE"\n[cpu]\ntask = { train_size = 60, batch = 20, '
        "epochs = 1, test_size = 20, snr = 3 }\n[[cpu.grid]]\nmethods = [{ name = 'SAM' }]\n"
    )
    for measure, word in ((NOISE, "median"), (SPECTRUM, "lambda1/lambda5")):
        (tmp_path / "mine.toml").write_text(text.replace("MEASURE", measure))
        place = ("--store", str(tmp_path / "runs"), "--accelerator", "cpu")
        assert called("study", str(tmp_path / "mine.toml"), *place) == 0
        assert word in capsys.readouterr().out
