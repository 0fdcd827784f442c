"""SAM, its geometries, its data plans and its cheap forms: twins, identities, invariants, errors.

Training runs in float64 on scikit-learn's digits. Where nothing is said of a tolerance, equality is
bit for bit.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, product
from typing import Any, TypeAlias

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer, RMSprop

from tests.reference import family_a as twins
from tests.reference.family_a import Step, Vector, inner, length, plus, times
from vasso import presets
from vasso.ascents import MultiStep
from vasso.descents import Reuse, SurrogateGap
from vasso.directions import Ema, Random
from vasso.geometries import Adaptive, Fisher, FisherMask, RandomMask
from vasso.here import Here, Memory
from vasso.optimizer import SharpnessAware
from vasso.plans import Chunks, Samples, SelectTop, SubSample
from vasso.policies import AdaptiveNorm, Bernoulli, EveryK, RefreshEveryK
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
from vasso.randomness import mixed
from vasso.records import StepRecord
from vasso.schedules import linear, proportional_to_lr

STEPS = 40
SHORT = 8  # steps of what has to be equal bit for bit
SIZE = 22  # samples in a batch; not a multiple of the chunks
TOLERANCE = 1e-12
"""Of weights of size 1 after 40 steps. Our sums and the twin's differ by single roundings (1e-16),
which this training hardly multiplies (measured: 7e-16; 3e-15 where one sample of the batch goes
down). The rest is for machines that add up in another order. No two methods are as near."""

Make: TypeAlias = Callable[..., Any]
"""A base -> an optimizer, with keywords of `SharpnessAware`."""

BASES: dict[str, Callable[..., Optimizer]] = {
    "momentum": partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": partial(AdamW, lr=3e-3, weight_decay=1e-2),
    "rmsprop": partial(RMSprop, lr=1e-3, alpha=0.9),  # has an alpha of its own
}


# -- problems and loops ---------------------------------------------------------------------------


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))


def conv() -> nn.Module:
    """With a norm whose scale is a weight of one dimension, and samples that do not see others."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 3, 3, stride=2),
        nn.GroupNorm(1, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(27, 10),
    )


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12, bias=False), nn.ReLU(), nn.Linear(12, 10, bias=False))


def made(make: Callable[[], nn.Module]) -> nn.Module:
    """The model, with the same weights whenever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20230926)
        return make().double()


@cache
def digits() -> tuple[Tensor, Tensor]:
    """The 1,797 handwritten digits in a random order: 64 grey values in [0, 1], and the label."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    return torch.from_numpy(data.data / 16.0)[order], torch.from_numpy(data.target).long()[order]


def batch(t: int, size: int = SIZE) -> tuple[Tensor, Tensor]:
    """The batch of step t."""
    x, y = digits()
    rows = torch.arange(t * size, (t + 1) * size) % len(y)
    return x[rows], y[rows]


def other_batch(t: int, size: int) -> tuple[Tensor, Tensor]:
    """Another batch for step t, of other samples."""
    x, y = batch(t + 7)
    return x[:size], y[:size]


def each_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


def samples(opt: Optimizer, model: nn.Module, x: Tensor, y: Tensor) -> Samples:
    return Samples(opt.zero_grad, partial(each_loss, model), x, y)


def closure_of(
    opt: Optimizer, model: nn.Module, x: Tensor, y: Tensor, scale: float = 1.0
) -> Callable[[], Tensor]:
    """What torch.optim calls a closure, which knows nothing of samples."""

    def closure() -> Tensor:
        opt.zero_grad()
        loss = each_loss(model, x, y).mean() * scale
        loss.backward()
        return loss

    return closure


def flat(tensors: Any) -> Tensor:
    return torch.cat([x.detach().flatten() for x in tensors])


def records_of(opt: SharpnessAware) -> list[StepRecord]:
    """A list that grows by a copy of each step's record."""
    kept: list[StepRecord] = []

    def copy(vectors: Any) -> Any:
        return vectors and [x.detach().clone() for x in vectors]

    def keep(record: StepRecord) -> None:
        vectors = (copy(v) for v in (record.params, record.g, record.d, record.epsilon, record.h))
        kept.append(StepRecord(record.step, *vectors, record.summary))

    opt.observe(keep)
    return kept


@dataclass
class Run:
    """A training of ours.

    Attributes:
        opt: after the last step.
        path: the weights after each step, one row per step.
        climbed: whether each step did.
    """

    opt: Any
    path: Tensor
    climbed: list[bool]


def train(
    make: Make,
    *,
    model: Callable[[], nn.Module] = mlp,
    base: str = "momentum",
    steps: int = SHORT,
    whole: bool = True,
    other: int | None = None,
    lr: Callable[[int], float] | None = None,
    way: str = "closure",
) -> Run:
    """Trains one of ours, or a plain base.

    Args:
        make: base -> optimizer.
        model: what to train.
        base: name of a base.
        steps: how many.
        whole: whether the closure shows its samples.
        other: samples of another batch for the adversary.
        lr: step -> learning rate.
        way: "closure", "ascended", or "plain" for what is not ours.
    """
    net = made(model)
    opt = make(BASES[base](net.parameters()), model=net)
    path, climbed = [], []
    for t in range(steps):
        for group in opt.param_groups:
            group["lr"] = lr(t) if lr else group["lr"]
        closure = (samples if whole else closure_of)(opt, net, *batch(t))
        more = {}
        if other:
            more["ascent_closure"] = samples(opt, net, *other_batch(t, other))
        take_step(opt, closure, way, **more)
        path.append(flat(net.parameters()))
        climbed.append(way != "plain" and opt.last.climbed)
    return Run(opt, torch.stack(path), climbed)


def take_step(opt: Any, closure: Callable[[], Tensor], way: str, **more: Any) -> None:
    """One step, by a closure, by the caller's own passes, or as any torch optimizer does it."""
    if way == "closure":
        opt.step(closure, **more)
        return
    if way == "plain" or opt.wants_clean:
        closure()
    if way == "ascended":
        with opt.ascended() as up:
            if up:
                closure()
    opt.step()


def plain_base(base: Optimizer, model: nn.Module) -> Optimizer:
    return base


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Equal bit for bit."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def assert_near(ours: Any, theirs: Any, tolerance: float) -> None:
    """Equal up to a tolerance that the test justifies, absolute for numbers below 1."""
    ours, theirs = (torch.as_tensor(x, dtype=torch.float64) for x in (ours, theirs))
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# -- twins ----------------------------------------------------------------------------------------


def noise(step: Step, seed: int) -> Vector:
    return Here(step.t, step.x).noise(seed)


def coin(step: Step, seed: int) -> float:
    return Here(step.t).coin(seed)


def mask(step: Step, seed: int, beta: float) -> Vector:
    """A coin for each element."""
    return [(luck < beta).double() for luck in Here(step.t, step.x).uniform(seed)]


def mask_of_tensors(step: Step, seed: int, beta: float) -> Vector:
    """The coin of its first element for the whole tensor."""
    luck = Here(step.t, step.x).uniform(seed)
    return [torch.full_like(x, float(x.flatten()[0] < beta)) for x in luck]


def chosen(step: Step, seed: int, m: int) -> list[int]:
    """m of the samples, drawn with a seed that is mixed from seed and step."""
    luck = torch.Generator().manual_seed(mixed(seed, step.t))
    return torch.randperm(step.size, generator=luck)[:m].tolist()


def scheduled_radius(t: int) -> float:
    """GSAM's, between 0.02 and 0.2 as lr falls from 0.05 to 0.01, and on below as lr goes to 0."""
    return max(0.0, 0.02 + 0.18 * (falling_lr(t) - 0.01) / 0.04)


def falling_lr(t: int) -> float:
    return 0.05 * (1 - t / STEPS)


def gap(theta: float, **settings: Any) -> Make:
    """GSAM by its parts: the preset does not say what is decomposed."""
    descent = SurrogateGap(0.3, decompose="slope", **settings)
    return partial(SharpnessAware, rho=0.1, direction=Ema(theta), descent=descent)


def fisher_of(**settings: Any) -> Make:
    """FisherSAM by its parts: the preset does not say how fast its average forgets."""
    return partial(SharpnessAware, rho=0.1, direction=Ema(0.4), geometry=Fisher(**settings))


@dataclass(frozen=True)
class Case:
    """A method of ours and its twin.

    Attributes:
        make: ours.
        twin: step -> u.
        whole: whether the method has to see samples.
        other: samples of another batch for the adversary.
        lr: step -> learning rate.
    """

    make: Make
    twin: Callable[[Step], Vector]
    whole: bool = False
    other: int | None = None
    lr: Callable[[int], float] | None = None


def pair(
    preset: Any, twin: Callable[..., Vector], **settings: Any
) -> tuple[Make, Callable[[Step], Vector]]:
    """Both with the same settings."""
    return partial(preset, **settings), partial(twin, **settings)


CASES: dict[str, Case] = {
    "SAM": Case(*pair(SAM, twins.sam, rho=0.1)),
    "VaSSO": Case(*pair(VaSSO, twins.vasso, rho=0.1, theta=0.4)),
    "VaSSO, long memory": Case(*pair(VaSSO, twins.vasso, rho=0.2, theta=0.05)),
    "ASAM": Case(*pair(ASAM, twins.asam, rho=0.5, eta=0.01)),
    "ASAM, eta 0": Case(*pair(ASAM, twins.asam, rho=1.0, eta=0.0)),
    "VaSSO+ASAM": Case(*pair(ASAM, twins.asam, rho=0.5, eta=0.1, theta=0.3)),
    "FisherSAM": Case(*pair(FisherSAM, twins.fisher, rho=0.1, eta=1.0)),
    "FisherSAM, large eta": Case(*pair(FisherSAM, twins.fisher, rho=0.2, eta=1e4)),
    "FisherSAM, average": Case(*pair(FisherSAM, twins.fisher, rho=0.1, eta=1e3, source="ema")),
    "VaSSO+FisherSAM": Case(*pair(FisherSAM, twins.fisher, rho=0.1, eta=1e3, theta=0.4)),
    "VaSSO+FisherSAM, average": Case(
        *pair(FisherSAM, twins.fisher, rho=0.1, eta=1e3, theta=0.4, source="ema")
    ),
    "VaSSO+FisherSAM, direction": Case(
        *pair(FisherSAM, twins.fisher, rho=0.1, eta=1e3, theta=0.4, source="direction")
    ),
    "VaSSO+FisherSAM, sums": Case(
        fisher_of(eta=1.0, source="ema", decay=0.6, scale=22.0),
        partial(twins.fisher, rho=0.1, theta=0.4, eta=1.0, source="ema", decay=0.6, scale=22.0),
    ),
    "GSAM": Case(*pair(GSAM, twins.gsam, rho=0.1, alpha=0.3)),
    "GSAM, clean": Case(*pair(GSAM, twins.gsam, rho=0.1, alpha=0.3, minimise="clean")),
    "GSAM, radius with lr": Case(
        partial(GSAM, rho=proportional_to_lr(0.2, 0.02, lr_high=0.05, lr_low=0.01), alpha=0.3),
        lambda step: twins.gsam(step, rho=scheduled_radius(step.t), alpha=0.3),
        lr=falling_lr,
    ),
    "V+G": Case(*pair(GSAM, twins.gsam, rho=0.1, alpha=0.3, theta=0.4)),
    "V+G, clean": Case(*pair(GSAM, twins.gsam, rho=0.1, alpha=0.3, theta=0.4, minimise="clean")),
    "V+G of the slope": Case(
        gap(0.4), partial(twins.gsam, rho=0.1, alpha=0.3, theta=0.4, decompose="slope")
    ),
    "V+G of the slope, clean": Case(
        gap(0.4, minimise="clean"),
        partial(twins.gsam, rho=0.1, alpha=0.3, theta=0.4, decompose="slope", minimise="clean"),
    ),
    "SAM-db": Case(*pair(SAM, twins.sam_db, rho=0.1), other=SIZE),
    "SAM-db-m/2": Case(*pair(SAM, twins.sam_db, rho=0.1), other=SIZE // 2),
    "VaSSO-db": Case(*pair(VaSSO, twins.sam_db, rho=0.1, theta=0.4), other=SIZE),
    "NoisySAM, kappa": Case(
        partial(NoisySAM, rho=0.1, kappa=2.0, seed=5),
        lambda step: twins.noisy(step, rho=0.1, kappa=2.0, sigma=0.0, noise=noise(step, 5)),
    ),
    "NoisySAM, sigma": Case(
        partial(NoisySAM, rho=0.1, kappa=0.0, sigma=0.05, seed=6),
        lambda step: twins.noisy(step, rho=0.1, kappa=0.0, sigma=0.05, noise=noise(step, 6)),
    ),
    "NoisySAM + theta": Case(
        partial(NoisySAM, rho=0.1, kappa=1.0, sigma=0.01, theta=0.4, seed=7),
        lambda step: twins.noisy(
            step, rho=0.1, kappa=1.0, sigma=0.01, theta=0.4, noise=noise(step, 7)
        ),
    ),
    "RandomSAM": Case(
        partial(RandomSAM, rho=0.5, seed=8),
        lambda step: twins.random(step, rho=0.5, noise=noise(step, 8)),
    ),
    "ChunkedSAM": Case(*pair(ChunkedSAM, twins.chunked, rho=0.1, m=11), whole=True),
    "ChunkedSAM, ragged": Case(*pair(ChunkedSAM, twins.chunked, rho=0.1, m=5), whole=True),
    "ChunkedSAM + theta": Case(
        *pair(ChunkedSAM, twins.chunked, rho=0.1, m=11, theta=0.4), whole=True
    ),
    "ChunkedSAM + theta, ragged": Case(
        *pair(ChunkedSAM, twins.chunked, rho=0.1, m=8, theta=0.4), whole=True
    ),
    "SubSampledSAM": Case(
        partial(SubSampledSAM, rho=0.1, m=6, seed=9),
        lambda step: twins.subsampled(step, rho=0.1, rows=chosen(step, 9, 6)),
        whole=True,
    ),
    "SubSampledSAM + theta": Case(
        partial(SubSampledSAM, rho=0.1, m=6, seed=9, theta=0.4),
        lambda step: twins.subsampled(step, rho=0.1, rows=chosen(step, 9, 6), theta=0.4),
        whole=True,
    ),
    "LookSAM": Case(*pair(LookSAM, twins.looksam, rho=0.1, k=4, alpha=0.3)),
    "LookSAM + theta": Case(*pair(LookSAM, twins.looksam, rho=0.1, k=4, alpha=0.3, theta=0.4)),
    "ESAM": Case(
        partial(ESAM, rho=0.1, beta=0.5, gamma=0.6, seed=11),
        lambda step: twins.esam(step, rho=0.1, beta=0.5, gamma=0.6, mask=mask(step, 11, 0.5)),
        whole=True,
    ),
    "ESAM, tensors": Case(
        partial(ESAM, rho=0.1, beta=0.5, gamma=0.4, level="tensor", seed=19),
        lambda step: twins.esam(
            step, rho=0.1, beta=0.5, gamma=0.4, mask=mask_of_tensors(step, 19, 0.5)
        ),
        whole=True,
    ),
    "ESAM, one sample": Case(
        partial(ESAM, rho=0.1, beta=0.25, gamma=0.01, seed=13),
        lambda step: twins.esam(step, rho=0.1, beta=0.25, gamma=0.01, mask=mask(step, 13, 0.25)),
        whole=True,
    ),
    "ESAM + theta": Case(
        partial(ESAM, rho=0.1, beta=0.5, gamma=0.6, seed=11, theta=0.4),
        lambda step: twins.esam(
            step, rho=0.1, beta=0.5, gamma=0.6, theta=0.4, mask=mask(step, 11, 0.5)
        ),
        whole=True,
    ),
    "SSSAM": Case(
        partial(SSSAM, rho=0.1, p=0.4, seed=14),
        lambda step: twins.sssam(step, rho=0.1, p=0.4, coin=coin(step, 14)),
    ),
    "SSSAM + theta, p rises": Case(
        partial(SSSAM, rho=0.1, p=linear(0.1, 0.9, STEPS), seed=15, theta=0.4),
        lambda step: twins.sssam(
            step, rho=0.1, p=0.1 + 0.8 * step.t / STEPS, coin=coin(step, 15), theta=0.4
        ),
    ),
    "AESAM": Case(*pair(AESAM, twins.aesam, rho=0.1, total=STEPS)),
    "AESAM + theta": Case(
        *pair(AESAM, twins.aesam, rho=0.1, total=20, delta=0.7, lambda_1=-0.5, theta=0.4)
    ),
    "AELookSAM": Case(*pair(AELookSAM, twins.aelooksam, rho=0.1, total=STEPS, alpha=0.3)),
    "AELookSAM + theta": Case(
        *pair(AELookSAM, twins.aelooksam, rho=0.1, total=30, alpha=0.3, lambda_2=0.5, theta=0.4)
    ),
}


def path_of_twin(case: Case, model: Callable[[], nn.Module], base: str) -> Tensor:
    """The twin finds u, a base of torch takes the step."""
    net, memory, path = made(model), {}, []
    names, params = zip(*net.named_parameters(), strict=True)
    opt = BASES[base](params)

    def losses(x: Tensor, y: Tensor) -> twins.Losses:
        def of(w: Vector) -> Tensor:
            logits = functional_call(net, dict(zip(names, w, strict=True)), (x,))
            return cross_entropy(logits, y, reduction="none")

        return of

    for t in range(STEPS):
        w = [p.detach().clone() for p in params]
        up = losses(*other_batch(t, case.other)) if case.other else None
        u = case.twin(Step(t, w, list(names), losses(*batch(t)), SIZE, up, memory))
        for p, gradient in zip(params, u, strict=True):
            p.grad = gradient
        for group in opt.param_groups:
            group["lr"] = case.lr(t) if case.lr else group["lr"]
        opt.step()
        path.append(flat(params))
    return torch.stack(path)


def assert_twins(case: Case, model: Callable[[], nn.Module], base: str) -> Run:
    ours = train(
        case.make,
        model=model,
        base=base,
        steps=STEPS,
        whole=case.whole,
        other=case.other,
        lr=case.lr,
    )
    assert_near(ours.path, path_of_twin(case, model, base), TOLERANCE)
    return ours


@pytest.mark.parametrize("name", CASES)
def test_a_network_trained_with_momentum_follows_the_twin(name: str) -> None:
    """Where there is a policy, it has to say yes and no: else the twin is that of SAM."""
    climbs = sum(assert_twins(CASES[name], mlp, "momentum").climbed)
    assert climbs == STEPS or 9 < climbs < STEPS - 9 or "radius" in name


@pytest.mark.parametrize(
    "name",
    [
        "VaSSO",
        "VaSSO+ASAM",
        "VaSSO+FisherSAM, average",
        "V+G",
        "NoisySAM + theta",
        "RandomSAM",
        "ChunkedSAM + theta, ragged",
        "LookSAM",
        "ESAM, tensors",
        "AELookSAM + theta",
    ],
)
def test_a_convolution_trained_with_adamw_follows_the_twin(name: str) -> None:
    assert_twins(CASES[name], conv, "adamw")


@pytest.mark.parametrize("name", ["GSAM", "LookSAM"])
def test_a_base_with_an_alpha_of_its_own_follows_the_twin(name: str) -> None:
    assert_twins(CASES[name], mlp, "rmsprop")


@pytest.mark.parametrize(("total", "delta"), [(400, 0.9), (150, 0.7)])
def test_aesam_decides_as_its_equations_say(total: int, delta: float) -> None:
    """On 300 gradients whose norms spread over two decades, which training does not have."""
    luck = torch.Generator().manual_seed(2)
    policy, step = AdaptiveNorm(total, delta, lambda_1=-0.8, lambda_2=0.3), None
    memory, decided, expected = Memory({}, dict(policy.counts)), [], []
    for t in range(300):
        size = torch.randn((), generator=luck, dtype=torch.float64).exp()
        g = [size * torch.randn(3, generator=luck, dtype=torch.float64) for _ in range(2)]
        decided.append(policy.climb(g, memory, Here(t, g, g, g)))
        step = Step(t, [], [], len, 0, memory={} if step is None else step.memory)
        expected.append(twins.large_for_its_time(step, g, total, delta, -0.8, 0.3))
    assert decided == expected
    assert 50 < sum(decided) < 250


# -- identities -----------------------------------------------------------------------------------

SOURCES = ("batch", "ema", "direction")
BLIND = {"lambda_1": math.inf, "lambda_2": math.inf, "total": SHORT}
KEEN = {"lambda_1": -math.inf, "lambda_2": -math.inf, "total": SHORT // 2}

sam = partial(SAM, rho=0.1)
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


# -- invariants -----------------------------------------------------------------------------------


def observed(
    make: Make, *, model: Callable[[], nn.Module] = mlp, whole: bool = False, steps: int = 6
) -> tuple[SharpnessAware, list[StepRecord], list[Vector]]:
    """The optimizer after some steps, its records, and what went down in each step."""
    net = made(model)
    opt = make(BASES["momentum"](net.parameters()), model=net)
    records, down = records_of(opt), []
    for t in range(steps):
        opt.step((samples if whole else closure_of)(opt, net, *batch(t)))
        down.append([p.grad.clone() for p in net.parameters()])
    return opt, records, down


def at(record: StepRecord, model: Callable[[], nn.Module]) -> Here:
    """The step of a record, as a geometry may see it."""
    names = [name for name, _ in made(model).named_parameters()]
    return Here(record.step, record.params, record.params, record.g, list(names))


BALLS = [
    "SAM",
    "VaSSO",
    "ASAM",
    "ASAM, eta 0",
    "VaSSO+ASAM",
    "FisherSAM, large eta",
    "VaSSO+FisherSAM",
    "V+G",
    "NoisySAM + theta",
    "RandomSAM",
    "ChunkedSAM + theta, ragged",
    "SubSampledSAM",
    "LookSAM + theta",
    "SSSAM",
    "AELookSAM",
]
each_ball = pytest.mark.parametrize("name", BALLS)
each_model = pytest.mark.parametrize("model", [mlp, conv])


@each_model
@each_ball
def test_the_adversary_is_on_the_surface_of_the_ball(name: str, model: Any) -> None:
    """epsilon is read off as (w + epsilon) - w: roundings of 1e-16 against a radius of 0.1."""
    case = CASES[name]
    opt, records, _ = observed(case.make, model=model, whole=case.whole, steps=8)
    lengths = [opt.geometry.length(r.epsilon, at(r, model)) for r in records if r.epsilon]
    rho = torch.full((len(lengths),), opt.param_groups[0]["rho"], dtype=torch.float64)
    assert_near(torch.stack(lengths), rho, 1e-12)


@each_model
@each_ball
def test_no_point_of_the_ball_is_higher_on_the_slope(name: str, model: Any) -> None:
    """<d, v> / length(v) is stationary at epsilon, and with a norm there is no other top.

    Rounding: epsilon is read off as (w + epsilon) - w, so small entries of it have few digits.
    """
    case = CASES[name]
    opt, records, _ = observed(case.make, model=model, whole=case.whole, steps=8)
    record = next(r for r in reversed(records) if r.epsilon)
    v = [x.requires_grad_() for x in record.epsilon]
    height = sum((x * y).sum() for x, y in zip(record.d, v, strict=True))
    assert height > 0
    ratio = height / opt.geometry.length(v, at(record, model))
    tilt = flat(torch.autograd.grad(ratio, v)) * opt.param_groups[0]["rho"]
    assert_near(tilt / flat(record.d).abs().max(), torch.zeros_like(tilt), 1e-11)


@pytest.mark.parametrize("source", ["ema", "direction"])
def test_a_ball_that_is_known_only_in_its_step_says_so(source: str) -> None:
    opt, records, _ = observed(partial(FisherSAM, source=source), steps=1)
    with pytest.raises(ValueError, match=rf"the ball of Fisher\(.*{source}.*\) is not known"):
        opt.geometry.length(records[0].epsilon, at(records[0], mlp))


@pytest.mark.parametrize("theta", [0.4, 1.0])
def test_gsam_takes_from_the_gradient_above_what_is_orthogonal_to_it(theta: float) -> None:
    """<g_perp, h> = 0 and <u, h> = ||h||^2, up to roundings of ||g|| ||h||."""
    _, records, down = observed(partial(GSAM, rho=0.1, alpha=0.3, theta=theta))
    for record, u in zip(records, down, strict=True):
        g_perp = times(1 / 0.3, plus(record.h, times(-1.0, u)))
        size = length(record.g) * length(record.h)
        assert_near(inner(g_perp, record.h) / size, 0.0, 1e-13)
        assert_near(inner(u, record.h), inner(record.h, record.h), 1e-13)
        along = inner(record.g, record.h) / inner(record.h, record.h)
        assert_near(flat(g_perp), flat(plus(record.g, times(-along, record.h))), 1e-13)


@pytest.mark.parametrize("theta", [0.4, 1.0])
def test_gsam_of_the_loss_at_w_keeps_its_descent(theta: float) -> None:
    """<u, g> = ||g||^2."""
    _, records, down = observed(partial(GSAM, rho=0.1, alpha=0.3, minimise="clean", theta=theta))
    for record, u in zip(records, down, strict=True):
        assert_near(inner(u, record.g), inner(record.g, record.g), 1e-13)


@pytest.mark.parametrize("theta", [0.4, 1.0])
def test_looksam_keeps_what_is_orthogonal_to_the_gradient(theta: float) -> None:
    """<g_v, g> = 0 after a climb; afterwards alpha ||g|| of it comes on top of g."""
    opt, records, down = observed(partial(LookSAM, rho=0.1, k=6, alpha=0.3, theta=theta))
    g_v = [entry["vasso_g_v"] for entry in opt.state.values()]
    climb = records[0]
    assert_near(inner(g_v, climb.g) / (length(g_v) * length(climb.g)), 0.0, 1e-13)
    assert_near(flat(down[0]), flat(climb.h), 0.0)
    for record, u in zip(records[1:], down[1:], strict=True):
        added = plus(u, times(-1.0, record.g))
        assert_near(length(added), 0.3 * length(record.g), 1e-13)
        assert_near(inner(added, g_v), length(added) * length(g_v), 1e-13)


def loss_above(make: Make, a: float) -> float:
    """The loss at the adversary of a network without biases, rescaled where it does not notice."""
    net = made(without_bias)
    with torch.no_grad():
        net[0].weight.mul_(a)
        net[2].weight.div_(a)
    opt = make(SGD(net.parameters(), lr=0.0), model=net)
    opt.step(closure_of(opt, net, *batch(0)))
    return opt.last.perturbed_loss.item()


@pytest.mark.parametrize("a", [0.25, 4.0])
def test_asam_does_not_see_a_rescaling_by_a_power_of_two(a: float) -> None:
    asam = partial(ASAM, rho=0.5, eta=0.0)
    assert loss_above(asam, a) == loss_above(asam, 1.0)


@pytest.mark.parametrize("a", [0.3, 7.0])
def test_asam_does_not_see_a_rescaling(a: float) -> None:
    """Up to the rounding of the rescaling itself; SAM sees it well."""
    asam = partial(ASAM, rho=0.5, eta=0.0)
    assert_near(loss_above(asam, a), loss_above(asam, 1.0), 1e-13)
    assert abs(loss_above(sam, a) - loss_above(sam, 1.0)) > 1e-3


def adversaries(make: Make, scale: float) -> Tensor:
    """Of three batches at weights that stay, for a loss times some number."""
    net = made(mlp)
    opt = make(SGD(net.parameters(), lr=0.0), model=net)
    records = records_of(opt)
    for t in range(3):
        opt.step(closure_of(opt, net, *batch(t), scale=scale))
    return torch.stack([flat(record.epsilon) for record in records])


@pytest.mark.parametrize("name", ["SAM", "VaSSO", "ASAM", "VaSSO+ASAM", "NoisySAM, kappa", "V+G"])
def test_the_adversary_does_not_see_the_scale_of_the_loss(name: str) -> None:
    """8 is a power of two, so that every rounding is the same."""
    make = CASES[name].make
    assert_same(adversaries(make, 8.0), adversaries(make, 1.0))


@pytest.mark.parametrize("name", ["FisherSAM", "NoisySAM, sigma"])
def test_the_adversary_of_others_does_see_the_scale_of_the_loss(name: str) -> None:
    make = CASES[name].make
    assert (adversaries(make, 8.0) - adversaries(make, 1.0)).abs().max() > 1e-6


@pytest.mark.parametrize("name", CASES)
def test_weights_return_to_the_last_bit(name: str) -> None:
    case, net = CASES[name], made(mlp)
    opt = case.make(SGD(net.parameters(), lr=0.0), model=net)
    more = {"ascent_closure": samples(opt, net, *other_batch(0, case.other))} if case.other else {}
    for t in range(4):
        opt.step((samples if case.whole else closure_of)(opt, net, *batch(t)), **more)
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.other])
def test_nobody_remembers_the_gradient_that_went_down(name: str) -> None:
    """Who writes into p.grad after a step does not change the next one."""
    case = CASES[name]

    def run(after: Callable[[Tensor], Any]) -> Tensor:
        net = made(mlp)
        opt = case.make(BASES["momentum"](net.parameters()), model=net)
        for t in range(6):
            opt.step((samples if case.whole else closure_of)(opt, net, *batch(t)))
            for p in net.parameters():
                after(p.grad)
        return flat(net.parameters())

    assert_same(run(lambda grad: grad.fill_(1e6)), run(lambda grad: None))


def test_radius_gap_and_memory_may_differ_by_group() -> None:
    """epsilon = rho d / ||d|| with one norm over all; u = h - alpha g_perp with one projection."""
    net, settings = made(mlp), ({"rho": 0.1, "alpha": 0.2}, {"rho": 0.3, "alpha": 0.5})
    halves = ({"params": list(net[i].parameters())} for i in (0, 2))
    base = SGD([half | own for half, own in zip(halves, settings, strict=True)], lr=0.05)
    base.param_groups[1]["theta"] = 0.5
    opt = GSAM(base, model=net)
    records = records_of(opt)
    for t in range(3):
        opt.step(closure_of(opt, net, *batch(t)))
    for before, r in pairwise(records):
        mixed_slope = times(0.5, plus(before.d[2:], r.g[2:]))
        assert_near(flat(r.d), flat([*r.g[:2], *mixed_slope]), 1e-15)
        along = inner(r.g, r.h) / inner(r.h, r.h)
        g_perp = plus(r.g, times(-along, r.h))
        for i in range(4):
            rho, alpha = settings[i // 2]["rho"], settings[i // 2]["alpha"]
            assert_near(r.epsilon[i], rho / length(r.d) * r.d[i], 1e-15)
            u = r.h[i] - alpha * g_perp[i]
            if r is records[-1]:
                assert_near(list(net.parameters())[i].grad, u, 1e-15)


def test_a_chunk_that_is_not_finite_skips_the_whole_step() -> None:
    """Weights, slope and counter are as before, though an earlier chunk was fine."""
    net = made(mlp)
    opt = ChunkedSAM(SGD(net.parameters(), lr=0.1), m=8, theta=0.4, model=net)
    opt.step(samples(opt, net, *batch(0)))

    def now() -> Tensor:
        slope = [entry["vasso_d"] for entry in opt.state.values()]
        return flat([*net.parameters(), *slope])

    before = now()
    x, y = batch(1)
    opt.step(samples(opt, net, x.index_fill(0, torch.tensor([12]), math.nan), y))
    assert_same(now(), before)
    assert (opt.skipped, opt.last.skipped) == (1, True)


def with_batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


@pytest.mark.parametrize("name", [name for name in CASES if name != "ESAM, one sample"])
def test_batchnorm_counts_what_is_seen_at_w(name: str) -> None:
    """One batch a step, or each chunk; the one above where there is no other."""
    case = CASES[name]
    ours = train(
        case.make, model=with_batchnorm, whole=case.whole, other=case.other, lr=case.lr, steps=3
    )
    chunks = math.ceil(SIZE / ours.opt.plan.m) if isinstance(ours.opt.plan, Chunks) else 1
    assert ours.opt.model[1].num_batches_tracked == 3 * chunks


# -- what is random is a function of seed and step ------------------------------------------------

RANDOM: dict[str, Callable[[int], Make]] = {
    "NoisySAM": lambda seed: partial(NoisySAM, seed=seed),
    "RandomSAM": lambda seed: partial(RandomSAM, seed=seed),
    "SubSampledSAM": lambda seed: partial(SubSampledSAM, m=6, seed=seed),
    "ESAM, elements": lambda seed: partial(ESAM, gamma=1.0, seed=seed),
    "ESAM, tensors": lambda seed: partial(ESAM, gamma=1.0, level="tensor", seed=seed),
    "SSSAM": lambda seed: partial(SSSAM, seed=seed),
}
each_random = pytest.mark.parametrize("name", RANDOM)


@each_random
def test_the_same_seed_is_the_same_path_whatever_torch_draws(name: str) -> None:
    one = train(partial(RANDOM[name](3), rho=0.1)).path
    torch.manual_seed(12345)
    assert_same(train(partial(RANDOM[name](3), rho=0.1)).path, one)


@each_random
def test_torch_draws_the_same_whatever_we_do(name: str) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    train(partial(RANDOM[name](3), rho=0.1), steps=3)
    assert_same(torch.rand(3), expected)


@each_random
def test_another_seed_is_another_path(name: str) -> None:
    one, two = (train(partial(RANDOM[name](seed), rho=0.1)).path[-1] for seed in (3, 4))
    assert (one - two).abs().max() > 1e-6


def test_noise_is_normal_and_differs_by_step_seed_and_tensor() -> None:
    """Means, variances and correlations of 10,000 numbers, up to 5 standard deviations."""
    w = [torch.zeros(100, 100), torch.zeros(100, 100)]
    drawn = [x for t, seed in product(range(3), range(3)) for x in Here(t, w).noise(seed)]
    rows = torch.stack([x.flatten() for x in drawn])
    assert rows.mean(1).abs().max() < 0.05
    assert (rows.corrcoef() - torch.eye(len(rows))).abs().max() < 0.05
    assert (rows.var(1) - 1).abs().max() < 5 * math.sqrt(2 / 10_000)


def test_noise_has_kappa_times_the_power_of_the_gradient() -> None:
    """||zeta||^2 / ||g||^2 of 910 weights varies by sqrt(2 / 910), the mean of 12 less."""
    _, records, _ = observed(partial(NoisySAM, rho=0.1, kappa=2.0), steps=12)
    powers = []
    for r in records:
        zeta = plus(r.d, times(-1.0, r.g))
        powers.append(inner(zeta, zeta) / inner(r.g, r.g))
    assert abs(sum(powers) / 12 / 2.0 - 1) < 5 * math.sqrt(2 / 910 / 12)


def test_coins_are_fair() -> None:
    """The mean of 2,000 of them is 1/2 up to 5 deviations, and neighbours are independent."""
    coins = torch.tensor([Here(t).coin(seed) for t in range(200) for seed in range(10)])
    assert abs(coins.mean() - 0.5) < 5 / math.sqrt(12 * 2000)
    pairs = torch.stack((coins[:-1], coins[1:]))
    assert pairs.corrcoef()[0, 1].abs() < 5 / math.sqrt(2000)


@pytest.mark.parametrize("level", ["element", "tensor"])
def test_a_random_mask_keeps_beta_of_the_weights_and_their_mean(level: Any) -> None:
    """5 deviations of a coin over all elements, or over all tensors."""
    w = [torch.zeros(3, 3, dtype=torch.float64) for _ in range(20)]
    geometry = RandomMask(beta=0.25, level=level, seed=2)
    masks = [geometry.mask(None, Here(t, w)) for t in range(50)]
    kept = torch.stack([x for mask in masks for x in mask])
    tosses = kept.numel() if level == "element" else len(kept)
    assert set(kept.unique().tolist()) == {0.0, 4.0}
    assert abs(kept.mean() - 1) < 5 * math.sqrt((1 / 0.25 - 1) / tosses)
    assert (kept.flatten(1).std(1).max() == 0) == (level == "tensor")


def test_sub_samples_are_drawn_evenly() -> None:
    """Of 22 samples 6 are drawn 500 times: each 136 times up to 5 deviations, never one twice."""
    counts = torch.zeros(SIZE)
    for t in range(500):
        chosen_rows = _rows_of(SubSample(6, seed=4), t)
        assert len(set(chosen_rows)) == 6
        counts[chosen_rows] += 1
    share = 6 / SIZE
    assert (counts - 500 * share).abs().max() < 5 * math.sqrt(500 * share * (1 - share))


def _rows_of(plan: SubSample, t: int) -> list[int]:
    whole = Samples(lambda: None, lambda x: x, torch.arange(SIZE))
    return plan(whole, t)[0].up.tensors[0].tolist()


# -- costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gradients"),
    [
        ("SAM", 2.0),
        ("VaSSO+FisherSAM, average", 2.0),
        ("V+G", 2.0),
        ("SAM-db", 2.0),
        ("SAM-db-m/2", 1.5),
        ("RandomSAM", 1.0),
        ("ChunkedSAM", 2.0),
        ("ChunkedSAM + theta, ragged", 2.0),
        ("SubSampledSAM", 1 + 6 / SIZE),
        ("LookSAM", 1 + 1 / 4),
        ("ESAM", 1 + 1 / 3 + 13 / SIZE),  # 13 is 0.6 of 22
    ],
)
def test_a_step_costs_what_is_said_of_it(name: str, gradients: float) -> None:
    """In gradients of a batch; the sum of such numbers rounds."""
    case = CASES[name]
    ours = train(case.make, other=case.other)
    assert_near(ours.opt.cost, SHORT * gradients, 1e-14)


@pytest.mark.parametrize("name", ["SSSAM", "AESAM", "AELookSAM + theta"])
def test_a_step_that_does_not_climb_costs_one_gradient(name: str) -> None:
    ours = train(CASES[name].make)
    assert ours.opt.cost == SHORT + sum(ours.climbed)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("ChunkedSAM")])
def test_the_loss_of_a_step_is_that_at_w(name: str) -> None:
    """Of the ascent data if they are others; of the pass there is for RandomSAM."""
    case, (opt, net) = CASES[name], simple(CASES[name].make)
    x, y = other_batch(0, case.other) if case.other else batch(0)
    more = {"ascent_closure": samples(opt, net, x, y)} if case.other else {}
    rows = _rows_of(opt.plan, 0) if name.startswith("Sub") else list(range(len(y)))
    expected = each_loss(net, x[rows], y[rows]).mean().item()
    found = opt.step((samples if case.whole else closure_of)(opt, net, *batch(0)), **more).item()
    assert (found == expected) == (name != "RandomSAM")


# -- defaults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        (SAM, {"rho": 0.05, "theta": 1.0}),
        (VaSSO, {"rho": 0.05, "theta": 0.4}),
        (ASAM, {"rho": 0.5, "eta": 0.01, "theta": 1.0}),
        (FisherSAM, {"rho": 0.1, "eta": 1.0, "source": "batch", "theta": 1.0}),
        (GSAM, {"rho": 0.1, "alpha": 0.4, "minimise": "perturbed", "theta": 1.0}),
        (LookSAM, {"rho": 0.05, "k": 5, "alpha": 0.7, "theta": 1.0}),
        (ESAM, {"rho": 0.05, "beta": 0.6, "gamma": 0.5, "level": "element", "theta": 1.0}),
        (SSSAM, {"rho": 0.05, "p": 0.5, "theta": 1.0}),
        (AESAM, {"rho": 0.05, "delta": 0.9, "lambda_1": -1.0, "lambda_2": 1.0, "theta": 1.0}),
    ],
)
def test_defaults_are_those_of_the_authors(preset: type, settings: dict[str, Any]) -> None:
    """ALGORITHMS, section 8b."""
    found = inspect.signature(preset).parameters
    assert {name: found[name].default for name in settings} == settings


# -- errors ---------------------------------------------------------------------------------------


def simple(preset: Any, **settings: Any) -> tuple[Any, nn.Module]:
    net = made(mlp)
    return preset(SGD(net.parameters(), lr=0.1), model=net, **settings), net


each_that_needs_samples = pytest.mark.parametrize("preset", [ChunkedSAM, SubSampledSAM, ESAM])


@each_that_needs_samples
def test_a_method_that_has_to_see_samples_refuses_a_plain_closure(preset: type) -> None:
    opt, net = simple(preset)
    with pytest.raises(TypeError, match=r"has to see samples: pass a vasso\.Batch.*vasso\.Samples"):
        opt.step(closure_of(opt, net, *batch(0)))
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))
    assert opt.cost == 0


@each_that_needs_samples
def test_a_method_that_has_to_see_samples_refuses_the_callers_passes(preset: type) -> None:
    opt, net = simple(preset)
    each_loss(net, *batch(0)).mean().backward()
    told = r"needs passes of its own, which ascended\(\) cannot give: use step\(closure\)"
    with pytest.raises(RuntimeError, match=told), opt.ascended():
        pytest.fail("the body must not run")
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))


@each_that_needs_samples
def test_at_radius_zero_a_plain_closure_will_do(preset: type) -> None:
    opt, net = simple(preset, rho=0.0)
    opt.step(closure_of(opt, net, *batch(0)))
    assert opt.cost == 1


class Whole:
    """The full data of methods that want them, not used here."""

    def full(self) -> Any: ...

    fresh = full


REQUIRED = {"total": 10, "start": 3, "data": Whole()}
ALL = [
    preset
    for _, preset in inspect.getmembers(presets, inspect.isclass)
    if preset.__module__ == "vasso.presets" and issubclass(preset, SharpnessAware)
]


def required(preset: type) -> dict[str, Any]:
    """What a preset cannot be made without."""
    found = inspect.signature(preset).parameters
    return {name: value for name, value in REQUIRED.items() if name in found}


@pytest.mark.parametrize("preset", ALL)
def test_variance_suppression_is_a_setting_or_an_error(preset: type) -> None:
    """It is an error exactly where the slope is not an average of batch gradients."""
    base = SGD(made(mlp).parameters(), lr=0.1, momentum=0.9)
    if "theta" in inspect.signature(preset).parameters:
        opt = preset(base, theta=0.3, **required(preset))
        assert isinstance(opt.direction, Ema)
        assert opt.param_groups[0]["theta"] == 0.3
        return
    with pytest.raises(TypeError, match=rf"{preset.__name__} takes no theta: its slope is \w+\("):
        preset(base, theta=0.3, **required(preset))
    assert not isinstance(preset(base, **required(preset)).direction, Ema)


def test_a_probability_that_differs_by_group_is_refused() -> None:
    net = made(mlp)
    groups = [{"params": list(net[0].parameters())}, {"params": list(net[2].parameters()), "p": 1}]
    opt = SSSAM(SGD(groups, lr=0.1), p=0.5, model=net)
    told = r"p belongs to the policy and must be the same in all groups: \[0\.5, 1\.0\]"
    with pytest.raises(ValueError, match=told):
        opt.step(closure_of(opt, net, *batch(0)))
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"direction": Random(), "descent": SurrogateGap()}, r"SurrogateGap.*Random.* never takes"),
        ({"direction": Random(), "descent": Reuse()}, r"Reuse.*needs the gradient at w.*Random"),
        ({"direction": Random(), "policy": AdaptiveNorm(9)}, r"AdaptiveNorm.*Random.* never takes"),
        ({"direction": Random(), "geometry": Fisher()}, r"Fisher.*needs the gradient at w.*Random"),
        ({"direction": Random(), "ascent": MultiStep(2)}, r"MultiStep.*Random.* ignores gradients"),
        *(
            (
                {"direction": Ema(0.4, stale="stay"), "policy": RefreshEveryK(), kind: part},
                rf"{type(part).__name__}.*in every step, but RefreshEveryK.* spares",
            )
            for kind, part in (
                ("descent", SurrogateGap()),
                ("descent", Reuse()),
                ("geometry", Fisher()),
            )
        ),
        ({"policy": RefreshEveryK()}, r"RefreshEveryK.* spares.*use Ema\(theta, stale="),
        ({"geometry": Adaptive(), "restore": "recompute"}, r"recompute.*Adaptive.*Use restore="),
        ({"geometry": RandomMask(), "restore": "recompute"}, r"recompute.*RandomMask.*Use restore"),
    ],
)
def test_a_crossing_without_meaning_is_refused(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        simple(SharpnessAware, **parts)


@pytest.mark.parametrize(
    ("preset", "settings", "told"),
    [
        (ASAM, {"eta": -1.0}, r"eta must be at least 0, got -1"),
        (FisherSAM, {"eta": -1.0}, r"eta must be at least 0, got -1"),
        (FisherSAM, {"source": "batches"}, r"source must be .*\"ema\".* got 'batches'"),
        (GSAM, {"minimise": "both"}, r"minimise must be \"perturbed\" or \"clean\", got 'both'"),
        (GSAM, {"alpha": math.nan}, r"alpha must be finite, got nan"),
        (NoisySAM, {"kappa": -1.0}, r"kappa must be at least 0, got -1"),
        (NoisySAM, {"sigma": -1.0}, r"sigma must be at least 0, got -1"),
        (ChunkedSAM, {"m": 0}, r"m must be at least 1, got 0"),
        (SubSampledSAM, {"m": 0}, r"m must be at least 1, got 0"),
        (LookSAM, {"k": 0}, r"k must be at least 1, got 0"),
        (ESAM, {"beta": 0.0}, r"beta must be above 0 and at most 1, got 0"),
        (ESAM, {"beta": 1.5}, r"beta must be above 0 and at most 1, got 1.5"),
        (ESAM, {"gamma": 0.0}, r"gamma must be above 0 and at most 1, got 0"),
        (ESAM, {"level": "layer"}, r"level must be \"element\" or \"tensor\", got 'layer'"),
        (SSSAM, {"p": 1.5}, r"p must be at least 0 and at most 1, got 1.5"),
        (AESAM, {"total": 0}, r"total must be at least 1, got 0"),
        (AESAM, {"total": 9, "delta": 2.0}, r"delta must be at least 0 and at most 1, got 2"),
    ],
)
def test_a_setting_out_of_range(preset: type, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        simple(preset, **settings)


def test_a_part_with_a_setting_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"decompose must be \"batch\" or \"slope\", got 'both'"):
        SurrogateGap(decompose="both")
    with pytest.raises(ValueError, match="p must be 2 or infinity, got 1"):
        Adaptive(p=1)


def test_losses_that_are_not_one_for_each_sample() -> None:
    opt, net = simple(ChunkedSAM, m=11)
    whole = Samples(opt.zero_grad, lambda x, y: cross_entropy(net(x), y), *batch(0))
    told = r"one loss for each of 11 samples, got shape \(\): use reduction=\"none\""
    with pytest.raises(ValueError, match=told):
        opt.step(whole)


def test_samples_that_do_not_fit_together() -> None:
    x, y = batch(0)
    with pytest.raises(ValueError, match=r"one length above 0, got \{.*\}"):
        Samples(lambda: None, lambda x, y: x, x, y[1:])


def test_asam_warns_if_it_cannot_tell_biases_by_their_names() -> None:
    net = made(conv)
    opt = ASAM(SGD(net.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=r"names of the parameters are not known.*pass model="):
        opt.step(closure_of(opt, net, *batch(0)))


def test_asam_takes_names_from_torch() -> None:
    def run(named: bool) -> Tensor:
        net = made(conv)
        params = net.named_parameters() if named else net.parameters()
        opt = ASAM(SGD(params, lr=0.1), model=None if named else net)
        opt.step(closure_of(opt, net, *batch(0)))
        return flat(net.parameters())

    assert_same(run(named=True), run(named=False))


# -- corners --------------------------------------------------------------------------------------


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
