"""Param groups: whose they are, whose settings win, groups that come later, schedules."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from tests.contract.marks import RHO, Preset, each_preset, each_way, vector
from tests.support.compare import assert_near, assert_same, digits, flat, records_of
from tests.support.problems import Way, by_hand, mlp, parameter, take_step, train
from vasso import ASAM, SAM, VaSSO


def test_a_schedule_a_user_gave_a_group_wins() -> None:
    x, y = parameter(1.0), parameter(1.0)
    base = SGD([{"params": [x], "rho": lambda step, lr: step + lr}, {"params": [y]}], lr=0.25)
    opt = VaSSO(base, rho=0.5)
    seen = []
    for _ in range(3):
        by_hand(opt, [vector(1), vector(1)])
        seen.append([group["rho"] for group in opt.param_groups])
    assert seen == [[0.25, 0.5], [1.25, 0.5], [2.25, 0.5]]


@each_preset
def test_a_base_with_a_rho_of_its_own_keeps_it(preset: Preset) -> None:
    x = parameter(1.0, 2.0)
    opt = preset(torch.optim.Adadelta([x], rho=0.9), rho=0.5)
    records = records_of(opt)
    by_hand(opt, [vector(3, 4)])
    group, radius = opt.param_groups[0], (records[0].epsilon or [])[0].norm().item()
    assert (group["rho"], group["vasso_rho"], radius) == (0.9, 0.5, pytest.approx(0.5, rel=1e-14))


@pytest.mark.parametrize("base", [SGD, AdamW])
@each_preset
def test_a_schedule_gets_the_number_of_an_lr_that_is_a_tensor(preset: Preset, base: Any) -> None:
    def run(rho: Any) -> Tensor:
        task, lr = mlp(), torch.tensor(0.125)
        opt = preset(base(task.params(), lr=lr), rho=rho)
        path = train(task, opt)
        assert (opt.param_groups[0]["lr"] is lr, lr.item()) == (True, 0.125)
        return path

    assert_same(run(lambda step, lr: 4 * lr), run(0.5))


@each_way
@each_preset
def test_nothing_climbs_where_all_gradients_are_scheduled_at_zero(preset: Preset, way: Way) -> None:
    """The group that could be climbed has no gradient in this step."""
    x, y = parameter(1.0), parameter(1.0)
    groups = [{"params": [x], "rho": lambda step, lr: 0.0}, {"params": [y], "rho": RHO}]
    opt = preset(SGD(groups, lr=0.5))
    take_step(opt, lambda: 0.5 * x.square().sum(), way)
    assert (x.tolist(), y.tolist()) == ([0.5], [1.0])


@each_way
@pytest.mark.parametrize("restore", ["copy", "recompute"])
def test_where_the_base_maximizes_the_adversary_makes_small(way: Way, restore: Any) -> None:
    """x is made small and y large, both from 3 and 4 in a sum of squares: length 5."""
    x, y = parameter(3.0), parameter(4.0)
    groups = [{"params": [x]}, {"params": [y], "maximize": True}]
    opt = SAM(SGD(groups, lr=0.25), rho=0.5, restore=restore)
    records = records_of(opt)
    take_step(opt, lambda: (x.square() + y.square()).sum(), way)
    (epsilon,) = (record.epsilon for record in records)
    assert_near(torch.cat(epsilon), vector(0.5 * 3 / 5, -0.5 * 4 / 5), 1e-12)
    assert_near(x.detach(), vector(3.0 - 0.25 * 2 * 3.3), 1e-12)
    assert_near(y.detach(), vector(4.0 + 0.25 * 2 * 3.6), 1e-12)


def two_groups() -> tuple[Tensor, Tensor, VaSSO]:
    """The radius of x counts steps, that of y is a number."""
    x, y = parameter(1.0), parameter(1.0)
    groups = [{"params": [x], "rho": lambda step, lr: 1.0 + step}, {"params": [y], "rho": 0.5}]
    return x, y, VaSSO(SGD(groups, lr=0.25))


@pytest.mark.parametrize("again", [lambda opt: opt, copy.deepcopy], ids=["same", "copy"])
def test_a_schedule_goes_with_its_group_to_another_place(again: Any) -> None:
    opt = again(two_groups()[2])
    by_hand(opt, [vector(1), vector(1)])
    opt.param_groups.reverse()
    by_hand(opt, [vector(1), vector(1)])
    assert [group["rho"] for group in opt.param_groups] == [0.5, 2.0]
    opt.load_state_dict(opt.state_dict())
    by_hand(opt, [vector(1), vector(1)])
    assert [group["rho"] for group in opt.param_groups] == [0.5, 3.0]


def test_a_schedule_stays_with_a_group_whose_parameters_are_exchanged() -> None:
    """As accelerate does when it shards a model."""
    opt = two_groups()[2]
    by_hand(opt, [vector(1), vector(1)])
    opt.param_groups[0]["params"] = [parameter(1.0)]
    by_hand(opt, [vector(1), vector(1)])
    assert [group["rho"] for group in opt.param_groups] == [2.0, 0.5]


def test_a_schedule_stays_with_its_group_when_a_parameter_moves_to_another() -> None:
    opt = two_groups()[2]
    by_hand(opt, [vector(1), vector(1)])
    scheduled, plain = opt.param_groups
    plain["params"].insert(0, scheduled["params"].pop())
    by_hand(opt, [vector(1), vector(1)])
    assert (scheduled["rho"], plain["rho"]) == (2.0, 0.5)


def test_a_schedule_may_be_put_into_a_group_later() -> None:
    opt = two_groups()[2]
    opt.param_groups[1]["rho"] = lambda step, lr: 3.0 + step
    seen = [opt.state_dict()["param_groups"][1]["rho"]]
    for _ in range(2):
        by_hand(opt, [vector(1), vector(1)])
        seen.append(opt.param_groups[1]["rho"])
    assert seen == [3.0, 3.0, 4.0]


def test_modules_exchanged_within_a_group_are_known_by_their_names() -> None:
    """ASAM scales the weight of a norm layer, which has one dimension, by its name alone."""

    def net() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10))

    x, model = digits()[0][:8].float(), net()
    opt = ASAM(SGD(model.parameters(), lr=0.1), rho=0.5, model=model)
    take_step(opt, lambda: model(x).square().mean())
    model.load_state_dict(net().state_dict(), assign=True)
    opt.param_groups[0]["params"] = list(model.parameters())
    take_step(opt, lambda: model(x).square().mean())
    fresh = net()
    other = ASAM(SGD(fresh.parameters(), lr=0.1), rho=0.5, model=fresh)
    take_step(other, lambda: fresh(x).square().mean())
    assert_same(flat(model.parameters()), flat(fresh.parameters()))


@pytest.mark.parametrize("gone", [0, 1])
def test_a_group_may_be_deleted(gone: int) -> None:
    opt = two_groups()[2]
    by_hand(opt, [vector(1), vector(1)])
    del opt.param_groups[gone]
    by_hand(opt, [vector(1)])
    assert [group["rho"] for group in opt.param_groups] == [2.0 if gone else 0.5]
