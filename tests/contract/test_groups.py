"""Param groups: whose they are, whose settings win, groups that come later, schedules."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW

from tests.contract.marks import RHO, each_memorable, each_preset, each_way, vector
from tests.contract.presets import PRESETS
from tests.problems import (
    Way,
    assert_near,
    assert_same,
    by_hand,
    flat,
    mlp,
    parameter,
    records_of,
    take_step,
    train,
)
from vasso import SAM, VaSSO


@each_preset
def test_groups_are_the_objects_of_the_base(preset: str) -> None:
    base = SGD([{"params": [parameter(1.0)]}, {"params": [parameter(1.0)]}], lr=0.1)
    opt = PRESETS[preset].make(base)
    assert [opt.param_groups is base.param_groups, opt.defaults is base.defaults] == [True, True]


@each_preset
def test_the_radius_a_user_gave_a_group_wins(preset: str) -> None:
    base = SGD([{"params": [parameter(1.0)], "rho": 0.3}, {"params": [parameter(1.0)]}], lr=0.1)
    opt = PRESETS[preset].make(base, rho=0.2)
    assert [group["rho"] for group in opt.param_groups] == [0.3, 0.2]


@each_memorable
def test_the_theta_a_user_gave_a_group_wins(preset: str) -> None:
    base = SGD([{"params": [parameter(1.0)], "theta": 0.7}, {"params": [parameter(1.0)]}], lr=0.1)
    opt = PRESETS[preset].make(base)
    alone = PRESETS[preset].make(SGD([parameter(1.0)], lr=0.1))
    thetas = [group["theta"] for group in opt.param_groups]
    assert thetas == [0.7, alone.param_groups[0]["theta"]]


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
def test_a_base_with_a_rho_of_its_own_keeps_it(preset: str) -> None:
    x = parameter(1.0, 2.0)
    opt = PRESETS[preset].make(torch.optim.Adadelta([x], rho=0.9), rho=0.5)
    records = records_of(opt)
    by_hand(opt, [vector(3, 4)])
    group, radius = opt.param_groups[0], (records[0].epsilon or [])[0].norm().item()
    assert (group["rho"], group["vasso_rho"], radius) == (0.9, 0.5, pytest.approx(0.5, rel=1e-14))


@pytest.mark.parametrize("through", ["us", "the base"])
@each_preset
def test_a_group_added_later_gets_the_values_of_the_constructor(preset: str, through: str) -> None:
    x, y, z = (parameter(1.0) for _ in range(3))
    opt = PRESETS[preset].make(SGD([x], lr=0.1), rho=0.3)
    by_hand(opt, [vector(1)])
    host: Any = opt if through == "us" else opt.base
    host.add_param_group({"params": [y]})
    host.add_param_group({"params": [z], "rho": 0.7})
    assert [group["rho"] for group in opt.param_groups] == [0.3, 0.3, 0.7]


@pytest.mark.parametrize("through", ["us", "the base"])
@each_preset
def test_a_group_added_later_is_climbed_with_the_others(preset: str, through: str) -> None:
    """(3, 4) has length 5: 0.5 * (0.6, 0.8) up."""
    x, y = parameter(0.0), parameter(0.0)
    opt = PRESETS[preset].make(SGD([x], lr=0.0), rho=0.5)
    records = records_of(opt)
    by_hand(opt, [vector(3)])
    host: Any = opt if through == "us" else opt.base
    host.add_param_group({"params": [y]})
    by_hand(opt, [vector(3), vector(4)])
    assert_near(flat(records[1].epsilon or []), [0.3, 0.4], rtol=1e-15)


def test_a_group_added_later_asks_its_schedule_for_the_step_of_the_others() -> None:
    x, y = parameter(0.0), parameter(0.0)
    opt = SAM(SGD([x], lr=0.1), rho=lambda step, lr: float(step))
    by_hand(opt, [vector(1)])
    opt.add_param_group({"params": [y]})
    by_hand(opt, [vector(1), vector(1)])
    assert [group["rho"] for group in opt.param_groups] == [1.0, 1.0]


@pytest.mark.parametrize("base", [SGD, AdamW])
@each_preset
def test_a_schedule_is_asked_with_the_number_of_an_lr_that_is_a_tensor(
    preset: str, base: Any
) -> None:
    def run(rho: Any) -> Tensor:
        task = mlp()
        opt = PRESETS[preset].make(base(task.params(), lr=torch.tensor(0.125)), rho=rho)
        return train(task, opt)

    assert_same(run(lambda step, lr: 4 * lr), run(0.5))


@pytest.mark.parametrize("base", [SGD, AdamW])
@each_preset
def test_an_lr_that_is_a_tensor_stays_the_same_tensor(preset: str, base: Any) -> None:
    task, lr = mlp(), torch.tensor(0.125)
    opt = PRESETS[preset].make(base(task.params(), lr=lr), rho=RHO)
    train(task, opt)
    assert (opt.param_groups[0]["lr"] is lr, lr.item()) == (True, 0.125)


@each_way
@each_preset
def test_where_all_that_has_a_gradient_is_scheduled_at_zero_nothing_is_climbed(
    preset: str, way: Way
) -> None:
    """The group that could be climbed has no gradient in this step."""
    x, y = parameter(1.0), parameter(1.0)
    groups = [{"params": [x], "rho": lambda step, lr: 0.0}, {"params": [y], "rho": RHO}]
    opt = PRESETS[preset].make(SGD(groups, lr=0.5))
    take_step(opt, lambda: 0.5 * x.square().sum(), way)
    assert (x.tolist(), y.tolist()) == ([0.5], [1.0])


@each_way
@pytest.mark.parametrize("restore", ["copy", "recompute"])
def test_where_the_base_maximizes_the_adversary_makes_small(way: Way, restore: Any) -> None:
    """x is made small and y large, both from 3 and 4 in a sum of squares: length 5."""
    x, y = parameter(3.0), parameter(4.0)
    groups = [{"params": [x]}, {"params": [y], "maximize": True}]
    opt = PRESETS["SAM"].make(SGD(groups, lr=0.25), rho=0.5, restore=restore)
    records = records_of(opt)
    take_step(opt, lambda: (x.square() + y.square()).sum(), way)
    (epsilon,) = (record.epsilon for record in records)
    assert_near(torch.cat(epsilon), vector(0.5 * 3 / 5, -0.5 * 4 / 5), 1e-12)
    assert_near(x.detach(), vector(3.0 - 0.25 * 2 * 3.3), 1e-12)
    assert_near(y.detach(), vector(4.0 + 0.25 * 2 * 3.6), 1e-12)


def test_minus_the_loss_is_the_same_as_maximizing_it() -> None:
    def run(maximize: bool) -> Tensor:
        w = parameter(1.0, -2.0, 0.5)
        base = SGD([w], lr=0.1, momentum=0.9, maximize=maximize)
        opt = VaSSO(base, rho=0.2, theta=0.4)
        for t in range(5):
            loss = partial(lambda t: (w.square() * vector(1.0, 2.0, 3.0 + t)).sum().sin(), t)
            take_step(opt, loss if maximize else lambda loss=loss: -loss())
        return w.detach()

    assert_near(run(True), run(False), 1e-12)
