"""torch's distributed checkpoints: saving changes nothing, and any number of ranks can go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.dcp import CASES, END, STOPS, Case
from tests.distributed.launch import LIMIT, ROOT, torchrun

BAR = 1e-12
MODULE = "tests.distributed.dcp"
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
STOPPED = pytest.mark.parametrize("stop", STOPS, ids=lambda stop: f"after {stop}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two ranks have saved."""
    folder = tmp_path_factory.mktemp("dcp")
    torchrun(MODULE, "save", str(folder), str(folder / "save.json"))
    return folder


@pytest.fixture(scope="module")
def saved(folder: Path) -> dict[str, Any]:
    return read(folder / "save.json")


@pytest.fixture(scope="module")
def on_two(folder: Path) -> dict[str, Any]:
    torchrun(MODULE, "load", str(folder), str(folder / "two.json"))
    return read(folder / "two.json")


@pytest.fixture(scope="module")
def on_one(folder: Path) -> dict[str, Any]:
    torchrun(MODULE, "load", str(folder), str(folder / "one.json"), ranks=1)
    return read(folder / "one.json")


@pytest.fixture(scope="module")
def changed(folder: Path) -> dict[str, Any]:
    torchrun(MODULE, "change", str(folder), str(folder / "changed.json"))
    return read(folder / "changed.json")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", MODULE, "alone", str(folder), str(folder / "alone.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return read(folder / "alone.json")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """What a case told, where all but the vectors is as it should be."""
    told = found[name]
    assert isinstance(told, dict), told
    assert told["differs"] == []
    assert told["skipped"] > 0
    assert told["step"] + told["skipped"] == END
    assert told.get("cut alike", True), "a slope is not cut like its parameter"
    return told


@EACH
def test_saving_changes_no_bit_of_a_training(saved: dict[str, Any], case: Case) -> None:
    assert of(saved, case.name)["gap"] == 0


@STOPPED
@EACH
def test_new_ranks_go_on_bit_for_bit(on_two: dict[str, Any], case: Case, stop: int) -> None:
    assert of(on_two, f"{case.name} {stop}")["gap"] == 0


@STOPPED
@EACH
def test_one_rank_goes_on(on_one: dict[str, Any], case: Case, stop: int) -> None:
    assert of(on_one, f"{case.name} {stop}")["gap"] <= BAR


@STOPPED
@EACH
def test_a_plain_process_goes_on(alone: dict[str, Any], case: Case, stop: int) -> None:
    assert of(alone, f"{case.name} {stop}")["gap"] <= BAR


@STOPPED
@pytest.mark.parametrize("base", ["momentum", "adamw"])
@pytest.mark.parametrize("kind", ["fsdp", "ddp"])
def test_shards_go_on_with_replicas_and_back(
    changed: dict[str, Any], kind: str, base: str, stop: int
) -> None:
    assert of(changed, f"{kind} VaSSO {base} {stop}")["gap"] <= BAR


def test_the_slopes_of_shards_were_looked_at(saved: dict[str, Any], on_two: dict[str, Any]) -> None:
    assert sum("cut alike" in told for told in saved.values()) == 6
    assert sum("cut alike" in told for told in on_two.values()) == 18
