"""The record of translation: its page and figure are those of its runs."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.lab.records import AGAIN, RECORDS, ROOT, imported
from vasso.diagnostics.figures.style import save
from vasso.lab.report.markdown import put_into

RECORD = RECORDS / "translation"


@pytest.fixture(scope="module")
def record() -> ModuleType:
    return imported("translation")


@pytest.fixture(scope="module")
def one(record: ModuleType) -> Any:
    return record.answered()


def test_the_page_is_made_of_the_runs(record: ModuleType, one: Any) -> None:
    assert (RECORD / "README.md").read_text() == record.page(one), AGAIN


def test_the_result_in_the_readme_is_that_of_the_runs(record: ModuleType, one: Any) -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme == put_into(readme, record.BLOCK, record.result(one)), AGAIN


def test_the_figure_is_made_of_the_runs(record: ModuleType, one: Any, tmp_path: Path) -> None:
    drawn = save(record.scores(one), tmp_path / "drawn.svg")
    assert drawn.read_bytes() == (RECORD / "scores.svg").read_bytes(), AGAIN


def test_every_method_has_what_was_asked_for(record: ModuleType, one: Any) -> None:
    """Three seeds of each method of the paper's table, with BLEU both ways and perplexity."""
    cells = record.chosen(one)
    wanted = ("AdamW", "SAM", "ASAM", "VaSSO θ=0.9", "VaSSO θ=0.4")
    for name in wanted:
        for number in ("bleu", "detokenised", "perplexity"):
            assert len(cells[name].values(number)) >= 3, (name, number)
    assert "not enough runs" not in record.page(one)
