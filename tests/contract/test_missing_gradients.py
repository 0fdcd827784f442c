"""Missing gradients, frozen and tied parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.contract.marks import RHO, each_memorable, each_preset, each_way, slope, vector
from tests.contract.presets import PRESETS
from tests.problems import (
    BASES,
    Task,
    Way,
    assert_near,
    assert_same,
    by_hand,
    mlp,
    parameter,
    records_of,
    train,
)
from vasso import SharpnessAware


def two(preset: str, **options: Any) -> tuple[SharpnessAware, Tensor, Tensor]:
    """Two tensors at 1, with momentum and a step of size 1, after a first step that moved both."""
    x, y = parameter(1.0, 1.0), parameter(1.0)
    opt = PRESETS[preset].make(SGD([x, y], lr=1.0, momentum=0.5), rho=RHO, **options)
    by_hand(opt, [vector(2, 3), vector(6)])
    return opt, x, y


@each_preset
def test_without_a_gradient_at_the_weights_a_tensor_is_not_climbed(preset: str) -> None:
    opt, x, _ = two(preset)
    records = records_of(opt)
    by_hand(opt, [vector(3, 4), None], [vector(1, 1), vector(1)])
    assert ([p is x for p in records[0].params], len(records[0].epsilon or [])) == ([True], 1)


@each_preset
def test_without_a_gradient_at_the_weights_a_tensor_is_not_counted_in_the_length(
    preset: str,
) -> None:
    opt, _, _ = two(preset)
    records = records_of(opt)
    by_hand(opt, [vector(3, 4), None], [vector(1, 1), vector(1)])
    # epsilon is a difference of weights of size 10, whose rounding is 1e-15
    assert_near((records[0].epsilon or [])[0].norm(), RHO, rtol=1e-14)


@each_preset
def test_with_a_gradient_at_the_adversary_only_a_tensor_goes_down_by_it(preset: str) -> None:
    opt, _, y = two(preset)
    by_hand(opt, [vector(3, 4), None], [vector(1, 1), vector(7)])
    assert_same(y.detach(), vector(1 - 6 - (0.5 * 6 + 7)))


@each_memorable
@pytest.mark.parametrize("second", [None, vector(7)], ids=["in both passes", "in the first"])
def test_without_a_gradient_at_the_weights_the_slope_is_left_alone(
    preset: str, second: Tensor | None
) -> None:
    opt, _, y = two(preset)
    before = slope(opt, y)
    by_hand(opt, [vector(3, 4), None], [vector(1, 1), second])
    assert_same(slope(opt, y), before)


@each_preset
@pytest.mark.parametrize("first", [None, vector(7)], ids=["in both passes", "in the second"])
def test_without_a_gradient_at_the_adversary_a_tensor_stays_as_with_the_base_alone(
    preset: str, first: Tensor | None
) -> None:
    opt, _, y = two(preset)
    before = y.detach().clone()
    by_hand(opt, [vector(3, 4), first], [vector(1, 1), None])
    assert_same(y.detach(), before)


@each_preset
def test_without_a_gradient_at_the_adversary_a_tensor_has_been_there_all_the_same(
    preset: str,
) -> None:
    opt, _, _ = two(preset)
    records = records_of(opt)
    by_hand(opt, [vector(3, 4), vector(7)], [vector(1, 1), None])
    e, h = (records[0].epsilon or [])[1], (records[0].h or [])[1]
    assert (bool((e != 0).all()), h) == (True, None)


@each_memorable
def test_without_a_gradient_at_the_adversary_the_slope_has_seen_the_one_at_the_weights(
    preset: str,
) -> None:
    opt, _, y = two(preset)
    theta = opt.param_groups[0]["theta"]
    by_hand(opt, [vector(3, 4), vector(8)], [vector(1, 1), None])
    assert_near(slope(opt, y), [(1 - theta) * 6 + theta * 8], rtol=1e-15)


@each_way
@each_preset
def test_a_frozen_parameter_changes_nothing_for_the_others(preset: str, way: Way) -> None:
    def run(with_frozen: bool) -> Tensor:
        task = mlp()
        frozen, *others = task.params()
        frozen.requires_grad_(False)
        params = [frozen, *others] if with_frozen else others
        return train(task, PRESETS[preset].make(BASES["adamw"](params), rho=RHO), way=way)

    assert_same(run(True), run(False))


@each_preset
def test_a_frozen_parameter_has_no_state(preset: str) -> None:
    task = mlp()
    frozen = task.params()[0].requires_grad_(False)
    opt = PRESETS[preset].make(BASES["momentum"](task.params()), rho=RHO)
    train(task, opt)
    assert [p for p in opt.state if p is frozen] == []


class Tied(nn.Module):
    """x -> tanh(Wx) -> W'(...), with the matrix once or, tied, as the weight of two layers."""

    def __init__(self, W: Tensor, tied: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 10, bias=False), nn.Linear(64, 10, bias=False)
        self.up.weight = nn.Parameter(W.clone())
        if tied:
            self.down.weight = self.up.weight
        else:
            del self.down

    def forward(self, x: Tensor) -> Tensor:
        again = self.down.weight if hasattr(self, "down") else self.up.weight
        return nn.functional.linear((self.up(x) @ again).tanh(), again)


@each_preset
def test_a_tied_weight_is_one_weight(preset: str) -> None:
    def run(tied: bool) -> Tensor:
        like = mlp()
        W = torch.randn(10, 64, generator=torch.Generator().manual_seed(3)) / 8
        task = Task(Tied(W, tied), like.batches)
        opt = PRESETS[preset].make(BASES["momentum"](task.params()), rho=RHO)
        return train(task, opt)

    assert_same(run(True), run(False))
