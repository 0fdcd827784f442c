"""FSDP2: weights, gradients and slopes in shards, and the same numbers as in one process."""

from typing import Any

import pytest

from tests.distributed.fsdp import CHOSEN, COMPARED, PRESETS, part_classes
from tests.distributed.test_ddp import BAR, check_radius, of
from tests.support.ranks import results

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]
BY_SAMPLE = {
    "m-SAM (chunks)",
    "VaSSO+m-SAM",
    "m-SAM (subsample)",
    "Half-SAM",
    "Half-VaSSO",
    "ESAM",
    "Sparse SAM (Fisher)",
}
"""What sees single samples sees those of its rank: other data than one process would take."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results("fsdp", tmp_path_factory.mktemp("fsdp"))


def test_some_shards_are_empty(found: dict[str, Any]) -> None:
    assert found["empty"] == {"smallest": 0}


@pytest.mark.parametrize(("method", "base"), COMPARED)
def test_shards_are_one_process(found: dict[str, Any], method: str, base: str) -> None:
    assert of(found, f"{method} {base} closure")["gap"] <= BAR[base]


@pytest.mark.parametrize(
    "name", ["V+G momentum ascended", "recompute", "accumulated", "scaled None"]
)
def test_other_forms_are_one_process_too(found: dict[str, Any], name: str) -> None:
    assert of(found, name)["gap"] <= 1e-12


@pytest.mark.parametrize("number", [0, 1], ids=["first pass", "second pass"])
@pytest.mark.parametrize("what", ["spoilt", "nan"])
def test_trouble_in_one_shard_makes_all_skip(found: dict[str, Any], what: str, number: int) -> None:
    assert of(found, f"{what} {number}")["skipped"] == 1


@pytest.mark.parametrize("number", [0, 1], ids=["first pass", "second pass"])
def test_an_overflow_on_one_rank_lowers_the_scale(found: dict[str, Any], number: int) -> None:
    result = of(found, f"scaled {number}")
    assert (result["skipped"], result["scale"]) == (1, 2.0**9)


def test_weights_that_a_look_has_gathered_are_gathered_anew_above(found: dict[str, Any]) -> None:
    assert found["stale True"]["gap"] <= 1e-14
    assert found["stale False"]["gap"] > 1e-2  # the trap: without model= nobody can reshard


def test_a_radius_that_sets_itself_is_that_of_one_process(found: dict[str, Any]) -> None:
    check_radius(of(found, "follows the gap"))


def test_shards_of_eight_bits_climb_by_rho(found: dict[str, Any]) -> None:
    assert found["bfloat16"]["projection"] == pytest.approx(1.0, abs=0.05)


def test_a_slope_in_bfloat16_is_cut_as_the_weights_are(found: dict[str, Any]) -> None:
    result = of(found, "slope in bfloat16")
    assert result["dtypes"] == ["torch.bfloat16"]
    assert 0 < result["gap"] <= 1e-3  # the rounding of an epsilon of length 0.1, four times


def test_every_class_of_a_part_is_tried() -> None:
    classes = [set().union(*map(part_classes, names)) for names in (PRESETS, CHOSEN)]
    assert classes[0] == classes[1]


@pytest.mark.parametrize("name", CHOSEN)
def test_every_part_runs_in_shards(found: dict[str, Any], name: str) -> None:
    result = of(found, f"preset {name}")
    if name not in BY_SAMPLE:
        assert result["gap"] <= 1e-12
        assert result["cost"] == result["twin's cost"]


@pytest.mark.parametrize(("kind", "at_w"), [("fsdp", False), ("ddp", True), ("ddp local", False)])
def test_what_nobody_reads_is_left_out_where_ranks_do_not_wait_for_it(
    found: dict[str, Any], kind: str, at_w: bool
) -> None:
    result = of(found, f"normalisation {kind}")
    assert result["wanted"] == [at_w, True] * 4
    assert result["tensors with a slope"] == 2
    if kind != "ddp local":  # whose perturbation is that of half a batch
        assert result["gap"] <= 1e-12
