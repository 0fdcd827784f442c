"""The benchmark of kept memory runs as one command; its stored figures are those that are told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
STORED = sorted((BENCHMARKS / "results").glob("heap_*.json"))


def printed(*words: object) -> str:
    """What the script prints."""
    command = [sys.executable, str(BENCHMARKS / "heap.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_one_command_measures_time_and_faults(tmp_path: Path) -> None:
    told = printed("--rounds", 2, "--passes", 2, "--json", tmp_path / "out.json")
    assert printed("--show", tmp_path / "out.json") == told
    networks = json.loads((tmp_path / "out.json").read_text())["networks"]
    for ways in networks.values():
        back, kept = (sum(turn["faults"] for turn in ways[way]) for way in ("given back", "kept"))
        assert kept < back / 2
        assert all(turn["seconds"] > 0 for way in ways.values() for turn in way)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_the_table_of_the_readme_is_that_of_the_stored_result(path: Path) -> None:
    assert printed("--show", path) in (BENCHMARKS / "README.md").read_text()
