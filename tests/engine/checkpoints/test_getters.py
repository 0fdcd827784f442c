"""The getters of torch's distributed checkpoints save and restore our state in one process."""

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
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
from tests.engine.checkpoints.task import FOREIGN, all_of, built, train, trip_in_the_second_pass
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
def test_the_getters_change_no_training(method: str, base: str, layout: StateDictOptions) -> None:
    (model, opt), (other, twin) = built(method, base), built(method, base)
    for t in range(3):
        opt.zero_grad()  # as at the end of an epoch: no gradients about
        get_optimizer_state_dict(model, opt, options=layout)
        train(opt, model, range(t, t + 1))
        train(twin, other, range(t, t + 1))
    assert_same_tree(what_counts(model, opt), what_counts(other, twin))


Training = tuple[nn.Module, SharpnessAware]


def trained(training: Training, steps: int) -> Training:
    """After so many steps, at the end of an epoch: with no gradients about."""
    train(training[1], training[0], range(steps))
    training[1].zero_grad()
    return training


def through_getters(layout: StateDictOptions, ours: Training, fresh: Training) -> None:
    model, opt = copy.deepcopy(get_state_dict(*ours, options=layout))
    set_state_dict(*fresh, model_state_dict=model, optim_state_dict=opt, options=layout)


def assert_goes_on(ours: Training, fresh: Training, steps: range) -> None:
    for model, opt in (ours, fresh):
        train(opt, model, steps)
    assert_same_tree(all_of(*fresh), all_of(*ours))


def through_dcp(folder: Path, layout: StateDictOptions, ours: Training, fresh: Training) -> None:
    """Writes one training to a folder and reads it into another, as the docs of torch do."""
    model, opt = get_state_dict(*ours, options=layout)
    dcp.save({"model": model, "opt": opt}, checkpoint_id=folder, no_dist=True)
    model, opt = get_state_dict(*fresh, options=layout)
    found = {"model": model, "opt": opt}
    dcp.load(found, checkpoint_id=folder, no_dist=True)
    set_state_dict(
        *fresh, model_state_dict=found["model"], optim_state_dict=found["opt"], options=layout
    )


def through(way: str, folder: Path) -> Callable[[StateDictOptions, Training, Training], None]:
    return through_getters if way == "getters" else partial(through_dcp, folder)


GETTERS = [("getters", base) for base in FOREIGN]


@LAYOUTS
@pytest.mark.parametrize("steps", [0, 2], ids=["before the first step", "after two steps"])
@pytest.mark.parametrize(
    ("way", "base"), [*GETTERS, *(("disk", base) for base in ("SGD", "momentum", "AdamW"))]
)
@pytest.mark.parametrize("method", METHODS)
def test_what_the_getters_give_goes_on_bit_for_bit_also_from_disk(
    method: str, way: str, base: str, steps: int, layout: StateDictOptions, tmp_path: Path
) -> None:
    ours, fresh = trained(built(method, base), steps), built(method, base)
    through(way, tmp_path)(layout, ours, fresh)
    assert_goes_on(ours, fresh, range(steps, steps + 3))


@LAYOUTS
@pytest.mark.parametrize(
    ("way", "base"), [*GETTERS, *(("disk", base) for base in ("momentum", "AdamW"))]
)
def test_the_slope_of_a_skipped_first_step_is_kept(
    way: str, base: str, layout: StateDictOptions, tmp_path: Path
) -> None:
    ours, fresh = built("VaSSO", base), built("VaSSO", base)
    trip_in_the_second_pass(ours[1], ours[0])
    ours[1].zero_grad()
    through(way, tmp_path)(layout, ours, fresh)
    assert len(faults.slopes(fresh[1])) == len(list(ours[0].parameters()))
    assert_goes_on(ours, fresh, range(1, 4))


class Spare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = net(dtype=torch.float32), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def frozen(method: str) -> Training:
    model, opt = built(method, "AdamW")
    model.inner.weight.requires_grad_(False)
    return model, opt


def spare(method: str) -> Training:
    model = Spare()
    return model, METHODS[method](FOREIGN["AdamW"](model.parameters()), model=model)


def grouped(method: str) -> Training:
    model = net(dtype=torch.float32)
    groups = [
        {"params": list(model.inner.parameters()), "rho": 0.0, "lr": 0.02},
        {"params": [*model.norm.parameters(), *model.outer.parameters()]},
    ]
    return model, METHODS[method](FOREIGN["AdamW"](groups), model=model)


@pytest.mark.parametrize(
    ("build", "layout", "steps"),
    [*product((frozen, spare), (NESTED, FLAT), (0, 2)), (grouped, FLAT, 2)],
    ids=lambda x: getattr(x, "__name__", None),
)
@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_is_not_all_trained_alike_goes_on(
    method: str, build: Any, layout: StateDictOptions, steps: int, tmp_path: Path
) -> None:
    ours, fresh = trained(build(method), steps), build(method)
    through_dcp(tmp_path, layout, ours, fresh)
    for model, opt in (ours, fresh):
        train(opt, model, range(steps, steps + 3))
    assert_same_tree(fresh[0].state_dict(), ours[0].state_dict())
    if build is not spare:  # of which the unused parameter has gained an entry
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
