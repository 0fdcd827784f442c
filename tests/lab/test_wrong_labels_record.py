"""The record of wrong labels: pages and figures are those of its runs."""

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.lab.records import AGAIN, RECORDS, ROOT, imported
from vasso.diagnostics.figures.style import save
from vasso.lab import study as studies
from vasso.lab.report.findings import findings
from vasso.lab.report.markdown import put_into

RECORD = RECORDS / "wrong-labels"
THETAS = ("0.4", "0.2")


@pytest.fixture(scope="module")
def record() -> ModuleType:
    return imported("wrong-labels")


@pytest.fixture(scope="module")
def every(record: ModuleType) -> Any:
    return findings(RECORDS, [*record.STUDIES, "label-noise"])


@pytest.fixture(scope="module")
def found(record: ModuleType, every: Any) -> Any:
    return record.tables(every)


def test_the_page_is_made_of_the_runs(record: ModuleType, every: Any) -> None:
    assert (RECORD / "README.md").read_text() == record.page(every), AGAIN


def test_the_results_in_the_readme_are_those_of_the_runs(record: ModuleType, every: Any) -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme == record.in_readme(readme, every), AGAIN


def test_the_figure_is_made_of_the_runs(record: ModuleType, found: Any, tmp_path: Path) -> None:
    drawn = save(record.over_radius(found), tmp_path / "drawn.svg")
    assert drawn.read_bytes() == (RECORD / "over-radius.svg").read_bytes(), AGAIN


def test_the_commands_of_the_record_make_every_run_of_it() -> None:
    """They ask for what the studies say: a run with a seed of its own could not be had again."""
    commands = re.findall(r"vasso study (\S+) --store", (RECORD / "README.md").read_text())
    assert commands == ["radius", "radius-mlp", "label-noise"]
    asked = {run.id for name in commands for run in studies.load(name).at("cpu").runs}
    texts = [(RECORDS / name / "runs.jsonl").read_text() for name in commands]
    kept = {json.loads(line)["id"] for text in texts for line in text.splitlines()}
    assert len(kept) > 400
    assert kept <= asked


def test_nobody_is_behind_whose_best_rho_is_an_end_of_those_tried(
    record: ModuleType, tmp_path: Path
) -> None:
    """Of theta 0.4 the smaller radii are not there yet, so that its best is the smallest."""
    lines = (RECORDS / "radius" / "runs.jsonl").read_text().splitlines(keepends=True)
    small = ("theta-0.4", "rho-0.05-", "rho-0.08-", "rho-0.11-", "rho-0.15-")
    (tmp_path / "radius").mkdir()
    (tmp_path / "radius" / "runs.jsonl").write_text(
        "".join(
            line for line in lines if not (small[0] in line and any(r in line for r in small[1:]))
        )
    )
    ((answered, table),) = record.tables(findings(tmp_path, ["radius"])).values()
    lead, numbers = record.second_answer(answered, table)
    assert re.search(r"a better rho may lie beyond those tried: [^;]*θ=0\.4", lead)
    assert "VaSSO θ=0.4 at ρ = 0.2, the smallest tried: −" in numbers
    told = record.result({"radius": (answered, table)}, [], "")
    assert re.search(r"VaSSO θ=0\.4 .*\(ρ 0\.2, the smallest tried, n \d+\)", told)


def test_a_page_without_marks_is_not_written() -> None:
    for text in ("no mark", "<!-- begin: x --> no end"):
        with pytest.raises(ValueError, match="has no <!-- begin: x -->"):
            put_into(text, "x", "new")


def test_the_readme_tells_of_the_demo_what_its_record_tells() -> None:
    rows = (RECORDS / "noisy-digits" / "README.md").read_text().splitlines()
    readme = (ROOT / "README.md").read_text()
    told = [row.split(" | ") for row in rows if "±" in row and row[0] == "|"]
    told = [cells for cells in told if cells[3].isdigit()]  # n: not the table of radii
    assert [cells[0] for cells in told] == ["| SGD", "| SAM", "| VaSSO"]
    for cells in told:
        assert f"| {cells[4]} | {cells[5]} |" in readme, cells
    gains = [row for row in rows if row.startswith("- ") and " points (" in row]
    assert len(gains) == 2
    for row in gains:
        assert row.split(" = ")[1].split(" points")[0].replace("-", "−") in readme, row


def test_the_readme_tells_of_the_probe_what_its_record_tells() -> None:
    found = json.loads((RECORDS / "resnet-probe" / "summary.json").read_text())
    readme = " ".join((ROOT / "README.md").read_text().split())
    for run in (found["wrong 0"], found["wrong 1"]):
        assert 0.2 < run["SAM is a friend"]["value"] < 0.33
        times = (
            f"{run['theta'][theta]['rho times']:.1f} times at theta {theta}" for theta in THETAS
        )
        assert f"about {', '.join(times)}" in readme
        for theta in THETAS:
            less = run["theta"][theta]["less often a friend"]
            assert less["equal rho"]["low"] > 0
            assert less["equal rise"]["low"] > 0
    assert "lowers the loss of one other batch in four" in readme
    assert "less often such a friend, at equal rho and at equal rise" in readme
