"""Special cases: at some setting each method is SAM, VaSSO, the base or another method.

Equality is bit for bit unless a tolerance is given.
"""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

import vasso
from tests.support import batches
from tests.support.compare import assert_same, flat, records_of

SOURCES = ("batch", "ema", "direction")
BLIND = {"lambda_1": math.inf, "lambda_2": math.inf, "total": batches.SHORT}
KEEN = {"lambda_1": -math.inf, "lambda_2": -math.inf, "total": batches.SHORT // 2}
suppressed = partial(vasso.VaSSO, rho=0.1, theta=0.4)
SAMS: dict[str, batches.Make] = {
    "VaSSO without suppression": partial(vasso.VaSSO, theta=1.0),
    "GSAM that ignores the gap": partial(vasso.GSAM, alpha=0.0),
    "LookSAM that always looks": partial(vasso.LookSAM, k=1),
    "SSSAM that always climbs": partial(vasso.SSSAM, p=1.0),
    "AESAM without a threshold": partial(vasso.AESAM, **KEEN),
    "AELookSAM without a threshold": partial(vasso.AELookSAM, **KEEN),
    **{f"FisherSAM, flat {s}": partial(vasso.FisherSAM, eta=0.0, source=s) for s in SOURCES},
    "ChunkedSAM of one chunk": partial(vasso.ChunkedSAM, m=batches.SIZE),
    "ChunkedSAM of a chunk larger than the batch": partial(vasso.ChunkedSAM, m=10 * batches.SIZE),
    "SubSampledSAM of all samples": partial(vasso.SubSampledSAM, m=batches.SIZE),
    "HalfSAM of the whole batch": partial(vasso.HalfSAM, fraction=1.0),
    "ESAM of all weights and samples": partial(vasso.ESAM, beta=1.0, gamma=1.0),
    "ESAM of all tensors and samples": partial(vasso.ESAM, beta=1.0, gamma=1.0, level="tensor"),
    "NoisySAM without noise": partial(vasso.NoisySAM, kappa=0.0),
}
"""Each is SAM at radius 0.1, and with theta VaSSO."""

PLAIN: dict[str, batches.Make] = {
    "GSAM of the loss at w that ignores the gap": partial(vasso.GSAM, alpha=0.0, minimise="clean"),
    "SSSAM that never climbs": partial(vasso.SSSAM, p=0.0),
    "AESAM with an infinite threshold": partial(vasso.AESAM, **BLIND),
    "AELookSAM with an infinite threshold": partial(vasso.AELookSAM, **BLIND),
}
"""Each is the base."""

each_problem = pytest.mark.parametrize(
    ("model", "base"), [(batches.mlp, "momentum"), (batches.conv, "adamw")], ids=["mlp", "conv"]
)

each_sam = pytest.mark.parametrize("name", SAMS)


@each_problem
@each_sam
def test_at_one_end_of_its_setting_it_is_sam(name: str, model: Any, base: str) -> None:
    ours = batches.train(partial(SAMS[name], rho=0.1), model=model, base=base)
    assert_same(ours.path, batches.train(batches.sam, model=model, base=base).path)


@each_sam
def test_at_one_end_of_its_setting_it_is_vasso_with_theta(name: str) -> None:
    assert_same(
        batches.train(partial(SAMS[name], rho=0.1, theta=0.4)).path, batches.train(suppressed).path
    )


AVERAGED = partial(vasso.VaSSO, theta=0.3)
# fmt: off
PAIRS: dict[str, tuple[batches.Make, batches.Make]] = {
    "LookSAM that reuses nothing climbs every k-th step":
        (partial(vasso.LookSAM, rho=0.1, k=3, alpha=0.0, theta=0.4), partial(vasso.SharpnessAware,
        rho=0.1, direction=vasso.Ema(0.4), policy=vasso.EveryK(3))),
    "AELookSAM that reuses nothing is AESAM":
        (partial(vasso.AELookSAM, rho=0.1, total=batches.SHORT, alpha=0.0, theta=0.4),
        partial(vasso.AESAM, rho=0.1, total=batches.SHORT, theta=0.4)),
    "without suppression the slope of FisherSAM is the batch":
        (partial(vasso.FisherSAM, rho=0.1, eta=1e3, source="direction"), partial(vasso.FisherSAM,
        rho=0.1, eta=1e3)),
    "an average of FisherSAM that forgets all is the batch":
        (batches.fisher_of(eta=1e3, source="ema", decay=0.0), batches.fisher_of(eta=1e3)),
    "GSAM without suppression has no slope of its own to decompose":
        (batches.gap(1.0), partial(vasso.GSAM, rho=0.1, alpha=0.3)),
    "a gradient that drowns in noise is RandomSAM":
        (partial(vasso.NoisySAM, rho=0.1, kappa=0.0, sigma=2.0**60, seed=3),
        partial(vasso.RandomSAM, rho=0.1, seed=3)),
    "late from the start": (partial(vasso.LateSAM, start=0), vasso.SAM),
    "late, averaged, from the start": (partial(vasso.LateSAM, start=0, theta=0.3), AVERAGED),
    "late, at every step": (partial(vasso.LateSAM, start=0, then=vasso.EveryK(1)), vasso.SAM),
    "never late enough": (partial(vasso.LateSAM, start=100), batches.plain_base),
    "refreshed at every step": (partial(vasso.ReusedSAM, theta=0.3, refresh=vasso.RefreshEveryK(1)),
        AVERAGED),
    "a coin that always says yes":
        (partial(vasso.ReusedSAM, theta=0.3, refresh=vasso.RefreshRandomly(p=1.0)), AVERAGED),
    "always warming up":
        (partial(vasso.ReusedSAM, theta=0.3, refresh=vasso.RefreshAdaptive(warm_up=100)), AVERAGED),
    "refreshed, with a slope that could follow":
        (partial(vasso.ReusedSAM, theta=0.3, refresh=vasso.RefreshEveryK(1), stale="follow"),
        AVERAGED),
    "refreshed and trusting the newest gradient":
        (partial(vasso.ReusedSAM, theta=1.0, refresh=vasso.RefreshEveryK(1)), vasso.SAM),
    "friendly, with nothing taken out": (partial(vasso.FriendlySAM, sigma=0.0),
        partial(vasso.SAM, rho=0.2)),
    "friendly, old, with nothing taken out": (partial(vasso.FriendlySAM, sigma=0.0, use="old"),
        partial(vasso.SAM, rho=0.2)),
    "storm that trusts the newest gradient": (partial(vasso.StormSAM, a=1.0), vasso.SAM),
    "all of the penalty": (partial(vasso.PGN, rho=0.05, alpha=1.0), vasso.SAM),
    "nothing of the penalty": (partial(vasso.PGN, alpha=0.0), batches.plain_base),
    "one step": (partial(vasso.MultiStepSAM, n=1), vasso.SAM),
    "one step of rho/n": (partial(vasso.MultiStepSAM, n=1, stride="rho/n"), vasso.SAM),
    "the mean of one step": (partial(vasso.MultiStepSAM, n=1, mean=True), vasso.SAM),
    "one step, averaged": (partial(vasso.MultiStepSAM, n=1, theta=0.3), AVERAGED),
    "one step of Frank-Wolfe": (partial(vasso.FrankWolfeSAM, K=1), vasso.SAM),
    "one step of Frank-Wolfe with momentum": (partial(vasso.FrankWolfeSAM, K=1, momentum=True),
        vasso.SAM),
    "a Fisher mask without zeros": (partial(vasso.SparseSAM, rho=0.05, sparsity=0.0), vasso.SAM),
    "a dynamic mask without zeros": (partial(vasso.SparseSAM, rho=0.05, sparsity=0.0,
        mask="dynamic", every=2), vasso.SAM),
    **{name: (partial(make, rho=0.1), batches.plain_base) for name, make in PLAIN.items()},
}
# fmt: on


@each_problem
@pytest.mark.parametrize("name", PAIRS)
def test_two_methods_are_one(name: str, model: Any, base: str) -> None:
    """Noise of 2^60 only moves the exponent, and g is below the last bit."""
    one, two = (
        batches.train(
            make, model=model, base=base, way="plain" if make is batches.plain_base else "closure"
        )
        for make in PAIRS[name]
    )
    assert_same(one.path, two.path)


@pytest.mark.parametrize(
    "name", [name for name, case in batches.CASES.items() if not (case.whole or case.other)]
)
def test_the_callers_own_passes_are_the_closure(name: str) -> None:
    case = batches.CASES[name]
    ours = batches.train(case.make, lr=case.lr, whole=False, way="ascended")
    assert_same(ours.path, batches.train(case.make, lr=case.lr, whole=False).path)


@pytest.mark.parametrize("method", [batches.sam, suppressed, partial(vasso.GSAM, theta=0.4)])
def test_the_same_samples_again_are_the_method(method: batches.Make) -> None:
    net = batches.made(batches.mlp)
    opt = method(batches.BASES["momentum"](net.parameters()), model=net)
    path = []
    for t in range(batches.SHORT):
        one, two = (batches.closure_of(opt, net, *batches.batch(t)) for _ in range(2))
        opt.step(one, ascent_closure=two)
        path.append(flat(net.parameters()))
    assert_same(torch.stack(path), batches.train(method).path)


@pytest.mark.parametrize("theta", [0.3, 1.0])
def test_asam_where_all_weights_are_equally_large_is_sam(theta: float) -> None:
    """T = 1/4 + 1/4 everywhere: a power of two, so that every rounding is the same."""

    def records(make: batches.Make) -> list[vasso.StepRecord]:
        net = batches.made(batches.without_bias)
        for p in net.parameters():
            p.data.copy_(p.data.sign() / 4)
        opt = make(SGD(net.parameters(), lr=0.0), theta=theta, model=net)
        kept = records_of(opt)
        for t in range(3):
            opt.step(batches.closure_of(opt, net, *batches.batch(t)))
        return kept

    ours, theirs = (
        records(partial(vasso.ASAM, rho=0.6, eta=0.25)),
        records(partial(vasso.SAM, rho=0.3)),
    )
    for one, two in zip(ours, theirs, strict=True):
        assert_same(flat(one.h), flat(two.h))


@pytest.mark.parametrize("theta", [0.4, 1.0])
def test_chunks_of_the_same_samples_are_one_batch(theta: float) -> None:
    """Means of equal numbers: up to the rounding of sums over 4 samples instead of 12."""

    def run(make: batches.Make) -> Tensor:
        net = batches.made(batches.mlp)
        opt = make(batches.BASES["momentum"](net.parameters()), rho=0.1, theta=theta, model=net)
        for t in range(batches.SHORT):
            x, y = batches.batch(t, 4)
            opt.step(batches.samples(opt, net, x.repeat(3, 1), y.repeat(3)))
        return flat(net.parameters())

    batches.assert_near(run(partial(vasso.ChunkedSAM, m=4)), run(vasso.SAM), 1e-13)
