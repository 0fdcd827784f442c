"""Counters, and what one may ask of a step."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.optim import SGD

from tests.contract.marks import RHO, each_preset, each_way
from tests.contract.presets import PRESETS
from tests.problems import (
    BASES,
    Way,
    assert_same,
    closure_of,
    mlp,
    records_of,
    take_step,
    train,
)


@each_way
@each_preset
def test_the_step_counter_counts_steps(preset: str, way: Way) -> None:
    task = mlp()
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1))
    records = records_of(opt)
    train(task, opt, steps=3, way=way)
    train(task, opt, steps=1, way="plain")
    train(task, opt, steps=1, way=way)
    assert [record.step for record in records] == [0, 1, 2, 4]


@each_preset
def test_cost_of_passes_of_ones_own_counts_them(preset: str) -> None:
    task = mlp()
    opt = PRESETS[preset].make(
        SGD(task.params(), lr=0.1), rho=lambda step, lr: 0.0 if step == 1 else 0.1
    )
    costs = []
    for t in range(3):
        take_step(opt, partial(task.loss, t), "ascended")
        costs.append(opt.cost)
    assert costs == [2.0, 3.0, 5.0]


@each_way
@each_preset
def test_a_step_tells_whether_it_climbed(preset: str, way: Way) -> None:
    task, told = mlp(), []
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1), rho=lambda step, lr: 0.1 * (step % 2))
    for t in range(4):
        take_step(opt, partial(task.loss, t), way)
        told.append(opt.last.climbed)
    assert told == [False, True, False, True]


@each_preset
def test_a_step_tells_its_losses_without_their_graphs(preset: str) -> None:
    task, seen = mlp(), []
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1))
    opt.step(closure_of(opt, lambda: seen.append(task.loss(0)) or seen[-1]))
    told = torch.stack([opt.last.loss, opt.last.perturbed_loss])
    assert (told.tolist(), told.requires_grad) == ([loss.item() for loss in seen], False)


@each_preset
def test_a_step_that_does_not_climb_tells_no_loss_at_the_adversary(preset: str) -> None:
    task = mlp()
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1), rho=0.0)
    take_step(opt, partial(task.loss, 0))
    assert (opt.last.perturbed_loss, opt.last.h_norm, opt.last.climbed) == (None, None, False)


@each_preset
def test_perturbed_is_true_inside_ascended_only(preset: str) -> None:
    task = mlp()
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1))
    told = [opt.perturbed]
    task.loss(0).backward()
    told.append(opt.perturbed)
    with opt.ascended() as up:
        told += [up, opt.perturbed]
        task.loss(0).backward()
    told.append(opt.perturbed)
    assert told == [False, False, True, True, False]


@each_preset
def test_an_observer_that_was_removed_hears_nothing(preset: str) -> None:
    task, heard = mlp(), []
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1))
    handle = opt.observe(lambda record: heard.append(record.step))
    train(task, opt, steps=2)
    handle.remove()
    train(task, opt, steps=2)
    assert heard == [0, 1]


@each_preset
def test_being_observed_changes_nothing(preset: str) -> None:
    def run(observed: bool) -> Tensor:
        task = mlp()
        opt = PRESETS[preset].make(BASES["adamw"](task.params()), rho=RHO)
        if observed:
            records_of(opt)
        return train(task, opt)

    assert_same(run(True), run(False))
