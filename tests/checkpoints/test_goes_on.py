"""A checkpoint of ours: it goes on bit for bit, through a file, hooks and copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR

from tests import faults
from tests.checkpoints.task import (
    FOREIGN,
    all_of,
    built,
    loaded,
    through_a_file,
    train,
    trip_in_the_second_pass,
)
from tests.faults import METHODS, assert_same_tree, batches, net, take_step
from vasso import SAM, SharpnessAware, VaSSO


@pytest.mark.parametrize("base", FOREIGN)
@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_checkpoint_goes_on_bit_for_bit(method: str, base: str) -> None:
    model, opt = built(method, base)
    train(opt, model, range(3))
    saved = through_a_file(all_of(model, opt))
    train(opt, model, range(3, 6))
    other, fresh = loaded(saved, method, base)
    train(fresh, other, range(3, 6))
    assert_same_tree(all_of(other, fresh), all_of(model, opt))


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_holds_state_slope_and_counters(method: str) -> None:
    model, opt = built(method, "AdamW")
    train(opt, model, range(3))
    saved = opt.state_dict()
    slope = {"vasso_d", "vasso_has_d"} if method == "VaSSO" else set()
    state = {"step", "exp_avg", "exp_avg_sq", "vasso_has_base"} | slope
    counters = {
        key: saved["param_groups"][0][f"vasso_{key}"] for key in ("step", "skipped", "cost")
    }
    assert set(saved["state"][0]) == state
    assert counters == {"step": 3, "skipped": 0, "cost": 6.0}


def test_saving_changes_nothing() -> None:
    model, opt = built("VaSSO", "momentum")
    other, twin = built("VaSSO", "momentum")
    for t in range(4):
        opt.state_dict()
        train(opt, model, range(t, t + 1))
        train(twin, other, range(t, t + 1))
    assert_same_tree(all_of(model, opt), all_of(other, twin))


@pytest.mark.parametrize("method", METHODS)
def test_loading_keeps_groups_shared_with_the_base(method: str) -> None:
    _, opt = built(method, "momentum")
    opt.load_state_dict(opt.state_dict())
    opt.param_groups[0]["lr"] = 0.123
    assert opt.param_groups is opt.base.param_groups
    assert opt.base.param_groups[0]["lr"] == 0.123


def test_a_schedulers_grip_on_the_groups_survives_a_load() -> None:
    model, opt = built("VaSSO", "momentum")
    scheduler = LambdaLR(opt, lambda t: 0.5**t)
    opt.load_state_dict(opt.state_dict())
    train(opt, model, range(1))
    scheduler.step()
    assert opt.base.param_groups[0]["lr"] == 0.025


def test_a_float32_slope_of_bfloat16_weights_stays_float32() -> None:
    model = net(dtype=torch.bfloat16)
    opt = VaSSO(optim.SGD(model.parameters(), lr=0.1), model=model)
    take_step(opt, model, batches(1, torch.bfloat16)[0])
    fresh = VaSSO(optim.SGD(net(dtype=torch.bfloat16).parameters(), lr=0.1))
    fresh.load_state_dict(through_a_file(opt.state_dict()))
    dtypes = {entry["d"].dtype for entry in faults.slopes(fresh).values()}
    assert dtypes == {torch.float32}
    assert_same_tree(fresh.state_dict(), opt.state_dict())


def test_a_loaded_slope_is_a_copy_of_the_checkpoints() -> None:
    model, opt = built("VaSSO", "SGD")
    train(opt, model, range(2))
    saved = opt.state_dict()
    before = copy.deepcopy(saved)
    other, fresh = built("VaSSO", "SGD")
    fresh.load_state_dict(saved)
    train(fresh, other, range(2))
    assert_same_tree(saved["state"], before["state"])


def test_a_frozen_parameter_keeps_its_state() -> None:
    model, opt = built("VaSSO", "momentum")
    train(opt, model, range(2))
    model.inner.weight.requires_grad_(False)
    saved = through_a_file(all_of(model, opt))
    model.inner.weight.requires_grad_(True)
    train(opt, model, range(2, 4))
    other, fresh = loaded(saved, "VaSSO", "momentum")
    train(fresh, other, range(2, 4))
    assert_same_tree(all_of(other, fresh), all_of(model, opt))


@pytest.mark.parametrize("base", FOREIGN)
def test_a_slope_without_base_state_is_saved_and_goes_on(base: str) -> None:
    def stumble(first: bool) -> tuple[nn.Module, SharpnessAware]:
        model, opt = built("VaSSO", base)
        if first:
            trip_in_the_second_pass(opt, model)
        return model, opt

    model, opt = stumble(first=True)
    other, fresh = stumble(first=False)
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(through_a_file(opt.state_dict()))
    for o, m in ((opt, model), (fresh, other)):
        train(o, m, range(1, 3))
    assert_same_tree(all_of(other, fresh), all_of(model, opt))


def test_hooks_of_saving_and_loading_are_called_once_and_heard() -> None:
    model, opt = built("VaSSO", "momentum")
    train(opt, model, range(2))
    heard = []
    opt.register_state_dict_pre_hook(lambda o: heard.append("before saving"))
    opt.register_state_dict_post_hook(lambda o, saved: {**saved, "note": 7})
    opt.register_load_state_dict_pre_hook(
        lambda o, saved: {**saved, "state": {}} if saved["note"] == 7 else None
    )
    opt.register_load_state_dict_post_hook(lambda o: heard.append(f"{len(o.state)} after loading"))
    opt.base.register_load_state_dict_post_hook(lambda o: heard.append("the base has loaded"))
    saved = opt.state_dict()
    opt.load_state_dict(saved)
    assert heard == ["before saving", "the base has loaded", "0 after loading"]


def by_pickle(value: Any) -> Any:
    """What another process would get."""
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, by_pickle])
@pytest.mark.parametrize("base", ["momentum", "AdamW"])
@pytest.mark.parametrize("method", METHODS)
def test_a_copy_keeps_the_base_and_goes_on_bit_for_bit(
    method: str, base: str, duplicate: Any, scheduled: bool
) -> None:
    model, opt = built(method, base)
    if scheduled:  # which patches `step` of the instance
        LambdaLR(opt, lambda t: 1.0)
    train(opt, model, range(3))
    other, twin = duplicate((model, opt))
    for o, m in ((opt, model), (twin, other)):
        train(o, m, range(3, 6))
    assert type(twin.base) is type(opt.base)
    assert twin.param_groups is twin.base.param_groups
    assert twin.param_groups[0]["params"][0] is next(other.parameters())
    assert_same_tree(all_of(other, twin), all_of(model, opt))


def test_a_copy_shares_nothing_with_the_original() -> None:
    model, opt = built("VaSSO", "momentum")
    train(opt, model, range(2))
    before = all_of(model, opt)
    other, twin = copy.deepcopy((model, opt))
    train(twin, other, range(2, 4))
    assert_same_tree(all_of(model, opt), before)


def test_a_copy_of_a_wrapped_base_counts_as_wrapped() -> None:
    _, opt = built("VaSSO", "momentum")
    twin = copy.deepcopy(opt)
    with pytest.raises(ValueError, match="wrapped by a VaSSO already"):
        SAM(twin.base)
