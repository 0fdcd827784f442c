"""The stored comparison with PyHessian: equal eigenvalues, and residuals that are no larger."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent.parent.parent / "benchmarks"
STORED = sorted((BENCHMARKS / "results").glob("hessian_*.json"))
RUNS = [run for file in STORED for run in json.loads(file.read_text())["runs"].values()]


def test_there_is_a_result() -> None:
    assert RUNS


@pytest.mark.parametrize("run", RUNS)
def test_both_find_the_same_eigenvalues_and_ours_at_no_worse_a_residual(run: Any) -> None:
    theirs = run["pyhessian"]
    for label in run.keys() - {"pyhessian"}:
        assert max(run[label]["residuals"]) <= max(theirs["residuals"])
        assert run[label]["values"] == pytest.approx(theirs["values"], rel=0.04)


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_the_table_in_the_readme_is_that_of_the_file(file: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "hessian.py"), "--show", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in (BENCHMARKS / "README.md").read_text()
