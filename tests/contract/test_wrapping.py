"""Wrapping a base, plain steps of it, and getting it back."""

import copy
from pickle import dumps, loads
from typing import Any

import pytest
import torch
from schedulefree import SGDScheduleFree
from torch import Tensor
from torch.optim import SGD

from tests.contract.marks import RHO, Preset, each_preset, slope
from tests.support.compare import assert_same, flat, records_of
from tests.support.problems import BASES, mlp, train
from vasso import SAM, VaSSO


@pytest.mark.parametrize("base", BASES)
@each_preset
def test_the_base_that_is_given_back_has_its_own_keys_only(preset: Preset, base: str) -> None:
    ours, theirs = mlp(), mlp()
    opt, alone = preset(BASES[base](ours.params())), BASES[base](theirs.params())
    train(ours, opt, steps=2)
    train(theirs, alone, steps=2)
    base = opt.base
    states = [list(map(set, each.state.values())) for each in (base, alone)]
    assert states[0] == states[1]  # also before it is given back
    assert opt.unwrap() is base
    keys = [(set(b.defaults), set(b.param_groups[0])) for b in (base, alone)]
    assert keys[0] == keys[1]
    assert list(map(set, base.state.values())) == states[1]


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


def test_a_base_that_is_wrapped_again_has_forgotten_the_slope() -> None:
    task = mlp()
    opt = VaSSO(SGD(task.params(), lr=0.1), rho=RHO)
    train(task, opt)
    opt = VaSSO(opt.unwrap(), rho=RHO)
    records = records_of(opt)
    train(task, opt, steps=1)
    assert_same(flat(records[0].d), flat(records[0].g))


@pytest.mark.parametrize(
    "copied",
    [lambda x: x, copy.deepcopy, lambda x: loads(dumps(x))],
    ids=("as it is", "deepcopy", "pickle"),
)
@each_preset
def test_methods_that_only_the_base_has_are_reached(preset: Preset, copied: Any) -> None:
    """A schedule-free base has other weights for evaluation than for training."""
    task, alone = mlp(), mlp()
    base = SGDScheduleFree(task.params(), lr=0.1)
    base.train()
    opt = preset(base, rho=0.0)
    plain = SGDScheduleFree(alone.params(), lr=0.1)
    plain.train()
    train(task, opt, steps=3)
    train(alone, plain, steps=3, way="plain")
    opt, model = copied((opt, task.model))
    opt.eval()
    plain.eval()
    assert_same(flat(list(model.parameters())), flat(alone.params()))
    opt.train()
    plain.train()
    assert_same(flat(list(model.parameters())), flat(alone.params()))


def test_what_neither_has_is_an_attribute_error() -> None:
    opt = SAM(SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    opt.base.note = 3
    assert not hasattr(opt, "train")
    with pytest.raises(AttributeError, match=r"SAM has no attribute 'note': .* opt\.base\.note"):
        opt.note  # noqa: B018


def test_a_step_without_a_closure_leaves_the_slope_alone() -> None:
    task = mlp()
    opt = VaSSO(SGD(task.params(), lr=0.1), rho=RHO)
    train(task, opt, steps=2)
    before = flat([slope(opt, p) for p in task.params()])
    train(task, opt, steps=2, way="plain")
    assert_same(flat([slope(opt, p) for p in task.params()]), before)
