"""Advice: an answer only where the interval allows one, a line to paste that works, no trace."""

import math
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import batches, net, nothing_touched
from tests.lab.calls import called
from tests.records.records import RECORDS
from vasso import VaSSO
from vasso.diagnostics.adversary.equal_effect import EqualEffect
from vasso.diagnostics.estimates import Estimate
from vasso.lab.probe import advice
from vasso.lab.probe.advice import about_noise, about_rho, advise, more_batches, starting_rho
from vasso.lab.probe.target import Amount, Subject, of_function
from vasso.lab.report.read import read_store

MINE = """
import torch
from torch import nn
from torch.nn.functional import mse_loss
from tests.diagnostics.nets import batches, net
from tests.lab.probe.test_advice import heavy

def usual():
    return net(), nn.CrossEntropyLoss(), batches(40)

def too_noisy():
    return nn.Linear(4, 1), mse_loss, heavy(24)
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "SECONDS", 0.0)


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, low, high, 0.95, 8)


def heavy(count: int) -> list[Any]:
    """Batches of which a few have nearly all of the gradient."""
    generator = torch.Generator().manual_seed(0)
    scales = (3 * torch.randn(count, 1, 1, generator=generator)).exp()
    x = torch.randn(count, 4, 4, generator=generator) * scales
    return [(inputs, torch.randn(4, 1, generator=generator)) for inputs in x]


def subject(model: nn.Module, given: list[Any]) -> Subject:
    amount = Amount(len(given) - 2, others=2)
    return of_function("mine", lambda: (model, cross_entropy, given), amount)


@pytest.mark.parametrize(
    ("low", "high", "more"),
    [
        (1.0, 10.0, 0),
        (1.0, 100.0, 300),  # twice as wide, so four times as many
        (0.0, 1.0, 300),
        (1.0, math.inf, 300),
        (math.nan, math.nan, 300),
    ],
)
def test_an_interval_of_a_factor_above_ten_asks_for_more(
    low: float, high: float, more: int
) -> None:
    assert more_batches(estimate(1.0, low, high), 100) == more


@pytest.mark.parametrize(
    ("snr", "says", "more"),
    [
        ((0.03, 0.001, 0.06), "enough: ", 0),
        ((30.0, 11.0, 80.0), "too little: ", 0),
        ((2.0, 0.9, 4.0), "some: ", 0),
        (
            (2.0, -1.0, 4.0),
            "cannot tell yet: signal / noise of a batch gradient is 2 [-1, 4]; giv",
            288,
        ),
    ],
)
def test_noise_is_enough_where_all_of_the_interval_says_so(
    snr: tuple[float, float, float], says: str, more: int
) -> None:
    answer = about_noise(estimate(*snr), 96)
    assert answer.text.startswith(says)
    assert answer.more == more


def test_a_rho_of_which_nothing_is_known_is_no_answer() -> None:
    rise = estimate(0.02, 0.01, 0.03)
    wide = EqualEffect("own", 0.4, 0.05, rise, estimate(0.0287, 2.6e-6, 320.0))
    answer = about_rho(wide, 96, chosen=False)
    assert answer.text.startswith("cannot tell yet: SAM with rho 0.05 (as given)")
    assert answer.more == math.ceil(96 * (math.log10(320 / 2.6e-6) ** 2 - 1))
    assert answer.text.endswith(f"give it {answer.more} more batches.")
    none = EqualEffect("own", 0.4, 0.05, rise, estimate(math.nan, 0.0, math.inf))
    assert about_rho(none, 96, chosen=False).more == 288


def test_advice_on_a_small_problem_can_be_pasted_and_leaves_no_trace() -> None:
    model = net()
    with nothing_touched(model):
        found = advise(subject(model, batches(42)), rho=0.1)
    assert found.more == 0
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    made = eval(found.code, {"VaSSO": VaSSO, "base": base, "model": model})
    chosen = {s.name: made.param_groups[0][s.key] for s in made.settings}
    assert found.code == f"VaSSO(base, rho={chosen['rho']:.2g}, theta=0.4, model=model)"
    assert 0.05 < chosen["rho"] < 0.4
    names = {cost.name: cost for cost in found.costs}
    assert {name: cost.gradients for name, cost in names.items()} == {
        "SGD": 1,
        "SAM": 2,
        "VaSSO": 2,
        "VaSSO, half batches": 1,
    }
    assert names["VaSSO, half batches"].memory < names["VaSSO"].memory
    assert names["SGD"].memory < names["SAM"].memory < names["VaSSO"].memory
    assert all(cost.seconds > 0 for cost in found.costs)


def test_without_noise_the_advice_is_sam() -> None:
    found = advise(subject(nn.Linear(64, 10), batches(1) * 42), rho=0.1)
    assert found.noise.text.startswith("too little: ")
    assert found.code == "SAM(base, rho=0.1, model=model)"


def test_the_first_rho_grows_until_the_loss_rises() -> None:
    model = net()
    small = starting_rho(subject(model, batches(42)), rho=1e-4)
    assert 1e-4 < small == starting_rho(subject(model, batches(42)), rho=small)
    assert starting_rho(subject(model, batches(42)), rho=1e4) < 1e4


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "advised.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "advised", raising=False)


@pytest.mark.usefixtures("mine")
def test_the_command_ends_with_the_line_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("advise", "advised:usual", "--batches", "38", "--rho", "0.1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("opt = VaSSO(base, rho=0.")
    assert [line.split()[0] for line in lines if line[:1] > " "][:3] == ["noise", "rho", "a"]
    assert max(map(len, lines)) <= 100


@pytest.mark.usefixtures("mine")
def test_of_too_noisy_a_problem_it_asks_for_more_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert called("advise", "advised:too_noisy", "--batches", "22", "--rho", "0.1") == 0
    output = capsys.readouterr().out
    assert "cannot tell yet: " in output
    assert "opt = " not in output
    last = output.splitlines()[-1].split()
    assert last[:4] == ["vasso", "advise", "advised:too_noisy", "--batches"]
    assert int(last[4]) > 22
    assert last[5:] == ["--rho", "0.1"]


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batches", "10"], "theta 0.4 needs at least 17 batches and there are 10"),
        (["--theta", "1"], "theta must be above 0 and below 1, got 1.0: 1 is SAM"),
        (["--base", "Adam"], "no base is called 'Adam'. Did you mean 'AdamW'?"),
    ],
)
def test_what_cannot_be_advised_is_said(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("advise", "advised:usual", *words) == 2
    assert message in capsys.readouterr().err


def test_the_rises_it_starts_from_are_those_of_the_best_rho_in_the_records() -> None:
    """By validation, for each task of the records on the radius of SAM."""
    for name in ("noisy-digits-radius", "radius", "radius-mlp"):
        cells: dict[Any, dict[str, list[tuple[float, float]]]] = {}
        for trained in read_store(RECORDS / name).runs.values():
            if trained.result is None or trained.run.method.name != "SAM":
                continue
            first, best = trained.epochs[0], trained.result["best"]
            pair = best["validation_accuracy"], first["rise"] / first["train_loss"]
            cell = cells.setdefault(trained.run.task, {})
            cell.setdefault(trained.run.method.label, []).append(pair)
        for cell in cells.values():
            best = max(cell.values(), key=lambda pairs: fmean(accuracy for accuracy, _ in pairs))
            assert advice.LEAST_RISE < fmean(share for _, share in best) < advice.MOST_RISE
