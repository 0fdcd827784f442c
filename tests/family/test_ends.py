"""At the ends of their settings methods are SAM, VaSSO or the base, bit for bit."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.family.batches import (
    BASES,
    CASES,
    SHORT,
    SIZE,
    Make,
    Run,
    assert_near,
    assert_same,
    batch,
    closure_of,
    conv,
    fisher_of,
    flat,
    gap,
    made,
    mlp,
    plain_base,
    records_of,
    sam,
    samples,
    train,
    without_bias,
)
from vasso.directions import Ema
from vasso.optimizer import SharpnessAware
from vasso.policies import EveryK
from vasso.presets import (
    AESAM,
    ASAM,
    ESAM,
    GSAM,
    SAM,
    SSSAM,
    AELookSAM,
    ChunkedSAM,
    FisherSAM,
    LookSAM,
    NoisySAM,
    RandomSAM,
    SubSampledSAM,
    VaSSO,
)
from vasso.records import StepRecord

SOURCES = ("batch", "ema", "direction")

BLIND = {"lambda_1": math.inf, "lambda_2": math.inf, "total": SHORT}

KEEN = {"lambda_1": -math.inf, "lambda_2": -math.inf, "total": SHORT // 2}

vasso = partial(VaSSO, rho=0.1, theta=0.4)

SAMS: dict[str, Make] = {
    "VaSSO without suppression": partial(VaSSO, theta=1.0),
    "GSAM that ignores the gap": partial(GSAM, alpha=0.0),
    "LookSAM that always looks": partial(LookSAM, k=1),
    "SSSAM that always climbs": partial(SSSAM, p=1.0),
    "AESAM without a threshold": partial(AESAM, **KEEN),
    "AELookSAM without a threshold": partial(AELookSAM, **KEEN),
    **{f"FisherSAM, flat {s}": partial(FisherSAM, eta=0.0, source=s) for s in SOURCES},
    "ChunkedSAM of one chunk": partial(ChunkedSAM, m=SIZE),
    "ChunkedSAM of a chunk larger than the batch": partial(ChunkedSAM, m=10 * SIZE),
    "SubSampledSAM of all samples": partial(SubSampledSAM, m=SIZE),
    "ESAM of all weights and samples": partial(ESAM, beta=1.0, gamma=1.0),
    "ESAM of all tensors and samples": partial(ESAM, beta=1.0, gamma=1.0, level="tensor"),
    "NoisySAM without noise": partial(NoisySAM, kappa=0.0),
}

"""Each is SAM at radius 0.1, and with theta VaSSO."""

PLAIN: dict[str, Make] = {
    "GSAM of the loss at w that ignores the gap": partial(GSAM, alpha=0.0, minimise="clean"),
    "SSSAM that never climbs": partial(SSSAM, p=0.0),
    "AESAM with an infinite threshold": partial(AESAM, **BLIND),
    "AELookSAM with an infinite threshold": partial(AELookSAM, **BLIND),
}

"""Each is the base."""

each_problem = pytest.mark.parametrize(
    ("model", "base"), [(mlp, "momentum"), (conv, "adamw")], ids=["mlp", "conv"]
)

each_sam = pytest.mark.parametrize("name", SAMS)


@each_problem
@each_sam
def test_at_one_end_of_its_setting_it_is_sam(name: str, model: Any, base: str) -> None:
    ours = train(partial(SAMS[name], rho=0.1), model=model, base=base)
    assert_same(ours.path, train(sam, model=model, base=base).path)


@each_sam
def test_at_one_end_of_its_setting_it_is_vasso_with_theta(name: str) -> None:
    assert_same(train(partial(SAMS[name], rho=0.1, theta=0.4)).path, train(vasso).path)


@each_problem
@pytest.mark.parametrize("name", PLAIN)
def test_at_the_other_end_of_its_setting_it_is_the_base(name: str, model: Any, base: str) -> None:
    ours = train(partial(PLAIN[name], rho=0.1), model=model, base=base)
    assert_same(ours.path, train(plain_base, model=model, base=base, way="plain").path)


PAIRS: dict[str, tuple[Make, Make]] = {
    "LookSAM that reuses nothing climbs every k-th step": (
        partial(LookSAM, rho=0.1, k=3, alpha=0.0, theta=0.4),
        partial(SharpnessAware, rho=0.1, direction=Ema(0.4), policy=EveryK(3)),
    ),
    "AELookSAM that reuses nothing is AESAM": (
        partial(AELookSAM, rho=0.1, total=SHORT, alpha=0.0, theta=0.4),
        partial(AESAM, rho=0.1, total=SHORT, theta=0.4),
    ),
    "without suppression the slope of FisherSAM is the batch": (
        partial(FisherSAM, rho=0.1, eta=1e3, source="direction"),
        partial(FisherSAM, rho=0.1, eta=1e3),
    ),
    "an average of FisherSAM that forgets all is the batch": (
        fisher_of(eta=1e3, source="ema", decay=0.0),
        fisher_of(eta=1e3),
    ),
    "GSAM without suppression has no slope of its own to decompose": (
        gap(1.0),
        partial(GSAM, rho=0.1, alpha=0.3),
    ),
    "a gradient that drowns in noise is RandomSAM": (
        partial(NoisySAM, rho=0.1, kappa=0.0, sigma=2.0**60, seed=3),
        partial(RandomSAM, rho=0.1, seed=3),
    ),
}


@each_problem
@pytest.mark.parametrize("name", PAIRS)
def test_two_methods_are_one(name: str, model: Any, base: str) -> None:
    """The last pair too: 2^60 only moves the exponent, and g is below the last bit."""
    one, two = PAIRS[name]
    ours = train(one, model=model, base=base).path
    assert_same(ours, train(two, model=model, base=base).path)


@pytest.mark.parametrize("name", CASES)
def test_a_ball_of_radius_zero_leaves_the_base_and_one_gradient(name: str) -> None:
    case = CASES[name]
    ours = train(
        partial(case.make, rho=0.0), whole=case.whole, other=case.other, lr=case.lr, steps=6
    )
    plain = train(plain_base, whole=case.whole, lr=case.lr, way="plain", steps=6)
    assert_same(torch.cat((ours.path.flatten(), torch.tensor([ours.opt.cost]))), with_cost(plain))


def with_cost(plain: Run) -> Tensor:
    steps = len(plain.path)
    return torch.cat((plain.path.flatten(), torch.tensor([float(steps)])))


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if not (case.whole or case.other)]
)
def test_the_callers_own_passes_are_the_closure(name: str) -> None:
    case = CASES[name]
    ours = train(case.make, lr=case.lr, whole=False, way="ascended")
    assert_same(ours.path, train(case.make, lr=case.lr, whole=False).path)


@pytest.mark.parametrize("method", [sam, vasso, partial(GSAM, theta=0.4)])
def test_an_adversary_from_another_batch_of_the_same_samples_is_the_method(method: Make) -> None:
    net = made(mlp)
    opt = method(BASES["momentum"](net.parameters()), model=net)
    path = []
    for t in range(SHORT):
        one, two = (closure_of(opt, net, *batch(t)) for _ in range(2))
        opt.step(one, ascent_closure=two)
        path.append(flat(net.parameters()))
    assert_same(torch.stack(path), train(method).path)


@pytest.mark.parametrize("theta", [0.05, 0.4, 1.0])
def test_the_average_of_one_gradient_is_that_gradient(theta: float) -> None:
    """The same batch again and again, at weights that stay."""
    net = made(mlp)
    opt = VaSSO(SGD(net.parameters(), lr=0.0), rho=0.1, theta=theta, model=net)
    records = records_of(opt)
    for _ in range(5):
        opt.step(closure_of(opt, net, *batch(0)))
    assert_same(flat(records[-1].d), flat(records[0].g))


@pytest.mark.parametrize("theta", [0.3, 1.0])
def test_asam_where_all_weights_are_equally_large_is_sam(theta: float) -> None:
    """T = 1/4 + 1/4 everywhere: a power of two, so that every rounding is the same."""

    def records(make: Make) -> list[StepRecord]:
        net = made(without_bias)
        for p in net.parameters():
            p.data.copy_(p.data.sign() / 4)
        opt = make(SGD(net.parameters(), lr=0.0), theta=theta, model=net)
        kept = records_of(opt)
        for t in range(3):
            opt.step(closure_of(opt, net, *batch(t)))
        return kept

    ours, theirs = records(partial(ASAM, rho=0.6, eta=0.25)), records(partial(SAM, rho=0.3))
    for one, two in zip(ours, theirs, strict=True):
        assert_same(flat(one.h), flat(two.h))


@pytest.mark.parametrize("theta", [0.4, 1.0])
def test_chunks_of_the_same_samples_are_one_batch(theta: float) -> None:
    """Means of equal numbers: up to the rounding of sums over 4 samples instead of 12."""

    def run(make: Make) -> Tensor:
        net = made(mlp)
        opt = make(BASES["momentum"](net.parameters()), rho=0.1, theta=theta, model=net)
        for t in range(SHORT):
            x, y = batch(t, 4)
            opt.step(samples(opt, net, x.repeat(3, 1), y.repeat(3)))
        return flat(net.parameters())

    assert_near(run(partial(ChunkedSAM, m=4)), run(SAM), 1e-13)
