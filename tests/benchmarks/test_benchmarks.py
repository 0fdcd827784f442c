"""Benchmarks: what does not depend on the machine, and what stored results have to hold."""

import json
import runpy
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.translation.test_vocabulary import write_corpus

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OURS = [
    f"{preset} {restore} {nonfinite}"
    for preset in ("VaSSO", "SAM")
    for restore in ("recompute", "copy")
    for nonfinite in ("ignore", "skip")
]
LOW = "VaSSO recompute bfloat16"
OTHERS = [LOW, "usual VaSSO", "usual SAM", "pytorch_optimizer SAM", "pytorch_optimizer SAM foreach"]


def shown(name: str, file: Path) -> str:
    """What a benchmark prints of a stored result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        script = runpy.run_path(str(BENCHMARKS / f"{name}.py"))
    return script["show"](json.loads(file.read_text()))


def printed(name: str, *words: object) -> str:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored(name: str) -> list[Path]:
    return sorted((BENCHMARKS / "results").glob(f"{name}_*.json"))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("benchmark") / "quick.json"
    printed("overhead", "--quick", "--json", file)
    return json.loads(file.read_text())


@pytest.mark.slow
def test_a_result_says_when_where_and_with_what_it_was_measured(result: Any) -> None:
    assert result["hardware"]["threads"] == 1
    assert {"cpu", "cores", "system"} <= result["hardware"].keys()
    assert {"python", "torch", "pytorch_optimizer", "vasso"} == result["versions"].keys()
    assert {"date", "commit", "package_changed_since", "settings"} <= result.keys()


@pytest.mark.slow
def test_every_method_is_timed_equally_often_and_in_units(result: Any) -> None:
    tiny, settings = result["shapes"]["tiny"], result["settings"]
    floors = ["floor recompute", "floor copy"]
    assert set(tiny["units"]) == {*OURS, *OTHERS, *floors}
    assert set(tiny["milliseconds"]) == {*tiny["units"], "unit", "base alone"}
    samples = {len(times) for times in tiny["milliseconds"].values()}
    assert samples == {settings["rounds"] * settings["steps"]}


@pytest.mark.slow
def test_the_units_are_the_time_beyond_the_base_over_the_time_of_a_unit(result: Any) -> None:
    tiny = result["shapes"]["tiny"]
    least = {label: min(times) for label, times in tiny["milliseconds"].items()}
    expected = (least["VaSSO copy skip"] - least["base alone"]) / least["unit"]
    assert tiny["units"]["VaSSO copy skip"]["min"] == round(expected, 2)


@pytest.mark.slow
@pytest.mark.parametrize("label", OURS)
def test_a_step_needs_one_vector_and_a_copy_of_the_weights(result: Any, label: str) -> None:
    """VaSSO keeps its slope, "copy" the weights; SAM's "recompute" keeps the first gradient."""
    vectors = 2 if label.startswith("VaSSO copy") else 1
    # 0.01: norms of tensors and other scalars, of a network of 180,000 parameters
    assert result["shapes"]["tiny"]["memory"][label] == pytest.approx(vectors, abs=0.01)


@pytest.mark.slow
def test_what_memory_is_compared_with_is_weights_momentum_and_one_gradient(result: Any) -> None:
    assert result["shapes"]["tiny"]["memory"]["base alone"] == pytest.approx(3, abs=0.01)


@pytest.mark.slow
def test_memory_sees_what_the_usual_scheme_keeps_and_its_temporaries(result: Any) -> None:
    """Slope and epsilon, and the next epsilon of the largest tensor: 0.21 of the network."""
    assert result["shapes"]["tiny"]["memory"]["usual VaSSO"] == pytest.approx(2.21, abs=0.01)


@pytest.mark.slow
def test_the_count_sees_a_loop_over_tensors(result: Any) -> None:
    """Per tensor: mul_, add_, norm, *, add_, sub_."""
    counts = result["operations"]["usual VaSSO"]
    assert counts["100"] - counts["10"] == 90 * 6


@pytest.mark.slow
@pytest.mark.parametrize("label", OURS + OTHERS)
def test_what_is_compared_does_the_same(result: Any, label: str) -> None:
    """Up to rounding: 1 would be the difference between climbing and not climbing."""
    assert result["agreement"][label] < (2e-2 if label == LOW else 1e-3)  # 8 bits for each entry


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


@pytest.mark.parametrize(
    ("name", "count"), [("overhead", 2), ("heap", 1), ("translation", 2), ("step", 1)]
)
def test_the_tables_of_the_readme_are_those_of_the_stored_result(name: str, count: int) -> None:
    readme = (BENCHMARKS / "README.md").read_text()
    assert stored(name)
    for file in stored(name):
        parts = shown(name, file).split("\n\n")
        tables = [part for part in parts if part.startswith("|")]
        assert len(tables) == count
        assert all(table in readme for table in tables)


@pytest.mark.parametrize("name", ["overhead", "translation", "step"])
def test_a_stored_result_holds_no_paths(name: str) -> None:
    assert not any("/" in file.read_text() for file in stored(name))


@pytest.mark.parametrize("file", stored("overhead"), ids=lambda file: file.stem)
def test_the_stored_overhead_is_within_the_budgets(file: Path) -> None:
    units = json.loads(file.read_text())["shapes"]["resnet18"]["units"]
    cost = {label: entry["min"] for label, entry in units.items()}
    assert cost["VaSSO recompute ignore"] <= 11.5
    assert cost["VaSSO copy ignore"] <= 15
    for restore in ("recompute", "copy"):  # the aim is 4; see the README for what was reached
        assert cost[f"VaSSO {restore} skip"] - cost[f"VaSSO {restore} ignore"] <= 5


def medians(rounds: list[dict[str, float]], one: str, other: str) -> float:
    return statistics.median(each[one] / each[other] for each in rounds)


@pytest.mark.parametrize("file", stored("step"), ids=lambda file: file.stem)
def test_the_stored_steps_say_what_leaving_out_gradients_saves(file: Path) -> None:
    """All goals are reached but that of logits-SAM with the GPT, whose head alone costs more."""
    tasks = json.loads(file.read_text())["tasks"]
    ratios = {
        name: {k: v["min"] for k, v in task["ratios"].items()} for name, task in tasks.items()
    }
    if "SAM-ON" not in ratios["gpt"]:
        return
    assert ratios["resnet18"]["logits-SAM"] <= 1.1
    assert ratios["gpt"]["logits-SAM"] <= 1.1 + ratios["gpt"]["head alone, once more"]
    for found in ratios.values():
        assert found["SAM-ON"] <= 1.75
        assert found["Functional-SAM"] <= 2.05
        assert 1.8 < found["SAM"] < 2.2
        assert found["SAM-ON"] < 0.95 * found["SAM"]


@pytest.mark.slow
def test_every_method_of_a_whole_step_is_timed_beside_the_base(tmp_path: Path) -> None:
    shown = printed("step", "--quick", "--json", tmp_path / "out.json")
    tasks = json.loads((tmp_path / "out.json").read_text())["tasks"]
    for task in tasks.values():
        times = task["milliseconds"]
        assert {len(samples) for samples in times.values()} == {2}  # two rounds of one step
        expected = min(times["SAM-ON"]) / min(times["base"])
        assert task["ratios"]["SAM-ON"]["min"] == pytest.approx(expected, abs=1e-3)
    assert set(tasks["gpt"]["ratios"]) == {
        label for label in tasks["gpt"]["milliseconds"] if label != "base"
    }
    assert "| SAM-ON " in shown


@pytest.mark.parametrize("file", stored("translation"), ids=lambda file: file.stem)
def test_the_stored_translation_holds_the_aims(file: Path) -> None:
    """No slower than torch's own transformer; five times as fast at 100 pieces."""
    result = json.loads(file.read_text())
    rounds = result["training"]["pieces_per_second"]
    assert len(rounds) >= 10
    assert medians(rounds, "lab", "nn.Transformer") >= 1
    assert medians(result["decoding"]["100"], "replayed", "cached") >= 5
    assert not result["package_changed_since"]


LOOPS = {"lab", "plain loop", "nn.Transformer", "nn.Transformer, dropout as ours"}


def measured(path: Path, name: str, *words: object) -> Any:
    output = printed(name, *words, "--json", path)
    assert printed(name, "--show", path).strip() == output.strip()
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_one_command_measures_time_and_faults(tmp_path: Path) -> None:
    result = measured(tmp_path / "out.json", "heap", "--rounds", 2, "--passes", 2)
    for ways in result["networks"].values():
        back, kept = (sum(turn["faults"] for turn in ways[way]) for way in ("given back", "kept"))
        assert kept < back / 2
        assert all(turn["seconds"] > 0 for way in ways.values() for turn in way)


@pytest.mark.slow
def test_one_command_measures_training_and_decoding(tmp_path: Path) -> None:
    write_corpus(tmp_path / "data")
    corpus = ["--data", tmp_path / "data", "--corpus", "iwslt14-part", "--pieces", 12]
    little = ["--rounds", 2, "--steps", 1, "--lengths", 5, 8, "--decoding-rounds", 2]
    result = measured(tmp_path / "out.json", "translation", *corpus, *little)
    rounds = result["training"]["pieces_per_second"]
    assert [each.keys() for each in rounds] == [LOOPS, LOOPS]
    assert len(set(result["training"]["weights"].values())) == 1  # the same size, to the weight
    assert {length: len(each) for length, each in result["decoding"].items()} == {"5": 2, "8": 2}
    assert result["hardware"]["threads"] == 1
    assert {"date", "commit", "package_changed_since", "versions", "settings"} <= result.keys()


def test_the_page_of_compatibility_is_made_of_stored_results_and_holds_here() -> None:
    script = runpy.run_path(str(BENCHMARKS / "compatibility.py"))
    results = [json.loads(file.read_text()) for file in stored("compatibility")]
    results.sort(key=lambda r: [int(part) for part in r["torch"].split(".")])
    assert script["as_markdown"](results) == script["PAGE"].read_text()
    here = next(r for r in results if r["torch"] == torch.__version__.partition("+")[0])
    cases = {name: script["outcome"](case) for name, case in script["CASES"].items()}
    assert cases == here["parameters, modules and hooks"]
