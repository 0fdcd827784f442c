"""The worked examples of CONTRIBUTING.md type-check and run (`test_docs` executes the Python)."""

import re
from pathlib import Path

import pytest
from mypy import api

from tests.lab.calls import called
from vasso.lab.studies import study as studies

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def block(language: str) -> str:
    """The first code block in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"no {language} in CONTRIBUTING.md"
    return found.group(1)


def test_the_new_direction_passes_mypy_strict(tmp_path: Path) -> None:
    script = tmp_path / "direction.py"
    script.write_text(block("python"))
    out, err, code = api.run(["--strict", "--cache-dir", str(ROOT / ".mypy_cache"), str(script)])
    assert code == 0, out + err


def test_the_new_direction_takes_at_most_thirty_lines() -> None:
    classes = block("python").partition("@dataclass")[2].splitlines()
    assert len([line for line in classes if line.strip()]) <= 30


def test_the_new_study_is_read_and_run(tmp_path: Path) -> None:
    path = tmp_path / "batch-size.toml"
    path.write_text(block("toml"))
    assert len(studies.load(str(path)).scales["cpu"].runs) == 3 * 2 * 3
    words = ["--seeds", "0", "--store", str(tmp_path / "runs"), "--set", "epochs=1"]
    assert called("study", str(path), *words) == 0
    assert len(list((tmp_path / "runs").rglob("result.json"))) == 6


@pytest.mark.parametrize("path", re.findall(r"`((?:vasso|tests|docs)/[\w/.-]*[\w/])`", PAGE))
def test_a_path_that_is_named_exists(path: str) -> None:
    assert (ROOT / path).exists()
