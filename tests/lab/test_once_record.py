"""The record of studies that were run once: its page is that of its runs, and claims nothing."""

from types import ModuleType
from typing import Any

import pytest

from tests.lab.records import AGAIN, RECORDS, imported
from vasso.lab import study as studies

RECORD = RECORDS / "once"


@pytest.fixture(scope="module")
def record() -> ModuleType:
    return imported("once")


@pytest.fixture(scope="module")
def found(record: ModuleType) -> Any:
    return record.answered()


def test_the_page_is_made_of_the_runs(record: ModuleType, found: Any) -> None:
    assert (RECORD / "README.md").read_text() == record.page(found), AGAIN


def test_every_run_that_a_study_asks_for_is_there(record: ModuleType, found: Any) -> None:
    assert [one.section.study.name for one in found] == record.STUDIES
    for one in found:
        missing = [cell.run.id for cell in one.section.cells if not cell.n]
        assert not missing, one.section.study.name


def test_nothing_is_judged(found: Any) -> None:
    """The page says so: one seed, no verdict."""
    said = {c.standing for one in found for c in one.comparisons}
    assert said == {"no verdict"}
    assert {cell.n for one in found for cell in one.section.cells} == {1}


def test_every_study_of_images_of_the_paper_has_a_record(record: ModuleType) -> None:
    elsewhere = {"label-noise", "sphere", "translation", "m-sharpness"}
    shown = {name for name in studies.names() if studies.load(name).shows}
    assert shown - elsewhere == set(record.STUDIES) - {"label-noise-human"}
