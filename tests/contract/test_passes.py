"""Every preset, base and dtype: where each pass runs, what is returned, where the weights are."""

from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contract.marks import RHO, Preset, each_preset
from tests.support.compare import assert_same, flat
from tests.support.problems import BASES, closure_of, mlp
from vasso import VaSSO

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
STEPS = 3


@dataclass
class Witness:
    """What was seen of one training run, three steps long; of each step unless said otherwise."""

    passes: list[list[Tensor]] = field(default_factory=list)  # the weights at each closure call
    flags: list[list[bool]] = field(default_factory=list)  # `opt.perturbed` at each of them
    home: list[Tensor] = field(default_factory=list)  # the weights before the step
    descents: list[Tensor] = field(default_factory=list)  # the weights when the base begins to step
    pointers: set[tuple[int, ...]] = field(default_factory=set)  # all addresses of the weights
    losses: list[Tensor] = field(default_factory=list)  # on the batch, before the step
    returned: list[Tensor] = field(default_factory=list)  # the loss that the step gave back
    costs: list[float] = field(default_factory=list)  # `opt.cost` after the step
    slopes: set[torch.dtype] = field(default_factory=set)  # the dtypes of the slope at the end


@cache
def witness(preset: Preset, base: str, dtype: str) -> Witness:
    """Trains once; the tests below each look at one fact."""
    task, seen = mlp(DTYPES[dtype]), Witness()
    opt = preset(BASES[base](task.params()), rho=RHO)

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
    seen.slopes = {entry["vasso_d"].dtype for entry in entries if "vasso_d" in entry}
    return seen


def each_combination(test: Any) -> Any:
    for name, values in (("dtype", DTYPES), ("base", BASES)):
        test = pytest.mark.parametrize(name, values)(test)
    return each_preset(test)


@each_combination
def test_the_second_pass_runs_at_the_adversary(preset: Preset, base: str, dtype: str) -> None:
    seen = witness(preset, base, dtype)
    assert [len(at) for at in seen.passes] == [2] * STEPS
    assert_same(torch.stack([at[0] for at in seen.passes]), torch.stack(seen.home))
    assert not any(torch.equal(at[1], w) for at, w in zip(seen.passes, seen.home, strict=True))
    assert seen.flags == [[False, True]] * STEPS


@each_combination
def test_weights_are_home_before_the_base_steps(preset: Preset, base: str, dtype: str) -> None:
    seen = witness(preset, base, dtype)
    assert_same(torch.stack(seen.descents), torch.stack(seen.home))
    assert len(seen.pointers) == 1


@each_combination
def test_a_step_returns_the_loss_and_its_cost(preset: Preset, base: str, dtype: str) -> None:
    seen = witness(preset, base, dtype)
    assert_same(torch.stack(seen.returned), torch.stack(seen.losses))
    assert not any(loss.requires_grad for loss in seen.returned)  # fit to be logged
    assert seen.costs == [2.0, 4.0, 6.0]


@each_combination
def test_the_slope_has_at_least_single_precision(preset: Preset, base: str, dtype: str) -> None:
    precise = {torch.promote_types(DTYPES[dtype], torch.float32)}
    assert witness(preset, base, dtype).slopes == (precise if preset is VaSSO else set())
