"""DDP: two ranks train as one process does, with one adversary for all ranks or one for each."""

from typing import Any

import pytest

from tests.distributed.runs import BASES, METHODS, STEPS
from tests.support.ranks import results

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]
BAR = {"momentum": 1e-12, "adamw": 1e-9}
"""float64 over 50 steps; Adam divides rounding by the root of small squares."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results("ddp", tmp_path_factory.mktemp("ddp"))


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    result = found[name]
    assert isinstance(result, dict), result
    assert result["apart"] == 0, "replicas drift apart"
    assert result["slopes apart"] == 0, "slopes drift apart"
    assert result["finite"]
    return result


@pytest.mark.parametrize("way", ["closure", "ascended"])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_are_one_process(found: dict[str, Any], method: str, base: str, way: str) -> None:
    assert of(found, f"global {method} {base} {way}")["gap"] <= BAR[base]


@pytest.mark.parametrize("way", ["closure", "ascended"])
@pytest.mark.parametrize("method", ["SAM", "GSAM", "LookSAM", "V+G"])
def test_views_of_buckets_are_not_lost(found: dict[str, Any], method: str, way: str) -> None:
    assert of(found, f"bucket views {method} {way}")["gap"] <= 1e-12


@pytest.mark.parametrize("name", ["bucket views recompute", "static graph", "accumulated"])
def test_other_forms_are_one_process_too(found: dict[str, Any], name: str) -> None:
    assert of(found, name)["gap"] <= 1e-12


def test_micro_batches_keep_the_sum_from_the_buckets(found: dict[str, Any]) -> None:
    assert of(found, "by micro-batch")["gap"] == 0


@pytest.mark.parametrize("way", ["closure", "ascended"])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_local_is_m_sam(found: dict[str, Any], theta: float, base: str, way: str) -> None:
    assert of(found, f"local {theta} {way} {base}")["gap"] <= BAR[base]


@pytest.mark.parametrize("number", [0, 1], ids=["first pass", "second pass"])
@pytest.mark.parametrize("sync", ["global", "local"])
def test_an_infinite_loss_makes_all_skip(found: dict[str, Any], sync: str, number: int) -> None:
    result = of(found, f"spoilt {sync} {number}")
    assert (result["skipped"], result["steps"]) == (1, 5)


@pytest.mark.parametrize("number", [0, 1], ids=["first pass", "second pass"])
@pytest.mark.parametrize("sync", ["global", "local"])
def test_an_overflow_lowers_the_scale_of_all(found: dict[str, Any], sync: str, number: int) -> None:
    result = of(found, f"overflow {sync} {number}")
    assert (result["skipped"], result["scale"], result["scales apart"]) == (1, 2.0**9, 0.0)


@pytest.mark.parametrize(
    "name",
    [f"{sync} {method}" for sync in ("global", "local") for method in ("SAM", "VaSSO", "ASAM")]
    + ["global GSAM"],
)
def test_missing_gradients_keep_ranks_together(found: dict[str, Any], name: str) -> None:
    assert of(found, f"uneven {name}")["steps"] == 8


@pytest.mark.parametrize("method", ["SSSAM", "AESAM", "LookSAM"])
def test_policies_are_in_step(found: dict[str, Any], method: str) -> None:
    result = of(found, f"in step {method}")
    assert result["gap"] <= 1e-12
    assert result["cost"] == result["twin's cost"] < 48
    assert result["costs apart"] == 0


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_a_local_step_without_a_climb_reduces_its_gradient(found: dict[str, Any], way: str) -> None:
    assert STEPS < of(found, f"local policy {way}")["cost"] < 2 * STEPS


def test_batchnorm_counts_each_step_once(found: dict[str, Any]) -> None:
    assert of(found, "batchnorm")["batches"] == 7


def check_radius(told: dict[str, Any]) -> None:
    assert told["gap"] <= 1e-12
    assert told["rho"] == pytest.approx(told["twin's rho"], rel=1e-12)
    assert told["radii apart"] == 0
    assert abs(told["rho"] / 0.05 - 1) > 0.5  # it has moved
    assert told["costs apart"] == 0


def test_a_radius_that_sets_itself_is_that_of_one_process(found: dict[str, Any]) -> None:
    check_radius(of(found, "follows the gap"))


@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_halves_of_two_ranks_are_one_batch(found: dict[str, Any], theta: float) -> None:
    told = of(found, f"halves {theta}")
    assert told["gap"] <= 1e-12
    assert told["cost"] == STEPS
    assert told["differ"] == STEPS
