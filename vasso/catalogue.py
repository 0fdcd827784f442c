"""Which methods are there? One table: the docs' method page and the contract tests are made of it.

A method cannot be added without its contract tests: they run over this table.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from torch.optim.swa_utils import AveragedModel

from vasso import presets as p
from vasso.losses import MESA, SAF
from vasso.plans import FORWARD
from vasso.policies import RefreshAdaptive, RefreshEveryK, RefreshRandomly
from vasso.steppers import EntropySGD, SAMPa

Need = Literal["batch", "source", "momentum", "SGD", "other batch"]


@dataclass(frozen=True)
class Taken:
    """What a training has decided, step by step: what its cost is made of.

    Attributes:
        steps: steps in all.
        clean: steps that took a gradient at w, or had no other.
        climbed: steps that climbed.
        refreshed: steps that started a slope or a mask anew: from a full gradient, from single
            samples, or because it was the first step.
        batch: samples in a batch.
        data: samples in the whole training set.
    """

    steps: int
    clean: int
    climbed: int
    refreshed: int = 0
    batch: int = 1
    data: int = 1


Cost = Callable[[Taken], float]


@dataclass(frozen=True)
class Method:
    """One method or variant.

    Attributes:
        kind: what it is: a preset is a choice of parts of the one step and keeps every promise; a
            stepper is an optimizer with a step of its own and keeps all but those about the one
            step (the caller's own passes, theta, groups that stay at home); a loss and an averager
            are no optimizers.
        what: one sentence.
        equation: in the letters of the papers, with g the gradient at w and h that above.
        paper: where it comes from.
        build: makes it: ``build(base, **settings)`` for presets and steppers.
        price: gradient evaluations per step, in words.
        cost: the same for a training, exactly.
        vectors: vectors of state beyond the base, between steps.
        theta: whether variance suppression applies.
        needs: what it needs beyond a base and a closure.
        example: settings for a short training, where the defaults need some.
        alone: settings that leave the base alone, bit for bit, at one gradient a step.
    """

    kind: Literal["preset", "stepper", "loss", "averager"]
    what: str
    equation: str
    paper: str
    build: Callable[..., Any]
    price: str = "2"
    cost: Cost = lambda taken: taken.clean + taken.climbed
    vectors: str = "0"
    theta: bool = False
    needs: tuple[Need, ...] = ()
    example: Mapping[str, Any] = field(default_factory=dict)
    alone: Mapping[str, Any] = field(default_factory=lambda: {"rho": 0.0})

    @property
    def call(self) -> str:
        """What makes it, as one would write it, with the settings that it cannot do without."""
        chosen = self.build if isinstance(self.build, partial) else partial(self.build)
        words = []
        for x in inspect.signature(chosen.func).parameters.values():
            if x.kind is x.POSITIONAL_OR_KEYWORD and x.default is x.empty:
                words.append(x.name)
            elif x.kind is x.KEYWORD_ONLY and (x.default is x.empty or x.name in self.needs):
                words.append(f"{x.name}={self.example.get(x.name, x.name)}")
        words += [f"{key}={value!r}" for key, value in chosen.keywords.items()]
        return f"{chosen.func.__name__}({', '.join(words)})"


class _Table(dict[str, Method]):
    """Asked for a name that it has not, it tells the nearest: a row's, or the row of a class."""

    def __missing__(self, name: object) -> Method:
        rows = list(self.items())[::-1]  # of a class the first row counts
        known = {row.call.partition("(")[0].casefold(): key for key, row in rows}
        known |= {key.casefold(): key for key in self}
        near = difflib.get_close_matches(str(name).casefold(), known, n=1)
        told = (
            f"Did you mean {known[near[0]]!r}?" if near else "list(vasso.methods()) has them all."
        )
        raise KeyError(f"there is no method {name!r}. {told}")


def methods() -> Mapping[str, Method]:
    """Every method and variant: name -> what it is, how to build it, what it costs.

    Returns:
        A read-only mapping, which tells the nearest name where it is asked for one that it has not.

    Example:
        >>> methods()["VaSSO"].equation
        'd = (1 - theta) d + theta g, epsilon = rho d / ||d||, u = h'
        >>> methods()["reuse, following"].call
        "ReusedSAM(base, stale='follow')"
        >>> methods()["vaso"]
        Traceback (most recent call last):
        ...
        KeyError: "there is no method 'vaso'. Did you mean 'VaSSO'?"
        >>> import torch
        >>> base = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
        >>> opt = methods()["VaSSO+GSAM"].build(base, rho=0.1)
        >>> opt.param_groups[0]["theta"]
        0.4
    """
    return _METHODS


_SAM = "Foret, Kleiner, Mobahi, Neyshabur, ICLR 2021"
_VASSO = "Li, Giannakis, NeurIPS 2023"
_ASAM = "Kwon, Kim, Park, Choi, ICML 2021"
_FISHER = "Kim, Li, Hu, Hospedales, ICML 2022"
_GSAM = "Zhuang et al., ICLR 2022"
_LOOK = "Liu, Mai, Chen, Hsieh, You, CVPR 2022"
_SS = "Zhao, Zhang, Hu, 2022 (SS-SAM, RST)"
_AE = "Jiang, Yang, Zhang, Kwok, ICLR 2023"
_REUSE = "lk-eg, Computationally-Efficient-SAM (code)"
_SPARSE = "Mi et al., NeurIPS 2022"


def _one_pass(taken: Taken) -> float:
    return taken.steps


def _storm(taken: Taken) -> float:
    return taken.clean + taken.climbed + (taken.steps - taken.refreshed)


def _full(taken: Taken) -> float:
    return _storm(taken) + taken.refreshed * taken.data / taken.batch


def _points(n: int) -> Cost:
    return lambda taken: taken.clean + n * taken.climbed


def _walk(length: int) -> Cost:
    return lambda taken: length * taken.steps


def _esam(gamma: float) -> Cost:
    return lambda t: t.clean + t.climbed * (FORWARD + max(1, round(gamma * t.batch)) / t.batch)


def _sub_sampled(m: int) -> Cost:
    return lambda t: t.climbed * (1 + min(m, t.batch) / t.batch) + (t.steps - t.climbed)


def _half(taken: Taken) -> float:
    return 1.5 * taken.climbed + (taken.steps - taken.climbed)


def _fisher_mask(samples: int) -> Cost:
    return lambda t: t.clean + t.climbed + t.refreshed * min(samples, t.batch) / t.batch


_TABLE = _Table({
    # the paper's tables
    "SAM": Method(
        "preset",
        "Descends by the gradient a little uphill along the gradient of the batch.",
        "epsilon = rho g / ||g||, u = h",
        _SAM,
        p.SAM,
        theta=True,
    ),
    "VaSSO": Method(
        "preset",
        "SAM along an averaged slope, so that one noisy batch cannot turn the adversary.",
        "d = (1 - theta) d + theta g, epsilon = rho d / ||d||, u = h",
        _VASSO,
        p.VaSSO,
        vectors="1",
        theta=True,
    ),
    "ASAM": Method(
        "preset",
        "SAM in a ball that grows with the weights.",
        "epsilon = rho T^2 d / ||T d||, T = |w| + eta, u = h",
        _ASAM,
        p.ASAM,
        theta=True,
    ),
    "FisherSAM": Method(
        "preset",
        "SAM in the metric of the Fisher information.",
        "epsilon = rho q d / sqrt(d.(q d)), q = 1 / (1 + eta g^2), u = h",
        _FISHER,
        p.FisherSAM,
        theta=True,
    ),
    "GSAM": Method(
        "preset",
        "SAM that also closes the gap between the loss above and the loss at w.",
        "u = h - alpha g_perp(h)",
        _GSAM,
        p.GSAM,
        theta=True,
    ),
    "VaSSO+GSAM": Method(
        "preset",
        "The paper's V+G: GSAM along an averaged slope.",
        "epsilon = rho d / ||d||, u = h - alpha g_perp(h)",
        _VASSO,
        partial(p.GSAM, theta=0.4),
        vectors="1",
        theta=True,
    ),
    # variance suppression on the others
    "VaSSO+ASAM": Method(
        "preset",
        "ASAM along an averaged slope.",
        "epsilon = rho T^2 d / ||T d||, d averaged",
        f"{_VASSO} (proposed), {_ASAM}",
        partial(p.ASAM, theta=0.4),
        vectors="1",
        theta=True,
    ),
    "VaSSO+FisherSAM": Method(
        "preset",
        "FisherSAM along an averaged slope.",
        "epsilon = rho q d / sqrt(d.(q d)), d averaged",
        f"{_VASSO} (proposed), {_FISHER}",
        partial(p.FisherSAM, theta=0.4),
        vectors="1",
        theta=True,
    ),
    "VaSSO+LookSAM": Method(
        "preset",
        "LookSAM along a slope that every step averages.",
        "as LookSAM, d averaged",
        f"{_VASSO} (proposed), {_LOOK}",
        partial(p.LookSAM, theta=0.4),
        price="1 + 1/k",
        vectors="2",
        theta=True,
    ),
    "VaSSO+AE-SAM": Method(
        "preset",
        "AE-SAM along a slope that every step averages.",
        "as AE-SAM, d averaged",
        f"{_VASSO} (proposed), {_AE}",
        partial(p.AESAM, theta=0.4),
        price="1 + share of climbs",
        vectors="1",
        theta=True,
        example={"total": 60},
    ),
    "VaSSO+multi-step": Method(
        "preset",
        "Several steps up, each along the averaged slope with the gradient of its point.",
        "d_j = (1 - theta) d + theta g(w + epsilon_j)",
        f"{_VASSO} (proposed)",
        partial(p.MultiStepSAM, theta=0.4),
        price="n + 1",
        cost=_points(2),
        vectors="1",
        theta=True,
    ),
    "VaSSO+m-SAM": Method(
        "preset",
        "Every chunk climbs along the shared average with its own gradient in it.",
        "d_i = (1 - theta) d + theta g_i, then d = mean of d_i",
        f"{_VASSO}, {_SAM}",
        partial(p.ChunkedSAM, theta=0.4),
        vectors="1",
        theta=True,
        needs=("batch",),
        example={"m": 12},
    ),
    # the paper's own probes
    "SAM-db": Method(
        "preset",
        "The adversary comes from another batch: step(closure, ascent_closure=other).",
        "epsilon = rho g' / ||g'||, g' of another batch, u = h",
        _VASSO,
        p.SAM,
        theta=True,
        needs=("other batch",),
    ),
    "SAM-db-m/2": Method(
        "preset",
        "The adversary comes from another batch of half the size.",
        "as SAM-db with |B'| = b / 2",
        _VASSO,
        p.SAM,
        price="1.5, if the batches tell their length",
        cost=_half,
        theta=True,
        needs=("other batch",),
    ),
    "noisy SAM (relative)": Method(
        "preset",
        "Noise of a given power, relative to the gradient's, is put on the slope.",
        "d = g + zeta, E||zeta||^2 = kappa ||g||^2",
        _VASSO,
        p.NoisySAM,
        theta=True,
    ),
    "noisy SAM (absolute)": Method(
        "preset",
        "Noise of a given deviation is put on the slope.",
        "d = g + zeta, zeta ~ N(0, sigma^2)",
        _VASSO,
        partial(p.NoisySAM, kappa=0.0, sigma=1e-3),
        theta=True,
    ),
    "random adversary": Method(
        "preset",
        "Climbs anywhere.",
        "epsilon = rho zeta / ||zeta||, zeta ~ N(0, I)",
        _VASSO,
        p.RandomSAM,
        price="1",
        cost=_one_pass,
    ),
    "m-SAM (chunks)": Method(
        "preset",
        "Every chunk of m samples has an adversary of its own.",
        "u = mean of g_i(w + rho g_i / ||g_i||)",
        _SAM,
        p.ChunkedSAM,
        theta=True,
        needs=("batch",),
        example={"m": 12},
    ),
    "m-SAM (subsample)": Method(
        "preset",
        "The adversary comes from m samples of the batch.",
        "epsilon = rho g_m / ||g_m||, u = h of the batch",
        _VASSO,
        p.SubSampledSAM,
        price="1 + m/b",
        cost=_sub_sampled(12),
        theta=True,
        needs=("batch",),
        example={"m": 12},
    ),
    # cheaper
    "LookSAM": Method(
        "preset",
        "Climbs every k-th step and reuses what that added in between.",
        "u = h, else g + alpha ||g|| / ||v|| v, v = h_perp(g)",
        _LOOK,
        p.LookSAM,
        price="1 + 1/k",
        vectors="1",
        theta=True,
    ),
    "ESAM": Method(
        "preset",
        "Climbs with some of the weights, descends by the samples whose loss rises most.",
        "epsilon = rho mask g / (beta ||g||), u = h of the top gamma of the batch",
        "Du et al., ICLR 2022",
        p.ESAM,
        price="1 + 1/3 + gamma",
        cost=_esam(0.5),
        theta=True,
        needs=("batch",),
    ),
    "SS-SAM": Method(
        "preset",
        "Climbs with probability p.",
        "u = h with probability p, else g",
        _SS,
        p.SSSAM,
        price="1 + p",
        theta=True,
    ),
    "AE-SAM": Method(
        "preset",
        "Climbs when the gradient is large for its time.",
        "u = h if ||g||^2 >= mu + c sigma, else g",
        _AE,
        p.AESAM,
        price="1 + share of climbs",
        theta=True,
        example={"total": 60},
    ),
    "AE-LookSAM": Method(
        "preset",
        "AE-SAM that reuses, as LookSAM does, what the last climb added.",
        "u = h if ||g||^2 >= mu + c sigma, else g + alpha ||g|| / ||v|| v",
        _AE,
        p.AELookSAM,
        price="1 + share of climbs",
        vectors="1",
        theta=True,
        example={"total": 60},
    ),
    "late phase": Method(
        "preset",
        "Plain steps at first, climbs from a step on.",
        "u = g before `start`, then h",
        _REUSE,
        p.LateSAM,
        price="1 + share after start",
        theta=True,
        example={"start": 7},
    ),
    "reuse, every k": Method(
        "preset",
        "The slope stays between new gradients at w, which every k-th step takes.",
        "d = (1 - theta) d + theta g if t mod k = 0, u = h",
        _REUSE,
        p.ReusedSAM,
        price="1 + 1/k",
        vectors="1",
        theta=True,
    ),
    "reuse, at random": Method(
        "preset",
        "The slope stays between new gradients at w, which a coin asks for.",
        "d = (1 - theta) d + theta g with probability p, u = h",
        _REUSE,
        partial(p.ReusedSAM, refresh=RefreshRandomly(0.3)),
        price="1 + p",
        vectors="1",
        theta=True,
    ),
    "reuse, adaptive": Method(
        "preset",
        "The slope stays until the norm of the gradient above has moved from its average.",
        "d = (1 - theta) d + theta g if tau > phi ||h||, u = h",
        _REUSE,
        partial(p.ReusedSAM, refresh=RefreshAdaptive(warm_up=3, z=1.05)),
        price="1 + share of new gradients",
        vectors="1",
        theta=True,
    ),
    "reuse, following": Method(
        "preset",
        "Between new gradients at w the slope follows those taken above.",
        "d = (1 - theta) d + theta (g if t mod k = 0 else last h), u = h",
        _REUSE,
        partial(p.ReusedSAM, stale="follow"),
        price="1 + 1/k",
        vectors="2",
        theta=True,
    ),
    "late phase with reuse": Method(
        "preset",
        "Both cheap forms in one: plain steps, then a slope that is seldom renewed.",
        "u = g before `start`, then as reuse",
        "nobody has combined the two",
        partial(p.LateSAM, then=RefreshEveryK(3), theta=0.4),
        price="1 + share after start / k",
        vectors="1",
        theta=True,
        example={"start": 7},
    ),
    "Momentum-SAM": Method(
        "preset",
        "Goes on along the base's momentum; needs no gradient at w.",
        "epsilon = -rho v / ||v||, v the momentum, u = h",
        "Becker, Altrock, Risse, 2024",
        p.MSAM,
        price="1",
        cost=_one_pass,
        needs=("momentum",),
        example={"rho": 0.3},
    ),
    "S2-SAM": Method(
        "preset",
        "Climbs along the gradient of the step before.",
        "epsilon_t = rho h_{t-1} / ||h_{t-1}||, u = h_t",
        "Ji et al., NeurIPS 2024",
        p.S2SAM,
        price="1",
        cost=_one_pass,
        vectors="1",
    ),
    # other directions
    "Friendly-SAM": Method(
        "preset",
        "Takes the average out of the gradient and climbs along the rest.",
        "m = lam m + (1 - lam) g, d = g - sigma m, u = h",
        "Li, Zhou, He, Cheng, Huang, CVPR 2024",
        p.FriendlySAM,
        vectors="1",
    ),
    "STORM": Method(
        "preset",
        "VaSSO with a correction for the way the weights have gone.",
        "d = g_t(w_t) + (1 - a) (d - g_t(w_{t-1})), u = h",
        "Cutkosky, Orabona, NeurIPS 2019",
        p.StormSAM,
        price="3",
        cost=_storm,
        vectors="2",
    ),
    "SVRG": Method(
        "preset",
        "The gradient is corrected by a snapshot with a known full gradient.",
        "d = g_t(w) - g_t(snapshot) + full(snapshot), u = h",
        "Johnson, Zhang, NeurIPS 2013",
        p.SVRGSAM,
        price="3 + n/(b K)",
        cost=_full,
        vectors="2",
        needs=("source",),
        example={"every": 6},
    ),
    "SARAH": Method(
        "preset",
        "Differences of gradients are added up from a full gradient on.",
        "d = g_t(w_t) - g_t(w_{t-1}) + d, u = h",
        "Nguyen, Liu, Scheinberg, Takac, ICML 2017",
        p.SARAHSAM,
        price="3 + n/(b K)",
        cost=_full,
        vectors="2",
        needs=("source",),
        example={"every": 6},
    ),
    # other descents, solvers, geometries
    "gradient-norm penalty": Method(
        "preset",
        "Mixes the gradients at w and above.",
        "u = (1 - alpha) g + alpha h",
        "Zhao, Zhang, Hu, ICML 2022",
        p.PGN,
        theta=True,
    ),
    "multi-step (last)": Method(
        "preset",
        "Climbs in n steps with a new slope at each point.",
        "epsilon = Pi(epsilon + rho g(w + epsilon) / ||.||), n times, u = h",
        "Foret et al., 2021; Andriushchenko, Flammarion, 2022",
        p.MultiStepSAM,
        price="n + 1",
        cost=_points(2),
        theta=True,
    ),
    "multi-step (mean)": Method(
        "preset",
        "The same; the gradients of all points go down.",
        "u = mean of h_j",
        "Kim et al., 2023",
        partial(p.MultiStepSAM, mean=True),
        price="n + 1",
        cost=_points(2),
        theta=True,
    ),
    "Frank-Wolfe": Method(
        "preset",
        "Goes part of the way to the highest point of each slope.",
        "epsilon = (1 - gamma_k) epsilon + gamma_k rho d / ||d||, K times",
        "Reddi et al., 2016",
        p.FrankWolfeSAM,
        price="K + 1",
        cost=_points(2),
        theta=True,
    ),
    "Frank-Wolfe with momentum": Method(
        "preset",
        "The same; slopes are averaged over the points of one step.",
        "d_k = (1 - r_k) d_{k-1} + r_k g(w + epsilon_k)",
        "Mokhtari, Hassani, Karbasi, 2018",
        partial(p.FrankWolfeSAM, momentum=True, K=3),
        price="K + 1",
        cost=_points(3),
        theta=True,
    ),
    "Sparse SAM (Fisher)": Method(
        "preset",
        "Only weights with a large Fisher information climb.",
        "epsilon = mask rho g / ||g||",
        _SPARSE,
        p.SparseSAM,
        price="2 + N_F/(b every)",
        cost=_fisher_mask(16),
        vectors="1",
        theta=True,
        needs=("batch",),
        example={"every": 6},
    ),
    "Sparse SAM (dynamic)": Method(
        "preset",
        "A random mask that drops its flattest weights and grows others.",
        "epsilon = mask rho g / ||g||",
        _SPARSE,
        partial(p.SparseSAM, mask="dynamic"),
        vectors="1",
        theta=True,
        example={"every": 6},
    ),
    "AWP": Method(
        "preset",
        "Each layer moves by a share of its own size.",
        "epsilon_l = gamma ||w_l|| g_l / ||g_l||",
        "Wu, Xia, Wang, NeurIPS 2020",
        p.AWP,
        theta=True,
        example={"rho": 0.02},
    ),
    "SAM (l-infinity)": Method(
        "preset",
        "SAM in the cube.",
        "epsilon = rho sign(g)",
        _SAM,
        p.LinfSAM,
        theta=True,
        example={"rho": 1e-3},
    ),
    # what is not that one step
    "SAMPa": Method(
        "stepper",
        "Both gradients of a step can be computed at the same time.",
        "w~ = w + rho g(y) / ||g(y)||, u = (1 - lam) g(w~) + lam g(y')",
        "Xie, Pethick, Cevher, NeurIPS 2024",
        SAMPa,
        vectors="2",
        needs=("SGD",),
    ),
    "Entropy-SGD": Method(
        "stepper",
        "Descends towards the mean of a short noisy walk around w.",
        "u = w - mu, mu the average of L steps of SGLD",
        "Chaudhari et al., ICLR 2017",
        EntropySGD,
        price="L",
        cost=_walk(20),
        needs=("source",),
        alone={"L": 0},
    ),
    "SAF": Method(
        "loss",
        "Holds the model to what it said of each sample some epochs ago.",
        "loss + lam tau^2 KL(past || now)",
        "Du et al., NeurIPS 2022",
        SAF,
        price="1",
        cost=_one_pass,
    ),
    "MESA": Method(
        "loss",
        "Holds the model to what an average of its past selves says.",
        "loss + lam tau^2 KL(average || now)",
        "Du et al., NeurIPS 2022",
        MESA,
        price="1 + 1/3",
        cost=_one_pass,
        vectors="1",
    ),
    "SWA": Method(
        "averager",
        "Averages the weights of late steps; torch's own, works on weights that are home again.",
        "w_swa = mean of w",
        "Izmailov et al., UAI 2018",
        AveragedModel,
        price="1",
        cost=_one_pass,
        vectors="1",
    ),
})
_METHODS: Mapping[str, Method] = MappingProxyType(_TABLE)


_HEAD = """# Methods

Every method and what makes it. `base` is the optimizer that you have; names are imported from
`vasso`, but `SAF` and `MESA` from `vasso.losses`, `AveragedModel` from `torch.optim.swa_utils`.
The settings shown are those that make the method what it is and those without a default: `total`,
the steps of the training, and `start`, the first step that may climb, are examples. In Python the
same table is `vasso.methods()`.

In equations g is the gradient at w, h that at w + epsilon, v_perp(a) what of v is orthogonal to a.
Gradients are per step; vectors are those kept between steps beyond the base's; theta says whether
variance suppression (`theta=`) applies. What a method may need:

- *batch*: `opt.step(Samples(...))` instead of a closure, because it looks at single samples;
- *other batch*: `opt.step(closure, ascent_closure=...)`;
- *source*: an object with `full()` and `fresh()`, which return closures of all data and of a new
  batch (`vasso.Source`);
- *momentum*, *SGD*: a base that has it, or is it.

This page is written by `python -m vasso.catalogue > docs/methods.md`.

| method | made by | what | equation | gradients | vectors | theta | needs | source |
|---|---|---|---|---|---|---|---|---|"""


def as_markdown() -> str:
    """The method page of the docs: ``python -m vasso.catalogue > docs/methods.md``.

    Returns:
        A table with a row for each method.
    """
    rows = [_HEAD]
    for name, method in methods().items():
        cells = (
            name if method.kind == "preset" else f"{name} ({method.kind})",
            f"`{method.call}`",
            method.what,
            f"`{method.equation}`".replace("|", "\\|"),
            method.price,
            method.vectors,
            "yes" if method.theta else "",
            ", ".join(method.needs),
            method.paper,
        )
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
