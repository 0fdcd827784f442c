"""The examples run, and what they write down is true. Who is good at digits is not asked here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("rich")
from sklearn.datasets import load_digits

pytestmark = pytest.mark.xdist_group("examples")  # one worker: its fixture is made once

EXAMPLES = Path(__file__).parent.parent / "examples"
SEEDS, EPOCHS, WRONG = 2, 2, 613
SMALL = f"--seeds {SEEDS} --epochs {EPOCHS} --noise {WRONG / 1000} --workers 1".split()


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # neighbours on the machine
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which a small demo has written its JSON and its figure."""
    folder = tmp_path_factory.mktemp("demo")
    files = "--json", str(folder / "demo.json"), "--figure", str(folder / "demo.svg")
    done = run("noisy_digits.py", *SMALL, *files)
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def runs(written: Path) -> list[dict[str, Any]]:
    return json.loads((written / "demo.json").read_text())["runs"]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    import noisy_digits

    return noisy_digits


@pytest.fixture
def report(demo: ModuleType) -> ModuleType:
    return demo.report


def test_minimal_takes_two_gradients_for_each_of_its_steps() -> None:
    done = run("minimal.py")
    assert done.returncode == 0, done.stderr
    batches = -(-1297 // 64)
    assert f"after {2 * 10 * batches} gradient evaluations" in done.stdout


def test_every_method_is_run_with_every_seed_once(runs: list[dict[str, Any]]) -> None:
    expected = [(m, seed) for seed in range(SEEDS) for m in ("SGD", "SAM", "VaSSO")]
    assert [(r["method"], r["seed"]) for r in runs] == expected


@pytest.mark.parametrize(("method", "each"), [("SGD", 1), ("SAM", 2), ("VaSSO", 2)])
def test_gradient_evaluations_per_step(runs: list[dict[str, Any]], method: str, each: int) -> None:
    steps = EPOCHS * 1000 // 50
    mine = [r for r in runs if r["method"] == method]
    assert [(r["steps"], r["evaluations"]) for r in mine] == SEEDS * [(steps, each * steps)]
    assert [r["cost"] for r in mine] == SEEDS * [None if method == "SGD" else each * steps]


def test_the_number_of_wrong_labels_is_exact(runs: list[dict[str, Any]]) -> None:
    assert {r["wrong_labels"] for r in runs} == {WRONG}


def test_the_file_says_where_it_comes_from(written: Path) -> None:
    origin = json.loads((written / "demo.json").read_text())
    assert origin["versions"]["torch"] == torch.__version__
    assert " ".join(SMALL) in origin["command"]
    assert re.match(r"[0-9a-f]{40}|unknown", origin["commit"])


def test_a_run_can_be_repeated_from_what_was_written(
    runs: list[dict[str, Any]], demo: ModuleType
) -> None:
    for old in runs[-3:]:
        settings = {name: old[name] for name in demo.Run.__dataclass_fields__}
        new = demo.train(demo.Run(**settings))
        assert (new["accuracy"], new["memorised"]) == (old["accuracy"], old["memorised"])


def test_the_table_can_be_rebuilt_from_the_file(written: Path) -> None:
    rebuilt = run("noisy_digits_report.py", str(written / "demo.json"))
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert "VaSSO − SAM" in rebuilt.stdout
    assert rebuilt.stdout in (written / "stdout").read_text()


def test_the_figure_has_a_line_and_a_band_for_each_method(written: Path) -> None:
    picture = (written / "demo.svg").read_text()
    colours = {"#8a8a8a", "#e07b00", "#1f87e0"}
    assert {c for c in colours if f"stroke: {c}" in picture} == colours
    assert {c for c in colours if f"fill: {c}; fill-opacity" in picture} == colours


def test_wrong_labels_are_wrong_and_no_others(demo: ModuleType) -> None:
    x, y = map(torch.tensor, load_digits(return_X_y=True))
    truth = {tuple(row): label for row, label in zip(x.tolist(), y.tolist(), strict=True)}
    images, labels, wrong, *_ = digits(demo, seed=3)
    true = torch.tensor([truth[tuple(row)] for row in (images * 16).tolist()])
    assert (labels != true).nonzero().flatten().tolist() == sorted(wrong.tolist())
    assert len(wrong) == WRONG


def test_nobody_trains_or_chooses_on_a_test_image(demo: ModuleType) -> None:
    test = rows(digits(demo, seed=0)[3])
    assert len(test) == 500
    for seed in (0, 1, demo.TUNING_SEEDS):
        train, _, _, validation, _ = digits(demo, seed=seed, judged_on="validation")
        assert rows(digits(demo, seed=seed)[3]) == test
        parts = test, rows(train), rows(validation)
        assert len(set.union(*parts)) == sum(map(len, parts)) == 1797


def test_seeds_differ_in_split_and_noise(demo: ModuleType) -> None:
    (x, _, wrong, *_), (other_x, _, other_wrong, *_) = (digits(demo, seed=s) for s in (0, 1))
    assert rows(x) != rows(other_x)
    assert set(wrong.tolist()) != set(other_wrong.tolist())


@pytest.mark.parametrize(
    ("gain", "says"),
    [
        ((9.0, 10.0, 11.0), "VaSSO is ahead of SAM here"),
        ((-9.0, -10.0, -11.0), "VaSSO is behind SAM here"),
        ((1.0, 2.0, 3.0), "cannot tell VaSSO from SAM"),  # 2 ± 4.303 / sqrt(3)
    ],
)
def test_the_verdict_follows_the_interval(
    report: ModuleType, gain: tuple[float, ...], says: str
) -> None:
    sam = (40.0, 70.0, 55.0)  # scattered, so that only the paired difference can tell
    finals = [("SAM", a) for a in sam] + [("VaSSO", a + b) for a, b in zip(sam, gain, strict=True)]
    results = [
        {"method": method, "rho": 1.0, "seed": i % 3, "accuracy": [0.0, final]}
        for i, (method, final) in enumerate(finals)
    ]
    assert says in report.difference("VaSSO", "SAM", results)


def test_the_interval_is_students(report: ModuleType) -> None:
    # three values with deviation 1: t(0.975, 2) = 4.302653 from any table
    assert report.interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 4.302653 / 3**0.5), rel=1e-6)


def test_tuning_takes_the_best_mean_and_warns_at_the_edge(report: ModuleType) -> None:
    means = {"SAM": (1.0, 3.0, 2.0), "VaSSO": (1.0, 2.0, 3.0)}
    results = [
        {"method": method, "rho": rho, "seed": 0, "accuracy": [99.0, accuracy]}
        for method, row in means.items()
        for rho, accuracy in zip((0.1, 0.2, 0.4), row, strict=True)
    ]
    sam, averaged = report.choices(results)
    assert sam == "--rho-sam 0.2"
    assert averaged == "--rho-vasso 0.4 at the edge of the grid: extend it"


def test_tuning_looks_at_validation_images_only(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["noisy_digits.py", "--tune", "--seeds", "2"])
    planned = demo.planned(demo.arguments())
    assert {r.judged_on for r in planned} == {"validation"}
    assert {(r.method, r.rho) for r in planned} == {
        (m, rho) for m in ("SAM", "VaSSO") for rho in demo.GRID
    }
    assert min(r.seed for r in planned) == demo.TUNING_SEEDS


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--noise", "1.5"), r"--noise must be from 0\.001 to 0\.89, got 1\.5"),
        (("--seeds", "1"), r"--seeds must be from 2 to 1000, got 1"),
        (("--json", "/nowhere/at/all.json"), r"there is no directory /nowhere/at"),
    ],
)
def test_bad_arguments_are_refused_before_training(
    arguments: tuple[str, ...], complaint: str
) -> None:
    done = run("noisy_digits.py", *arguments)
    assert done.returncode != 0
    assert re.search(complaint, done.stderr)
    assert "Traceback" not in done.stderr


def test_a_figure_without_matplotlib_names_the_extra(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"vasso\[demo\]"):
        report.refuse_early(None, Path("demo.svg"))


def digits(demo: ModuleType, *, seed: int, judged_on: str = "test") -> tuple[torch.Tensor, ...]:
    settings = demo.Run("SGD", 0.0, 1.0, WRONG / 1000, EPOCHS, seed, judged_on)
    return demo.digits(settings, torch.Generator().manual_seed(seed))


def rows(images: torch.Tensor) -> set[tuple[float, ...]]:
    return set(map(tuple, images.tolist()))
