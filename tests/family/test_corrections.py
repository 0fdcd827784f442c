"""Variance reduction, and the norm of the gradient as a penalty."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.family.steps import (
    BASES,
    BATCHES,
    SOURCED,
    Make,
    One,
    Oracle,
    Task,
    adamw,
    assert_near,
    assert_same,
    flat,
    frozen,
    momentum,
    ours,
    path_of,
    records,
    train,
)
from tests.reference import family_b as twins
from vasso import PGN, SAM, SARAHSAM, SVRGSAM, SparseSAM, StormSAM

# -- variance reduction ---------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("a", [0.1, 0.7])
def test_storm_corrects_for_the_way_gone(a: float, base: Make) -> None:
    twin = path_of(twins.storm, base, rho=0.1, a=a)
    assert_near(ours(partial(StormSAM, rho=0.1, a=a), base), twin)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("method", "twin"), [(SVRGSAM, twins.svrg), (SARAHSAM, twins.sarah)])
def test_svrg_and_sarah_start_from_full_gradients(method: Any, twin: Any, base: Make) -> None:
    settings = {"rho": 0.1, "every": 7}
    theirs = path_of(twin, base, full=Oracle().full, **settings)
    assert_near(ours(partial(method, **settings), base), theirs)


@pytest.mark.parametrize("method", [SVRGSAM, SARAHSAM])
def test_with_a_snapshot_at_every_step_the_slope_is_the_full_gradient(method: Any) -> None:
    for record, home, _ in records(partial(method, every=1)):
        full = flat(Oracle().full(home))
        assert_near(flat(record.d), full, atol=1e-15)  # sums of 80 numbers below 0.1


@pytest.mark.parametrize("method", [SVRGSAM, SARAHSAM])
def test_with_a_snapshot_at_every_step_the_adversary_is_that_of_all_data(method: Any) -> None:
    task = Task(torch.float32)
    opt = SAM(momentum(task.params()), rho=0.1, model=task.model)
    path = []
    for t in range(8):
        opt.step(task.samples(opt, t), ascent_closure=task.samples(opt, None))
        path.append(task.flat())
    assert_same(train(partial(method, rho=0.1, every=1)), torch.stack(path))


@pytest.mark.parametrize(
    "make",
    [partial(StormSAM, a=0.1), partial(SVRGSAM, every=5), partial(SARAHSAM, every=5)],
)
def test_without_noise_every_correction_gives_the_gradient_itself(make: Make) -> None:
    """One batch again and again: d_{t-1} = g(x_{t-1}) cancels, up to a sum of roundings."""
    task = Task()
    base = momentum(task.params())
    data = {"data": One(task, base)} if make.func in SOURCED else {}
    opt = make(base, model=task.model, **data)
    errors = []
    opt.observe(lambda r: errors.append((flat(r.d) - flat(r.g)).abs().max().item()))
    for _ in range(30):
        opt.step(task.samples(opt, 0))
    assert max(errors) < 1e-14


def test_a_correction_sees_the_dropout_of_the_gradient_it_corrects() -> None:
    """At weights that do not move, d_t = g_t + (1 - a) (d_{t-1} - g_t), whatever was dropped."""
    make = partial(StormSAM, a=0.2)
    taken = [record for record, *_ in records(make, frozen, middle=nn.Dropout(0.5))]
    assert not torch.equal(flat(taken[0].g), flat(taken[BATCHES].g))  # the same batch
    for before, now in itertools.pairwise(taken):
        g = flat(now.g)
        assert_near(flat(now.d), g + 0.8 * (flat(before.d) - g), atol=1e-15)  # numbers below 1


@pytest.mark.parametrize("name", ["storm that trusts the newest gradient", "a Fisher mask of ones"])
def test_gradients_on_the_side_use_up_no_random_numbers(name: str) -> None:
    make = {
        "storm that trusts the newest gradient": partial(StormSAM, a=1.0),
        "a Fisher mask of ones": partial(SparseSAM, rho=0.05, sparsity=0.0, every=2),
    }[name]

    def path(make: Make) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            steps = records(make, middle=nn.Dropout(0.5))
            return torch.stack([flat(record.h) for record, *_ in steps])

    assert_same(path(make), path(SAM))


# -- the norm of the gradient as a penalty --------------------------------------------------------


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize(("alpha", "theta"), [(0.8, 1.0), (1.4, 1.0), (0.3, 0.4)])
def test_pgn_mixes_the_gradients_below_and_above(unit: bool, alpha: float, theta: float) -> None:
    settings = {"rho": 0.1, "alpha": alpha, "unit": unit, "theta": theta}
    assert_near(ours(partial(PGN, **settings)), path_of(twins.pgn, **settings))


def test_pgn_goes_down_with_adamw() -> None:
    settings = {"rho": 0.1, "alpha": 0.8}
    assert_near(ours(partial(PGN, **settings), adamw), path_of(twins.pgn, adamw, **settings))
