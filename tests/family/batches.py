"""The digits in batches, models, loops and twins that the tests of this package share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer, RMSprop

from tests.reference import family_a as twins
from tests.reference.family_a import Step, Vector
from vasso.descents import SurrogateGap
from vasso.directions import Ema
from vasso.geometries import Fisher
from vasso.here import Here
from vasso.optimizer import SharpnessAware
from vasso.plans import Samples, SubSample
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


# -- identities -----------------------------------------------------------------------------------


sam = partial(SAM, rho=0.1)

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


def with_batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


# -- what is random is a function of seed and step ------------------------------------------------


def rows_drawn_by(plan: SubSample, t: int) -> list[int]:
    whole = Samples(lambda: None, lambda x: x, torch.arange(SIZE))
    return plan(whole, t)[0].up.tensors[0].tolist()


# -- errors ---------------------------------------------------------------------------------------


def simple(preset: Any, **settings: Any) -> tuple[Any, nn.Module]:
    net = made(mlp)
    return preset(SGD(net.parameters(), lr=0.1), model=net, **settings), net
