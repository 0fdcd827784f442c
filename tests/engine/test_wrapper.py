"""The wrapper as torch.optim expects it: schedulers, averages, hooks, groups, state and hosts."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from tests import faults
from tests.faults import METHODS, assert_same, assert_same_tree, batches, net, take_step, weights
from tests.support.problems import closure_of
from vasso import SAM, SharpnessAware, VaSSO

momentum = partial(SGD, lr=0.1, momentum=0.9)
adamw = partial(AdamW, lr=0.1)


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_step_hooks_of_ours_and_of_the_base_fire_once_and_in_order(way: faults.Way) -> None:
    model = net()
    opt = VaSSO(SGD(model.parameters(), lr=0.1), model=model)
    fired = []
    opt.register_step_pre_hook(lambda *_: fired.append("before ours"))
    opt.base.register_step_pre_hook(lambda *_: fired.append("before the base"))
    opt.base.register_step_post_hook(lambda *_: fired.append("after the base"))
    opt.register_step_post_hook(lambda *_: fired.append("after ours"))
    take_step(opt, model, batches(1)[0], way)
    assert fired == ["before ours", "before the base", "after the base", "after ours"]


def test_hooks_fire_once_whichever_class_was_used_first() -> None:
    counts = []
    for make in (SAM, VaSSO, SharpnessAware, SAM):
        model, fired = net(), []
        opt = make(SGD(model.parameters(), lr=0.1), model=model)
        opt.register_step_post_hook(lambda *_, fired=fired: fired.append(1))
        take_step(opt, model, batches(1)[0])
        counts.append(len(fired))
    assert counts == [1, 1, 1, 1]


def test_a_hook_of_the_base_sees_weights_at_home_and_the_gradient_that_goes_down() -> None:
    model = net()
    base = SGD(model.parameters(), lr=0.1)
    opt = VaSSO(base, model=model, clip_norm=1e-3)
    before, seen = weights(model), []

    def look(*_: Any) -> None:
        length = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        seen.append((weights(model), length.item()))

    base.register_step_pre_hook(look)
    take_step(opt, model, batches(1)[0])
    assert_same(seen[0][0], before)
    assert seen[0][1] == pytest.approx(1e-3, rel=1e-3)  # torch divides by the norm + 1e-6


def test_a_skipped_step_does_not_reach_the_base() -> None:
    ours, fired = faults.Learner(faults.Setup()), []
    ours.opt.base.register_step_pre_hook(lambda *_: fired.append("the base"))
    ours.opt.register_step_post_hook(lambda *_: fired.append("ours"))
    ours.step(batches(1)[0], faults.Fault(2, "inf loss"))
    assert fired == ["ours"]


def test_groups_and_defaults_are_the_bases_own_objects() -> None:
    model = net()
    base = adamw(model.parameters())
    opt = VaSSO(base, model=model)
    assert opt.param_groups is base.param_groups
    assert opt.defaults is base.defaults
    assert "rho" not in base.defaults


@pytest.mark.parametrize("through_base", [False, True])
def test_a_later_group_gets_our_settings_and_is_climbed(through_base: bool) -> None:
    old, new = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    opt = VaSSO(SGD([old], lr=0.0, momentum=0.9), rho=5.0, theta=0.25)
    seen = []
    closure = closure_of(
        opt, lambda: seen.append((old.item(), new.item())) or (3 * old + 4 * new).sum()
    )
    opt.step(closure)
    (opt.base if through_base else opt).add_param_group({"params": [new], "lr": 0.01})
    group = opt.param_groups[1]
    result = [group[key] for key in ("lr", "momentum", "rho", "theta", "vasso_step", "vasso_cost")]
    opt.step(closure)
    assert result == [0.01, 0.9, 5.0, 0.25, 1, 2.0]
    assert seen[1::2] == [(5.0, 0.0), (3.0, 4.0)]
    assert [g["vasso_step"] for g in opt.param_groups] == [2, 2]


@pytest.mark.parametrize("through_base", [False, True])
def test_a_group_added_later_may_have_settings_of_its_own(through_base: bool) -> None:
    old, new, last = (torch.zeros(1, requires_grad=True) for _ in range(3))
    opt = VaSSO(SGD([old], lr=0.1), rho=lambda step, lr: 2 * lr)
    for group in ({"params": [new], "lr": 0.3}, {"params": [last], "rho": 0.0}):
        (opt.base if through_base else opt).add_param_group(group)
    opt.step(closure_of(opt, lambda: (old + new).sum()))
    assert [group["rho"] for group in opt.param_groups] == [0.2, 0.6, 0.0]


def trained(method: str = "VaSSO") -> tuple[nn.Module, SharpnessAware]:
    model = net()
    opt = METHODS[method](adamw(model.parameters()), model=model)
    for batch in batches(2):
        take_step(opt, model, batch)
    return model, opt


def test_the_state_is_a_mapping_from_parameters_to_entries_of_both() -> None:
    model, opt = trained()
    params = list(model.parameters())
    assert [id(p) for p in opt.state] == [id(p) for p in params]
    assert len(opt.state) == len(params)
    assert bool(opt.state)
    for p, entry in opt.state.items():
        assert {"exp_avg", "vasso_d", "vasso_has_d"} <= set(entry)
        assert entry["exp_avg"] is opt.base.state[p]["exp_avg"]


def test_what_is_in_the_state_is_what_its_iteration_gives() -> None:
    model = net()
    opt = VaSSO(adamw(model.parameters()), model=model)
    first, foreign = next(model.parameters()), torch.zeros(1)
    assert (len(opt.state), bool(opt.state), list(opt.state)) == (0, False, [])
    for p in (*model.parameters(), foreign):
        opt.state.get(p)
    assert len(opt.base.state) == 0
    assert (first in opt.state, foreign in opt.state) == (False, False)
    take_step(opt, model, batches(1)[0])
    assert (first in opt.state, foreign in opt.state) == (True, False)


def test_an_entry_that_is_set_is_split_between_base_and_guest() -> None:
    model, opt = trained()
    p = next(model.parameters())
    d = torch.full_like(p, 3.0)
    opt.state[p] = {"exp_avg": d, "vasso_d": 2 * d, "vasso_has_d": 1, "vasso_has_base": 1}
    assert list(opt.base.state[p]) == ["exp_avg"]
    assert faults.slopes(opt)[p]["d"].unique().tolist() == [6.0]


def test_zeros_of_a_form_are_not_taken_for_a_state() -> None:
    model, opt = trained()
    p = next(model.parameters())
    zeros = torch.zeros_like(p)
    opt.state[p] = {"exp_avg": zeros, "vasso_has_base": 0, "vasso_d": zeros, "vasso_has_d": 0}
    assert p not in opt.base.state
    assert p not in faults.slopes(opt)


def test_every_entry_rewritten_with_itself_changes_nothing() -> None:
    model, opt = trained()
    other, twin = trained()
    for p, entry in opt.state.items():  # as hosts move a state between devices
        opt.state[p] = dict(entry)
    for o, m in ((opt, model), (twin, other)):
        take_step(o, m, batches(3)[2])
    assert_same_tree(opt.state_dict(), twin.state_dict())


def test_an_entry_can_be_deleted_and_begins_anew() -> None:
    model, opt = trained()
    p = next(model.parameters())
    del opt.state[p]
    assert (p in opt.base.state, p in faults.slopes(opt)) == (False, False)
    with pytest.raises(KeyError):
        del opt.state[p]
    take_step(opt, model, batches(1)[0])
    assert opt.base.state[p]["step"].item() == 1


@pytest.mark.parametrize(("method", "base"), [(VaSSO, partial(SGD, lr=0.1)), (SAM, momentum)])
def test_an_entry_that_only_one_side_has_can_be_deleted(method: type, base: Any) -> None:
    model = net()
    opt = method(base(model.parameters()), model=model)
    take_step(opt, model, batches(1)[0])
    p = next(model.parameters())
    assert (p in opt.base.state) != (p in faults.slopes(opt))
    del opt.state[p]
    assert (p in opt.base.state, p in faults.slopes(opt)) == (False, False)


def test_an_entry_of_the_bases_own_is_a_copy_if_it_is_a_table() -> None:
    _, opt = trained()
    opt.base.state["table"], opt.base.state["number"] = {"count": 1}, 3
    opt.state["table"]["count"] = 2
    assert (opt.state["table"], opt.state["number"]) == ({"count": 1}, 3)


@pytest.mark.parametrize("clear", [lambda o: o.state.clear(), lambda o: setattr(o, "state", {})])
def test_the_state_of_all_parameters_can_be_cleared(clear: Any) -> None:
    _, opt = trained()
    clear(opt)
    assert not opt.base.state
    assert faults.slopes(opt) == {}


def test_the_state_can_be_replaced_also_by_itself() -> None:
    _, opt = trained()
    before = copy.deepcopy(opt.state_dict())
    opt.state = dict(opt.state)
    opt.state = opt.state
    assert_same_tree(opt.state_dict(), before)


def test_the_representation_names_method_settings_and_base() -> None:
    opt = VaSSO(SGD([torch.zeros(1, requires_grad=True)], lr=0.1), rho=0.2, theta=0.4)
    result = repr(opt)
    for part in ("VaSSO(", "rho=0.2", "theta=0.4", "Ema", "L2", "SGD ("):
        assert part in result
