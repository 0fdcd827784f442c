"""Looking at adversaries: right, and without a trace."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from vasso.lab.how import How
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.train import train
from vasso.lab.training import Training

CPU = How(accelerator="cpu", checkpoint_seconds=1e9)
VASSO = {"name": "VaSSO", "rho": 0.2, "theta": 0.4}


def a_run(method: dict[str, Any], **task: Any) -> Run:
    small = {"train_size": 200, "validation": 50, "batch": 50, "epochs": 2}
    return Run.of({"task": {**small, **task}, "method": method, "seed": 3})


def at_the_last_step(run: Run) -> Training:
    training = Training(run, CPU, CPU.fabric(run.task.precision))
    while training.step < training.per_epoch - 1:
        training.take_step()
    return training


def test_rises_are_those_of_the_step_by_hand() -> None:
    """SAM's adversary written out: epsilon = rho g / ||g||, losses by the batch's statistics.

    To single precision: Fabric rounds what a model returns, and so its gradients.
    """
    training = at_the_last_step(a_run({"name": "SAM", "rho": 0.2}, others=2, precision="64-true"))
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
    training = at_the_last_step(a_run({"name": "SAM", "rho": 0.2}, precision="64-true"))
    counted = training.sums.rise.clone()
    training.take_step()
    last = training.optimizer.last
    assert training.sums.climbs == training.per_epoch == 4
    assert float(training.sums.rise - counted) == pytest.approx(
        float(last.perturbed_loss - last.loss), abs=1e-12
    )
    line = training.end_epoch()
    assert line["rise"] == pytest.approx(
        (float(counted) + float(last.perturbed_loss - last.loss)) / 4
    )
    assert "adversary" not in line
    assert training.sums.climbs == 0


@pytest.mark.parametrize("method", [VASSO, {"name": "SGD"}, {"name": "LookSAM", "rho": 0.1}])
def test_looking_changes_no_bit(tmp_path: Path, method: dict[str, Any]) -> None:
    ends = []
    for others in (0, 2):
        run, store = a_run(method, others=others), Store(tmp_path / str(others))
        train(run, store, CPU)
        ends.append(store.folder(run.id).load("weights.pt")["model"])  # type: ignore[index]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_lines_tell_what_was_seen(tmp_path: Path) -> None:
    run, store = a_run(VASSO, others=9), Store(tmp_path)
    train(run, store, CPU)
    lines = [x for x in store.folder(run.id).metrics() if x["kind"] == "epoch"]
    assert [len(x["adversary"]["others"]) for x in lines] == [2, 2]  # half an epoch at most
    assert all(0 < x["adversary"]["cos_dg"] < 1 for x in lines)


def test_others_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="others"):
        a_run(VASSO, others=-1)
