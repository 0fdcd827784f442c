"""Batches that show their samples: corners of plans and masks."""

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

from tests.family.batches import (
    BASES,
    CASES,
    SHORT,
    SIZE,
    Case,
    Make,
    assert_near,
    assert_same,
    assert_twins,
    batch,
    closure_of,
    each_loss,
    flat,
    made,
    mask,
    mlp,
    observed,
    other_batch,
    plain_base,
    records_of,
    samples,
    simple,
    train,
    with_batchnorm,
)
from tests.reference import family_a as twins
from tests.reference.family_a import Step, Vector, plus
from vasso.ascents import MultiStep
from vasso.directions import Random
from vasso.geometries import FisherMask
from vasso.optimizer import SharpnessAware
from vasso.plans import SelectTop
from vasso.policies import Bernoulli
from vasso.presets import ASAM, ESAM, ChunkedSAM, LookSAM, SubSampledSAM


def test_a_mask_whose_scale_is_not_a_power_of_two_follows_the_twin() -> None:
    def twin(step: Step) -> Vector:
        return twins.esam(step, rho=0.1, beta=0.6, gamma=0.5, mask=mask(step, 11, 0.6))

    make = partial(ESAM, rho=0.1, beta=0.6, gamma=0.5, seed=11)
    assert_twins(Case(make, twin, whole=True), mlp, "momentum")


def test_a_step_without_a_climb_goes_down_by_all_samples() -> None:
    never = partial(SharpnessAware, rho=0.1, plan=SelectTop(0.5), policy=Bernoulli(0.0))
    ours = train(never)
    assert_same(ours.path, train(plain_base, way="plain").path)
    assert ours.opt.cost == SHORT


def test_a_choice_of_samples_by_their_rise_needs_their_losses_at_w() -> None:
    with pytest.raises(ValueError, match=r"SelectTop.*Random"):
        simple(SharpnessAware, direction=Random(), plan=SelectTop(0.5))


def test_samples_are_chosen_by_their_rise_from_w_in_several_steps_up_too() -> None:
    """epsilon = rho g / ||g||, then as far along the slope there, back to the sphere."""
    net, (x, y) = made(mlp), batch(0)
    names, w = zip(*((n, p.detach().clone()) for n, p in net.named_parameters()), strict=True)

    def losses(v: Vector) -> Tensor:
        logits = functional_call(net, dict(zip(names, v, strict=True)), (x,))
        return cross_entropy(logits, y, reduction="none")

    first = twins.on_sphere(twins.gradient(losses, list(w)), 0.5)
    slope = twins.gradient(losses, plus(w, first))
    there = plus(w, twins.on_sphere(plus(first, twins.on_sphere(slope, 0.5)), 0.5))
    rise = (losses(there) - losses(list(w))).tolist()
    order = sorted(range(SIZE), key=lambda i: rise[i], reverse=True)
    make = partial(SharpnessAware, rho=0.5, ascent=MultiStep(2), plan=SelectTop(0.3))
    _, _, down = observed(make, whole=True, steps=1)
    expected = twins.gradient(losses, there, order[: round(0.3 * SIZE)])
    assert_near(flat(down[0]), flat(expected), 1e-13)


def test_a_choice_of_samples_and_a_mask_of_fisher_information_go_together() -> None:
    make = partial(SharpnessAware, rho=0.1, geometry=FisherMask(), plan=SelectTop(0.5))
    assert len(train(make, steps=2).path) == 2


class Listed:
    """A `Batch` that notes nothing; one of a user's own."""

    def __init__(self, opt: Any, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self.all = samples(opt, model, x, y)
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


def trained_on(kind: Any, preset: Make, model: Callable[[], nn.Module] = mlp) -> Any:
    net = made(model)
    opt = preset(BASES["momentum"](net.parameters()), rho=0.1, model=net)
    for t in range(SHORT):
        opt.step(kind(opt, net, *batch(t)))
    return opt


@pytest.mark.parametrize(
    "preset", [partial(ChunkedSAM, m=8), partial(SubSampledSAM, m=6), partial(ESAM, beta=0.5)]
)
def test_a_batch_of_the_users_own_is_as_good_as_ours(preset: Make) -> None:
    ours, theirs = (trained_on(kind, preset) for kind in (samples, Listed))
    assert_same(flat(theirs.model.parameters()), flat(ours.model.parameters()))


def test_losses_that_nobody_noted_at_w_cost_a_forward_pass() -> None:
    """1 + 1/3 at w, 1/3 + 1/2 above."""
    assert_near(trained_on(Listed, ESAM).cost, SHORT * (1 + 1 / 3 + 1 / 3 + 1 / 2), 1e-14)


def test_losses_that_nobody_noted_at_w_leave_batchnorm_alone() -> None:
    assert trained_on(Listed, ESAM, with_batchnorm).model[1].num_batches_tracked == SHORT


def test_a_mask_of_fisher_information_refuses_another_batch_without_samples() -> None:
    opt, net = simple(SharpnessAware, geometry=FisherMask())
    plain = closure_of(opt, net, *other_batch(0, SIZE))
    with pytest.raises(TypeError, match=r"has to see samples.*vasso\.Samples"):
        opt.step(samples(opt, net, *batch(0)), ascent_closure=plain)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("ChunkedSAM")])
def test_the_loss_of_a_step_in_chunks_is_that_of_the_batch(name: str) -> None:
    """Up to the order of a sum over 22 samples."""
    opt, net = simple(CASES[name].make)
    expected = each_loss(net, *batch(0)).mean().item()
    found = opt.step(samples(opt, net, *batch(0)))
    assert_near([found, opt.last.loss], [expected, expected], 1e-15)


def test_the_loss_of_a_sub_sample_is_marked_as_one_of_other_data() -> None:
    opt, net = simple(SubSampledSAM, m=6)
    opt.step(samples(opt, net, *batch(0)))
    assert opt.last.loss_at == "w, ascent data"


def test_a_radius_scheduled_at_zero_leaves_the_base_of_looksam() -> None:
    falling = partial(LookSAM, k=2, rho=lambda step, lr: 0.1 if step == 0 else 0.0)
    _, records, down = observed(falling)
    for record, u in zip(records[1:], down[1:], strict=True):
        assert_same(flat(u), flat(record.g))


def test_a_body_that_runs_though_it_is_not_wanted_changes_nothing() -> None:
    net = made(mlp)
    opt = LookSAM(BASES["momentum"](net.parameters()), rho=0.1, k=3, model=net)
    path = []
    for t in range(SHORT):
        closure = closure_of(opt, net, *batch(t))
        closure()
        with opt.ascended():
            closure()
        opt.step()
        path.append(flat(net.parameters()))
    assert_same(torch.stack(path), train(partial(LookSAM, rho=0.1, k=3), whole=False).path)


def test_asam_takes_the_names_of_a_group_that_comes_later() -> None:
    def adversary(late: bool) -> Tensor:
        norm, w = (torch.full((2,), x, requires_grad=True) for x in (2.0, 1.0))
        first = [("w.weight", w)] if late else [("w.weight", w), ("norm.weight", norm)]
        opt = ASAM(SGD(first, lr=0.0), rho=0.1)
        records = records_of(opt)

        def closure() -> Tensor:
            opt.zero_grad()
            loss = (w.square() + norm.square()).sum()
            loss.backward()
            return loss

        opt.step(closure)
        if late:
            opt.add_param_group({"params": [("norm.weight", norm)]})
        opt.step(closure)
        return flat(records[-1].epsilon)

    assert_same(adversary(late=True), adversary(late=False))
