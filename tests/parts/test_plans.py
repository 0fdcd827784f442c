"""Plans: batches that show their samples, and choices among those."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from tests.reference import single_steps as twins
from tests.reference.single_steps import Step, Vector, plus
from tests.support import batches
from tests.support.compare import assert_same, flat, records_of
from tests.support.problems import take_step
from vasso import (
    ASAM,
    ESAM,
    Bernoulli,
    ChunkedSAM,
    HalfSAM,
    LookSAM,
    MultiStep,
    SelectTop,
    SharpnessAware,
    SubSampledSAM,
)


def test_a_mask_whose_scale_is_not_a_power_of_two_follows_the_twin() -> None:
    def twin(step: Step) -> Vector:
        return twins.esam(step, rho=0.1, beta=0.6, gamma=0.5, mask=batches.mask(step, 11, 0.6))

    make = partial(ESAM, rho=0.1, beta=0.6, gamma=0.5, seed=11)
    batches.assert_twins(batches.Case(make, twin, whole=True), batches.mlp, "momentum")


def test_a_step_without_a_climb_goes_down_by_all_samples() -> None:
    never = partial(SharpnessAware, rho=0.1, plan=SelectTop(0.5), policy=Bernoulli(0.0))
    ours = batches.train(never)
    assert_same(ours.path, batches.train(batches.plain_base, way="plain").path)
    assert ours.opt.cost == batches.SHORT


def test_samples_are_chosen_by_their_rise_from_w_in_several_steps_up_too() -> None:
    """epsilon = rho g / ||g||, then as far along the slope there, back to the sphere."""
    net, (x, y) = batches.made(batches.mlp), batches.batch(0)
    names, w = zip(*((n, p.detach().clone()) for n, p in net.named_parameters()), strict=True)

    def losses(v: Vector) -> Tensor:
        logits = functional_call(net, dict(zip(names, v, strict=True)), (x,))
        return cross_entropy(logits, y, reduction="none")

    first = twins.on_sphere(twins.gradient(losses, list(w)), 0.5)
    slope = twins.gradient(losses, plus(w, first))
    there = plus(w, twins.on_sphere(plus(first, twins.on_sphere(slope, 0.5)), 0.5))
    rise = (losses(there) - losses(list(w))).tolist()
    order = sorted(range(batches.SIZE), key=lambda i: rise[i], reverse=True)
    make = partial(SharpnessAware, rho=0.5, ascent=MultiStep(2), plan=SelectTop(0.3))
    _, _, down = batches.observed(make, whole=True, steps=1)
    expected = twins.gradient(losses, there, order[: round(0.3 * batches.SIZE)])
    batches.assert_near(flat(down[0]), flat(expected), 1e-13)


class Listed:
    """A `Batch` that notes nothing; one of a user's own."""

    def __init__(self, opt: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self.all = batches.samples(opt, model, x, y)
        self.data = opt, model, x, y

    def __call__(self) -> Tensor:
        return self.all()

    def __len__(self) -> int:
        return len(self.all)

    def losses(self) -> Tensor:
        return self.all.losses()

    def subset(self, indices: Tensor) -> Listed:
        opt, model, x, y = self.data
        return Listed(opt, model, x[indices], y[indices])

    def split(self, m: int) -> list[Listed]:
        rows = torch.arange(len(self)).split(m)
        return [self.subset(indices) for indices in rows]


def trained_on(
    kind: Any, preset: batches.Make, model: Callable[[], nn.Module] = batches.mlp
) -> Any:
    net = batches.made(model)
    opt = preset(batches.BASES["momentum"](net.parameters()), rho=0.1, model=net)
    for t in range(batches.SHORT):
        opt.step(kind(opt, net, *batches.batch(t)))
    return opt


@pytest.mark.parametrize(
    "preset",
    [partial(ChunkedSAM, m=8), HalfSAM, partial(SubSampledSAM, m=6), partial(ESAM, beta=0.5)],
)
def test_a_batch_of_the_users_own_is_as_good_as_ours(preset: batches.Make) -> None:
    ours, theirs = (trained_on(kind, preset) for kind in (batches.samples, Listed))
    assert_same(flat(theirs.model.parameters()), flat(ours.model.parameters()))


def test_losses_that_nobody_noted_at_w_cost_a_forward_pass() -> None:
    """1 + 1/3 at w, 1/3 + 1/2 above."""
    batches.assert_near(
        trained_on(Listed, ESAM).cost, batches.SHORT * (1 + 1 / 3 + 1 / 3 + 1 / 2), 1e-14
    )


def test_losses_that_nobody_noted_at_w_leave_batchnorm_alone() -> None:
    assert (
        trained_on(Listed, ESAM, batches.with_batchnorm).model[1].num_batches_tracked
        == batches.SHORT
    )


@pytest.mark.parametrize("name", [name for name in batches.CASES if name.startswith("ChunkedSAM")])
def test_the_loss_of_a_step_in_chunks_is_that_of_the_batch(name: str) -> None:
    """Up to the order of a sum over 22 samples."""
    opt, net = batches.simple(batches.CASES[name].make)
    expected = batches.each_loss(net, *batches.batch(0)).mean().item()
    found = opt.step(batches.samples(opt, net, *batches.batch(0)))
    batches.assert_near([found, opt.last.loss], [expected, expected], 1e-15)


def test_the_loss_of_a_sub_sample_is_marked_as_one_of_other_data() -> None:
    opt, net = batches.simple(SubSampledSAM, m=6)
    opt.step(batches.samples(opt, net, *batches.batch(0)))
    assert opt.last.loss_at == "w, ascent data"


def test_a_radius_scheduled_at_zero_leaves_the_base_of_looksam() -> None:
    falling = partial(LookSAM, k=2, rho=lambda step, lr: 0.1 if step == 0 else 0.0)
    _, records, down = batches.observed(falling)
    for record, u in zip(records[1:], down[1:], strict=True):
        assert_same(flat(u), flat(record.g))


def test_asam_takes_the_names_of_a_group_that_comes_later() -> None:
    def adversary(late: bool) -> Tensor:
        norm, w = (torch.full((2,), x, requires_grad=True) for x in (2.0, 1.0))
        first = [("w.weight", w)] if late else [("w.weight", w), ("norm.weight", norm)]
        opt = ASAM(SGD(first, lr=0.0), rho=0.1)
        records = records_of(opt)
        take_step(opt, lambda: (w.square() + norm.square()).sum())
        if late:
            opt.add_param_group({"params": [("norm.weight", norm)]})
        take_step(opt, lambda: (w.square() + norm.square()).sum())
        return flat(records[-1].epsilon)

    assert_same(adversary(late=True), adversary(late=False))
