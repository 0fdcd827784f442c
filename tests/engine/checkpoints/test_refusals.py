"""Checkpoints that do not fit are refused by name and change nothing."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.checkpoints.task import FOREIGN, all_of, built, through_a_file, train
from tests.faults import METHODS, assert_same_tree, net
from vasso import L2, SAM, Ema, SharpnessAware


def refused(opt: SharpnessAware, model: nn.Module, saved: Any, message: str) -> None:
    before, groups = all_of(model, opt), opt.param_groups
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(saved)
    assert_same_tree(all_of(model, opt), before)
    assert opt.param_groups is groups


def test_a_checkpoint_of_other_parts_is_an_error_that_names_both() -> None:
    model = net(dtype=torch.float32)
    other = SharpnessAware(FOREIGN["AdamW"](model.parameters()), geometry=L2(eps=1e-7), model=model)
    train(other, model, range(2))
    model, opt = built("VaSSO", "AdamW")
    train(opt, model, range(2))
    refused(opt, model, other.state_dict(), r"L2\(eps=1e-07\).*L2\(eps=0\.0\)")


def test_the_start_of_a_slope_is_a_part_too() -> None:
    model = net(dtype=torch.float32)
    opt = SharpnessAware(
        FOREIGN["AdamW"](model.parameters()), direction=Ema(0.4, init="zero"), model=model
    )
    train(opt, model, range(1))
    other, ours = built("VaSSO", "AdamW")
    refused(ours, other, opt.state_dict(), "init='zero'.*init='first'")


@pytest.mark.parametrize(
    ("theirs", "ours", "lacks"),
    [
        ("momentum", "Adam", "no betas, eps, which Adam needs"),
        ("Adam", "momentum", "no dampening, momentum, which SGD needs"),
        ("Adadelta", "AdamW", "no betas, which AdamW needs"),
        ("RAdam", "NAdam", "no momentum_decay, which NAdam needs"),
        ("RMSprop", "Adagrad", "no initial_accumulator_value, lr_decay, which Adagrad needs"),
    ],
)
def test_a_checkpoint_of_another_base_is_refused(theirs: str, ours: str, lacks: str) -> None:
    model, opt = built("VaSSO", ours)
    train(opt, model, range(1))
    other, wrapped = built("VaSSO", theirs)
    train(wrapped, other, range(1))
    refused(opt, model, wrapped.state_dict(), f"of another base: its groups have {lacks}")
    refused(opt, model, wrapped.unwrap().state_dict(), f"of another base: its groups have {lacks}")


@pytest.mark.parametrize("base", FOREIGN)
def test_a_checkpoint_of_an_older_torch_with_keys_of_others_is_not_refused(base: str) -> None:
    model, opt = built("VaSSO", base)
    train(opt, model, range(2))
    saved = through_a_file(opt.state_dict())
    for group in saved["param_groups"]:
        group.update(initial_lr=0.1, lr_scale=0.5)
        for key in ("capturable", "differentiable", "foreach", "fused", "maximize"):
            group.pop(key, None)
    other, fresh = built("VaSSO", base)
    fresh.load_state_dict(saved)
    train(fresh, other, range(2))


class Foreign(torch.optim.SGD):
    """Somebody's own, whose version of now has a setting that it can do without."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.defaults["tempo"] = self.param_groups[0]["tempo"] = 1.0


def test_a_base_of_somebody_elses_may_have_got_a_setting_since() -> None:
    saved = SAM(FOREIGN["SGD"](net().parameters())).state_dict()
    SAM(Foreign(net().parameters())).load_state_dict(saved)


def test_what_is_no_state_dict_at_all_is_told_by_its_keys() -> None:
    model, opt = built("VaSSO", "AdamW")
    refused(opt, model, {}, r"no 'state' and no 'param_groups', its keys are \[\]: pass what opt")
    refused(opt, model, {"model": {}, "opt": opt.state_dict()}, r"are \['model', 'opt'\]")
    refused(opt, model, {"state": {}}, "has no 'param_groups', its keys")


@pytest.mark.parametrize(
    ("place", "key", "value", "message"),
    [
        ("param_groups", "vasso_format", 10**6, "upgrade vasso"),
        ("param_groups", "theta", 1.5, "theta must be above 0 and at most 1, got 1.5"),
        ("state", "vasso_d", torch.zeros(2, 3), r"\(2, 3\).*\(8, 6\)"),
    ],
    ids=["a newer format", "a setting out of range", "a slope of another shape"],
)
def test_a_value_that_does_not_fit_is_refused(
    place: str, key: str, value: Any, message: str
) -> None:
    model, opt = built("VaSSO", "AdamW")
    train(opt, model, range(1))
    saved = copy.deepcopy(opt.state_dict())
    assert key in saved[place][0]
    saved[place][0][key] = value
    refused(opt, model, saved, message)


@pytest.mark.parametrize("method", METHODS)
def test_other_numbers_of_parameters_or_groups_are_refused(method: str) -> None:
    model, opt = built(method, "AdamW")
    train(opt, model, range(1))
    fewer, more = copy.deepcopy(opt.state_dict()), copy.deepcopy(opt.state_dict())
    fewer["param_groups"][0]["params"].pop()
    more["param_groups"].append(more["param_groups"][0])
    refused(opt, model, fewer, "group")
    refused(opt, model, more, "group")


def test_other_settings_of_the_same_parts_load_and_win_with_one_warning() -> None:
    model, opt = built("VaSSO", "AdamW")
    train(opt, model, range(2))
    fresh = SAM(FOREIGN["AdamW"](net(dtype=torch.float32).parameters()), rho=0.5)
    with pytest.warns(UserWarning, match=r"rho=0\.1 \(was 0\.5\).*theta=0\.3 \(was 1\)") as caught:
        fresh.load_state_dict(opt.state_dict())
    assert len(caught) == 1
    assert_same_tree(fresh.state_dict(), opt.state_dict())
