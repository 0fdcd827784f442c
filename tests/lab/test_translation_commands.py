"""As a user would: real sentences, the real small model, one command each."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.conftest import needing
from vasso.lab.store import Store
from vasso.lab.translation.corpora import MULTI30K

CHANGED = ("steps=100", "train_size=8000", "warm_up=40", "test_size=200")


def vasso(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vasso.lab", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_trains_and_scores_a_translator_and_a_command_uses_it(tmp_path: Path) -> None:
    """A minute: 100 steps of VaSSO on 8,000 captions, then all 1,000 of the test."""
    where = ["--data-root", needing(MULTI30K), "--accelerator", "cpu"]
    study = ["study", "translation", "--seeds", 0, "--only", "theta-0.9", "--set", *CHANGED]
    done = vasso(*study, *where, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("BLEU", "perplexity", "VaSSO rho=0.1 theta=0.9"))
    (folder,) = Store(tmp_path / "runs").folders()
    assert folder.result is not None
    (row,) = folder.measurement("bleu", {"beam": 5, "length_penalty": 1.0, "sentences": 0})
    assert row["sentences"] == 1000
    assert 0 < row["bleu"] < 100
    assert row["perplexity"] == folder.result["last"]["validation_perplexity"]
    assert row["perplexity"] < 250  # a tenth of the 2,504 of a model that knows nothing
    assert folder.result["cost"] == 200

    nowhere = ["--data-root", tmp_path]  # its vocabulary is beside its weights
    said = vasso("translate", folder.id, "ein mann", "Zwei Hunde.", *nowhere, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("a man")
    assert vasso("translate", folder.id, cwd=tmp_path).returncode == 2
