"""The demo as a user runs it, with its defaults."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_demo_runs_with_its_defaults_and_ends_with_a_table_and_a_page(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "vasso.lab", "demo", "--no-open"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in run.stdout.splitlines() if line.strip()]
    table = {words[0]: words for words in lines if len(words) == 10 and words[5] == "±"}
    assert [(name, words[3]) for name, words in table.items()] == [
        ("SGD", "10"),
        ("SAM", "10"),
        ("VaSSO", "10"),
    ]
    assert float(table["SGD"][7]) > 90  # it learns wrong labels by heart; who is ahead is not asked
    assert "SAM − SGD = " in run.stdout
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 10_000
