"""Running statistics move in the passes they are told to move in, and in no other."""

import copy
import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests import faults
from tests.faults import WAYS, Way, assert_same, batches, net, statistics, take_step
from tests.support import problems
from tests.support.problems import closure_of
from vasso import SAM, VaSSO

Mode = Literal["clean", "both", "perturbed"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["clean", "both"])
def test_the_mode_says_which_passes_move_the_statistics(mode: Mode, way: Way) -> None:
    faults.check_batchnorm(mode, way)


def test_perturbed_moves_the_statistics_in_the_second_pass_alone() -> None:
    faults.check_batchnorm("perturbed", "closure")


@pytest.mark.parametrize(
    ("mode", "way", "passes"),
    [
        *(("clean", way, 1) for way in WAYS),
        ("both", "closure", 1),
        ("perturbed", "closure", 1),
        ("both", "ascended, body always run", 2),
    ],
)
def test_a_step_without_a_climb_moves_statistics_once(mode: Mode, way: Way, passes: int) -> None:
    model, twin, (batch,) = net(), net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.0), rho=0.0, model=model, batchnorm=mode)
    take_step(opt, model, batch, way)
    for _ in range(passes):
        twin(batch[0])
    assert_same(statistics(model), statistics(twin))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("layer", [nn.BatchNorm1d, nn.SyncBatchNorm, nn.InstanceNorm1d])
def test_every_layer_that_keeps_statistics_is_held_still(layer: Any, momentum: Any) -> None:
    norm = layer(4, momentum=momentum or 0.1, affine=True, track_running_stats=True)
    if momentum is None:
        norm.momentum = None if layer is nn.BatchNorm1d else 0.3
    model = nn.Sequential(nn.Conv1d(2, 4, 1), norm)
    model.get_submodule("1").train(layer is not nn.SyncBatchNorm)  # which trains on GPUs only
    twin = copy.deepcopy(model)
    x = torch.randn(8, 2, 5, generator=torch.Generator().manual_seed(0))
    opt = SAM(SGD(model.parameters(), lr=0.1), rho=1.0, model=model)
    closure = closure_of(opt, lambda: model(x).square().mean())
    opt.step(closure)
    twin(x)
    assert_same(statistics(model), statistics(twin))


def test_statistics_that_were_replaced_are_found_again() -> None:
    model, twin = net(), net()
    opt = SAM(SGD(model.parameters(), lr=0.0), model=model)
    model.norm.running_mean = model.norm.running_mean.clone()  # as `model.to` may do
    (batch,) = batches(1)
    take_step(opt, model, batch)
    twin(batch[0])
    assert_same(statistics(model), statistics(twin))


def poisoned(batch: faults.Batch) -> faults.Batch:
    x, y = batch
    return torch.where(torch.arange(6) == 0, math.nan, x), y


@pytest.mark.parametrize(
    ("mode", "way"),
    [
        *((mode, "closure") for mode in ("clean", "both", "perturbed")),
        ("clean", "ascended"),
        ("both", "ascended"),
        ("clean", "ascended, body always run"),
    ],
)
def test_statistics_that_are_not_finite_are_forgotten_with_the_step(mode: Mode, way: Way) -> None:
    model = net()
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model, batchnorm=mode)
    first, second = batches(2)
    take_step(opt, model, first, way)
    before, passes = statistics(model), iter((poisoned(second), second))
    problems.take_step(opt, lambda: faults.loss_of(model, next(passes)), way)
    assert_same(statistics(model), before)


@pytest.mark.parametrize("mode", ["clean", "both", "perturbed"])
def test_a_second_pass_that_is_not_finite_leaves_what_the_pass_at_w_gave(mode: Mode) -> None:
    model, twin, (batch,) = net(), net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model, batchnorm=mode)
    closure = closure_of(
        opt, lambda: faults.loss_of(model, poisoned(batch) if opt.perturbed else batch)
    )
    opt.step(closure)
    twin(batch[0])
    assert opt.skipped == 1
    assert_same(statistics(model), statistics(twin))


def test_a_closure_that_raises_on_a_nan_leaves_no_nan_in_the_statistics() -> None:
    model, (batch,) = net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model)
    before = statistics(model)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = faults.loss_of(model, poisoned(batch))
        if loss.isnan():
            raise faults.MishapError
        return loss

    with pytest.raises(faults.MishapError):
        opt.step(closure)
    assert_same(statistics(model), before)


@pytest.mark.parametrize("both", [True, False], ids=["both", "model alone"])
def test_statistics_loaded_after_the_optimizer_was_made_are_those_that_return(both: bool) -> None:
    model, (batch,) = net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model)
    trained = net()
    trained(batch[0])
    model.load_state_dict(trained.state_dict())
    if both:
        opt.load_state_dict(opt.state_dict())
    faults.closure_of(opt, model, poisoned(batch))()
    with opt.ascended():
        pass
    opt.step()
    assert_same(statistics(model), statistics(trained))


@pytest.mark.parametrize("way", WAYS)
def test_without_a_model_the_first_step_warns_once_and_names_the_remedy(way: Way) -> None:
    model, (first, second) = net(), batches(2)
    opt = VaSSO(SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=r"BatchNorm1d.*VaSSO\(base, model=model\)"):
        take_step(opt, model, first, way)
    take_step(opt, model, second, way)


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_the_warning_points_to_the_callers_line(way: Way) -> None:
    model, (batch,) = net(), batches(1)
    opt = VaSSO(SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match="model=") as caught:
        take_step(opt, model, batch, way)
    assert caught[0].filename == problems.__file__


@pytest.mark.parametrize("way", WAYS)
def test_there_is_nothing_to_warn_of_where_statistics_do_not_move(way: Way) -> None:
    batch = batches(1)[0]
    quiet = [net().eval(), nn.Linear(6, 3).double(), nn.Sequential(nn.LayerNorm(6)).double()]
    frozen = net()
    frozen.norm = nn.BatchNorm1d(8, track_running_stats=False).double()
    other = net()  # whose BatchNorm is none of our business
    for model in (*quiet, frozen):
        opt = VaSSO(SGD(model.parameters(), lr=0.1))
        take_step(opt, model, batch, way)
    assert other.norm.training
