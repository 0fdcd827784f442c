"""torch's distributed-checkpoint getters, in one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

from tests import faults
from tests.checkpoints.task import FOREIGN, all_of, built, train, trip_in_the_second_pass
from tests.faults import METHODS, MishapError, assert_same_tree, net
from vasso import SharpnessAware, VaSSO


def what_counts(model: nn.Module, opt: SharpnessAware) -> Any:
    """The same without zeros of a form, which change nothing."""
    slope = {p: entry["d"] for p, entry in faults.slopes(opt).items()}
    counters = {key: value for key, value in opt.param_groups[0].items() if key != "params"}
    return {**faults.everything(model, opt.base, slope), "counters": counters}


pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

NESTED = StateDictOptions()
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
LAYOUTS = pytest.mark.parametrize("layout", [NESTED, FLAT], ids=["nested", "flat"])


@LAYOUTS
@pytest.mark.parametrize("base", FOREIGN)
@pytest.mark.parametrize("method", METHODS)
def test_the_getters_change_nothing_in_a_training(
    method: str, base: str, layout: StateDictOptions
) -> None:
    (model, opt), (other, twin) = built(method, base), built(method, base)
    for t in range(3):
        opt.zero_grad()  # as at the end of an epoch: no gradients about
        get_optimizer_state_dict(model, opt, options=layout)
        train(opt, model, range(t, t + 1))
        train(twin, other, range(t, t + 1))
    assert_same_tree(what_counts(model, opt), what_counts(other, twin))


@LAYOUTS
@pytest.mark.parametrize("steps", [0, 2], ids=["before the first step", "after two steps"])
@pytest.mark.parametrize("base", FOREIGN)
@pytest.mark.parametrize("method", METHODS)
def test_what_the_getters_give_and_set_goes_on_bit_for_bit(
    method: str, base: str, steps: int, layout: StateDictOptions
) -> None:
    model, opt = built(method, base)
    train(opt, model, range(steps))
    opt.zero_grad()
    saved = copy.deepcopy(get_state_dict(model, opt, options=layout))
    other, fresh = built(method, base)
    set_state_dict(
        other, fresh, model_state_dict=saved[0], optim_state_dict=saved[1], options=layout
    )
    for o, m in ((opt, model), (fresh, other)):
        train(o, m, range(steps, steps + 3))
    assert_same_tree(all_of(other, fresh), all_of(model, opt))


def through_dcp(
    folder: Path,
    layout: StateDictOptions,
    ours: tuple[nn.Module, optim.Optimizer],
    fresh: tuple[nn.Module, optim.Optimizer],
) -> None:
    """Writes one training to a folder and reads it into another, as the docs of torch do."""
    model, opt = get_state_dict(*ours, options=layout)
    dcp.save({"model": model, "opt": opt}, checkpoint_id=folder, no_dist=True)
    model, opt = get_state_dict(*fresh, options=layout)
    found = {"model": model, "opt": opt}
    dcp.load(found, checkpoint_id=folder, no_dist=True)
    set_state_dict(
        *fresh, model_state_dict=found["model"], optim_state_dict=found["opt"], options=layout
    )


@LAYOUTS
@pytest.mark.parametrize("steps", [0, 2], ids=["before the first step", "after two steps"])
@pytest.mark.parametrize("base", ["SGD", "momentum", "AdamW"])
@pytest.mark.parametrize("method", METHODS)
def test_a_distributed_checkpoint_on_disk_goes_on_bit_for_bit(
    method: str, base: str, steps: int, layout: StateDictOptions, tmp_path: Path
) -> None:
    ours, fresh = built(method, base), built(method, base)
    train(ours[1], ours[0], range(steps))
    ours[1].zero_grad()
    through_dcp(tmp_path, layout, ours, fresh)
    for model, opt in (ours, fresh):
        train(opt, model, range(steps, steps + 3))
    assert_same_tree(all_of(*fresh), all_of(*ours))


@LAYOUTS
@pytest.mark.parametrize("base", FOREIGN)
def test_the_getters_keep_the_slope_of_a_skipped_first_step(
    base: str, layout: StateDictOptions
) -> None:
    (model, opt), (other, fresh) = built("VaSSO", base), built("VaSSO", base)
    trip_in_the_second_pass(opt, model)
    opt.zero_grad()
    saved = copy.deepcopy(get_state_dict(model, opt, options=layout))
    set_state_dict(
        other, fresh, model_state_dict=saved[0], optim_state_dict=saved[1], options=layout
    )
    kept = len(faults.slopes(fresh))
    for o, m in ((opt, model), (fresh, other)):
        train(o, m, range(1, 4))
    assert kept == len(list(model.parameters()))
    assert_same_tree(all_of(other, fresh), all_of(model, opt))


@LAYOUTS
@pytest.mark.parametrize("base", ["momentum", "AdamW"])
def test_a_distributed_checkpoint_keeps_the_slope_of_a_skipped_first_step(
    base: str, layout: StateDictOptions, tmp_path: Path
) -> None:
    ours, fresh = built("VaSSO", base), built("VaSSO", base)
    trip_in_the_second_pass(ours[1], ours[0])
    ours[1].zero_grad()
    through_dcp(tmp_path, layout, ours, fresh)
    for model, opt in (ours, fresh):
        train(opt, model, range(1, 4))
    assert_same_tree(all_of(*fresh), all_of(*ours))


@LAYOUTS
@pytest.mark.parametrize("steps", [0, 2], ids=["before the first step", "after two steps"])
@pytest.mark.parametrize("method", METHODS)
def test_frozen_parameters_are_no_obstacle_to_the_getters(
    method: str, steps: int, layout: StateDictOptions, tmp_path: Path
) -> None:
    ours, fresh = built(method, "AdamW"), built(method, "AdamW")
    for model, _ in (ours, fresh):
        model.inner.weight.requires_grad_(False)
    train(ours[1], ours[0], range(steps))
    ours[1].zero_grad()
    through_dcp(tmp_path, layout, ours, fresh)
    for model, opt in (ours, fresh):
        train(opt, model, range(steps, steps + 3))
    assert_same_tree(all_of(*fresh), all_of(*ours))


class Spare(nn.Module):
    """A model with a parameter that no pass uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = net(dtype=torch.float32), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@LAYOUTS
@pytest.mark.parametrize("method", METHODS)
def test_a_parameter_that_never_gets_a_gradient_is_no_obstacle_to_the_getters(
    method: str, layout: StateDictOptions, tmp_path: Path
) -> None:
    def build() -> tuple[nn.Module, SharpnessAware]:
        model = Spare()
        return model, METHODS[method](FOREIGN["AdamW"](model.parameters()), model=model)

    ours, fresh = build(), build()
    train(ours[1], ours[0], range(2))
    ours[1].zero_grad()
    through_dcp(tmp_path, layout, ours, fresh)
    for model, opt in (ours, fresh):
        train(opt, model, range(2, 4))
    assert_same_tree(fresh[0].state_dict(), ours[0].state_dict())


@pytest.mark.parametrize("method", METHODS)
def test_several_groups_keep_their_settings_through_the_getters(
    method: str, tmp_path: Path
) -> None:
    def build(rho: float) -> tuple[nn.Module, SharpnessAware]:
        model = net(dtype=torch.float32)
        groups = [
            {"params": list(model.inner.parameters()), "rho": rho, "lr": 0.02},
            {"params": [*model.norm.parameters(), *model.outer.parameters()]},
        ]
        return model, METHODS[method](FOREIGN["AdamW"](groups), model=model)

    ours, fresh = build(0.0), build(0.0)
    train(ours[1], ours[0], range(2))
    ours[1].zero_grad()
    through_dcp(tmp_path, FLAT, ours, fresh)
    for model, opt in (ours, fresh):
        train(opt, model, range(2, 4))
    assert_same_tree(all_of(*fresh), all_of(*ours))


def test_the_getters_probe_is_not_a_step() -> None:
    model, opt = built("VaSSO", "AdamW")
    before, fired = faults.weights(model), []
    opt.base.register_step_pre_hook(lambda *_: fired.append("the base's hook"))
    get_optimizer_state_dict(model, opt)
    group = opt.param_groups[0]
    counted = (group["vasso_step"], group["vasso_cost"], group["lr"])
    assert (counted, fired, len(opt.base.state)) == ((0, 0.0, 0.01), [], 0)
    faults.assert_same(faults.weights(model), before)


def test_the_getters_leave_random_numbers_alone() -> None:
    model, opt = built("VaSSO", "AdamW")
    before = torch.get_rng_state()
    get_optimizer_state_dict(model, opt)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_failing_base_leaves_no_trace_of_the_probe() -> None:
    model = net(dtype=torch.float32)
    base = FOREIGN["AdamW"](model.parameters())

    class Failing(optim.AdamW):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            raise MishapError

    base.__class__ = Failing
    opt = VaSSO(base, model=model)
    before = faults.weights(model)
    with pytest.raises(MishapError):
        get_optimizer_state_dict(model, opt)
    faults.assert_same(faults.weights(model), before)
    assert not base.state


def test_a_full_state_dict_is_given_and_set() -> None:
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    (model, opt), (other, fresh) = built("VaSSO", "AdamW"), built("VaSSO", "AdamW")
    train(opt, model, range(2))
    opt.zero_grad()
    saved = copy.deepcopy(get_optimizer_state_dict(model, opt, options=options))
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, fresh, saved, options=StateDictOptions(full_state_dict=True))
    for o, m in ((opt, model), (fresh, other)):
        train(o, m, range(2, 4))
    assert_same_tree(all_of(other, fresh), all_of(model, opt))
