"""What a stranger stumbles over: each is told in a sentence with a remedy, never by a traceback."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import vasso
from tests.lab.calls import called
from vasso.lab import study as studies
from vasso.lab.flags import RunFlags
from vasso.lab.probe_command import Probe
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.train import train

WRONG, FAILED = 2, 1
TINY = ["--train-size", "100", "--batch", "50", "--epochs", "1"]
MINE = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

def no_seed(): ...
def nothing(**given): return None
def breaks(**given): raise KeyError("lost")
def bare(**given): return nn.Flatten()
def narrow(classes, channels, size, seed): return nn.Sequential(nn.Flatten(), nn.Linear(3, classes))
def mean(output, y): return cross_entropy(output, y)
def one(output): return output
def good(output, y): return cross_entropy(output, y, reduction="none")
def normed(classes, channels, size, seed):
    torch.manual_seed(seed)
    n = channels * size * size
    layers = nn.Flatten(), nn.BatchNorm1d(n), nn.Dropout(0.5), nn.Linear(n, classes)
    return nn.Sequential(*layers)

def few():
    model, batch = nn.Linear(2, 2), (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    return model, cross_entropy, [batch] * 2

def few_others():
    return *few()[:2], few()[2] * 4, few()[2][:1]

def enough():
    torch.manual_seed(0)
    batches = [(torch.randn(8, 2), torch.randint(2, (8,))) for _ in range(40)]
    return nn.Linear(2, 2), cross_entropy, batches
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory with a module of the user's own."""
    (tmp_path / "strange.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("strange", None)
    return tmp_path


REFUSED = [
    ("trian", "no command 'trian'. Did you mean 'train'?"),
    ("train --accelerator cuda", "this machine has no cuda: give --accelerator cpu"),
    ("train --accelerator mps", "this machine has no mps"),
    ("train --accelerator tpu", "this machine has no tpu"),
    ("study radius --accelerator tpu", "this machine has no tpu"),
    ("train --size 999999", "size must be 1 to 8 pixels, the side of images of digits"),
    ("train --size 16", "got 16: they are made smaller, not larger"),
    ("train --crop 50", "crop must be below 8, the side of the images, got 50"),
    ("train --cutout 50", "cutout must be at most 8, the side of the images, got 50"),
    ("train --warm-up 9999 --epochs 2", "warm_up must be below the 20 steps of the run, got 9999"),
    ("train --data broken:data", "the module broken cannot be imported (ZeroDivisionError"),
    ("train --data strange:no_seed", "strange:no_seed(seed=0) failed (TypeError"),
    ("train --data strange:nothing", "strange:nothing(seed=0) gave NoneType, it has to give vasso"),
    ("train --data strange:breaks", "KeyError: 'lost'; strange.py, line 8"),
    ("train --model strange:no_seed", "strange:no_seed(classes=10, channels=1, size=8, seed=0)"),
    ("train --model strange:nothing", "gave NoneType, it has to give a torch.nn.Module"),
    ("train --model strange:bare", "strange:bare has no parameters: there is nothing to train"),
    ("train --model strange:narrow", "strange:narrow, given images as shape (2, 1, 8, 8), failed"),
    ("train --loss strange:mean", "gave shape (): it has to give one loss for each sample"),
    ("train --loss strange:one", "strange:one, given outputs and labels as shape (2, 10) and"),
    ("train --set rho=0.1 --rho 0.2", "by --rho 0.2 and by --set rho=0.1: leave one out"),
    ("train --set epochs=3 --epochs 2", "by --epochs 2 and by --set epochs=3: leave one out"),
    ("probe :good", "':good' lacks a name: write module:function"),
    ("probe strange:few", "the loader gave 2 batches; a probe needs at least 5"),
    ("probe strange:few_others", "the loader gave 8 batches and `others` gave 1; a probe needs"),
    ("list methods qqqqqq", "'late phase', 'reuse, every k', 'reuse, at random', 'reuse, "),
    ("list methods VaSO", "no method is called 'VaSO'. Did you mean 'VaSSO'?"),
    ("list data cifar11", "no data is called 'cifar11'. Did you mean 'cifar10'?"),
    ("list models resnet9", "no model is called 'resnet9'. Did you mean 'resnet8'?"),
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_is_wrong_is_said_in_a_sentence(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*shlex.split(line)) == WRONG
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_a_model_and_a_loss_are_tried_out_without_a_trace(here: Path) -> None:
    """The loss of torch by another name trains to the same weights, bit for bit."""
    store = Store(here / "runs")
    task = {"train_size": 100, "batch": 50, "epochs": 1, "model": "strange:normed"}
    own = train(Run.of({"task": {**task, "loss": "strange:good"}}), store)
    assert own["last"]["test_loss"] == train(Run.of({"task": task}), store)["last"]["test_loss"]


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_no_study_asks_for_what_is_refused(scale: str) -> None:
    from vasso.lab.data import NAMES, side_of

    every = [s for s in map(studies.load, studies.names()) if scale in s.scales]
    for run in (run for study in every for run in study.at(scale).runs):
        if run.task.data in NAMES:
            run.task.check_pictures(run.task.size or side_of(run.task.data))
            assert (run.task.size or 1) <= side_of(run.task.data)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--version") == 0
    assert capsys.readouterr().out == f"vasso {vasso.__version__}\n"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "list methods VaSSO",
            ["theta=0.4", "VaSSO(base)  # names from vasso", "vasso train --method VaSSO"],
        ),
        (
            "list methods LateSAM",
            ["late phase: ", "late phase with reuse: ", "LateSAM(base, start=7"],
        ),
        ("list methods SVRG", ["SVRGSAM(base, data=data)  # names from vasso"]),
        ("list methods MESA", ["MESA(model)  # names from vasso.losses"]),
        ("list methods SWA", ["AveragedModel(model)  # names from torch.optim.swa_utils"]),
        ("list methods sgd", ["torch.optim.SGD", "vasso train --method SGD"]),
        ("list data cifar10", ["50,000 + 10,000", "vasso train --data cifar10 --model resnet8"]),
        ("list data multi30k", ["vasso translate", "--model transformer-small"]),
        ("list models resnet8", ["308,650", "vasso.lab.models.build('resnet8'"]),
        ("list models transformer-small", ["vasso translate", "--data multi30k"]),
        ("list data", ["iwslt14-part", "for `vasso translate`"]),
        ("list models", ["transformer-iwslt", "for `vasso translate`"]),
        ("list methods", ["LateSAM(base, start=7)", "ReusedSAM(base, refresh=RefreshRandomly("]),
        ("list studies label-noise", ["SAM, 25 % of labels wrong: 96.39 ± 0.12"]),
    ],
)
def test_lists_say_how_to_use_what_they_show(
    line: str, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*line.split()) == 0
    out = capsys.readouterr().out
    assert [text for text in shown if text not in out] == []


def test_the_example_of_every_method_is_a_run() -> None:
    from vasso.lab.entries import about_method, example

    for name in vasso.methods():
        words = shlex.split(example(name))[2:]
        flags = dict(zip(words[::2], words[1::2], strict=False))
        more = tuple(words[words.index("--set") + 1 :]) if "--set" in words else ()
        tables = RunFlags(method=flags["--method"], rho=flags.get("--rho"), set=more).as_tables()
        assert Run.of(tables).method.name == name
        assert example(name) in about_method(name)


@pytest.mark.usefixtures("here")
def test_a_radius_of_equal_effect_needs_two_slopes(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("probe", "strange:enough", "--thetas", "0.4", "--only", "radius", "--quick") == 0
    out = capsys.readouterr().out
    assert "as in --thetas 1 0.4" in out
    assert "quantity" not in out


def test_the_example_of_probe_is_what_the_example_of_train_makes() -> None:
    text = Probe.__doc__ or ""
    (rho,) = re.findall(r"vasso train --rho (\S+)", text)
    assert f"vasso probe {Run.of(RunFlags(rho=rho).as_tables()).id} " in text


@pytest.mark.usefixtures("here")
def test_dry_runs_end_with_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("study", "noisy-digits", "--dry-run") == 0
    said = capsys.readouterr()
    count = len(said.out.splitlines())
    assert f"{count} runs, 0 done, {count} missing" in said.err
    assert called("study", "sphere", "--dry-run") == 0
    said = capsys.readouterr()
    assert "sphere trains nothing: without --dry-run it measures the spread" in said.err


def test_help_tells_of_schedules_and_of_the_methods_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert called("train", "--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "default: the method's own" in out
    assert '--rho "linear(0.1, 0.02, 200)"' in out


@pytest.mark.usefixtures("here")
def test_the_commands_of_the_readme_work_in_the_order_of_the_readme(
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo = ("demo", "--seeds", "2", "--set", "epochs=1", "--jobs", "1", "--no-open")
    assert called(*demo) == 0
    assert called("report", "runs") == FAILED
    assert "runs holds no run: `vasso report runs/demo` shows" in capsys.readouterr().err
    assert called("study", "noisy-digits", "--dry-run") == 0
    assert called("train", *TINY, "--accelerator", "cpu") == 0
    assert called("report", "runs") == 0
    assert called(*demo) == 0


def test_a_run_of_a_store_within_the_store_is_found_for_a_probe(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("train", *TINY, "--accelerator", "cpu", "--store", "runs/demo") == 0
    (path,) = here.glob("runs/demo/*/run.json")
    assert called("train", *TINY, "--accelerator", "cpu", "--seed", "1") == 0
    capsys.readouterr()
    assert called("probe", path.parent.name, "--quick") == WRONG
    assert "One of 'runs/demo' is: name it by --store" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("accelerator", "message"),
    [("gpuu", "got 'gpuu'. Did you mean 'gpu'?"), ("tpu", "has no tpu")],
)
def test_a_wrong_device_is_told_before_a_wrong_store(
    accelerator: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["train"], ["study", "noisy-digits"]):
        assert called(*command, "--accelerator", accelerator, "--store", str(here)) == WRONG
        assert message in capsys.readouterr().err


def test_a_file_where_a_directory_should_be(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "afile").write_text("")
    assert called("train", *TINY, "--accelerator", "cpu") == 0
    capsys.readouterr()
    assert called("export", "runs", "afile") == FAILED
    assert "there is a file where a directory should be: name another" in capsys.readouterr().err
    for place in ("/proc/foo", "afile/runs"):
        assert called("train", "--store", place) == FAILED
        said = capsys.readouterr().err
        assert "Errno" not in said
        assert "name another" in said


# -- without the extra ----------------------------------------------------------------------------

BLOCKED = """
import runpy, sys
for name in {names!r}:
    sys.modules[name] = None
sys.argv = ["vasso", {word!r}]
runpy.run_module("vasso.lab", run_name="__main__")
"""


def without(*names: str, word: str = "list") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", BLOCKED.format(names=names, word=word)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_without_the_extra_the_command_says_how_to_install_it() -> None:
    from vasso.lab.extra import MODULES

    done = without(*sorted(MODULES))
    assert done.returncode == WRONG
    assert "pip install '.[lab]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_told_without_the_extra() -> None:
    from vasso.lab.extra import MODULES

    done = without(*sorted(MODULES), word="--version")
    assert (done.returncode, done.stdout) == (0, f"vasso {vasso.__version__}\n")


def test_a_module_of_our_own_that_is_missing_is_not_hidden() -> None:
    done = without("vasso.lab.store")
    assert done.returncode == FAILED
    assert "ModuleNotFoundError: import of vasso.lab.store halted" in done.stderr


def test_the_modules_of_the_extra_are_those_of_the_project() -> None:
    from vasso.lab.extra import MODULES

    path = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(path.read_text())["project"]["optional-dependencies"]
    wanted = {re.split(r"[>\[]", line)[0] for line in (*extras["lab"], *extras["demo"])} - {"vasso"}
    imported = {"pillow": "PIL", "scikit-learn": "sklearn", "lightning-fabric": "lightning_fabric"}
    assert {imported.get(name, name) for name in wanted} == MODULES
