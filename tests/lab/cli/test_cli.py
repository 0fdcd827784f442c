"""The command: what it shows, what it refuses before anything starts, stop and go on."""

import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.calls import Command, in_a_process
from tests.lab.execution.grid import until
from tests.lab.stores import rewritten
from vasso.lab.cli import display, errors, main
from vasso.lab.cli.catalog import about_method, example
from vasso.lab.cli.list import HEADS
from vasso.lab.cli.probe import ProbeCommand
from vasso.lab.cli.train import RunFlags
from vasso.lab.experiment.method import trainable
from vasso.lab.experiment.run import Run
from vasso.lab.store.store import Store
from vasso.lab.studies import study as studies

MINE = """
question = "Which is it?"
[cpu]
seeds = 2
task = { train_size = 100, validation = 50, batch = 50, epochs = EPOCHS }
[[cpu.grid]]
methods = [{ name = "SGD" }, { name = "VaSSO", rho = 0.1 }]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("EPOCHS", "2"))
    return str(path)


def test_a_run_from_the_command_line(tmp_path: Path, command: Command) -> None:
    words = "train --method looksam --set k=2 alpha=0.5 --rho 0.1 --train-size 100 --batch 50"
    words += f" --epochs 2 --seed 3 --flip --accelerator cpu --store {tmp_path}/runs"
    said = command(words).out
    (folder,) = Store(tmp_path / "runs").folders()
    run = folder.settings["run"]
    assert run["method"]["settings"] == {"k": 2, "alpha": 0.5, "rho": 0.1}
    assert (run["task"]["epochs"], run["task"]["flip"], run["seed"]) == (2, True, 3)
    assert str(folder.path) in said
    command(words)
    assert len(folder.metrics("start")) == 1
    rewritten(folder.path / "run.json", format=99)  # what cannot be read is not called done
    assert "has format 99, of a newer version" in command(words, code=errors.FAILED).err


@pytest.mark.parametrize("name", ["list", "train", "study"])
def test_help_has_examples(name: str, command: Command) -> None:
    assert command(f"{name} --help").out.count(f"vasso {name}") >= 3


def test_help_is_one_line_for_each_command(command: Command) -> None:
    lines = command("--help").out.splitlines()
    for name in main.COMMANDS:
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert line.endswith(inspect.cleandoc(main.command(name).__doc__ or "").splitlines()[0])
    assert max(map(len, lines)) <= 110
    command("", code=errors.USAGE_ERROR)


@pytest.mark.parametrize(
    ("slow", "load"),
    [
        (
            {"matplotlib", "scipy", "lightning", "lightning_fabric"},
            "from vasso.lab.cli.main import COMMANDS, command; [*map(command, COMMANDS)]",
        ),
        ({"torch", "numpy"}, "from vasso.lab.cli.main import overview; overview()"),
        ({"torch", "numpy"}, "from vasso.lab.cli.list import rows_of; rows_of('studies')"),
        ({"torchmetrics", "transformers", "lightning"}, "import vasso.lab.training.loop"),
    ],
    ids=["commands", "--help", "list", "training"],
)
def test_what_is_slow_to_import_waits_until_it_is_asked_for(slow: set[str], load: str) -> None:
    asked = f"import sys; {load}; print(*{slow} & {{*sys.modules}})"
    if "torchmetrics" in slow:
        asked += "; import torchmetrics"  # which is there for others
    output = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == ""


@pytest.mark.parametrize("words", [["list", "studies"], ["--help"]])
def test_a_reader_may_leave_early(words: list[str]) -> None:
    command = [sys.executable, "-m", "vasso.lab", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == errors.FAILED


@pytest.mark.usefixtures("here")
def test_a_dry_run_trains_nothing_and_ends_with_a_total(mine: str, command: Command) -> None:
    for study, count in ((mine, 4), ("translation", 50)):
        said = command(f"study {study} --dry-run")
        assert said.out.count("missing") == len(said.out.splitlines()) == count
        assert f"{count} runs, 0 done, {count} missing" in said.err
    said = command("study sphere --dry-run").err
    assert "sphere trains nothing: without --dry-run it measures the spread" in said
    assert not Path("runs").exists()


LISTENING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from vasso.lab.cli.main import main
main(sys.argv[1:])
"""


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LISTENING, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]


def test_a_study_is_stopped_and_goes_on(mine: str, tmp_path: Path, command: Command) -> None:
    """Two jobs; Ctrl-C; the same command again does the rest and nothing twice."""
    Path(mine).write_text(MINE.replace("EPOCHS", "60"))
    store = tmp_path / "runs"
    words = ("study", mine, "--jobs", "2", "--store", str(store), "--accelerator", "cpu")
    process = start(*words)
    until(lambda: len(list(store.glob("*/checkpoint.pt"))) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == errors.INTERRUPTED, out
    assert "run the same command again to continue" in out
    folders = Store(store).folders()
    reached = [folder.load("checkpoint.pt")["step"] for folder in folders if folder.result is None]
    assert reached
    assert all(step > 0 for step in reached)
    command(*words)
    folders = Store(store).folders()
    assert len(folders) == 4
    assert all(folder.result is not None for folder in folders)
    starts = [folder.metrics("start")[-1]["step"] for folder in folders]
    assert sorted(step for step in starts if step) == sorted(reached)
    assert all(line["threads"] == 1 for f in folders for line in f.metrics("start"))
    assert "4 runs, 0 to do" in command(*words).err


def test_a_study_with_other_settings_keeps_its_name_in_the_report(
    tmp_path: Path, command: Command
) -> None:
    """It ends with the command that shows it; without bars it counts its runs in a line."""
    store = tmp_path / "runs"
    words = "study noisy-digits --seeds 0 --only sgd --accelerator cpu --set"
    for setting in ("epochs=1", "epochs=1", "epochs=40 width=0.01"):
        said = command(f"{words} {setting} --store {store}").err
    assert "test accuracy" in said  # a single run is told in full
    assert said.endswith(f"Next: vasso report {store} --study noisy-digits\n")
    words = (
        f"report {store} --study noisy-digits -o {tmp_path}/page.html --json {tmp_path}/all.json"
    )
    command(words)
    found = json.loads((tmp_path / "all.json").read_text())["studies"]
    titles = [s["title"].removeprefix("Digits with half of the labels wrong") for s in found]
    assert titles == [", changed: epochs=1", ", changed: epochs=40, width=0.01"]
    page = (tmp_path / "page.html").read_text()
    assert "vasso study noisy-digits --scale cpu --set epochs=40 width=0.01 --jobs 2" in page
    (store / "studies.jsonl").write_text("{")
    said = command(f"report {store} -o {tmp_path}/page.html", code=errors.FAILED).err
    assert "could not be read: studies.jsonl, line 1: it is damaged: remove the line" in said


def test_a_study_without_a_terminal_says_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, result = Run.of({}), {"last": {}, "best": None, "cost": 1.0, "seconds": 1.0}
    for total in (30, 2):
        with display.RunBars(total) as bars:
            for _ in range(total):
                bars.started(0, run)
                bars.ended(0, run, "done", result)
        lines = capsys.readouterr().err.splitlines()
        assert lines == [f"{n} of {total} runs" for n in range(1, total + 1) if n * 10 % total == 0]
    with display.RunBars(2) as bars:
        bars.started(0, run)
        bars.ended(0, run, "failed", "no room left\non the disk " * 20)
    (line,) = capsys.readouterr().err.splitlines()  # not wrapped
    assert line == f"failed  {run.id}  no room left"


def test_a_run_that_fails_does_not_keep_the_others(tmp_path: Path) -> None:
    """Bad runs, one that another process has, one with a damaged checkpoint: the rest is done."""
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("EPOCHS", "1") + "[[cpu.grid]]\ntask = { batch = 5000 }\n")
    store = Store(tmp_path / "runs")
    runs = studies.load(str(path)).at("cpu").runs
    taken, damaged = (r for r in runs if r.method.name == "VaSSO" and r.task.batch == 50)
    place = store.folder(damaged.id).path
    place.mkdir()
    (place / "checkpoint.pt").write_bytes(b"junk")
    with store.folder(taken.id).locked():
        words = ("study", path, "--store", store.root, "--accelerator", "cpu")
        done = in_a_process(*words, cwd=tmp_path)
    assert done.returncode == errors.FAILED
    said = done.stderr
    assert said.count("a batch of 5000 does not fit") >= 2
    assert "runs in training by another process: 1" in said
    assert f"{place / 'checkpoint.pt'} is damaged and is not used" in said
    assert "Traceback" not in said
    assert len([f for f in store.folders() if (f.path / "result.json").exists()]) == 3


def test_a_damaged_run_does_not_keep_the_others(
    mine: str, tmp_path: Path, command: Command
) -> None:
    """Nothing of it is touched; without its folder it begins anew."""
    place = tmp_path / "runs"
    words = ("study", mine, "--store", place, "--accelerator", "cpu")
    command(*words)
    damaged = {"result.json": "{", "run.json": '{"format": 1, "id":'}
    bad = dict(zip(sorted(place.glob("*-s?-*")), damaged, strict=False))
    for folder, name in bad.items():
        (folder / name).write_text(damaged[name])
    other = next(folder for folder in place.glob("*-s?-*") if folder not in bad)
    shutil.rmtree(other)
    said = command(*words, "--dry-run", code=errors.FAILED).err
    assert "4 runs, 1 done, 1 missing, 2 could not be read" in said
    said = command(*words, code=errors.FAILED).err
    assert "4 runs, 1 to do, 2 could not be read" in said
    assert (other / "result.json").is_file()
    for folder, name in bad.items():
        assert f"could not be read: {folder / name} is damaged" in said
        assert f"Remove the folder {folder} to begin the run anew" in said
        assert (folder / name).read_text() == damaged[name]
        shutil.rmtree(folder)
    assert "4 runs, 2 to do, into" in command(*words).err


def test_accuracies_of_a_run_are_those_of_the_test_and_skipped_steps_are_told() -> None:
    best = {"epoch": 3, "test_accuracy": 65.8, "validation_accuracy": 70.0}
    result = {"last": {"test_accuracy": 57.4}, "best": best, "cost": 20.0, "seconds": 1.0}
    values = "test accuracy 57.40 % (last epoch), 65.80 % (epoch 3, chosen by validation), 20 gradi"
    assert display.describe_outcome(result).startswith(values)
    assert "skipped" not in display.describe_outcome({**result, "skipped": 0})
    skipped = display.describe_outcome({**result, "best": None, "skipped": 9})
    assert "9 steps skipped: gradients were not finite" in skipped


def test_help_tells_of_schedules_and_of_the_methods_default(command: Command) -> None:
    out = " ".join(command("train --help").out.split())
    assert "default: the method's own" in out
    assert '--rho "linear(0.1, 0.02, 200)"' in out


def test_the_example_of_probe_is_what_the_example_of_train_makes() -> None:
    text = ProbeCommand.__doc__ or ""
    (rho,) = re.findall(r"vasso train --rho (\S+)", text)
    assert f"vasso probe {Run.of(RunFlags(rho=rho).as_tables()).id} " in text


@pytest.mark.usefixtures("here")
def test_the_commands_of_the_readme_work_in_the_order_of_the_readme(command: Command) -> None:
    demo = "demo --seeds 2 --set epochs=1 --jobs 1 --no-open"
    command(demo)
    said = command("report runs", code=errors.FAILED).err
    assert "runs holds no run: `vasso report runs/demo` shows" in said
    command("study noisy-digits --dry-run")
    command("train --train-size 100 --batch 50 --epochs 1")
    command("report runs")
    command(demo)


@pytest.mark.usefixtures("here")
def test_the_commands_of_the_page_on_own_data_work(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "own-data.md").read_text()
    for kind, name in (("python", "mine.py"), ("toml", "mine.toml")):
        (text,) = re.findall(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        Path(name).write_text(text)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for line in re.findall(r"^\$ vasso (.*)$", page, re.MULTILINE):
        small = {"train": " --train-size 200", "study": " --seeds 0 --set epochs=1 train_size=200"}
        command(line + small.get(line.split()[0], ""))
    assert len(Store("runs").folders()) == 3 + 5


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("methods VaSSO", "theta=0.4; VaSSO(base)  # names from vasso; train --method VaSSO"),
        ("methods LateSAM", "late phase: ; late phase with reuse: ; LateSAM(base, start=7"),
        ("methods SVRG", "SVRGSAM(base, data=data)  # names from vasso"),
        ("methods MESA", "MESA(model)  # names from vasso.losses"),
        ("methods SWA", "AveragedModel(model)  # names from torch.optim.swa_utils"),
        ("methods sgd", "torch.optim.SGD; vasso train --method SGD"),
        ("data cifar10", "50,000 + 10,000; vasso train --data cifar10 --model resnet8"),
        ("data multi30k", "vasso translate; --model transformer-small"),
        ("models resnet8", "308,650; vasso.lab.models.build('resnet8'"),
        ("models transformer-small", "vasso translate; --data multi30k"),
        ("data", "data set  ; iwslt14-part      sentences  by hand"),
        ("models", "model  ; transformer-iwslt  sentences"),
        ("methods", "method  ; reuse, at random                1 + p "),
        ("methods 'reuse, at random'", "ReusedSAM(base, refresh=RefreshRandomly("),
        ("studies label-noise", "SAM, 25 % of labels wrong: 96.39 ± 0.12; open: "),
        ("studies label-noise", "VaSSO, 75 % of labels wrong, theta 0.2: 85.02 ± 0.39"),
    ],
)
def test_lists_say_how_to_use_what_they_show(line: str, shown: str, command: Command) -> None:
    out = command(f"list {line}").out
    assert [text for text in shown.split("; ") if text not in out] == []


@pytest.mark.parametrize("line", ["methods vasso", "studies radius", "models resnet8"])
def test_what_is_in_a_list_is_found_without_its_kind(line: str, command: Command) -> None:
    assert command(f"list {line.split()[1]}").out == command(f"list {line}").out


@pytest.mark.parametrize("kind", HEADS)
def test_a_list_has_a_head_and_fits_a_hundred_columns(kind: str, command: Command) -> None:
    lines = command(f"list {kind}").out.splitlines()
    assert lines[0].split()[0] == HEADS[kind][0].split()[0]
    assert max(map(len, lines)) == 100


def test_the_example_of_every_method_is_a_run() -> None:
    for name in trainable():
        words = shlex.split(example(name))[2:]
        flags = dict(zip(words[::2], words[1::2], strict=False))
        more = tuple(words[words.index("--set") + 1 :]) if "--set" in words else ()
        tables = RunFlags(method=flags["--method"], rho=flags.get("--rho"), set=more).as_tables()
        assert Run.of(tables).method.name == name
        assert example(name) in about_method(name)


@pytest.mark.parametrize("scale", studies.SCALES)
def test_no_study_asks_for_what_is_refused(scale: str) -> None:
    from vasso.lab.data import DATASETS, side_of

    every = [s for s in map(studies.load, studies.names()) if scale in s.scales]
    for run in (run for study in every for run in study.at(scale).runs):
        if run.task.data in DATASETS:
            run.task.check_image_size(run.task.size or side_of(run.task.data))
            assert (run.task.size or 1) <= side_of(run.task.data)
