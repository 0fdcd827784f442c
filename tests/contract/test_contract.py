"""What DESIGN promises of every preset around every base, in every dtype.

Equality is bit for bit unless a test says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, SparseAdam

from tests.contract.presets import PRESETS
from tests.problems import (
    BASES,
    Task,
    Way,
    assert_near,
    assert_same,
    by_hand,
    closure_of,
    dropout_net,
    flat,
    mlp,
    parameter,
    quadratic,
    records_of,
    take_step,
    train,
)
from vasso import SAM, SharpnessAware, VaSSO

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
MEMORABLE = [name for name, preset in PRESETS.items() if preset.remembers]
RHO = 0.5  # large enough to be seen in the eight bits of a bfloat16
STEPS = 3

each_preset = pytest.mark.parametrize("preset", PRESETS)
each_memorable = pytest.mark.parametrize("preset", MEMORABLE)
each_way = pytest.mark.parametrize("way", ["closure", "ascended"])


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# -- every preset, every base, every dtype --------------------------------------------------------


@dataclass
class Witness:
    """What was seen of one training run, three steps long.

    Attributes:
        passes: the weights at each closure call, step by step.
        flags: `opt.perturbed` at each of them.
        home: the weights before each step.
        descents: the weights when the base begins to step.
        pointers: all addresses at which the weights were seen.
        returned: the loss that each step gave back.
        costs: `opt.cost` after each step.
        slopes: the dtypes of what was remembered at the end, and of the weights.
    """

    passes: list[list[Tensor]] = field(default_factory=list)
    flags: list[list[bool]] = field(default_factory=list)
    home: list[Tensor] = field(default_factory=list)
    descents: list[Tensor] = field(default_factory=list)
    pointers: set[tuple[int, ...]] = field(default_factory=set)
    losses: list[Tensor] = field(default_factory=list)
    returned: list[Tensor] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    slopes: set[torch.dtype] = field(default_factory=set)


@cache
def witness(preset: str, base: str, dtype: str) -> Witness:
    """Trains once; the tests below each look at one fact."""
    task, seen = mlp(DTYPES[dtype]), Witness()
    opt = PRESETS[preset].make(BASES[base](task.params()), rho=RHO)

    def look() -> Tensor:
        seen.pointers.add(tuple(p.data_ptr() for p in task.params()))
        return flat(task.params())

    def loss(t: int) -> Tensor:
        seen.passes[t].append(look())
        seen.flags[t].append(opt.perturbed)
        return task.loss(t)

    opt.base.register_step_pre_hook(lambda *_: seen.descents.append(look()))
    for t in range(STEPS):
        seen.passes.append([])
        seen.flags.append([])
        seen.home.append(look())
        seen.losses.append(task.loss(t).detach())
        seen.returned.append(opt.step(closure_of(opt, partial(loss, t))))
        seen.costs.append(opt.cost)
    look()
    entries = [opt.state[p] for p in task.params()] if opt.state else []
    names = [f"vasso_{name}" for name in PRESETS[preset].remembers]
    seen.slopes = {entry[name].dtype for entry in entries for name in names}
    return seen


def each_combination(test: Any) -> Any:
    for name, values in (("dtype", DTYPES), ("base", BASES), ("preset", PRESETS)):
        test = pytest.mark.parametrize(name, values)(test)
    return test


@each_combination
def test_the_last_pass_runs_at_the_adversary(preset: str, base: str, dtype: str) -> None:
    seen = witness(preset, base, dtype)
    away = [not torch.equal(at[-1], w) for at, w in zip(seen.passes, seen.home, strict=True)]
    assert away == [True] * STEPS


@each_combination
def test_the_first_pass_runs_at_the_weights(preset: str, base: str, dtype: str) -> None:
    seen = witness(preset, base, dtype)
    assert_same(torch.stack([at[0] for at in seen.passes]), torch.stack(seen.home))


@each_combination
def test_weights_are_back_before_the_base_steps(preset: str, base: str, dtype: str) -> None:
    seen = witness(preset, base, dtype)
    assert_same(torch.stack(seen.descents), torch.stack(seen.home))


@each_combination
def test_weights_stay_where_they_are_in_memory(preset: str, base: str, dtype: str) -> None:
    assert len(witness(preset, base, dtype).pointers) == 1


@each_combination
def test_perturbed_is_true_at_the_adversary_only(preset: str, base: str, dtype: str) -> None:
    flags = [False] + [True] * (PRESETS[preset].passes - 1)
    assert witness(preset, base, dtype).flags == [flags] * STEPS


@each_combination
def test_closure_calls_are_those_of_the_method(preset: str, base: str, dtype: str) -> None:
    calls = [len(at) for at in witness(preset, base, dtype).passes]
    assert calls == [PRESETS[preset].passes] * STEPS


@each_combination
def test_cost_counts_the_closure_calls(preset: str, base: str, dtype: str) -> None:
    costs = [float((t + 1) * PRESETS[preset].passes) for t in range(STEPS)]
    assert witness(preset, base, dtype).costs == costs


@each_combination
def test_the_loss_returned_is_the_one_at_the_weights(preset: str, base: str, dtype: str) -> None:
    seen = witness(preset, base, dtype)
    assert_same(torch.stack(seen.returned), torch.stack(seen.losses))
    assert not any(loss.requires_grad for loss in seen.returned)  # fit to be logged


@each_combination
def test_the_slope_has_at_least_single_precision(preset: str, base: str, dtype: str) -> None:
    kept = (
        {torch.promote_types(DTYPES[dtype], torch.float32)} if PRESETS[preset].remembers else set()
    )
    assert witness(preset, base, dtype).slopes == kept


@pytest.mark.parametrize("base", BASES)
@each_preset
def test_nothing_of_ours_is_written_into_the_state_of_the_base(preset: str, base: str) -> None:
    task = mlp()
    opt, alone = PRESETS[preset].make(BASES[base](task.params())), BASES[base](mlp().params())
    take_step(opt, partial(task.loss, 0))
    for p in alone.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    alone.step()
    keys = [[list(entry) for entry in base.state.values()] for base in (opt.base, alone)]
    assert keys[0] == keys[1]


# -- missing gradients, frozen and tied parameters ------------------------------------------------


def two(preset: str, **options: Any) -> tuple[SharpnessAware, Tensor, Tensor]:
    """Two tensors at 1, with momentum and a step of size 1, after a first step that moved both."""
    x, y = parameter(1.0, 1.0), parameter(1.0)
    opt = PRESETS[preset].make(SGD([x, y], lr=1.0, momentum=0.5), rho=RHO, **options)
    by_hand(opt, [vector(2, 3), vector(6)])
    return opt, x, y


def slope(opt: SharpnessAware, p: Tensor) -> Tensor:
    return opt.state[p]["vasso_d"].clone()


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


# -- groups ---------------------------------------------------------------------------------------


@each_preset
def test_groups_are_the_objects_of_the_base(preset: str) -> None:
    base = SGD([{"params": [parameter(1.0)]}, {"params": [parameter(1.0)]}], lr=0.1)
    opt = PRESETS[preset].make(base)
    assert [opt.param_groups is base.param_groups, opt.defaults is base.defaults] == [True, True]


@each_preset
def test_the_radius_a_user_gave_a_group_wins(preset: str) -> None:
    base = SGD([{"params": [parameter(1.0)], "rho": 0.3}, {"params": [parameter(1.0)]}], lr=0.1)
    opt = PRESETS[preset].make(base, rho=0.2)
    assert [group["rho"] for group in opt.param_groups] == [0.3, 0.2]


@each_memorable
def test_the_theta_a_user_gave_a_group_wins(preset: str) -> None:
    base = SGD([{"params": [parameter(1.0)], "theta": 0.7}, {"params": [parameter(1.0)]}], lr=0.1)
    opt = PRESETS[preset].make(base)
    alone = PRESETS[preset].make(SGD([parameter(1.0)], lr=0.1))
    thetas = [group["theta"] for group in opt.param_groups]
    assert thetas == [0.7, alone.param_groups[0]["theta"]]


def test_a_schedule_a_user_gave_a_group_wins() -> None:
    x, y = parameter(1.0), parameter(1.0)
    base = SGD([{"params": [x], "rho": lambda step, lr: step + lr}, {"params": [y]}], lr=0.25)
    opt = VaSSO(base, rho=0.5)
    seen = []
    for _ in range(3):
        by_hand(opt, [vector(1), vector(1)])
        seen.append([group["rho"] for group in opt.param_groups])
    assert seen == [[0.25, 0.5], [1.25, 0.5], [2.25, 0.5]]


@each_preset
def test_a_base_with_a_rho_of_its_own_keeps_it(preset: str) -> None:
    x = parameter(1.0, 2.0)
    opt = PRESETS[preset].make(torch.optim.Adadelta([x], rho=0.9), rho=0.5)
    records = records_of(opt)
    by_hand(opt, [vector(3, 4)])
    group, radius = opt.param_groups[0], (records[0].epsilon or [])[0].norm().item()
    assert (group["rho"], group["vasso_rho"], radius) == (0.9, 0.5, pytest.approx(0.5, rel=1e-14))


@pytest.mark.parametrize("through", ["us", "the base"])
@each_preset
def test_a_group_added_later_gets_the_values_of_the_constructor(preset: str, through: str) -> None:
    x, y, z = (parameter(1.0) for _ in range(3))
    opt = PRESETS[preset].make(SGD([x], lr=0.1), rho=0.3)
    by_hand(opt, [vector(1)])
    host: Any = opt if through == "us" else opt.base
    host.add_param_group({"params": [y]})
    host.add_param_group({"params": [z], "rho": 0.7})
    assert [group["rho"] for group in opt.param_groups] == [0.3, 0.3, 0.7]


@pytest.mark.parametrize("through", ["us", "the base"])
@each_preset
def test_a_group_added_later_is_climbed_with_the_others(preset: str, through: str) -> None:
    """(3, 4) has length 5: 0.5 * (0.6, 0.8) up."""
    x, y = parameter(0.0), parameter(0.0)
    opt = PRESETS[preset].make(SGD([x], lr=0.0), rho=0.5)
    records = records_of(opt)
    by_hand(opt, [vector(3)])
    host: Any = opt if through == "us" else opt.base
    host.add_param_group({"params": [y]})
    by_hand(opt, [vector(3), vector(4)])
    assert_near(flat(records[1].epsilon or []), [0.3, 0.4], rtol=1e-15)


def test_a_group_added_later_asks_its_schedule_for_the_step_of_the_others() -> None:
    x, y = parameter(0.0), parameter(0.0)
    opt = SAM(SGD([x], lr=0.1), rho=lambda step, lr: float(step))
    by_hand(opt, [vector(1)])
    opt.add_param_group({"params": [y]})
    by_hand(opt, [vector(1), vector(1)])
    assert [group["rho"] for group in opt.param_groups] == [1.0, 1.0]


@pytest.mark.parametrize("base", [SGD, AdamW])
@each_preset
def test_a_schedule_is_asked_with_the_number_of_an_lr_that_is_a_tensor(
    preset: str, base: Any
) -> None:
    def run(rho: Any) -> Tensor:
        task = mlp()
        opt = PRESETS[preset].make(base(task.params(), lr=torch.tensor(0.125)), rho=rho)
        return train(task, opt)

    assert_same(run(lambda step, lr: 4 * lr), run(0.5))


@pytest.mark.parametrize("base", [SGD, AdamW])
@each_preset
def test_an_lr_that_is_a_tensor_stays_the_same_tensor(preset: str, base: Any) -> None:
    task, lr = mlp(), torch.tensor(0.125)
    opt = PRESETS[preset].make(base(task.params(), lr=lr), rho=RHO)
    train(task, opt)
    assert (opt.param_groups[0]["lr"] is lr, lr.item()) == (True, 0.125)


@each_way
@each_preset
def test_where_all_that_has_a_gradient_is_scheduled_at_zero_nothing_is_climbed(
    preset: str, way: Way
) -> None:
    """The group that could be climbed has no gradient in this step."""
    x, y = parameter(1.0), parameter(1.0)
    groups = [{"params": [x], "rho": lambda step, lr: 0.0}, {"params": [y], "rho": RHO}]
    opt = PRESETS[preset].make(SGD(groups, lr=0.5))
    take_step(opt, lambda: 0.5 * x.square().sum(), way)
    assert (x.tolist(), y.tolist()) == ([0.5], [1.0])


# -- counters and what one may ask ----------------------------------------------------------------


@each_way
@each_preset
def test_the_step_counter_counts_steps(preset: str, way: Way) -> None:
    task = mlp()
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1))
    records = records_of(opt)
    train(task, opt, steps=3, way=way)
    train(task, opt, steps=1, way="plain")
    train(task, opt, steps=1, way=way)
    assert [record.step for record in records] == [0, 1, 2, 4]


@each_preset
def test_cost_of_passes_of_ones_own_counts_them(preset: str) -> None:
    task = mlp()
    opt = PRESETS[preset].make(
        SGD(task.params(), lr=0.1), rho=lambda step, lr: 0.0 if step == 1 else 0.1
    )
    costs = []
    for t in range(3):
        take_step(opt, partial(task.loss, t), "ascended")
        costs.append(opt.cost)
    assert costs == [2.0, 3.0, 5.0]


@each_way
@each_preset
def test_a_step_tells_whether_it_climbed(preset: str, way: Way) -> None:
    task, told = mlp(), []
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1), rho=lambda step, lr: 0.1 * (step % 2))
    for t in range(4):
        take_step(opt, partial(task.loss, t), way)
        told.append(opt.last.climbed)
    assert told == [False, True, False, True]


@each_preset
def test_a_step_tells_its_losses_without_their_graphs(preset: str) -> None:
    task, seen = mlp(), []
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1))
    opt.step(closure_of(opt, lambda: seen.append(task.loss(0)) or seen[-1]))
    told = torch.stack([opt.last.loss, opt.last.perturbed_loss])
    assert (told.tolist(), told.requires_grad) == ([loss.item() for loss in seen], False)


@each_preset
def test_a_step_that_does_not_climb_tells_no_loss_at_the_adversary(preset: str) -> None:
    task = mlp()
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1), rho=0.0)
    take_step(opt, partial(task.loss, 0))
    assert (opt.last.perturbed_loss, opt.last.h_norm, opt.last.climbed) == (None, None, False)


@each_preset
def test_perturbed_is_true_inside_ascended_only(preset: str) -> None:
    task = mlp()
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1))
    told = [opt.perturbed]
    task.loss(0).backward()
    told.append(opt.perturbed)
    with opt.ascended() as up:
        told += [up, opt.perturbed]
        task.loss(0).backward()
    told.append(opt.perturbed)
    assert told == [False, False, True, True, False]


@each_preset
def test_an_observer_that_was_removed_hears_nothing(preset: str) -> None:
    task, heard = mlp(), []
    opt = PRESETS[preset].make(SGD(task.params(), lr=0.1))
    handle = opt.observe(lambda record: heard.append(record.step))
    train(task, opt, steps=2)
    handle.remove()
    train(task, opt, steps=2)
    assert heard == [0, 1]


@each_preset
def test_being_observed_changes_nothing(preset: str) -> None:
    def run(observed: bool) -> Tensor:
        task = mlp()
        opt = PRESETS[preset].make(BASES["adamw"](task.params()), rho=RHO)
        if observed:
            records_of(opt)
        return train(task, opt)

    assert_same(run(True), run(False))


# -- plain steps, and steps that do not climb -----------------------------------------------------


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


# -- wrapping and unwrapping ----------------------------------------------------------------------


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


# -- odd tensors ----------------------------------------------------------------------------------


@each_preset
def test_a_scalar_and_an_empty_parameter_are_tensors_like_others(preset: str) -> None:
    """The gradient (2, 3, 6) has length 7, wherever its entries live."""
    x, scalar = parameter(0.0, 0.0), torch.zeros((), dtype=torch.float64, requires_grad=True)
    empty = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    opt = PRESETS[preset].make(SGD([x, scalar, empty], lr=1.0), rho=0.7)
    records = records_of(opt)
    by_hand(opt, [vector(2, 3), vector(6).sum(), torch.zeros(0, 3)])
    assert_near(flat(records[0].epsilon or []), [0.2, 0.3, 0.6], rtol=1e-15)


@each_preset
def test_nothing_but_an_empty_parameter_is_not_climbed(preset: str) -> None:
    empty = torch.zeros(0, 3, requires_grad=True)
    opt = PRESETS[preset].make(SGD([empty], lr=1.0))
    by_hand(opt, [torch.zeros(0, 3)])
    assert (opt.skipped, opt.last.d_norm) == (0, 0.0)


@each_preset
def test_tensors_of_several_dtypes_share_one_ball(preset: str) -> None:
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(1, dtype=torch.float32, requires_grad=True)
    z = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    opt = PRESETS[preset].make(SGD([x, y, z], lr=1.0), rho=0.875)
    records = records_of(opt)
    by_hand(opt, [vector(2), vector(3), vector(6)])
    found = flat([e.double() for e in records[0].epsilon or []])
    # a bfloat16 has 8 bits: half of 2^-8 for each of two roundings, of the length and of epsilon
    assert_near(found, [0.25, 0.375, 0.75], rtol=2.0**-8)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@each_preset
def test_weights_of_any_layout_come_home(preset: str, layout: torch.memory_format) -> None:
    w = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    w = w.to(memory_format=layout).requires_grad_()
    before = w.detach().clone()
    opt = PRESETS[preset].make(SGD([w], lr=0.0), rho=RHO)
    for _ in range(2):
        take_step(opt, lambda: w.cosh().sum())
    assert_same(w.detach(), before)


def embedded(sparse: bool) -> tuple[nn.Embedding, nn.Linear, Any]:
    """Words and a layer above them, and the loss of some words, none of them twice in a batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        words, layer = nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, 2)
    sentences = torch.tensor([[1, 2, 5], [3, 1, 8], [0, 4, 2]])
    return words, layer, lambda t: layer(words(sentences[t % 3])).tanh().square().sum()


@each_way
@each_preset
def test_a_group_without_a_radius_may_have_sparse_gradients(preset: str, way: Way) -> None:
    def run(sparse: bool) -> Tensor:
        words, layer, loss = embedded(sparse)
        groups = [{"params": words.parameters(), "rho": 0.0}, {"params": layer.parameters()}]
        opt = PRESETS[preset].make(SGD(groups, lr=0.1), rho=RHO)
        for t in range(6):
            take_step(opt, partial(loss, t), way)
        return flat([*words.parameters(), *layer.parameters()])

    assert_same(run(True), run(False))


@each_way
@each_preset
def test_a_base_for_sparse_gradients_works_without_a_radius(preset: str, way: Way) -> None:
    def run(wrapped: bool) -> Tensor:
        words, _, loss = embedded(True)
        opt: Any = SparseAdam(words.parameters(), lr=0.1)
        opt = PRESETS[preset].make(opt, rho=0.0) if wrapped else opt
        for t in range(4):
            take_step(opt, partial(loss, t), way if wrapped else "plain")
        return flat(list(words.parameters()))

    assert_same(run(True), run(False))


@each_preset
def test_a_group_without_a_radius_may_be_complex(preset: str) -> None:
    """As the error for a complex parameter with a radius advises."""
    x, y = torch.ones(2, dtype=torch.complex64, requires_grad=True), parameter(1.0)
    opt = PRESETS[preset].make(SGD([{"params": [x], "rho": 0.0}, {"params": [y]}], lr=0.25))
    take_step(opt, lambda: x.abs().square().sum() + y.square().sum())
    assert x.tolist() == [0.5, 0.5]


@each_preset
def test_a_climb_of_weights_with_eight_bits_goes_as_far_up_as_it_should(preset: str) -> None:
    """The projection on the slope is rho, within 5 %: to nearest it would be next to nothing."""
    random = torch.Generator().manual_seed(8)
    w = torch.randn(100_000, generator=random).bfloat16().requires_grad_()
    g = torch.randn(100_000, generator=random).bfloat16()
    opt = PRESETS[preset].make(SGD([w], lr=0.0), rho=0.05)
    records = records_of(opt)
    by_hand(opt, [g])
    d, epsilon = records[0].d[0].double(), (records[0].epsilon or [])[0].double()
    assert (d @ epsilon / d.norm()).item() == pytest.approx(0.05, rel=0.05)
