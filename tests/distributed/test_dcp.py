"""torch's distributed checkpoints: saving changes nothing, and any number of ranks can go on."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.distributed.dcp import CASES, CHANGED, ELSEWHERE, END, RESUMED, Case
from tests.support.ranks import launch

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]
BAR = 1e-12
Job = Callable[..., dict[str, Any]]


def each(pairs: list[tuple[Case, int]]) -> pytest.MarkDecorator:
    ids = [f"{case.name}-after {stop}" for case, stop in pairs]
    return pytest.mark.parametrize(("case", "stop"), pairs, ids=ids)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Does a job once; two ranks have saved before."""
    folder, found = tmp_path_factory.mktemp("dcp"), {}

    def do(name: str, ranks: int = 2) -> dict[str, Any]:
        if name not in found:
            launch("tests.distributed.dcp:main", name, str(folder), ranks=ranks)
            found[name] = json.loads((folder / f"{name}.json").read_text())
        return found[name]

    do("save")
    return do


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """What a case told, where all but the vectors is as it should be."""
    result = found[name]
    assert isinstance(result, dict), result
    assert result["differs"] == []
    assert result["skipped"] > 0
    assert result["step"] + result["skipped"] == END
    assert result.get("cut alike", True), "a slope is not cut like its parameter"
    return result


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_saving_changes_no_bit_of_a_training(job: Job, case: Case) -> None:
    assert of(job("save"), case.name)["gap"] == 0


@each(RESUMED)
def test_new_ranks_resume_bit_for_bit(job: Job, case: Case, stop: int) -> None:
    assert of(job("load"), f"{case.name} {stop}")["gap"] == 0


@each(ELSEWHERE)
def test_one_rank_resumes(job: Job, case: Case, stop: int) -> None:
    assert of(job("load on one", ranks=1), f"{case.name} {stop}")["gap"] <= BAR


@each(ELSEWHERE)
def test_a_plain_process_resumes(job: Job, case: Case, stop: int) -> None:
    assert of(job("alone", ranks=0), f"{case.name} {stop}")["gap"] <= BAR


@each(CHANGED)
def test_shards_resume_as_replicas_and_replicas_as_shards(job: Job, case: Case, stop: int) -> None:
    assert of(job("change"), f"{case.name} {stop}")["gap"] <= BAR


def test_the_slopes_of_shards_are_cut_like_their_parameters(job: Job) -> None:
    sloped = sum(case.kind == "fsdp" and case.method != "SAM" for case in CASES)
    assert sum("cut alike" in result for result in job("save").values()) == sloped > 2
    assert sum("cut alike" in result for result in job("load").values()) == 3 * sloped
