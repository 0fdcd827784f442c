"""Wrapping a base, and getting it back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.contract.marks import RHO, each_memorable, each_preset
from tests.contract.presets import PRESETS
from tests.problems import (
    BASES,
    assert_same,
    flat,
    mlp,
    parameter,
    records_of,
    train,
)
from vasso import SAM


@pytest.mark.parametrize("base", BASES)
@each_preset
def test_the_base_that_is_given_back_is_the_one_that_was_taken(preset: str, base: str) -> None:
    task = mlp()
    alone = BASES[base](task.params())
    opt = PRESETS[preset].make(alone, rho=RHO)
    train(task, opt, steps=2)
    assert opt.unwrap() is alone


@pytest.mark.parametrize("base", BASES)
@each_preset
def test_the_base_that_is_given_back_has_its_own_keys_only(preset: str, base: str) -> None:
    ours, theirs = mlp(), mlp()
    opt, alone = PRESETS[preset].make(BASES[base](ours.params())), BASES[base](theirs.params())
    train(ours, opt, steps=2)
    train(theirs, alone, steps=2)
    bases = (opt.unwrap(), alone)
    keys = [
        (set(b.defaults), set(b.param_groups[0]), list(map(set, b.state.values()))) for b in bases
    ]
    assert keys[0] == keys[1]


@pytest.mark.parametrize("base", BASES)
def test_a_base_that_is_wrapped_again_goes_on_as_if_nothing_had_happened(base: str) -> None:
    """SAM has no memory of its own, so unwrapping in between cannot be seen."""

    def run(again: bool) -> Tensor:
        task = mlp()
        opt = SAM(BASES[base](task.params()), rho=RHO)
        first = train(task, opt, steps=3)
        if again:
            opt = SAM(opt.unwrap(), rho=RHO)
        return torch.cat((first, train(task, opt, steps=3)))

    assert_same(run(True), run(False))


@each_memorable
def test_a_base_that_is_wrapped_again_has_forgotten_the_slope(preset: str) -> None:
    task = mlp()
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1), rho=RHO)
    train(task, opt)
    opt = PRESETS[preset].make(opt.unwrap(), rho=RHO)
    records = records_of(opt)
    train(task, opt, steps=1)
    assert_same(flat(records[0].d), flat(records[0].g))


@pytest.mark.parametrize("inner", [True, False], ids=["the guest", "its base"])
@each_preset
def test_wrapping_twice_is_an_error(preset: str, inner: bool) -> None:
    opt = PRESETS[preset].make(SGD([parameter(1.0)], lr=0.1))
    with pytest.raises(ValueError, match=r"wrapped.*unwrap\(\) first"):
        SAM(opt if inner else opt.base)
