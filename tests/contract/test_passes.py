"""Every preset, base and dtype: where each pass runs, what is returned, where the weights are."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contract.marks import RHO, each_preset
from tests.contract.presets import PRESETS
from tests.problems import (
    BASES,
    assert_same,
    closure_of,
    flat,
    mlp,
    take_step,
)

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
STEPS = 3


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
