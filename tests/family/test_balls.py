"""Sparse climbs and other balls."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.family.steps import (
    BASES,
    ROUND,
    SIZE,
    Make,
    Oracle,
    assert_near,
    flat,
    norm,
    ours,
    path_of,
    records,
    uniform,
)
from tests.reference import family_b as twins
from vasso import AWP, DynamicMask, LinfSAM, SharpnessAware, SparseSAM

# -- sparse climbs --------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1.0, 0.3])
def test_only_weights_with_much_fisher_information_climb(theta: float) -> None:
    make = partial(SparseSAM, rho=0.2, sparsity=0.7, every=10, theta=theta)
    twin = path_of(
        twins.sparse_fisher,
        rho=0.2,
        live=round(0.3 * SIZE),
        every=10,
        singles=Oracle().singles,
        theta=theta,
    )
    assert_near(ours(make), twin)


@pytest.mark.parametrize("total", [None, 40])
def test_a_dynamic_mask_drops_the_flattest_and_grows_by_luck(total: int | None) -> None:
    def share(t: int) -> float:
        return 0.4 if total is None else 0.4 * (1 + math.cos(math.pi * min(t / total, 1))) / 2

    mask = DynamicMask(sparsity=0.6, every=6, seed=9, drop=0.4, total=total)
    settings = {"rho": 0.2, "live": round(0.4 * SIZE), "every": 6}
    twin = path_of(twins.sparse_dynamic, luck=partial(uniform, 9), drop=share, **settings)
    assert_near(ours(partial(SharpnessAware, rho=0.2, geometry=mask)), twin)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_dynamic_preset_is_its_twin(seed: int) -> None:
    make = partial(SparseSAM, rho=0.2, sparsity=0.5, mask="dynamic", every=8, seed=seed)
    settings = {"rho": 0.2, "live": SIZE // 2, "every": 8, "drop": lambda t: 0.5}
    twin = path_of(twins.sparse_dynamic, luck=partial(uniform, seed), **settings)
    assert_near(ours(make), twin)


@pytest.mark.parametrize(
    ("mask", "sparsity"),
    [
        ("fisher", 0.1),
        ("fisher", 0.5),
        ("fisher", 0.95),
        ("dynamic", 0.1),
        ("dynamic", 0.5),
        ("dynamic", 0.95),
    ],
)
def test_exactly_the_share_that_is_asked_for_climbs(mask: Any, sparsity: float) -> None:
    make = partial(SparseSAM, rho=0.2, sparsity=sparsity, mask=mask, every=3)
    live = {int((flat(record.epsilon) != 0).sum()) for record, *_ in records(make)}
    assert live == {round((1 - sparsity) * SIZE)}


@pytest.mark.parametrize("mask", ["fisher", "dynamic"])
def test_the_norm_of_a_sparse_climb_is_taken_before_the_mask(mask: Any) -> None:
    for record, *_ in records(partial(SparseSAM, rho=0.2, mask=mask, every=3)):
        e, whole = flat(record.epsilon), flat(record.g) * (0.2 / norm(record.g))
        live = e != 0
        assert_near(e[live], whole[live], atol=1e-15)  # x + e - x, with x and e below 1


@pytest.mark.parametrize(("mask", "every"), [("fisher", 4), ("dynamic", 4)])
def test_a_mask_is_kept_until_it_is_time(mask: Any, every: int) -> None:
    make = partial(SparseSAM, rho=0.2, mask=mask, every=every)
    live = [flat(record.epsilon) != 0 for record, *_ in records(make, steps=9)]
    changes = [not torch.equal(a, b) for a, b in itertools.pairwise(live)]
    assert [t + 1 for t, changed in enumerate(changes) if changed] == [4, 8]


def test_the_samples_of_the_fisher_mask_leave_no_trace() -> None:
    """BatchNorm has seen one batch per step and no sample by itself, and is in training again."""
    steps = records(partial(SparseSAM, every=2), steps=4, middle=nn.BatchNorm1d(6))
    norms = [opt.model[1] for _, _, opt in steps]
    assert (norms[-1].num_batches_tracked, norms[-1].training) == (4, True)


# -- other balls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("base", BASES)
def test_awp_moves_each_layer_by_a_share_of_its_size(theta: float, base: Make) -> None:
    twin = path_of(twins.in_ball, base, rho=0.05, ball=twins.layers, theta=theta)
    assert_near(ours(partial(AWP, rho=0.05, theta=theta), base), twin)


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("base", BASES)
def test_linf_goes_to_a_corner_of_the_cube(theta: float, base: Make) -> None:
    twin = path_of(twins.in_ball, base, rho=0.01, ball=twins.linf, theta=theta)
    assert_near(ours(partial(LinfSAM, rho=0.01, theta=theta), base), twin)


def test_awp_leaves_biases_and_norms_alone() -> None:
    for record, home, _ in records(partial(AWP, rho=0.05), middle=nn.BatchNorm1d(6)):
        lengths = [norm([e]) for e in record.epsilon]
        expected = [0.05 * norm([x]) if x.dim() > 1 else 0.0 for x in home]
        assert lengths == pytest.approx(expected, rel=1e-13, abs=0)  # x + e - x rounds


def test_every_weight_goes_to_the_face_of_the_cube() -> None:
    for record, *_ in records(partial(LinfSAM, rho=0.01)):
        corner = 0.01 * flat(record.d).sign()
        assert_near(flat(record.epsilon), corner, atol=1e-16)  # x + e - x, with x below 1


@pytest.mark.parametrize("name", ROUND)
def test_one_step_up_ends_on_the_sphere(name: str) -> None:
    steps = records(partial(ROUND[name], rho=0.3))
    next(steps)  # some have nothing to climb along yet
    for record, *_ in steps:
        assert norm(record.epsilon) == pytest.approx(0.3, rel=1e-13)  # x + e - x rounds
