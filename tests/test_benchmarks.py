"""What the benchmark of the overhead says that does not depend on the machine, and its record."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
STORED = sorted((BENCHMARKS / "results").glob("overhead_*.json"))
OURS = [
    f"{preset} {restore} {nonfinite}"
    for preset in ("VaSSO", "SAM")
    for restore in ("recompute", "copy")
    for nonfinite in ("ignore", "skip")
]
OTHERS = ["usual VaSSO", "usual SAM", "pytorch_optimizer SAM", "pytorch_optimizer SAM foreach"]


def overhead(*words: object) -> str:
    """What the script prints."""
    command = [sys.executable, str(BENCHMARKS / "overhead.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Everything that one quick run has written."""
    file = tmp_path_factory.mktemp("benchmark") / "quick.json"
    overhead("--quick", "--json", file)
    return json.loads(file.read_text())


def test_a_result_says_when_where_and_with_what_it_was_measured(result: Any) -> None:
    assert result["hardware"]["threads"] == 1
    assert {"cpu", "cores", "system"} <= result["hardware"].keys()
    assert {"python", "torch", "pytorch_optimizer", "vasso"} == result["versions"].keys()
    assert {"date", "commit", "package_changed_since", "settings"} <= result.keys()


def test_every_method_is_timed_equally_often_and_in_units(result: Any) -> None:
    tiny, settings = result["shapes"]["tiny"], result["settings"]
    floors = ["floor recompute", "floor copy"]
    assert set(tiny["units"]) == {*OURS, *OTHERS, *floors}
    assert set(tiny["milliseconds"]) == {*tiny["units"], "unit", "base alone"}
    samples = {len(times) for times in tiny["milliseconds"].values()}
    assert samples == {settings["rounds"] * settings["steps"]}


def test_the_units_are_the_time_beyond_the_base_over_the_time_of_a_unit(result: Any) -> None:
    tiny = result["shapes"]["tiny"]
    least = {label: min(times) for label, times in tiny["milliseconds"].items()}
    expected = (least["VaSSO copy skip"] - least["base alone"]) / least["unit"]
    assert tiny["units"]["VaSSO copy skip"]["min"] == round(expected, 2)


@pytest.mark.parametrize("label", OURS)
def test_a_step_needs_one_vector_more_than_its_base_and_a_copy_of_the_weights(
    result: Any, label: str
) -> None:
    """VaSSO keeps its slope, "copy" the weights; SAM's "recompute" keeps the first gradient."""
    vectors = 2 if label.startswith("VaSSO copy") else 1
    # 0.01: norms of tensors and other scalars, of a network of 180,000 parameters
    assert result["shapes"]["tiny"]["memory"][label] == pytest.approx(vectors, abs=0.01)


def test_what_memory_is_compared_with_is_weights_momentum_and_one_gradient(result: Any) -> None:
    assert result["shapes"]["tiny"]["memory"]["base alone"] == pytest.approx(3, abs=0.01)


def test_memory_sees_what_the_usual_scheme_keeps_and_its_temporaries(result: Any) -> None:
    """Slope and epsilon, and the next epsilon of the largest tensor: 0.21 of the network."""
    assert result["shapes"]["tiny"]["memory"]["usual VaSSO"] == pytest.approx(2.21, abs=0.01)


@pytest.mark.parametrize("label", OURS)
def test_the_number_of_operations_does_not_grow_with_the_number_of_tensors(
    result: Any, label: str
) -> None:
    counts = result["operations"][label]
    assert 0 < counts["10"] == counts["100"]


def test_the_count_sees_a_loop_over_tensors(result: Any) -> None:
    """Per tensor: mul_, add_, norm, *, add_, sub_."""
    counts = result["operations"]["usual VaSSO"]
    assert counts["100"] - counts["10"] == 90 * 6


@pytest.mark.parametrize("label", OURS + OTHERS)
def test_what_is_compared_does_the_same(result: Any, label: str) -> None:
    """Up to rounding: 1 would be the difference between climbing and not climbing."""
    assert result["agreement"][label] < 1e-3


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"),
    [
        ("resnet18", 62, 11_173_962),
        ("wrn28_10", 80, 36_479_194),
        ("vit_s32", 152, 22_878_952),
        ("gpt2", 148, 124_439_808),
    ],
)
def test_the_shapes_are_those_of_the_networks(name: str, tensors: int, parameters: int) -> None:
    known = runpy.run_path(str(BENCHMARKS / "shapes.py"))
    shapes = known["shapes_of"](name)
    assert (len(shapes), known["parameters"](shapes)) == (tensors, parameters)


def test_a_result_is_stored() -> None:
    assert STORED


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_the_tables_of_the_readme_are_those_of_the_stored_result(file: Path) -> None:
    readme = (BENCHMARKS / "README.md").read_text()
    tables = [part for part in overhead("--show", file).split("\n\n") if part.startswith("|")]
    assert len(tables) == 2
    assert all(table in readme for table in tables)


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_the_stored_result_holds_the_budgets_and_no_paths(file: Path) -> None:
    text = file.read_text()
    units = json.loads(text)["shapes"]["resnet18"]["units"]
    cost = {label: entry["min"] for label, entry in units.items()}
    assert cost["VaSSO recompute ignore"] <= 11.5
    assert cost["VaSSO copy ignore"] <= 15
    for restore in ("recompute", "copy"):  # the aim is 4; see the README for what was reached
        assert cost[f"VaSSO {restore} skip"] - cost[f"VaSSO {restore} ignore"] <= 5
    assert "/" not in text
