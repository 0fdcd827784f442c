"""The benchmark of translation runs as one command; its stored figures are those that are told."""

import json
import runpy
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.test_vocabulary import write_corpus

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
STORED = sorted((BENCHMARKS / "results").glob("translation_*.json"))
LOOPS = {"lab", "plain loop", "nn.Transformer", "nn.Transformer, dropout as ours"}


def printed(*words: object) -> str:
    """What the script prints."""
    command = [sys.executable, str(BENCHMARKS / "translation.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def show() -> Callable[[Any], str]:
    """What `--show` prints of a stored value."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        found: Callable[[Any], str] = runpy.run_path(str(BENCHMARKS / "translation.py"))["show"]
    return found


def medians(rounds: list[dict[str, float]], one: str, other: str) -> float:
    return statistics.median(each[one] / each[other] for each in rounds)


def test_one_command_measures_training_and_decoding(
    tmp_path: Path, show: Callable[[Any], str]
) -> None:
    write_corpus(tmp_path / "data")
    corpus = ["--data", tmp_path / "data", "--corpus", "iwslt14-part", "--pieces", 12]
    little = ["--rounds", 2, "--steps", 1, "--lengths", 5, 8, "--decoding-rounds", 2]
    told = printed(*corpus, *little, "--json", tmp_path / "out.json")
    result: Any = json.loads((tmp_path / "out.json").read_text())
    assert told.strip() == show(result)
    rounds = result["training"]["pieces_per_second"]
    assert [each.keys() for each in rounds] == [LOOPS, LOOPS]
    assert len(set(result["training"]["weights"].values())) == 1  # the same size, to the weight
    assert {length: len(each) for length, each in result["decoding"].items()} == {"5": 2, "8": 2}
    assert result["hardware"]["threads"] == 1
    assert {"date", "commit", "package_changed_since", "versions", "settings"} <= result.keys()


def test_a_result_is_stored() -> None:
    assert STORED


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_the_tables_of_the_readme_are_those_of_the_stored_result(
    file: Path, show: Callable[[Any], str]
) -> None:
    readme = (BENCHMARKS / "README.md").read_text()
    told = show(json.loads(file.read_text()))
    tables = [part for part in told.split("\n\n") if part.startswith("|")]
    assert len(tables) == 2
    assert all(table in readme for table in tables)


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_the_stored_result_holds_the_aims_and_no_paths(file: Path) -> None:
    """No slower than torch's own transformer; five times as fast at 100 pieces."""
    result = json.loads(file.read_text())
    rounds = result["training"]["pieces_per_second"]
    assert len(rounds) >= 10
    assert medians(rounds, "lab", "nn.Transformer") >= 1
    assert medians(result["decoding"]["100"], "replayed", "cached") >= 5
    assert not result["package_changed_since"]
    assert "/" not in file.read_text()
