"""What the command refuses, and how: the value it got, the place, and a remedy that works there."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.calls import called
from tests.lab.records import RECORDS

WRONG = 2
HIDDEN = """
import sys
sys.modules["plotly"] = None
from vasso.lab.cli import main
main({words!r})
"""


def test_without_plotly_the_sphere_says_how_to_install_it_before_anything_is_written(
    tmp_path: Path,
) -> None:
    page, table = (str(tmp_path / name) for name in ("page.html", "all.json"))
    words = ["report", str(RECORDS / "snr"), "--sphere", "-o", page, "--json", table]
    script = [sys.executable, "-c", HIDDEN.format(words=words)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == WRONG
    assert done.stderr.count("\n") == 1
    assert "pip install '.[figures]'" in done.stderr
    assert not Path(page).exists()
    assert not Path(table).exists()


REFUSED = [
    ("train --batch 5000", "--set drop_last=false, or --no-drop-last of `vasso train`"),
    ("train --devices 0", "devices must be at least 1, got 0"),
    ("train --workers -1", "workers must be at least 0, got -1"),
    ("train --checkpoint-seconds -1", "checkpoint_seconds must be at least 0, got -1.0"),
    ("train --accelerator gpuu", "must be one of 'auto', 'cpu', 'cuda', 'mps', 'tpu', 'gpu', got"),
    ("train --accelerator gpuu", "got 'gpuu'. Did you mean 'gpu'?"),
    ("train --strategy foo", "strategy must be one of 'auto', 'ddp', 'fsdp2', got 'foo'"),
    ("train --strategy fsdp3", "Did you mean 'fsdp2'?"),
    ("study noisy-digits --strategy dpp", "Did you mean 'ddp'?"),
    ("train --data-root no/data", "'no/data': it is not there; make it (mkdir -p no/data), name"),
    ("train --data-root afile", "'afile': it is a file; name a directory by --data-root, or leave"),
    ("probe some-run --data-root no/data", "there is no data folder 'no/data'"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a file in it."""
    (tmp_path / "afile").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_settings_are_refused_with_what_is_allowed(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*shlex.split(line)) == WRONG
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flags", ["--no-drop-last", "--set drop_last=false"])
def test_what_the_refusal_of_a_batch_names_is_taken(here: Path, flags: str) -> None:
    words = f"train --batch 5000 --epochs 1 --train-size 40 --accelerator cpu {flags}"
    assert called(*shlex.split(words)) == 0
    assert len(list(here.glob("runs/*/weights.pt"))) == 1


@pytest.mark.parametrize(
    "line", ["train --store ''", "train --data-root ' '", "report ''", "probe some-run --out ''"]
)
def test_an_empty_path_is_not_the_current_directory(
    here: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*shlex.split(line)) == WRONG
    assert "is no path: name one" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["afile"]
