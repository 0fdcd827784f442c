"""At some setting each method is another; weights come home; prices."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.family.steps import (
    BASES,
    BATCH,
    BATCHES,
    ROUND,
    SPARING,
    Everything,
    Make,
    Task,
    assert_near,
    assert_same,
    frozen,
    momentum,
    plain,
    records,
    train,
    with_data,
)
from vasso import (
    AWP,
    MSAM,
    PGN,
    S2SAM,
    SAM,
    SARAHSAM,
    SVRGSAM,
    EveryK,
    FisherMask,
    FrankWolfeSAM,
    FriendlySAM,
    LateSAM,
    LinfSAM,
    MultiStepSAM,
    RefreshAdaptive,
    RefreshEveryK,
    RefreshRandomly,
    ReusedSAM,
    SharpnessAware,
    SparseSAM,
    StormSAM,
    VaSSO,
)

# -- identities -----------------------------------------------------------------------------------


AVERAGED = partial(VaSSO, theta=0.3)

IDENTITIES: dict[str, tuple[Make, Make]] = {
    "late from the start": (partial(LateSAM, start=0), SAM),
    "late, averaged, from the start": (partial(LateSAM, start=0, theta=0.3), AVERAGED),
    "late, at every step": (partial(LateSAM, start=0, then=EveryK(1)), SAM),
    "never late enough": (partial(LateSAM, start=100), plain),
    "refreshed at every step": (partial(ReusedSAM, theta=0.3, refresh=RefreshEveryK(1)), AVERAGED),
    "a coin that always says yes": (
        partial(ReusedSAM, theta=0.3, refresh=RefreshRandomly(p=1.0)),
        AVERAGED,
    ),
    "always warming up": (
        partial(ReusedSAM, theta=0.3, refresh=RefreshAdaptive(warm_up=100)),
        AVERAGED,
    ),
    "refreshed, with a slope that could follow": (
        partial(ReusedSAM, theta=0.3, refresh=RefreshEveryK(1), stale="follow"),
        AVERAGED,
    ),
    "refreshed and trusting the newest gradient": (
        partial(ReusedSAM, theta=1.0, refresh=RefreshEveryK(1)),
        SAM,
    ),
    "friendly, with nothing taken out": (partial(FriendlySAM, sigma=0.0), partial(SAM, rho=0.2)),
    "friendly, old, with nothing taken out": (
        partial(FriendlySAM, sigma=0.0, use="old"),
        partial(SAM, rho=0.2),
    ),
    "storm that trusts the newest gradient": (partial(StormSAM, a=1.0), SAM),
    "all of the penalty": (partial(PGN, rho=0.05, alpha=1.0), SAM),
    "nothing of the penalty": (partial(PGN, alpha=0.0), plain),
    "one step": (partial(MultiStepSAM, n=1), SAM),
    "one step of rho/n": (partial(MultiStepSAM, n=1, stride="rho/n"), SAM),
    "the mean of one step": (partial(MultiStepSAM, n=1, mean=True), SAM),
    "one step, averaged": (partial(MultiStepSAM, n=1, theta=0.3), AVERAGED),
    "one step of Frank-Wolfe": (partial(FrankWolfeSAM, K=1), SAM),
    "one step of Frank-Wolfe with momentum": (partial(FrankWolfeSAM, K=1, momentum=True), SAM),
    "a Fisher mask without zeros": (partial(SparseSAM, rho=0.05, sparsity=0.0), SAM),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", IDENTITIES)
def test_at_some_setting_each_method_is_another(name: str, base: Make) -> None:
    one, other = IDENTITIES[name]
    assert_same(train(one, base), train(other, base))


@pytest.mark.parametrize("base", BASES)
def test_a_dynamic_mask_without_zeros_is_no_mask(base: Make) -> None:
    make = partial(SparseSAM, rho=0.05, sparsity=0.0, mask="dynamic", every=2)
    assert_same(train(make, base), train(SAM, base))


EVERY: dict[str, Make] = {
    **ROUND,
    "late, every third": partial(LateSAM, start=1, then=EveryK(3)),
    "drift": partial(ReusedSAM, refresh=RefreshAdaptive("ratio", warm_up=2)),
    "many steps": partial(MultiStepSAM, n=3),
    "the mean of many steps": partial(MultiStepSAM, n=3, mean=True),
    "Frank-Wolfe": partial(FrankWolfeSAM, K=3),
    "Fisher mask": partial(SparseSAM, every=3),
    "dynamic mask": partial(SparseSAM, mask="dynamic", every=3),
    "layers": AWP,
    "cube": LinfSAM,
}

each = pytest.mark.parametrize("name", EVERY)


@each
def test_a_ball_of_radius_zero_leaves_the_base_and_its_price(name: str) -> None:
    assert_same(train(partial(EVERY[name], rho=0.0)), train(plain))
    *_, (_, _, opt) = records(partial(EVERY[name], rho=0.0))
    assert opt.cost == 8


@each
def test_weights_come_home_bit_for_bit(name: str) -> None:
    task = Task(torch.float32)
    before = task.flat()
    opt = with_data(task, partial(EVERY[name], rho=0.3), frozen(task.params()))
    for t in range(8):
        opt.step(task.samples(opt, t))
    assert_same(task.flat(), before)


@pytest.mark.parametrize("name", ROUND)
def test_weights_that_are_recomputed_come_home_up_to_rounding(name: str) -> None:
    task = Task()
    before = task.flat()
    make = partial(ROUND[name], rho=0.3, restore="recompute")
    opt = with_data(task, make, frozen(task.params()))
    for t in range(8):
        opt.step(task.samples(opt, t))
    assert_near(task.flat(), before, atol=1e-15)  # eight times x + e - e, with numbers below 1


@each
def test_batchnorm_counts_one_batch_per_step(name: str) -> None:
    *_, (_, _, opt) = records(EVERY[name], middle=nn.BatchNorm1d(6))
    assert opt.model[1].num_batches_tracked == 8


# -- prices ---------------------------------------------------------------------------------------


PRICES: dict[str, tuple[Make, float]] = {
    "late": (partial(LateSAM, start=5), 8 + 3),
    "late, every third": (partial(LateSAM, start=5, then=EveryK(3)), 8 + 1),
    "late, reused": (partial(LateSAM, start=5, then=RefreshEveryK(3)), 8 + 1),
    "reused": (partial(ReusedSAM, refresh=RefreshEveryK(3)), 8 + 3),
    "reused by default": (ReusedSAM, 8 + 2),
    "following": (partial(ReusedSAM, refresh=RefreshEveryK(3), stale="follow"), 8 + 3),
    "by a coin": (
        partial(ReusedSAM, refresh=RefreshRandomly(p=0.5, seed=3)),
        8 + sum(SPARING["by a coin"][1]),
    ),
    "warm-up": (partial(ReusedSAM, refresh=RefreshAdaptive(z=100.0, warm_up=5)), 8 + 5),
    "momentum": (MSAM, 8),
    "last gradient": (S2SAM, 8),
    "friendly": (FriendlySAM, 16),
    "storm": (StormSAM, 24 - 1),  # nothing to correct in the first step
    "svrg": (partial(SVRGSAM, every=3), 24 + 3 * (BATCHES - 1)),
    "sarah": (partial(SARAHSAM, every=3), 24 + 3 * (BATCHES - 1)),
    "penalty": (PGN, 16),
    "many steps": (partial(MultiStepSAM, n=3), 32),
    "the mean of many steps": (partial(MultiStepSAM, n=3, mean=True), 32),
    "Frank-Wolfe": (partial(FrankWolfeSAM, K=4), 40),
    "Fisher mask": (partial(SparseSAM, every=3), 16 + 3 * 16 / BATCH),
    "fewer samples": (
        partial(SharpnessAware, geometry=FisherMask(every=3, samples=4)),
        16 + 3 * 4 / BATCH,
    ),
    "dynamic mask": (partial(SparseSAM, mask="dynamic"), 16),
    "layers": (AWP, 16),
    "cube": (LinfSAM, 16),
}


@pytest.mark.parametrize("name", PRICES)
def test_every_gradient_is_counted_and_none_is_wasted(name: str) -> None:
    make, price = PRICES[name]
    task = Task(torch.float32)
    opt = with_data(task, make, momentum(task.params()))
    for t in range(8):
        opt.step(task.samples(opt, t))
    assert (opt.cost, task.evaluations) == (price, price)


def test_a_full_gradient_by_a_plain_closure_may_tell_its_price() -> None:
    task = Task(torch.float32)
    base = momentum(task.params())

    class Told:
        cost = 12.5

        def __call__(self) -> Tensor:
            return task.samples(base, None)()

    class Source(Everything):
        def full(self) -> Any:
            return Told()

    opt = SVRGSAM(base, data=Source(task, base), every=100, model=task.model)
    opt.step(task.samples(opt, 0))
    assert opt.cost == 2 + 12.5
