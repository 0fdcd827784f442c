"""What cannot be probed is refused before anything is measured, and nothing of it is touched."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import batches, net, nothing_touched
from vasso.lab import cli
from vasso.lab.fitness import fit
from vasso.lab.subject import Amount, Subject, of_function


def subject(loss: Any = cross_entropy, some: list[Any] | None = None) -> Subject:
    return of_function("mine:made", lambda: (net(), loss, some or batches(9)), Amount(9))


def summed(output: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(output, y, reduction="sum")


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (summed, "the loss of 16 samples is the sum of those of its halves: return the mean"),
        (lambda out, y: cross_entropy(out, y) * math.nan, "the loss of a batch is nan"),
        (lambda out, y: cross_entropy(out.detach(), y), "RuntimeError: element 0 of tensors does"),
        (lambda out, y: 1.5, "TypeError: loss_fn gave float 1.5, not a tensor"),
        (lambda out: out.mean(), "TypeError: .* takes 1 positional argument but 2 were given"),
    ],
)
def test_a_loss_of_no_use_is_refused(loss: Callable[..., Any], told: str) -> None:
    odd = subject(loss)
    with nothing_touched(odd.model), pytest.raises(ValueError, match=f"mine-made: .*{told}"):
        fit(odd)


def test_batches_of_no_use_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a batch must be .inputs, targets., got dict"):
        fit(subject(some=[{"x": x, "y": y} for x, y in batches(9)]))


def test_a_mean_passes_whatever_its_size() -> None:
    """Also one that is nearly 0, one of odd size, and one that is the same for every sample."""
    odd_size = [(x[:5], y[:5]) for x, y in batches(9)]
    for loss in (
        cross_entropy,
        lambda out, y: 1e-9 * cross_entropy(out, y),
        lambda out, y: 0 * out.sum(),
    ):
        for some in (batches(9), odd_size, [(x[:1], y[:1]) for x, y in batches(9)]):
            looked_at = subject(loss, some)
            assert fit(looked_at) is looked_at


MINE = """
import torch
from torch import nn
def made():
    x, y = torch.randn(90, 5), torch.randint(3, (90,))
    return nn.Linear(5, 3), nn.CrossEntropyLoss(), list(zip(x.split(10), y.split(10)))
def fails():
    return {}["nothing"]
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["odd_ones:fails"], "odd_ones:fails failed (KeyError: 'nothing'; odd_ones.py, line 8)"),
        (["odd_ones:made", "--rho", "0"], "rho must be above 0 and finite, got 0.0"),
        (["odd_ones:made", "--batches", "0"], "batches must be at least 3, got 0"),
    ],
)
def test_the_command_says_what_is_wrong(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "odd_ones.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit) as end:
        cli.main(["probe", *words])
    assert end.value.code == 2
    assert told in capsys.readouterr().err


def test_weights_that_are_nan_are_refused() -> None:
    model = nn.Linear(64, 10)
    with torch.no_grad():
        model.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="the loss of a batch is nan"):
        fit(of_function("m", lambda: (model, cross_entropy, batches(9)), Amount(9)))
