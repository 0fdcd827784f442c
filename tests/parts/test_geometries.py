"""Geometries: sparse masks, layers and the cube follow their twins; steps end on the sphere."""

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.reference import trajectories as twins
from tests.support import slopes
from tests.support.compare import flat
from vasso import AWP, GCSAM, DynamicMask, LinfSAM, SharpnessAware, SparseSAM, ZScore, ZSharp
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState


@pytest.mark.parametrize("theta", [1.0, 0.3])
def test_only_weights_with_much_fisher_information_climb(theta: float) -> None:
    make = partial(SparseSAM, rho=0.2, sparsity=0.7, every=10, theta=theta)
    twin = slopes.path_of(
        twins.sparse_fisher,
        rho=0.2,
        live=round(0.3 * slopes.SIZE),
        every=10,
        singles=slopes.Oracle().singles,
        theta=theta,
    )
    slopes.assert_near(slopes.ours(make), twin)


@pytest.mark.parametrize("total", [None, 40])
def test_a_dynamic_mask_drops_the_flattest_and_grows_by_luck(total: int | None) -> None:
    def share(t: int) -> float:
        return 0.4 if total is None else 0.4 * (1 + math.cos(math.pi * min(t / total, 1))) / 2

    mask = DynamicMask(sparsity=0.6, every=6, seed=9, drop=0.4, total=total)
    settings = {"rho": 0.2, "live": round(0.4 * slopes.SIZE), "every": 6}
    twin = slopes.path_of(
        twins.sparse_dynamic, luck=partial(slopes.uniform, 9), drop=share, **settings
    )
    slopes.assert_near(slopes.ours(partial(SharpnessAware, rho=0.2, geometry=mask)), twin)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_dynamic_preset_is_its_twin(seed: int) -> None:
    make = partial(SparseSAM, rho=0.2, sparsity=0.5, mask="dynamic", every=8, seed=seed)
    settings = {"rho": 0.2, "live": slopes.SIZE // 2, "every": 8, "drop": lambda t: 0.5}
    twin = slopes.path_of(twins.sparse_dynamic, luck=partial(slopes.uniform, seed), **settings)
    slopes.assert_near(slopes.ours(make), twin)


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("mask", ["fisher", "dynamic"])
def test_exactly_the_share_that_is_asked_for_climbs(mask: Any, sparsity: float) -> None:
    make = partial(SparseSAM, rho=0.2, sparsity=sparsity, mask=mask, every=3)
    live = {int((flat(record.epsilon) != 0).sum()) for record, *_ in slopes.records(make)}
    assert live == {round((1 - sparsity) * slopes.SIZE)}


@pytest.mark.parametrize("mask", ["fisher", "dynamic"])
def test_the_norm_of_a_sparse_climb_is_taken_before_the_mask(mask: Any) -> None:
    for record, *_ in slopes.records(partial(SparseSAM, rho=0.2, mask=mask, every=3)):
        e, whole = flat(record.epsilon), flat(record.g) * (0.2 / slopes.norm(record.g))
        live = e != 0
        slopes.assert_near(e[live], whole[live], atol=1e-15)  # x + e - x, with x and e below 1


@pytest.mark.parametrize("mask", ["fisher", "dynamic"])
def test_a_mask_is_kept_until_it_is_time(mask: Any) -> None:
    make = partial(SparseSAM, rho=0.2, mask=mask, every=4)
    live = [flat(record.epsilon) != 0 for record, *_ in slopes.records(make, steps=9)]
    changes = [not torch.equal(a, b) for a, b in itertools.pairwise(live)]
    assert [t + 1 for t, changed in enumerate(changes) if changed] == [4, 8]


def test_the_samples_of_the_fisher_mask_leave_no_trace() -> None:
    """BatchNorm has seen one batch per step and no sample by itself, and is in training again."""
    steps = slopes.records(partial(SparseSAM, every=2), steps=4, middle=nn.BatchNorm1d(6))
    norms = [opt.model[1] for _, _, opt in steps]
    assert (norms[-1].num_batches_tracked, norms[-1].training) == (4, True)


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("base", slopes.BASES)
def test_awp_moves_each_layer_by_a_share_of_its_size(theta: float, base: slopes.Make) -> None:
    twin = slopes.path_of(twins.in_ball, base, rho=0.05, ball=twins.layers, theta=theta)
    slopes.assert_near(slopes.ours(partial(AWP, rho=0.05, theta=theta), base), twin)


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("base", slopes.BASES)
def test_linf_goes_to_a_corner_of_the_cube(theta: float, base: slopes.Make) -> None:
    twin = slopes.path_of(twins.in_ball, base, rho=0.01, ball=twins.linf, theta=theta)
    slopes.assert_near(slopes.ours(partial(LinfSAM, rho=0.01, theta=theta), base), twin)


def test_awp_leaves_biases_and_norms_alone() -> None:
    for record, home, _ in slopes.records(partial(AWP, rho=0.05), middle=nn.BatchNorm1d(6)):
        lengths = [slopes.norm([e]) for e in record.epsilon]
        expected = [0.05 * slopes.norm([x]) if x.dim() > 1 else 0.0 for x in home]
        assert lengths == pytest.approx(expected, rel=1e-13, abs=0)  # x + e - x rounds


@pytest.mark.parametrize("name", slopes.ROUND)
def test_one_step_up_ends_on_the_sphere(name: str) -> None:
    steps = slopes.records(partial(slopes.ROUND[name], rho=0.3))
    next(steps)  # some have nothing to climb along yet
    for record, *_ in steps:
        assert slopes.norm(record.epsilon) == pytest.approx(0.3, rel=1e-13)  # x + e - x rounds


@pytest.mark.parametrize("theta", [1.0, 0.4])
@pytest.mark.parametrize("norm", ["before", "after"])
def test_gcsam_perturbs_along_the_centred_slope(norm: Any, theta: float) -> None:
    make = partial(GCSAM, rho=0.1, norm=norm, theta=theta)
    ball = partial(twins.centred, after=norm == "after")
    slopes.assert_near(
        slopes.ours(make), slopes.path_of(twins.in_ball, rho=0.1, theta=theta, ball=ball)
    )


@pytest.mark.parametrize("theta", [1.0, 0.4])
@pytest.mark.parametrize(("norm", "q"), [("global", 0.95), ("tensor", 0.8)])
def test_zsharp_perturbs_what_stands_out(norm: Any, q: float, theta: float) -> None:
    make = partial(ZSharp, rho=0.1, q=q, norm=norm, theta=theta)
    ball = partial(twins.z_score, q=q, each=norm == "tensor")
    slopes.assert_near(
        slopes.ours(make), slopes.path_of(twins.in_ball, rho=0.1, theta=theta, ball=ball)
    )


def test_where_nothing_stands_out_zsharp_perturbs_along_the_slope() -> None:
    same, one = torch.full((3, 4), 2.0), torch.full((1, 1), 5.0)
    push, length = ZScore()([same, one], PartState({}), StepContext(0, w=[same, one]))
    assert torch.equal(push[0], same)
    assert torch.equal(push[1], one)
    assert length == math.sqrt(12 * 4 + 25)


def test_the_norms_of_zsharp_are_one_radius_or_one_for_each_tensor() -> None:
    """Four tensors, of which two are matrices: their epsilon has length rho each."""
    for norm, expected in (("global", 0.1), ("tensor", math.sqrt(2) * 0.1)):
        record, _, _ = next(slopes.records(partial(ZSharp, rho=0.1, norm=norm)))
        matrices = [x for x in record.epsilon or [] if x.dim() > 1]
        share = slopes.norm(matrices) if norm == "tensor" else slopes.norm(record.epsilon or [])
        assert share == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="has no ball"):
        ZScore(norm="tensor").length([torch.ones(2)], StepContext(0))


def test_a_quantile_is_taken_of_tensors_that_torch_quantile_refuses() -> None:
    large = torch.zeros(1, 2**24 + 1)
    large[0, -1] = 1.0
    push, _ = ZScore()([large], PartState({}), StepContext(0, w=[large]))
    assert torch.equal(push[0], large)
