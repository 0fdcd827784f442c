"""What the command refuses, and how: one sentence with the value it got and a remedy."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import vasso
from tests.lab.calls import called
from tests.records.records import RECORDS
from vasso.lab.cli.errors import FAILED, USAGE_ERROR
from vasso.lab.experiment.run import Run
from vasso.lab.store.json import as_json
from vasso.lab.store.run_directory import FORMAT
from vasso.lab.store.store import Store
from vasso.lab.training.loop import train

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
"""
TINY = "--train-size 100 --batch 50 --epochs 1 --accelerator cpu"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a file and modules of the user's own in it."""
    (tmp_path / "afile").write_text("")
    (tmp_path / "strange.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("strange", None)
    return tmp_path


TRAIN = [
    ("--epochs 0", "epochs must be at least 1, got 0"),
    ("--width 1e300", "width must be above 0 and at most 1000, got 1e+300"),
    ("--set width=1000", "width 1000 of mlp needs 2,"),
    ("--lr 1e39", "lr must be a number that float32 can hold, got 1e+39"),
    ("--lr-end 1e300", "lr_end must be a number that float32 can hold, got 1e+300"),
    ("--rho 1e300", "rho must be a number that float32 can hold, got 1e+300"),
    ("--rho 'linear(1e300, 1, 9)'", "each number must be a number that float32 can hold"),
    ("--devices 100000", "devices must be at most"),
    ("--epoch 3", "--epochs"),
    ("--rho", "run vasso train --help"),
    ("--epochs 0", "Options and examples: vasso train --help"),
    ("--method SMA", "no method is called 'SMA'. Did you mean 'SAM'?"),
    ("--set k", "'k' is not a setting: write name=value"),
    ("--method LookSAM --set k=5 k=6", "k is set twice: k=5 k=6"),
    ("--set k=3", "VaSSO has no setting 'k'"),
    ("--devices 0", "devices must be at least 1, got 0"),
    ("--data nowhere:data", "No module named 'nowhere'"),
    ("--batch 100000", "100000"),
    ("--validation 5000", "5000"),
    ("--train-size 5000", "5000"),
    ("--batch 5000", "--set drop_last=false, or --no-drop-last of `vasso train`"),
    ("--workers -1", "workers must be at least 0, got -1"),
    ("--checkpoint-seconds -1", "checkpoint_seconds must be at least 0, got -1.0"),
    ("--accelerator gpuu", "must be one of 'auto', 'cpu', 'cuda', 'mps', 'tpu', 'gpu', got"),
    ("--strategy foo", "strategy must be one of 'auto', 'ddp', 'fsdp2', got 'foo'"),
    ("--data-root no/data", "'no/data' does not exist: create it (mkdir -p no/data), name"),
    ("--data-root afile", "'afile' is a file: name a directory with --data-root, or leave"),
    ("--accelerator cuda", "this machine has no cuda: give --accelerator cpu"),
    ("--accelerator mps", "this machine has no mps"),
    ("--size 999999", "size must be 1 to 8 pixels, the side of images of digits"),
    ("--size 16", "got 16: they are made smaller, not larger"),
    ("--crop 50", "crop must be below 8, the side of the images, got 50"),
    ("--resized-crop 6", "resized_crop must be at least 8, the side of the images, got 6"),
    ("--resized-crop 1000000", "resized_crop must be at least 0 and at most 4096, got 1e+06"),
    ("--reestimate 1", "reestimate must be 0 or at least 2 images"),
    ("--cutout 50", "cutout must be at most 8, the side of the images, got 50"),
    ("--warm-up 9999 --epochs 2", "warm_up must be below the 20 steps of the run, got 9999"),
    ("--data broken:data", "the module broken cannot be imported (ZeroDivisionError"),
    ("--data strange:no_seed", "strange:no_seed(seed=0) failed (TypeError"),
    ("--data strange:nothing", "nothing(seed=0) returned NoneType, it has to return vasso"),
    ("--data strange:breaks", "KeyError: 'lost'; strange.py, line 8"),
    ("--model strange:no_seed", "strange:no_seed(classes=10, channels=1, size=8, seed=0)"),
    ("--model strange:nothing", "returned NoneType, it has to return a torch.nn.Module"),
    ("--model strange:bare", "strange:bare has no parameters: there is nothing to train"),
    ("--model strange:narrow", "strange:narrow, given images as shape (2, 1, 8, 8), failed"),
    ("--loss strange:mean", "returned shape (): it has to return one loss for each sample"),
    ("--loss strange:one", "strange:one, given outputs and labels as shape (2, 10) and"),
    ("--set rho=0.1 --rho 0.2", "by --rho 0.2 and by --set rho=0.1: leave one out"),
    ("--set epochs=3 --epochs 2", "by --epochs 2 and by --set epochs=3: leave one out"),
]


STUDY = [
    ("label-nose", "no study is called 'label-nose'. Did you mean 'label-noise'?"),
    ("no.toml", "there is no file 'no.toml'"),
    ("radius --scale gpu", "no scale of radius is called 'gpu'"),
    ("radius --jobs 0", "jobs must be at least 1, got 0"),
    ("radius --set epochs=x", "epochs must be a whole number, got 'x'"),
    ("radius --set epoch=3", "no setting 'epoch'. Did you mean 'epochs'?"),
    ("radius --only nothing", "no run of radius has 'nothing' in its id"),
    ("snr --set snr=0", "add snr = 50 (or another number of batches)"),
    ("snr --set snr=2", "snr must be 0 or at least 3 batches"),
    ("sphere --only sam", "no run of sphere has 'sam' in its id"),
    ("noisy-digits --strategy dpp", "Did you mean 'ddp'?"),
]


LIST = [
    ("studys", "no list is called 'studys'. Did you mean 'studies'?"),
    ("studies radios", "Did you mean 'radius'?"),
    ("methods qqqqqq", "'reuse, every k', 'reuse, at random', 'reuse, "),
    ("methods ASM", "no method is called 'ASM'. Did you mean 'SAM'?"),
    ("methods VaSO", "no method is called 'VaSO'. Did you mean 'VaSSO'?"),
    ("data cifar11", "no data is called 'cifar11'. Did you mean 'cifar10'?"),
    ("models resnet9", "no model is called 'resnet9'. Did you mean 'resnet8'?"),
]


PROBE = [
    ("some-run --data-root no/data", "data directory 'no/data' does not exist"),
    (":good", "':good' is incomplete: write module:function"),
    ("strange:few", "the loader gave 2 batches; a probe needs at least 5"),
    ("strange:few_others", "the loader gave 8 batches and `others` gave 1; a probe needs"),
]


DEMO = [
    ("--seeds 1", "seeds must be at least 2"),
    ("--seeds 1001", "seeds must be at least 2 and at most 1000, got 1001"),
    ("--jobs 0", "jobs must be at least 1, got 0"),
    ("--set epoch=3", "Did you mean 'epochs'?"),
]


REFUSED = [
    ("trian", "no command 'trian'. Did you mean 'train'?"),
    *((f"train {words}", message) for words, message in TRAIN),
    *((f"study {words}", message) for words, message in STUDY),
    *((f"list {words}", message) for words, message in LIST),
    *((f"probe {words}", message) for words, message in PROBE),
    *((f"demo {words}", message) for words, message in DEMO),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_is_wrong_is_said_in_a_sentence_before_anything_starts(
    line: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*shlex.split(line)) == USAGE_ERROR
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not list(here.rglob("*.pt"))


@pytest.mark.parametrize("flags", ["--no-drop-last", "--set drop_last=false"])
def test_what_the_refusal_of_a_batch_names_is_taken(here: Path, flags: str) -> None:
    words = f"train --batch 5000 --epochs 1 --train-size 40 --accelerator cpu {flags}"
    assert called(*shlex.split(words)) == 0
    assert len(list(here.glob("runs/*/weights.pt"))) == 1


@pytest.mark.parametrize(
    ("accelerator", "message"), [("gpuu", "got 'gpuu'. Did you mean 'gpu'?"), ("tpu", "has no tpu")]
)
def test_a_wrong_device_is_told_before_a_wrong_store(
    accelerator: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["train"], ["study", "noisy-digits"]):
        assert called(*command, "--accelerator", accelerator, "--store", str(here)) == USAGE_ERROR
        assert message in capsys.readouterr().err


def test_a_model_and_a_loss_are_tried_out_without_a_trace(here: Path) -> None:
    """The loss of torch by another name trains to the same weights, bit for bit."""
    store = Store(here / "runs")
    task = {"train_size": 100, "batch": 50, "epochs": 1, "model": "strange:normed"}
    own = train(Run.of({"task": {**task, "loss": "strange:good"}}), store)
    assert own["last"]["test_loss"] == train(Run.of({"task": task}), store)["last"]["test_loss"]


@pytest.mark.parametrize(
    "line", ["train --store ''", "train --data-root ' '", "report ''", "probe some-run --out ''"]
)
def test_an_empty_path_is_not_the_current_directory(
    here: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*shlex.split(line)) == USAGE_ERROR
    assert "is no path: name one" in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["afile", "broken.py", "strange.py"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("store.json", as_json({"format": FORMAT + 1}), "update vasso"),
        ("store.json", b'{"formau": 1}', "damaged: its digest is not that of its content. Remove"),
        ("letter.txt", b"dear", "holds other things"),
    ],
)
def test_a_newer_store_and_one_that_holds_something_else_are_left_alone(
    name: str, content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert called("train", "--store", str(tmp_path)) == FAILED
    assert message in capsys.readouterr().err


def test_batchnorm_has_no_variance_of_one_sample(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("--batch 1 --train-size 20", "--batch 19 --train-size 20 --no-drop-last"):
        assert called("train", *words.split(), "--epochs", "1", "--accelerator", "cpu") == FAILED
        said = capsys.readouterr().err
        assert "BatchNorm cannot train on a batch of one sample: choose larger batches" in said
        assert "Traceback" not in said


def test_a_file_where_a_directory_should_be(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("train", *TINY.split()) == 0
    capsys.readouterr()
    assert called("export", "runs", "afile") == FAILED
    assert "a file is where a directory should be: choose another path" in capsys.readouterr().err
    for place in ("/proc/foo", "afile/runs"):
        assert called("train", "--store", place) == FAILED
        said = capsys.readouterr().err
        assert "Errno" not in said
        assert "choose another path" in said


BLOCKED = """
import runpy, sys
for name in {names!r}:
    sys.modules[name] = None
sys.argv = ["vasso", *{words!r}]
runpy.run_module("vasso.lab", run_name="__main__")
"""


def without(*names: str, words: Sequence[str] = ("list",)) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, "-c", BLOCKED.format(names=names, words=words)]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def brought() -> list[str]:
    """What the extra `lab` brings, by the names of modules."""
    path = Path(__file__).parents[3] / "pyproject.toml"
    extras = tomllib.loads(path.read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[>\[]", line)[0] for line in (*extras["lab"], *extras["demo"])} - {"vasso"}
    imported = {"pillow": "PIL", "scikit-learn": "sklearn"}
    return sorted(imported.get(name, name.replace("-", "_")) for name in names)


def test_without_the_extra_the_command_says_how_to_install_it() -> None:
    done = without(*brought())
    assert done.returncode == USAGE_ERROR
    assert "pip install '.[lab]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_told_without_the_extra() -> None:
    done = without(*brought(), words=["--version"])
    assert (done.returncode, done.stdout) == (0, f"vasso {vasso.__version__}\n")


def test_a_module_of_our_own_that_is_missing_is_not_hidden() -> None:
    done = without("vasso.lab.store.store", words=["study", "radius", "--dry-run"])
    assert done.returncode == FAILED
    assert "ModuleNotFoundError: import of vasso.lab.store.store halted" in done.stderr


def test_without_plotly_the_sphere_says_how_to_install_it_before_anything_is_written(
    tmp_path: Path,
) -> None:
    page, table = (str(tmp_path / name) for name in ("page.html", "all.json"))
    words = ["report", str(RECORDS / "snr"), "--sphere", "-o", page, "--json", table]
    done = without("plotly", words=words)
    assert done.returncode == USAGE_ERROR
    assert done.stderr.count("\n") == 1
    assert "pip install '.[figures]'" in done.stderr
    assert not list(tmp_path.iterdir())
