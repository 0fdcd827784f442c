"""Methods that see a batch or its samples, their twins, and the training of both."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer, RMSprop

import vasso
from tests.reference import single_steps as twins
from tests.reference.single_steps import Step, Vector
from tests.support import compare, problems
from tests.support.compare import digits, flat, records_of
from vasso.numerics.rng import mix_seed
from vasso.optimizer import SharpnessAware
from vasso.parts.context import StepContext
from vasso.parts.descents import SurrogateGap
from vasso.parts.directions import Ema
from vasso.parts.geometries import Fisher
from vasso.parts.plans import Fraction, Samples, SubSample
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20230926)
        return make().double()


@cache
def shuffled() -> tuple[Tensor, Tensor]:
    x, y = digits()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return x[order], y[order]


def batch(t: int, size: int = SIZE) -> tuple[Tensor, Tensor]:
    x, y = shuffled()
    rows = torch.arange(t * size, (t + 1) * size) % len(y)
    return x[rows], y[rows]


def other_batch(t: int, size: int) -> tuple[Tensor, Tensor]:
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
    return problems.closure_of(opt, lambda: each_loss(model, x, y).mean() * scale)


@dataclass
class Run:
    opt: Any  # after the last step
    path: Tensor  # the weights after each step, one row per step
    climbed: list[bool]  # whether each step did


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

    The closure shows its samples if `whole`; `other` samples of another batch give the adversary.
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


def assert_near(ours: Any, theirs: Any, tolerance: float) -> None:
    """Equal up to a tolerance that the test justifies, absolute for numbers below 1."""
    compare.assert_near(torch.as_tensor(ours, dtype=torch.float64), theirs, tolerance, tolerance)


# -- twins ----------------------------------------------------------------------------------------


def noise(step: Step, seed: int) -> Vector:
    return StepContext(step.t, step.x).noise(seed)


def coin(step: Step, seed: int) -> float:
    return StepContext(step.t).coin(seed)


def mask(step: Step, seed: int, beta: float) -> Vector:
    return [(luck < beta).double() for luck in StepContext(step.t, step.x).uniform(seed)]


def mask_of_tensors(step: Step, seed: int, beta: float) -> Vector:
    """The coin of its first element for the whole tensor."""
    luck = StepContext(step.t, step.x).uniform(seed)
    return [torch.full_like(x, float(x.flatten()[0] < beta)) for x in luck]


def chosen(step: Step, m: int, seed: int, *more: int) -> list[int]:
    """m of the samples, drawn with a seed that is mixed from seed, step and more."""
    luck = torch.Generator().manual_seed(mix_seed(seed, step.t, *more))
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
    make: Make  # ours
    twin: Callable[[Step], Vector]  # step -> u
    whole: bool = False  # whether the method has to see samples
    other: int | None = None  # samples of another batch for the adversary
    lr: Callable[[int], float] | None = None  # step -> learning rate


def pair(
    preset: Any, twin: Callable[..., Vector], **settings: Any
) -> tuple[Make, Callable[[Step], Vector]]:
    return partial(preset, **settings), partial(twin, **settings)


def drawn(preset: Any, twin: Any, seed: int, draws: Any, **settings: Any) -> Case:
    """Both with the same settings; the twin is given what the seed of ours draws in a step."""

    def twin_of(step: Step) -> Vector:
        return twin(step, **settings, **{name: draw(step, seed) for name, draw in draws.items()})

    return Case(partial(preset, seed=seed, **settings), twin_of)


noisy = partial(drawn, vasso.NoisySAM, twins.noisy, draws={"noise": noise})
# fmt: off
CASES: dict[str, Case] = {
    "SAM": Case(*pair(vasso.SAM, twins.sam, rho=0.1)),
    "VaSSO": Case(*pair(vasso.VaSSO, twins.vasso, rho=0.1, theta=0.4)),
    "VaSSO, long memory": Case(*pair(vasso.VaSSO, twins.vasso, rho=0.2, theta=0.05)),
    "ASAM": Case(*pair(vasso.ASAM, twins.asam, rho=0.5, eta=0.01)),
    "ASAM, eta 0": Case(*pair(vasso.ASAM, twins.asam, rho=1.0, eta=0.0)),
    "VaSSO+ASAM": Case(*pair(vasso.ASAM, twins.asam, rho=0.5, eta=0.1, theta=0.3)),
    "FisherSAM": Case(*pair(vasso.FisherSAM, twins.fisher, rho=0.1, eta=1.0)),
    "FisherSAM, large eta": Case(*pair(vasso.FisherSAM, twins.fisher, rho=0.2, eta=1e4)),
    "FisherSAM, average": Case(*pair(vasso.FisherSAM, twins.fisher, rho=0.1, eta=1e3,
        source="ema")),
    "VaSSO+FisherSAM": Case(*pair(vasso.FisherSAM, twins.fisher, rho=0.1, eta=1e3, theta=0.4)),
    "VaSSO+FisherSAM, average": Case(*pair(vasso.FisherSAM, twins.fisher, rho=0.1, eta=1e3,
        theta=0.4, source="ema")),
    "VaSSO+FisherSAM, direction": Case(*pair(vasso.FisherSAM, twins.fisher, rho=0.1, eta=1e3,
        theta=0.4, source="direction")),
    "VaSSO+FisherSAM, sums": Case(fisher_of(eta=1.0, source="ema", decay=0.6, scale=22.0),
        partial(twins.fisher, rho=0.1, theta=0.4, eta=1.0, source="ema", decay=0.6, scale=22.0)),
    "GSAM": Case(*pair(vasso.GSAM, twins.gsam, rho=0.1, alpha=0.3)),
    "GSAM, clean": Case(*pair(vasso.GSAM, twins.gsam, rho=0.1, alpha=0.3, minimise="clean")),
    "GSAM, radius with lr":
        Case(partial(vasso.GSAM, rho=proportional_to_lr(0.2, 0.02, lr_high=0.05, lr_low=0.01),
        alpha=0.3), lambda step: twins.gsam(step, rho=scheduled_radius(step.t), alpha=0.3),
        lr=falling_lr),
    "V+G": Case(*pair(vasso.GSAM, twins.gsam, rho=0.1, alpha=0.3, theta=0.4)),
    "V+G, clean": Case(*pair(vasso.GSAM, twins.gsam, rho=0.1, alpha=0.3, theta=0.4,
        minimise="clean")),
    "V+G of the slope": Case(gap(0.4), partial(twins.gsam, rho=0.1, alpha=0.3, theta=0.4,
        decompose="slope")),
    "V+G of the slope, clean": Case(gap(0.4, minimise="clean"), partial(twins.gsam, rho=0.1,
        alpha=0.3, theta=0.4, decompose="slope", minimise="clean")),
    "SAM-db": Case(*pair(vasso.SAM, twins.sam_db, rho=0.1), other=SIZE),
    "SAM-db-m/2": Case(*pair(vasso.SAM, twins.sam_db, rho=0.1), other=SIZE // 2),
    "VaSSO-db": Case(*pair(vasso.VaSSO, twins.sam_db, rho=0.1, theta=0.4), other=SIZE),
    "NoisySAM, kappa": noisy(5, rho=0.1, kappa=2.0, sigma=0.0),
    "NoisySAM, sigma": noisy(6, rho=0.1, kappa=0.0, sigma=0.05),
    "NoisySAM + theta": noisy(7, rho=0.1, kappa=1.0, sigma=0.01, theta=0.4),
    "RandomSAM": drawn(vasso.RandomSAM, twins.random, 8, {"noise": noise}, rho=0.5),
    "ChunkedSAM": Case(*pair(vasso.ChunkedSAM, twins.chunked, rho=0.1, m=11), whole=True),
    "ChunkedSAM, ragged": Case(*pair(vasso.ChunkedSAM, twins.chunked, rho=0.1, m=5), whole=True),
    "ChunkedSAM + theta": Case(*pair(vasso.ChunkedSAM, twins.chunked, rho=0.1, m=11, theta=0.4),
        whole=True),
    "ChunkedSAM + theta, ragged": Case(*pair(vasso.ChunkedSAM, twins.chunked, rho=0.1, m=8,
        theta=0.4), whole=True),
    "SubSampledSAM": Case(partial(vasso.SubSampledSAM, rho=0.1, m=6, seed=9), lambda step:
        twins.subsampled(step, rho=0.1, rows=chosen(step, 6, 9)), whole=True),
    "SubSampledSAM + theta": Case(partial(vasso.SubSampledSAM, rho=0.1, m=6, seed=9, theta=0.4),
        lambda step: twins.subsampled(step, rho=0.1, rows=chosen(step, 6, 9), theta=0.4),
        whole=True),
    "HalfSAM": Case(partial(vasso.HalfSAM, rho=0.1, seed=9), lambda step:
        twins.halved(step, rho=0.1, rows=chosen(step, SIZE // 2, 9, 0)), whole=True),
    "HalfSAM + theta, a quarter": Case(partial(vasso.HalfSAM, rho=0.1, fraction=0.25, theta=0.4),
        lambda step: twins.halved(step, rho=0.1, theta=0.4,
        rows=chosen(step, round(SIZE / 4), 0, 0)), whole=True),
    "LookSAM": Case(*pair(vasso.LookSAM, twins.looksam, rho=0.1, k=4, alpha=0.3)),
    "LookSAM + theta": Case(*pair(vasso.LookSAM, twins.looksam, rho=0.1, k=4, alpha=0.3,
        theta=0.4)),
    "ESAM": Case(partial(vasso.ESAM, rho=0.1, beta=0.5, gamma=0.6, seed=11), lambda step:
        twins.esam(step, rho=0.1, beta=0.5, gamma=0.6, mask=mask(step, 11, 0.5)), whole=True),
    "ESAM, tensors": Case(partial(vasso.ESAM, rho=0.1, beta=0.5, gamma=0.4, level="tensor",
        seed=19), lambda step: twins.esam(step, rho=0.1, beta=0.5, gamma=0.4,
        mask=mask_of_tensors(step, 19, 0.5)), whole=True),
    "ESAM, one sample": Case(partial(vasso.ESAM, rho=0.1, beta=0.25, gamma=0.01, seed=13),
        lambda step: twins.esam(step, rho=0.1, beta=0.25, gamma=0.01, mask=mask(step, 13, 0.25)),
        whole=True),
    "ESAM + theta": Case(partial(vasso.ESAM, rho=0.1, beta=0.5, gamma=0.6, seed=11, theta=0.4),
        lambda step: twins.esam(step, rho=0.1, beta=0.5, gamma=0.6, theta=0.4,
        mask=mask(step, 11, 0.5)), whole=True),
    "SSSAM": Case(partial(vasso.SSSAM, rho=0.1, p=0.4, seed=14), lambda step:
        twins.sssam(step, rho=0.1, p=0.4, coin=coin(step, 14))),
    "SSSAM + theta, p rises": Case(partial(vasso.SSSAM, rho=0.1, p=linear(0.1, 0.9, STEPS), seed=15,
        theta=0.4), lambda step: twins.sssam(step, rho=0.1, p=0.1 + 0.8 * step.t / STEPS,
        coin=coin(step, 15), theta=0.4)),
    "AESAM": Case(*pair(vasso.AESAM, twins.aesam, rho=0.1, total=STEPS)),
    "AESAM + theta": Case(*pair(vasso.AESAM, twins.aesam, rho=0.1, total=20, delta=0.7,
        lambda_1=-0.5, theta=0.4)),
    "AELookSAM": Case(*pair(vasso.AELookSAM, twins.aelooksam, rho=0.1, total=STEPS, alpha=0.3)),
    "AELookSAM + theta": Case(*pair(vasso.AELookSAM, twins.aelooksam, rho=0.1, total=30, alpha=0.3,
        lambda_2=0.5, theta=0.4)),
}
# fmt: on


def path_of_twin(case: Case, model: Callable[[], nn.Module], base: str) -> Tensor:
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


sam = partial(vasso.SAM, rho=0.1)


def observed(
    make: Make, *, model: Callable[[], nn.Module] = mlp, whole: bool = False, steps: int = 6
) -> tuple[SharpnessAware, list[StepRecord], list[Vector]]:
    """The optimizer after some steps, its records, and what went down in each step."""
    net = made(model)
    opt = make(BASES["momentum"](net.parameters()), model=net)
    records, down = records_of(opt, weights=True), []
    for t in range(steps):
        opt.step((samples if whole else closure_of)(opt, net, *batch(t)))
        down.append([p.grad.clone() for p in net.parameters()])
    return opt, records, down


def with_batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


def rows_drawn_by(plan: SubSample | Fraction, t: int) -> list[int]:
    whole = Samples(lambda: None, lambda x: x, torch.arange(SIZE))
    return plan(whole, t)[0].ascent.tensors[0].tolist()


def simple(preset: Any, **settings: Any) -> tuple[Any, nn.Module]:
    net = made(mlp)
    return preset(SGD(net.parameters(), lr=0.1), model=net, **settings), net
