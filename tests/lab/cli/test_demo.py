"""The demo: which runs, what its table says, when a browser is opened; stop and go on."""

import io
import runpy
import webbrowser
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.lab.calls import called
from vasso.lab.cli import demo
from vasso.lab.cli.display import MethodBars
from vasso.lab.experiment.run import Run
from vasso.lab.statistics import chosen
from vasso.lab.store.store import Store, run_status
from vasso.lab.studies import study as studies

SMALL = ("--seeds", "2", "--set", "epochs=2", "--jobs", "1", "--no-open")
METHODS = ("SGD", "SAM", "VaSSO")
RECORD = Path(__file__).parents[3] / "records" / "noisy-digits"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a small demo has been run."""
    where = tmp_path_factory.mktemp("demo") / "runs"
    assert called("demo", *SMALL, "--store", str(where)) == 0
    return where


def small_runs() -> list[Run]:
    return studies.changed(demo.planned(2), {"epochs": 2})


def invented(**accuracies: tuple[float, ...]) -> dict[Run, dict[str, Any]]:
    """Results of runs that never were."""
    runs = demo.planned(max(map(len, accuracies.values())))
    found = {}
    for run in runs:
        values = accuracies.get(demo.method_name(run.method), ())
        if run.seed < len(values):
            last = {"test_accuracy": values[run.seed], "wrong_accuracy": 10.0 * (run.seed + 1)}
            gradients = 100.0 * (1 if demo.method_name(run.method) == "SGD" else 2)
            found[run] = {"last": last, "cost": gradients, "steps": 100}
    return found


def test_all_methods_of_a_seed_are_run_together() -> None:
    planned = [(demo.method_name(run.method), run.seed) for run in demo.planned(3)]
    assert planned == [(method, seed) for seed in range(3) for method in METHODS]
    assert set(demo.planned(10)) == set(studies.load(demo.STUDY).at("cpu").runs)


def test_rho_is_chosen_on_the_same_task_by_seeds_that_the_demo_leaves_alone() -> None:
    shown, tuned = (
        studies.load(name).at("cpu").runs for name in (demo.STUDY, "noisy-digits-radius")
    )
    assert {replace(run.task, others=0) for run in shown} == {run.task for run in tuned}
    assert not {run.seed for run in shown} & {run.seed for run in tuned}
    assert {run.seed for run in tuned}.isdisjoint(range(1000))  # the most that --seeds takes
    assert {(run.method.lr, run.method.momentum) for run in (*shown, *tuned)} == {(0.05, 0.9)}
    assert {run.task.validation for run in tuned} == {297}


def test_the_table_has_mean_interval_seeds_and_cost() -> None:
    # deviation 1, three values: half of the interval is t(0.975, 2) / sqrt(3) = 4.302653 / 1.732
    lines = demo.rows(invented(SGD=(60.0, 61.0, 62.0), SAM=(90.0, 91.0, 92.0)))
    assert [row.cells for row in lines] == [
        ("SGD", "–", "–", "3", "61.0 ± 2.5", "20.0", "1", "100"),
        ("SAM", "1", "1", "3", "91.0 ± 2.5", "20.0", "2", "200"),
    ]


@pytest.mark.parametrize(
    ("sgd", "vasso", "says"),
    [
        (90.0, 5.0, "plain SGD learns the wrong labels: 57 % of the test images right. VaSSO igno"),
        (90.0, 5.0, "With half of the labels wrong, plain SGD learns"),
        (90.0, 5.0, "VaSSO ignores them: 92 %."),
        (5.0, 15.0, "plain SGD ignores the wrong labels: 57 % of the test images right. VaSSO lea"),
        (50.0, 90.0, "VaSSO learns them too: 92 %."),
    ],
)
def test_the_last_sentence_follows_the_numbers(sgd: float, vasso: float, says: str) -> None:
    found = invented(SGD=(57.0, 57.4), SAM=(93.0, 93.0), VaSSO=(92.0, 92.4))
    for run, result in found.items():
        result["last"]["wrong_accuracy"] = sgd if run.method.entry is None else vasso
    assert says in demo.lesson(found)


@pytest.mark.parametrize(
    ("gain", "says"),
    [
        (
            (9.0, 10.0, 11.0),
            "+10.0 points (95 % confidence interval +7.5 to +12.5): VaSSO is ahead of SAM",
        ),
        ((-9.0, -10.0, -11.0), "VaSSO is behind SAM here"),
        ((1.0, 2.0, 3.0), "no significant difference between VaSSO and SAM"),  # 2 ± 4.303 / sqrt(3)
        ((9.0, 10.0), "too few seeds to compare VaSSO and SAM"),
    ],
)
def test_the_verdict_follows_the_paired_difference(gain: tuple[float, ...], says: str) -> None:
    sam = (40.0, 70.0, 55.0)[: len(gain)]  # scattered, so that only pairs can tell
    averaged = tuple(a + b for a, b in zip(sam, gain, strict=True))
    (sentence,) = demo.verdicts(invented(SAM=sam, VaSSO=averaged))
    assert sentence.startswith("VaSSO − SAM = ")
    assert says in sentence


def test_the_runs_are_those_of_the_study_and_count_their_gradients(store: Path) -> None:
    results = run_status(small_runs(), Store(store)).done
    assert list(results) == small_runs()
    steps = 2 * 1000 // 50
    for run, result in results.items():
        each = 1 if demo.method_name(run.method) == "SGD" else 2
        assert (result["steps"], result["cost"]) == (steps, each * steps)
        assert result["wrong_labels"] == 0.5


def test_a_second_demo_trains_nothing_and_says_the_same(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("demo", *SMALL, "--store", str(store)) == 0
    output = capsys.readouterr()
    assert "6 runs, 0 to do" in output.err
    assert [len(folder.metrics("start")) for folder in Store(store).folders()] == [1] * 6
    results = run_status(small_runs(), Store(store)).done
    for row in demo.rows(results):
        assert row.cells[4] in output.out
    for sentence in (*demo.verdicts(results), demo.lesson(results)):
        assert sentence.replace(" ", "") in "".join(output.out.split())
    assert f" --store {store}</code>" in (store / "report.html").read_text()
    assert str(store / "report.html") in output.out.replace("\n", "")


@pytest.mark.parametrize(
    ("wanted", "terminal", "environment", "opens"),
    [
        (True, True, {"DISPLAY": ":0"}, True),
        (True, True, {"WAYLAND_DISPLAY": "wayland-0"}, True),
        (False, True, {"DISPLAY": ":0"}, False),
        (True, False, {"DISPLAY": ":0"}, False),
        (True, True, {"DISPLAY": ":0", "CI": "true"}, False),
        (True, True, {}, False),
    ],
)
def test_a_browser_is_opened_for_somebody_who_sits_there(
    wanted: bool,
    terminal: bool,
    environment: dict[str, str],
    opens: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    opened: list[str] = []
    monkeypatch.setattr(demo.sys, "platform", "linux")
    monkeypatch.setattr(demo.sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    page = tmp_path / "a page.html"
    demo.show_page(page, wanted)
    assert opened == ([page.as_uri()] if opens else [])
    assert str(page) in capsys.readouterr().out


def test_bars_count_what_was_there_before_and_say_how_right_a_method_is() -> None:
    runs, results = demo.planned(2), invented(SGD=(60.0, 62.0), SAM=(90.0,))
    sgd, other = (run for run in results if demo.method_name(run.method) == "SGD")
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bars = MethodBars(runs, {sgd: results[sgd]}, console)
    with bars:
        bars.started(0, other)
        bars.advanced(0, 10, 40)
        shown = {task.description: task for task in bars.progress.tasks}
        assert (shown["SGD"].completed, shown["SGD"].total) == (1.25, 2)
        assert shown["SGD"].fields["accuracy"] == "accuracy 60.0 %"
        bars.ended(0, other, "done", results[other])
    shown = {task.description: task for task in bars.progress.tasks}
    assert (shown["SGD"].completed, shown["SGD"].fields["accuracy"]) == (2, "accuracy 61.0 %")
    assert [task.completed for name, task in shown.items() if name != "SGD"] == [0, 0]


@pytest.fixture(scope="module")
def record() -> Any:
    """What writes the page of the record."""
    return SimpleNamespace(**runpy.run_path(str(RECORD / "page.py")))


def test_the_demo_runs_at_the_radii_that_its_record_chose(record: Any) -> None:
    grid = record.by_radius(record.finished(record.RADIUS))
    for run in demo.planned(2):
        name = demo.method_name(run.method)
        assert dict(run.method.settings).get("rho") == chosen(grid.get(name, {}))
        assert name == "SGD" or min(grid[name]) < chosen(grid[name]) < max(grid[name])


def test_the_record_is_of_these_runs(record: Any) -> None:
    shown, tuned = record.finished(RECORD), record.finished(record.RADIUS)
    assert {trained.run for trained in shown} == set(studies.load(demo.STUDY).at("cpu").runs)
    wanted = studies.load("noisy-digits-radius").at("cpu").runs
    assert {trained.run for trained in tuned} == set(wanted)
