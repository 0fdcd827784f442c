"""Plain steps, and steps that do not climb."""

from __future__ import annotations

import pytest
import torch
from torch.optim import SGD

from tests.contract.marks import RHO, each_memorable, each_preset, slope
from tests.contract.presets import PRESETS
from tests.problems import (
    BASES,
    assert_same,
    closure_of,
    dropout_net,
    flat,
    mlp,
    parameter,
    quadratic,
    train,
)


@pytest.mark.parametrize("base", BASES)
@each_preset
def test_a_step_without_a_closure_is_a_step_of_the_base(preset: str, base: str) -> None:
    ours, theirs = mlp(), mlp()
    opt = PRESETS[preset].make(BASES[base](ours.params()), rho=RHO)
    found = train(ours, opt, way="plain")
    assert_same(found, train(theirs, BASES[base](theirs.params()), way="plain"))


@each_preset
def test_a_step_without_a_closure_costs_one_gradient_and_gives_no_loss(preset: str) -> None:
    task = mlp()
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1))
    task.loss(0).backward()
    assert (opt.step(), opt.cost) == (None, 1.0)


@each_memorable
def test_a_step_without_a_closure_leaves_the_slope_alone(preset: str) -> None:
    task = mlp()
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1), rho=RHO)
    train(task, opt, steps=2)
    before = flat([slope(opt, p) for p in task.params()])
    train(task, opt, steps=2, way="plain")
    assert_same(flat([slope(opt, p) for p in task.params()]), before)


@each_preset
def test_a_body_that_runs_where_nothing_is_climbed_replaces_the_gradient(preset: str) -> None:
    x = parameter(1.0)
    opt = PRESETS[preset].make(SGD([x], lr=0.5), rho=0.0)
    quadratic(torch.eye(1, dtype=torch.float64), x)().backward()
    with opt.ascended():
        (3 * quadratic(torch.eye(1, dtype=torch.float64), x)()).backward()
    opt.step()
    assert (x.tolist(), opt.cost) == ([1 - 0.5 * 3], 2.0)


@each_preset
def test_without_a_radius_only_the_descent_closure_is_called(preset: str) -> None:
    task, calls = mlp(), []
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1), rho=0.0)
    down = closure_of(opt, lambda: calls.append("down") or task.loss(0))
    up = closure_of(opt, lambda: calls.append("up") or task.loss(1))
    opt.step(down, ascent_closure=up)
    assert calls == ["down"]


@each_preset
def test_with_a_radius_the_ascent_closure_is_called_first(preset: str) -> None:
    task, calls = mlp(), []
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1), rho=RHO)
    down = closure_of(opt, lambda: calls.append("down") or task.loss(0))
    up = closure_of(opt, lambda: calls.append("up") or task.loss(1))
    opt.step(down, ascent_closure=up)
    assert (calls, opt.last.loss_at) == (["up", "down"], "w, ascent data")


@each_preset
def test_the_same_random_numbers_make_the_passes_one_function(preset: str) -> None:
    """At a radius of next to nothing the second pass of a dropout net is the first."""
    task, seen = dropout_net(torch.float64), []
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1), rho=1e-300, same_rng=True)
    opt.step(closure_of(opt, lambda: seen.append(task.loss(0)) or seen[-1]))
    assert seen[0].item() == seen[1].item()
