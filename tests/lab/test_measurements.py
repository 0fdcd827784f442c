"""What studies measure besides accuracy: right, kept once, without a trace in the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from vasso.diagnostics.snr import SnrMeter
from vasso.diagnostics.sphere import cloud
from vasso.lab import cli, measurements
from vasso.lab import study as studies
from vasso.lab.folder import StoreError
from vasso.lab.how import How
from vasso.lab.listener import FIRST
from vasso.lab.measures import NOISE, SPECTRUM, SPREAD, Noise, Spectrum, Spread, settings_of
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.train import Stopped, train
from vasso.lab.training import Training

CPU = How(accelerator="cpu", checkpoint_seconds=1e9)
VASSO = {"name": "VaSSO", "rho": 0.2, "theta": 0.4}
SPHERE = Spread([0.2, -0.1, 0.6], [0.2, 1.0, 2.0], [1.0, 0.1], [1.0, 0.4], 20)


def a_run(method: dict[str, Any], **task: Any) -> Run:
    small = {"train_size": 200, "validation": 50, "batch": 50, "epochs": 2}
    return Run.of({"task": {**small, **task}, "method": method, "seed": 3})


# -- signal and noise ------------------------------------------------------------------------------


def test_the_snr_of_an_epoch_is_that_of_its_first_weights_by_hand() -> None:
    training = Training(a_run({"name": "SGD"}, snr=5), CPU, CPU.fabric("32-true"))
    for _ in range(training.per_epoch):
        training.take_step()
    training.end_epoch()
    model, step = training.bare, training.step
    weights = list(model.parameters())
    meter = SnrMeter()
    for number in range(5):
        x, y, _ = training.batches.drawn(step, FIRST + number)
        meter.add(list(torch.autograd.grad(cross_entropy(model(x), y), weights)))
    training.take_step()
    assert training.snr is not None
    assert training.snr["snr"] == pytest.approx(meter.result().snr.value, rel=1e-4)
    assert (training.snr["batches"], training.snr["batch_size"]) == (5, 50)


@pytest.mark.parametrize("method", [VASSO, {"name": "SGD"}])
def test_measuring_changes_no_bit(tmp_path: Path, method: dict[str, Any]) -> None:
    ends = []
    for count in (0, 4):
        run, store = a_run(method, snr=count), Store(tmp_path / str(count))
        train(run, store, CPU)
        ends.append(store.folder(run.id).load("weights.pt")["model"])  # type: ignore[index]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_run_stopped_within_an_epoch_keeps_what_was_measured(tmp_path: Path) -> None:
    run = a_run(VASSO, snr=4)
    whole, torn = Store(tmp_path / "whole"), Store(tmp_path / "torn")
    train(run, whole, CPU)
    with pytest.raises(Stopped):
        train(run, torn, CPU, lambda step, total: step != 6)
    train(run, torn, CPU)
    rows = [measurements.measure(Noise(), [run], store) for store in (whole, torn)]
    assert rows[0] == rows[1]
    assert [row["epoch"] for row in rows[0]] == [0, 1]
    assert all(row["snr_low"] <= row["snr"] <= row["snr_high"] for row in rows[0])


def test_several_processes_are_refused() -> None:
    run = a_run(VASSO, snr=4)
    training = Training(run, CPU, CPU.fabric("32-true"))
    training.batches.world = 2
    with pytest.raises(ValueError, match="in one process: use snr=0 or devices=1"):
        training._listener()


def test_a_run_without_the_setting_says_so(tmp_path: Path) -> None:
    run, store = a_run({"name": "SGD"}), Store(tmp_path)
    train(run, store, CPU)
    with pytest.raises(StoreError, match="notes no signal-to-noise ratio: train the run with"):
        measurements.measure(Noise(), [run], store)


# -- the Hessian -----------------------------------------------------------------------------------


def small_model(classes: int, channels: int, size: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(6), nn.Linear(6, classes))


def test_eigenvalues_are_those_of_the_whole_matrix(tmp_path: Path) -> None:
    run = a_run({"name": "SGD", "lr": 0.01}, model=f"{__name__}:small_model", epochs=1)
    store = Store(tmp_path)
    train(run, store, CPU)
    (row,) = measurements.measure(Spectrum(3, 120, 1e-6), [run], store)

    prepared = run.task.prepare(run.seed)
    model = run.task.build_model(prepared.data, run.seed).double()
    kept = store.folder(run.id).load("weights.pt")
    assert kept is not None
    model.load_state_dict(kept["model"])
    rows = prepared.train[torch.arange(120) * 200 // 120]
    data = prepared.data
    x = (data.train_x[rows].double() / 255 - data.mean[0]) / data.std[0]  # type: ignore[union-attr]
    names, weights = zip(*model.named_parameters(), strict=True)
    y = data.train_y[rows]  # type: ignore[union-attr]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = torch.split(flat, [p.numel() for p in weights])
        shaped = [part.view(p.shape) for part, p in zip(parts, weights, strict=True)]
        out = torch.func.functional_call(model, dict(zip(names, shaped, strict=True)), (x,))
        return cross_entropy(out, y)

    here = torch.cat([p.detach().flatten() for p in weights])
    H = torch.autograd.functional.hessian(loss, here)
    expected = np.linalg.eigvalsh(H.numpy())[::-1][:3]  # type: ignore[union-attr]
    assert [row[f"lambda{i}"] for i in (1, 2, 3)] == pytest.approx(expected, rel=1e-4)
    assert row["lambda1/lambda3"] == pytest.approx(expected[0] / expected[2], rel=1e-3)
    assert (row["samples"], row["method"], row["seed"]) == (120, "SGD", 3)


def test_what_is_measured_is_kept_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, store = a_run(VASSO, epochs=1), Store(tmp_path)
    train(run, store, CPU)
    settings = Spectrum(2, 50)
    told: list[str] = []
    first = measurements.measure(settings, [run], store, tell=told.append)
    file = store.folder(run.id).path / "spectrum.json"
    content = file.read_bytes()
    monkeypatch.setattr(measurements, "top_eigenpairs", None)
    assert measurements.measure(settings, [run], store, tell=told.append) == first
    assert file.read_bytes() == content
    assert len(told) == 1
    monkeypatch.undo()
    measurements.measure(Spectrum(3, 50), [run], store)
    assert json.loads(file.read_text())["settings"]["eigenvalues"] == 3
    assert json.loads(content)["certificate"]["vasso"]
    file.unlink()
    assert measurements.measure(settings, [run], store) == first  # deterministic


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not finished: train it first"):
        measurements.measure(Spectrum(), [a_run(VASSO)], Store(tmp_path))


# -- the sphere ------------------------------------------------------------------------------------


def test_the_sphere_has_a_place_of_its_own_in_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = measurements.measure(SPHERE, [], store)
    expected = [cloud(s, t, adversaries=20).row() for t in (1.0, 0.4) for s in (1.0, 0.1)]
    assert rows == expected
    (place,) = tmp_path.glob("measured-spread-*/spread.json")
    content = place.read_bytes()
    assert measurements.measure(SPHERE, [], store) == expected
    assert place.read_bytes() == content
    assert store.folders() == []
    place.write_text('{"settings": 3}')
    with pytest.raises(StoreError, match=r"has no rows\. Remove it to measure again"):
        measurements.measure(SPHERE, [], store)


# -- settings --------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="mine") as told:
        settings_of(measure, table, [], "mine")
    assert message in str(told.value)


@pytest.mark.parametrize("name", ["sphere", "snr", "hessian"])
@pytest.mark.parametrize("scale", studies.SCALES)
def test_studies_of_the_package_can_be_measured(name: str, scale: str) -> None:
    study = studies.load(name)
    at = study.at(scale)
    assert settings_of(study.measure, at.measurement, at.runs, name)


def test_a_study_that_trains_nothing_is_answered_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["study", "sphere", "--store", str(tmp_path)])
    assert end.value.code == 0
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
        words = ["study", str(tmp_path / "mine.toml"), "--store", str(tmp_path / "runs")]
        with pytest.raises(SystemExit) as end:
            cli.main([*words, "--accelerator", "cpu"])
        assert end.value.code == 0
        assert word in capsys.readouterr().out
