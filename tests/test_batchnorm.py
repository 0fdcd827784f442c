"""Running statistics move in the passes they are told to move in, and in no other."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests import faults
from tests.faults import WAYS, Way, assert_same, batches, net, statistics, take_step
from vasso import SAM, VaSSO

Mode = Literal["clean", "both", "perturbed"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["clean", "both"])
def test_the_mode_says_which_passes_move_the_statistics(mode: Mode, way: Way) -> None:
    faults.check_batchnorm(mode, way)


def test_perturbed_moves_the_statistics_in_the_second_pass_alone() -> None:
    faults.check_batchnorm("perturbed", "closure")


@pytest.mark.parametrize("way", WAYS)
def test_clean_statistics_are_those_of_a_training_without_second_passes(way: Way) -> None:
    model, twin = net(), net()
    opt = VaSSO(SGD(model.parameters(), lr=0.0), rho=0.5, model=model)
    for batch in batches(4):
        take_step(opt, model, batch, way)
        twin(batch[0])
    assert_same(statistics(model), statistics(twin))


@pytest.mark.parametrize(("mode", "count"), [("clean", 3), ("perturbed", 3), ("both", 6)])
def test_batches_are_counted_with_the_passes_that_count(mode: Mode, count: int) -> None:
    model = net()
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model, batchnorm=mode)
    for batch in batches(3):
        take_step(opt, model, batch)
    assert model.norm.num_batches_tracked.item() == count


@pytest.mark.parametrize("mode", ["clean", "both", "perturbed"])
def test_a_step_that_does_not_climb_has_one_pass_and_it_counts(mode: Mode) -> None:
    model, twin, (batch,) = net(), net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.0), rho=0.0, model=model, batchnorm=mode)
    take_step(opt, model, batch)
    twin(batch[0])
    assert_same(statistics(model), statistics(twin))


@pytest.mark.parametrize("mode", ["clean", "both"])
def test_a_body_that_runs_although_the_step_does_not_climb_counts_as_a_second_pass(
    mode: Mode,
) -> None:
    model, twin, (batch,) = net(), net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.0), rho=0.0, model=model, batchnorm=mode)
    take_step(opt, model, batch, "ascended, body always run")
    for _ in range(1 if mode == "clean" else 2):
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

    def closure() -> Tensor:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

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


# -- statistics that are not finite ---------------------------------------------------------------


def poisoned(batch: faults.Batch) -> faults.Batch:
    """A batch with a NaN in it, which reaches the statistics."""
    x, y = batch
    return torch.where(torch.arange(6) == 0, math.nan, x), y


@pytest.mark.parametrize("mode", ["clean", "both", "perturbed"])
def test_statistics_that_are_not_finite_are_forgotten_with_the_step(mode: Mode) -> None:
    model = net()
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model, batchnorm=mode)
    first, second = batches(2)
    take_step(opt, model, first)
    before = statistics(model)
    take_step(opt, model, poisoned(second))
    assert_same(statistics(model), before)


@pytest.mark.parametrize(
    ("mode", "way"),
    [("clean", "ascended"), ("both", "ascended"), ("clean", "ascended, body always run")],
)
def test_so_they_are_in_a_loop_of_the_callers_own(mode: Mode, way: Way) -> None:
    model = net()
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model, batchnorm=mode)
    first, second = batches(2)
    take_step(opt, model, first, way)
    before = statistics(model)
    closure = faults.closure_of(opt, model, poisoned(second))
    closure()
    with opt.ascended() as up:
        if up or way != "ascended":
            faults.loss_of(model, second).backward()
    opt.step()
    assert_same(statistics(model), before)


@pytest.mark.parametrize("mode", ["clean", "both", "perturbed"])
def test_a_second_pass_that_is_not_finite_leaves_what_the_pass_at_w_gave(mode: Mode) -> None:
    model, twin, (batch,) = net(), net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model, batchnorm=mode)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = faults.loss_of(model, poisoned(batch) if opt.perturbed else batch)
        loss.backward()
        return loss

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


def test_statistics_loaded_after_the_optimizer_was_made_are_those_that_return() -> None:
    model, (batch,) = net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model)
    trained = net()
    trained(batch[0])
    model.load_state_dict(trained.state_dict())
    opt.load_state_dict(opt.state_dict())
    faults.closure_of(opt, model, poisoned(batch))()
    with opt.ascended():
        pass
    opt.step()
    assert_same(statistics(model), statistics(trained))


# -- without model= -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_without_a_model_the_first_step_warns_once_and_names_the_remedy(way: Way) -> None:
    model, (first, second) = net(), batches(2)
    opt = VaSSO(SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=r"BatchNorm1d.*VaSSO\(base, model=model\)"):
        take_step(opt, model, first, way)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_step(opt, model, second, way)


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_the_warning_points_to_the_callers_line(way: Way) -> None:
    model, (batch,) = net(), batches(1)
    opt = VaSSO(SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match="model=") as caught:
        take_step(opt, model, batch, way)
    assert caught[0].filename == faults.__file__


@pytest.mark.parametrize("way", WAYS)
def test_there_is_nothing_to_warn_of_where_statistics_do_not_move(way: Way) -> None:
    batch = batches(1)[0]
    quiet = [net().eval(), nn.Linear(6, 3).double(), nn.Sequential(nn.LayerNorm(6)).double()]
    frozen = net()
    frozen.norm = nn.BatchNorm1d(8, track_running_stats=False).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (*quiet, frozen):
            opt = VaSSO(SGD(model.parameters(), lr=0.1))
            take_step(opt, model, batch, way)


def test_batchnorm_of_another_model_is_none_of_our_business() -> None:
    other, model = net(), nn.Linear(6, 3).double()
    opt = VaSSO(SGD(model.parameters(), lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_step(opt, model, batches(1)[0])
    assert other.norm.training
