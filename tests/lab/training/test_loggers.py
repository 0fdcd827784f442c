"""Loggers: the real packages, offline, get the numbers of a run; the training stays the same."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from vasso.lab.experiment.run import Run
from vasso.lab.schema import LabError
from vasso.lab.store.store import Store
from vasso.lab.training.loop import train
from vasso.lab.training.options import LOGGERS, RunOptions
from vasso.optional import MissingExtraError

pytestmark = pytest.mark.filterwarnings("default")  # their own
RUN = Run.of({"task": {"train_size": 100, "batch": 10, "epochs": 2}, "method": {"name": "VaSSO"}})
STEPS = [0, 10]
BLOCK = 1 << 15
Scalars = dict[str, dict[int, float]]


def of_tensorboard(folder: Path) -> Scalars:
    events = EventAccumulator(str(folder / RUN.id / "tensorboard")).Reload()
    names = events.Tags()["scalars"]
    return {name: {e.step: e.value for e in events.Scalars(name)} for name in names}


def records_of(content: bytes) -> Iterator[bytes]:
    """The records of a file of wandb: chunks (checksum, length, kind, data) in blocks of 32 kB."""
    at, data = 7, b""
    while at < len(content):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        data += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last piece
            yield data
            data = b""


def of_wandb(folder: Path) -> Scalars:
    wandb.teardown()  # waits for its process, which writes the file
    (path,) = (folder / RUN.id).glob("wandb/offline-run-*/*.wandb")
    found = Scalars()
    for data in records_of(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        row = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
        for name in row.keys() - {"_step", "_runtime", "_timestamp"}:
            found.setdefault(name, {})[int(row["_step"])] = float(row[name])
    return found


def of_mlflow(folder: Path) -> Scalars:
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("vasso").experiment_id])
    assert run.info.run_name == RUN.id
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: {one.step: one.value for one in found} for name, found in history.items()}


READERS: Any = {"tensorboard": of_tensorboard, "wandb": of_wandb, "mlflow": of_mlflow}


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_gets_the_numbers_of_steps_and_epochs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    plain = train(RUN, Store(tmp_path / "plain"), RunOptions(accelerator="cpu"))
    logged = train(RUN, Store(tmp_path / "logged"), RunOptions(accelerator="cpu", log=name))
    assert logged["last"] == plain["last"]
    found = READERS[name](tmp_path / "logged")
    epochs = Store(tmp_path / "logged").folder(RUN.id).metrics("epoch")
    accuracy = {line["step"]: line["test_accuracy"] for line in epochs}
    assert found["epoch/test_accuracy"] == pytest.approx(accuracy)
    for number in ("rho", "theta", "loss", "rise", "cos_dg", "skipped", "cost"):
        assert sorted(found[f"probe/{number}"]) == STEPS
    assert found["probe/cost"][10] == 22  # eleven steps
    assert 0 < found["probe/cos_dg"][10] < 1


def test_what_is_wrong_with_a_logger_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="Did you mean 'tensorboard'"):
        RunOptions(log="tensorbord").check()
    monkeypatch.setattr("vasso.optional.find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match="wandb is not installed: pip install"):
        RunOptions(log="wandb").check()


def test_where_mlflow_has_no_place_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    with pytest.raises(LabError, match=r"MLflow has no place for a run: .*MLFLOW_TRACKING_URI"):
        train(RUN, Store(tmp_path / "runs"), RunOptions(accelerator="cpu", log="mlflow"))
