"""Hooks of the training: the adversary of a step, measured rightly and without a trace."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.lab.runs import CPU, VASSO, assert_same, on_digits, training_of, weights
from vasso.lab.experiment.run import Run
from vasso.lab.store.store import Store
from vasso.lab.training.loop import train
from vasso.lab.training.state import Training


def at_the_last_step(run: Run) -> Training:
    training = training_of(run)
    while training.step < training.per_epoch - 1:
        training.take_step()
    return training


def test_rises_are_those_of_the_step_by_hand() -> None:
    """SAM's adversary written out: epsilon = rho g / ||g||, losses by the batch's statistics.

    To single precision: Fabric rounds what a model returns, and so its gradients.
    """
    training = at_the_last_step(
        on_digits({"name": "SAM", "rho": 0.2}, others=2, precision="64-true")
    )
    model = deepcopy(training.bare)
    batch = training.batches.at(training.step)
    others = [training.batches.at(i) for i in range(2)]
    training.take_step()

    w = list(model.parameters())
    g = torch.autograd.grad(cross_entropy(model(batch[0]), batch[1]), w)
    length = torch.cat([x.flatten() for x in g]).norm()

    def losses() -> list[float]:
        with torch.no_grad():
            return [float(cross_entropy(model(x), y)) for x, y, _ in (batch, *others)]

    before = losses()
    with torch.no_grad():
        for p, x in zip(w, g, strict=True):
            p += 0.2 * x / length
    rises = [after - b for after, b in zip(losses(), before, strict=True)]
    seen = training.adversary
    assert seen is not None
    assert seen["own"] == pytest.approx(rises[0], abs=1e-7)
    assert seen["others"] == pytest.approx(rises[1:], abs=1e-7)
    assert seen["cos_dg"] == pytest.approx(1.0)


def test_the_rise_of_an_epoch_is_the_mean_over_its_steps() -> None:
    training = at_the_last_step(on_digits({"name": "SAM", "rho": 0.2}, precision="64-true"))
    counted = training.sums.rise.clone()
    training.take_step()
    last = training.optimizer.last
    assert training.sums.rises == training.per_epoch == 4
    assert float(training.sums.rise - counted) == pytest.approx(
        float(last.perturbed_loss - last.loss), abs=1e-12
    )
    line = training.end_epoch()
    assert line["rise"] == pytest.approx(
        (float(counted) + float(last.perturbed_loss - last.loss)) / 4
    )
    assert "adversary" not in line
    assert training.sums.rises == 0


@pytest.mark.parametrize(
    ("name", "value", "method"),
    [
        *(("others", 2, method) for method in (VASSO, {"name": "SGD"}, {"name": "LookSAM"})),
        *(("snr", 4, method) for method in (VASSO, {"name": "SGD"})),
    ],
)
def test_looks_change_no_bit(name: str, value: int, method: dict[str, Any], tmp_path: Path) -> None:
    store, runs = Store(tmp_path), [on_digits(method, **{name: number}) for number in (0, value)]
    for run in runs:
        train(run, store, CPU)
    assert_same(*(weights(store, run) for run in runs))


def test_lines_tell_what_was_seen(tmp_path: Path) -> None:
    run, store = on_digits(VASSO, others=9), Store(tmp_path)
    train(run, store, CPU)
    lines = [x for x in store.folder(run.id).metrics() if x["kind"] == "epoch"]
    assert [len(x["adversary"]["others"]) for x in lines] == [2, 2]  # half an epoch at most
    assert all(0 < x["adversary"]["cos_dg"] < 1 for x in lines)
