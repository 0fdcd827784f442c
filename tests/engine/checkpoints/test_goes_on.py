"""Our checkpoints resume bit for bit, through files, hooks and copies."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR

from tests import faults
from tests.engine.checkpoints import task
from tests.faults import METHODS, assert_same_tree, batches, net, take_step
from vasso import SAM, SharpnessAware, VaSSO


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_holds_state_slope_and_counters(method: str) -> None:
    model, opt = task.built(method, "AdamW")
    task.train(opt, model, range(3))
    saved = opt.state_dict()
    slope = {"vasso_d", "vasso_has_d"} if method == "VaSSO" else set()
    state = {"step", "exp_avg", "exp_avg_sq", "vasso_has_base"} | slope
    counters = {
        key: saved["param_groups"][0][f"vasso_{key}"] for key in ("step", "skipped", "cost")
    }
    assert set(saved["state"][0]) == state
    assert counters == {"step": 3, "skipped": 0, "cost": 6.0}


def test_a_float32_slope_of_bfloat16_weights_stays_float32() -> None:
    model = net(dtype=torch.bfloat16)
    opt = VaSSO(optim.SGD(model.parameters(), lr=0.1), model=model)
    take_step(opt, model, batches(1, torch.bfloat16)[0])
    fresh = VaSSO(optim.SGD(net(dtype=torch.bfloat16).parameters(), lr=0.1))
    fresh.load_state_dict(task.through_a_file(opt.state_dict()))
    dtypes = {entry["d"].dtype for entry in faults.slopes(fresh).values()}
    assert dtypes == {torch.float32}
    assert_same_tree(fresh.state_dict(), opt.state_dict())


def test_a_loaded_slope_is_a_copy_of_the_checkpoints() -> None:
    model, opt = task.built("VaSSO", "SGD")
    task.train(opt, model, range(2))
    saved = opt.state_dict()
    before = copy.deepcopy(saved)
    other, fresh = task.built("VaSSO", "SGD")
    fresh.load_state_dict(saved)
    task.train(fresh, other, range(2))
    assert_same_tree(saved["state"], before["state"])


@pytest.mark.parametrize("kind", [np.float64, torch.tensor])
def test_a_setting_of_another_kind_of_number_is_saved_as_a_plain_one(kind: Any) -> None:
    _, opt = task.built("VaSSO", "SGD")
    opt.param_groups[0]["rho"] = kind(0.25)
    saved = task.through_a_file(opt.state_dict())["param_groups"][0]["rho"]
    assert (type(saved), saved) == (float, 0.25)


def test_a_load_ends_a_step_that_was_to_be_skipped() -> None:
    model, opt = task.built("VaSSO", "SGD")
    (batch,) = batches(1, torch.float32)
    (faults.loss_of(model, batch) * torch.nan).backward()
    with opt.ascended():
        pass
    opt.load_state_dict(opt.state_dict())
    model.zero_grad()
    faults.loss_of(model, batch).backward()
    opt.step()
    assert opt.param_groups[0]["vasso_step"] == 1


def test_a_frozen_parameter_keeps_its_state() -> None:
    model, opt = task.built("VaSSO", "momentum")
    task.train(opt, model, range(2))
    model.inner.weight.requires_grad_(False)
    saved = task.through_a_file(task.all_of(model, opt))
    model.inner.weight.requires_grad_(True)
    task.train(opt, model, range(2, 4))
    other, fresh = task.loaded(saved, "VaSSO", "momentum")
    task.train(fresh, other, range(2, 4))
    assert_same_tree(task.all_of(other, fresh), task.all_of(model, opt))


@pytest.mark.parametrize("base", task.FOREIGN)
def test_a_slope_without_base_state_is_saved_and_goes_on(base: str) -> None:
    def stumble(first: bool) -> tuple[nn.Module, SharpnessAware]:
        model, opt = task.built("VaSSO", base)
        if first:
            task.trip_in_the_second_pass(opt, model)
        return model, opt

    model, opt = stumble(first=True)
    other, fresh = stumble(first=False)
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(task.through_a_file(opt.state_dict()))
    for o, m in ((opt, model), (fresh, other)):
        task.train(o, m, range(1, 3))
    assert_same_tree(task.all_of(other, fresh), task.all_of(model, opt))


def by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, by_pickle])
@pytest.mark.parametrize("base", ["momentum", "AdamW"])
@pytest.mark.parametrize("method", METHODS)
def test_a_copy_goes_on(method: str, base: str, duplicate: Any, scheduled: bool) -> None:
    model, opt = task.built(method, base)
    if scheduled:  # which patches `step` of the instance
        LambdaLR(opt, lambda t: 1.0)
    task.train(opt, model, range(3))
    other, twin = duplicate((model, opt))
    for o, m in ((opt, model), (twin, other)):
        task.train(o, m, range(3, 6))
    assert type(twin.base) is type(opt.base)
    assert twin.param_groups is twin.base.param_groups
    assert twin.param_groups[0]["params"][0] is next(other.parameters())
    assert_same_tree(task.all_of(other, twin), task.all_of(model, opt))


def test_a_copy_of_a_wrapped_base_counts_as_wrapped() -> None:
    _, opt = task.built("VaSSO", "momentum")
    twin = copy.deepcopy(opt)
    with pytest.raises(ValueError, match="wrapped by a VaSSO already"):
        SAM(twin.base)
