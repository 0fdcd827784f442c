"""Counters of steps, costs and batches, and what the last step tells."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

from tests.contract.marks import Preset, each_preset, each_way
from tests.contract.training import BATCH, OPTIMIZERS, PRESETS, CatalogueRun
from tests.support.compare import assert_near, flat, records_of
from tests.support.problems import Way, closure_of, mlp, take_step, train
from vasso import VaSSO


@each_way
@each_preset
def test_the_step_counter_counts_steps(preset: Preset, way: Way) -> None:
    task = mlp()
    opt = preset(SGD(task.params(), lr=0.1))
    records = records_of(opt)
    train(task, opt, steps=3, way=way)
    train(task, opt, steps=1, way="plain")
    train(task, opt, steps=1, way=way)
    assert [record.step for record in records] == [0, 1, 2, 4]


@each_preset
def test_a_step_tells_its_losses_without_their_graphs(preset: Preset) -> None:
    task, seen = mlp(), []
    opt = preset(SGD(task.params(), lr=0.1))
    returned = opt.step(closure_of(opt, lambda: seen.append(task.loss(0)) or seen[-1]))
    result = torch.stack([opt.last.loss, opt.last.perturbed_loss])
    assert (result.tolist(), result.requires_grad) == ([loss.item() for loss in seen], False)
    assert (returned.item(), returned.requires_grad) == (seen[0].item(), False)


@each_way
def test_metrics_are_numbers_for_a_logger(way: Way) -> None:
    w, v = (torch.tensor([x], requires_grad=True) for x in (3.0, 4.0))
    groups = [{"params": [w]}, {"params": [v], "theta": 0.25}]
    opt = VaSSO(SGD(groups, lr=0.1), rho=0.5, theta=0.5)
    take_step(opt, lambda: (w.square() + v.square()).sum() / 2, way)
    found = {"rho": 0.5, "theta/0": 0.5, "theta/1": 0.25, "g_norm": 5.0, "d_norm": 5.0}
    found |= {"h_norm": 5.5, "climbed": 1.0, "skipped": 0.0, "cost": 2.0}
    if way == "closure":
        found |= {"loss": 12.5, "perturbed_loss": 15.125, "rise": 2.625}
    assert opt.metrics() == pytest.approx(found)
    assert {type(value) for value in opt.metrics().values()} == {float}
    assert opt.last.loss_at == ("w" if way == "closure" else "not seen, in your loop")


@pytest.mark.parametrize("name", PRESETS)
def test_a_cosine_from_norms_is_that_of_the_vectors(name: str) -> None:
    run = CatalogueRun(name)
    records = records_of(run.opt)
    run.train(3)
    run.opt.load_state_dict(run.opt.state_dict())  # the slope is another tensor now
    run.train(3)
    recorded = [r for r in records if r.summary.cosine is not None]
    found = [cosine_similarity(flat(r.d), flat(r.g), dim=0) for r in recorded]
    assert_near([r.summary.cosine for r in recorded], found, rtol=0, atol=1e-5)  # float32
    assert len(recorded) == {"SAM": 6, "VaSSO": 4}.get(name, len(recorded))


class Operations(TorchDispatchMode):
    """Notes the tensor operations of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(call))
        return call(*args, **(kwargs or {}))


def test_the_cosine_is_computed_for_those_who_ask() -> None:
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    opt = VaSSO(SGD([w], lr=0.1), rho=0.5)
    for _ in range(2):
        with Operations() as step:
            take_step(opt, lambda: (w * w).sum(), "ascended")
    with Operations() as asked:
        assert opt.last.cosine is not None
    assert "aten.pow.Tensor_Scalar" in asked.names - step.names


@pytest.mark.parametrize("theta", [0.05, 0.4, 0.999])
def test_a_slope_that_was_changed_has_no_cosine_in_the_next_step(theta: float) -> None:
    task = mlp()
    opt = VaSSO(SGD(task.params(), lr=0.1), theta=theta)
    train(task, opt, steps=2)
    assert "cosine" in opt.metrics()
    opt._vectors[task.params()[0]]["d"].mul_(2)  # as a mean over ranks or micro-batches does
    train(task, opt, steps=1)
    assert "cosine" not in opt.metrics()


@each_preset
def test_a_step_that_does_not_climb_tells_no_loss_at_the_adversary(preset: Preset) -> None:
    task = mlp()
    opt = preset(SGD(task.params(), lr=0.1), rho=0.0)
    take_step(opt, partial(task.loss, 0))
    assert (opt.last.perturbed_loss, opt.last.h_norm, opt.last.climbed) == (None, None, False)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_batchnorm_counts_one_batch_for_each_step(name: str) -> None:
    """Or one for each chunk, where every chunk has a first pass of its own."""
    run = CatalogueRun(name).train(5)
    m = getattr(getattr(run.opt, "plan", None), "m", BATCH)
    chunks = 1 if name == "m-SAM (subsample)" else math.ceil(BATCH / m)
    assert run.model[1].num_batches_tracked == 5 * chunks
