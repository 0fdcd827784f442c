"""FSDP2: weights, gradients and slopes in shards, and the same numbers as in one process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.launch import results
from tests.distributed.runs import BASES, METHODS
from tests.distributed.test_ddp import BAR, of
from vasso import methods

PRESETS = {name: method for name, method in methods().items() if method.kind == "preset"}
BY_SAMPLE = {
    "m-SAM (chunks)",
    "VaSSO+m-SAM",
    "m-SAM (subsample)",
    "ESAM",
    "Sparse SAM (Fisher)",
}
"""What sees single samples sees those of its rank: other data than one process would take."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results("fsdp", tmp_path_factory.mktemp("fsdp"))


def test_some_shards_are_empty(found: dict[str, Any]) -> None:
    assert found["empty"] == {"smallest": 0}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", METHODS)
def test_shards_are_one_process(found: dict[str, Any], method: str, base: str) -> None:
    assert of(found, f"{method} {base} closure")["gap"] <= BAR[base]


@pytest.mark.parametrize(
    "name", ["V+G momentum ascended", "recompute", "accumulated", "scaled None"]
)
def test_other_forms_are_one_process_too(found: dict[str, Any], name: str) -> None:
    assert of(found, name)["gap"] <= 1e-12


@pytest.mark.parametrize("number", [0, 1], ids=["first pass", "second pass"])
@pytest.mark.parametrize("what", ["spoilt", "nan"])
def test_trouble_on_one_rank_or_in_one_shard_makes_all_skip(
    found: dict[str, Any], what: str, number: int
) -> None:
    assert of(found, f"{what} {number}")["skipped"] == 1


@pytest.mark.parametrize("number", [0, 1], ids=["first pass", "second pass"])
def test_an_overflow_on_one_rank_lowers_the_scale(found: dict[str, Any], number: int) -> None:
    told = of(found, f"scaled {number}")
    assert (told["skipped"], told["scale"]) == (1, 2.0**9)


def test_weights_that_a_look_has_gathered_are_gathered_anew_above(found: dict[str, Any]) -> None:
    assert found["stale True"]["gap"] <= 1e-14
    assert found["stale False"]["gap"] > 1e-2  # the trap: without model= nobody can reshard


def test_shards_of_eight_bits_climb_by_rho(found: dict[str, Any]) -> None:
    assert found["bfloat16"]["projection"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_in_shards(found: dict[str, Any], name: str) -> None:
    told = of(found, f"preset {name}")
    if name not in BY_SAMPLE:
        assert told["gap"] <= 1e-12
        assert told["cost"] == told["twin's cost"]
