"""The notebooks of docs/tutorials run from top to bottom and hold small outputs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
LARGEST = 200_000
"""Bytes of a notebook, pictures included."""


def code_of(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def printed(path: Path) -> str:
    outputs = (output for cell in code_of(path) for output in cell["outputs"])
    return "".join(text for output in outputs for text in output.get("text", []))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored_small_and_without_places(path: Path) -> None:
    counts = [cell["execution_count"] for cell in code_of(path)]
    assert counts == list(range(1, len(counts) + 1)), "run: make tutorials"
    assert printed(path)
    assert path.stat().st_size < LARGEST
    assert not re.search(r"[\" ]/(?:home|root|tmp|usr|work)/", path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(path, tmp_path))
    script = ROOT / "docs" / "_ext" / "execute_notebooks.py"
    done = subprocess.run(
        [sys.executable, str(script), str(copy)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    numbers = re.compile(r"-?\d[\d.e+-]*")
    assert numbers.sub("#", printed(copy)) == numbers.sub("#", printed(path)), "make tutorials"


def test_the_first_steps_tell_what_their_outputs_show() -> None:
    said = printed(ROOT / "docs" / "tutorials" / "first-steps.ipynb")
    found = dict(re.findall(r"^(\w+) +test accuracy (\d+\.\d) %", said, re.MULTILINE))
    assert float(found["SAM"]) > float(found["SGD"]) + 15
    assert float(found["VaSSO"]) > float(found["SGD"]) + 15
