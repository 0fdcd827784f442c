"""The command: what it shows, what it refuses before anything starts, stop and go on."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.calls import called
from vasso.lab import commands, display, exits
from vasso.lab import study as studies
from vasso.lab.folder import FORMAT
from vasso.lab.store import Store

MINE = """
question = "Which is it?"
[cpu]
seeds = 2
task = { train_size = 100, validation = 50, batch = 50, epochs = EPOCHS }
[[cpu.grid]]
methods = [{ name = "SGD" }, { name = "VaSSO", rho = 0.1 }]
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("EPOCHS", "2"))
    return str(path)


def test_a_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--store", str(tmp_path / "runs"), "--accelerator", "cpu"]
    words = ["--method", "looksam", "--set", "k=2", "alpha=0.5", "--rho", "0.1"]
    task = ["--train-size", "100", "--batch", "50", "--epochs", "2", "--seed", "3", "--flip"]
    assert called("train", *words, *task, *place) == 0
    (folder,) = Store(tmp_path / "runs").folders()
    run = folder.settings["run"]
    assert run["method"]["settings"] == {"k": 2, "alpha": 0.5, "rho": 0.1}
    assert (run["task"]["epochs"], run["task"]["flip"], run["seed"]) == (2, True, 3)
    assert str(folder.path) in capsys.readouterr().out
    assert called("train", *words, *task, *place) == 0
    assert len(folder.metrics("start")) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--method", "VaSO"], "no method is called 'VaSO'. Did you mean 'VaSSO'?"),
        (["train", "--data", "digit"], "no data is called 'digit'. Did you mean 'digits'?"),
        (["train", "--model", "resnet"], "no model is called 'resnet'. Did you mean 'resnet8'?"),
        (["train", "--theta", "1.5"], "theta must be above 0 and at most 1, got 1.5"),
        (["train", "--rho", "big"], "rho must be a number or a schedule"),
        (["train", "--epochs", "0"], "epochs must be at least 1, got 0"),
        (["train", "--set", "k"], "'k' is not a setting: write name=value"),
        (["train", "--set", "k=3"], "VaSSO has no setting 'k'"),
        (["train", "--data-root", "/no/such"], "there is no data folder '/no/such'"),
        (["train", "--devices", "0"], "devices must be at least 1, got 0"),
        (["train", "--data", "nowhere:data"], "No module named 'nowhere'"),
        (["train", "--data", "multi30k"], "are sentences, which mlp cannot learn"),
        (["study", "label-nose"], "no study is called 'label-nose'. Did you mean 'label-noise'?"),
        (["study", "no.toml"], "there is no file 'no.toml'"),
        (["study", "radius", "--scale", "gpu"], "no scale of radius is called 'gpu'"),
        (["study", "radius", "--jobs", "0"], "jobs must be at least 1, got 0"),
        (["study", "radius", "--set", "epochs=x"], "epochs must be a whole number, got 'x'"),
        (["study", "radius", "--set", "epoch=3"], "no setting 'epoch'. Did you mean 'epochs'?"),
        (["study", "radius", "--only", "nothing"], "no run of radius has 'nothing' in its id"),
        (["study", "m-sharpness", "--set", "wrong=0.5"], "wrong means nothing for sentences"),
        (["study", "snr", "--set", "snr=0"], "add snr = 50 (or another number of batches)"),
        (["study", "snr", "--set", "snr=2"], "snr must be 0 or at least 3 batches"),
        (["study", "sphere", "--only", "sam"], "no run of sphere has 'sam' in its id"),
        (["list", "studys"], "no list is called 'studys'. Did you mean 'studies'?"),
        (["list", "studies", "radios"], "Did you mean 'radius'?"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called(*words) == exits.WRONG
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "100000"], "100000"),
        (["--validation", "5000"], "5000"),
        (["--train-size", "5000"], "5000"),
        (["--accelerator", "quantum"], "quantum"),
    ],
)
def test_settings_that_do_not_fit_the_data_or_the_machine_are_named(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("train", "--store", str(tmp_path), *words) == exits.WRONG
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    assert not list(tmp_path.rglob("*.pt"))


def test_a_flag_that_is_not_there_suggests_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("train", "--epoch", "3") == exits.WRONG
    assert "--epochs" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "train", "study"])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(command, "--help") == 0
    assert capsys.readouterr().out.count(f"vasso {command}") >= 3


def test_help_is_one_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    for name in commands.COMMANDS:
        assert len([line for line in lines if line.startswith(f"  {name} ")]) == 1
    assert max(map(len, lines)) <= 110
    assert called() == exits.WRONG


def test_what_is_slow_to_import_waits_until_it_is_asked_for() -> None:
    slow = {"matplotlib", "scipy", "lightning", "lightning_fabric"}
    asked = f"import sys, vasso.lab.commands; print(*{slow} & {{*sys.modules}})"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == ""


@pytest.mark.parametrize("words", [["list", "studies"], ["--help"]])
def test_a_reader_may_leave_early(words: list[str]) -> None:
    command = [sys.executable, "-m", "vasso.lab", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == exits.FAILED


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, word in (("methods", "VaSSO"), ("data", "cifar10"), ("models", "resnet8")):
        assert called("list", kind) == 0
        assert word in capsys.readouterr().out
    assert called("list", "studies", "label-noise") == 0
    shown = capsys.readouterr().out
    assert "VaSSO, 75 % of labels wrong, theta 0.2: 85.02 ± 0.39" in shown
    assert "open: " in shown


def test_a_dry_run_trains_nothing(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("study", mine, "--dry-run", "--store", str(tmp_path / "runs")) == 0
    assert capsys.readouterr().out.count("missing") == 4
    assert not (tmp_path / "runs").exists()
    assert called("study", "translation", "--dry-run", "--store", str(tmp_path / "runs")) == 0
    assert capsys.readouterr().out.count("missing") == 21


def test_a_newer_store_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store.json").write_text(json.dumps({"format": FORMAT + 1}))
    assert called("train", "--store", str(tmp_path)) == exits.FAILED
    assert "update vasso" in capsys.readouterr().err


def test_a_store_that_holds_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert called("train", "--store", str(tmp_path)) == exits.FAILED
    assert "holds other things" in capsys.readouterr().err


LISTENING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from vasso.lab.cli import main
main(sys.argv[1:])
"""


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LISTENING, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]


def until(condition: object, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def test_a_study_is_stopped_and_goes_on(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two jobs; Ctrl-C; the same command again does the rest and nothing twice."""
    Path(mine).write_text(MINE.replace("EPOCHS", "60"))
    store = tmp_path / "runs"
    words = ("study", mine, "--jobs", "2", "--store", str(store), "--accelerator", "cpu")
    process = start(*words)
    until(lambda: len(list(store.glob("*/checkpoint.pt"))) >= 2)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == exits.INTERRUPTED, out
    assert "the same command goes on" in out
    folders = Store(store).folders()
    reached = [folder.load("checkpoint.pt")["step"] for folder in folders if folder.result is None]
    assert reached
    assert all(step > 0 for step in reached)
    assert called(*words) == 0
    folders = Store(store).folders()
    assert len(folders) == 4
    assert all(folder.result is not None for folder in folders)
    starts = [folder.metrics("start")[-1]["step"] for folder in folders]
    assert sorted(step for step in starts if step) == sorted(reached)
    assert all(line["threads"] == 1 for f in folders for line in f.metrics("start"))
    capsys.readouterr()
    assert called(*words) == 0
    assert "4 runs, 0 to do" in capsys.readouterr().err


def test_a_run_that_fails_does_not_keep_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad runs, and one that another process has: the rest is done, and all is said."""
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("EPOCHS", "1") + "[[cpu.grid]]\ntask = { batch = 5000 }\n")
    store = Store(tmp_path / "runs")
    run = next(r for r in studies.load(str(path)).at("cpu").runs if r.method.name == "VaSSO")
    with store.folder(run.id).locked():
        words = ("study", str(path), "--store", str(store.root), "--accelerator", "cpu")
        assert called(*words) == exits.FAILED
    said = capsys.readouterr().err
    assert said.count("a batch of 5000 does not fit") >= 2
    assert "1 runs are being trained by another process" in said
    assert len([f for f in store.folders() if f.result is not None]) == 3


def test_a_damaged_run_is_told_and_does_not_keep_the_others(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is touched; without its folder it begins anew."""
    place = tmp_path / "runs"
    words = ("study", mine, "--store", str(place), "--accelerator", "cpu")
    assert called(*words) == 0
    damaged = {"result.json": "{}", "run.json": '{"format": 1, "id":'}
    bad = dict(zip(sorted(place.glob("*-s?-*")), damaged, strict=False))
    for folder, name in bad.items():
        (folder / name).write_text(damaged[name])
    other = next(folder for folder in place.glob("*-s?-*") if folder not in bad)
    shutil.rmtree(other)
    capsys.readouterr()
    assert called(*words, "--dry-run") == exits.FAILED
    assert "4 runs, 1 done, 1 missing, 2 could not be read" in capsys.readouterr().err
    assert called(*words) == exits.FAILED
    said = capsys.readouterr().err
    assert "4 runs, 1 to do, 2 could not be read" in said
    assert (other / "result.json").is_file()
    for folder, name in bad.items():
        assert f"could not be read: {folder / name} is damaged" in said
        assert f"Remove the folder {folder} to begin the run anew" in said
        assert (folder / name).read_text() == damaged[name]
        shutil.rmtree(folder)
    assert called(*words) == 0
    assert "4 runs, 2 to do, into" in capsys.readouterr().err


def test_a_run_that_cannot_be_read_is_not_called_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ("--train-size", "100", "--batch", "50", "--epochs", "1", "--method", "SGD")
    words = ("train", *tiny, "--store", str(tmp_path / "runs"), "--accelerator", "cpu")
    assert called(*words) == 0
    (path,) = tmp_path.glob("runs/*/run.json")
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', '"format": 99'))
    assert called(*words) == exits.FAILED
    assert "has format 99, of a newer version" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_told_in_a_sentence(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "runs")
    place = store.folder(studies.load(mine).at("cpu").runs[0].id).path
    place.mkdir()
    (place / "checkpoint.pt").write_bytes(b"junk")
    words = ("study", mine, "--store", str(store.root), "--accelerator", "cpu")
    assert called(*words) == exits.FAILED
    said = capsys.readouterr().err
    assert f"Remove the folder {place} to begin the run anew" in said
    assert "Traceback" not in said
    assert len(list(store.root.glob("*/result.json"))) == 3


def test_what_fabric_does_not_need_is_not_imported() -> None:
    unneeded = {"torchmetrics", "transformers", "lightning"}
    asked = f"import sys, vasso.lab.train; print(*{unneeded} & {{*sys.modules}})"
    asked += "; import torchmetrics"  # which is there for others
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == ""


def test_accuracies_of_a_run_are_those_of_the_test() -> None:
    best = {"epoch": 3, "test_accuracy": 65.8, "validation_accuracy": 70.0}
    result = {"last": {"test_accuracy": 57.4}, "best": best, "cost": 20.0, "seconds": 1.0}
    told = "test accuracy 57.40 % (last epoch), 65.80 % (epoch 3, chosen by validation), 20 gradi"
    assert display.told(result).startswith(told)


def test_a_run_that_skipped_steps_says_so() -> None:
    result = {"last": {"test_accuracy": 10.0}, "best": None, "cost": 20.0, "seconds": 1.0}
    assert "skipped" not in display.told({**result, "skipped": 0})
    assert "9 steps skipped: gradients were not finite" in display.told({**result, "skipped": 9})
