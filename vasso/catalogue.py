"""Catalogue: one table of all methods; the method page of the docs and the contract tests use it.

The contract tests run over this table, so a method cannot be added without them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from torch.optim.swa_utils import AveragedModel

from vasso import presets as p
from vasso._names import suggest
from vasso.losses import MESA, SAF
from vasso.parts.plans import FORWARD
from vasso.parts.policies import RefreshAdaptive, RefreshEveryK, RefreshRandomly
from vasso.standalone import BAR, BiLoRA, EntropySGD, FlatLoRA, SAMPa

Kind = Literal["preset", "stepper", "loss", "averager"]
Need = Literal[
    "batch",
    "source",
    "momentum",
    "SGD",
    "other batch",
    "pairs",
    "adapters",
    "outputs",
    "head",
    "second moment",
    "model",
]
Evidence = Literal["ours", "published", "none"]
Question = Literal[
    "wrong labels",
    "cheapest",
    "language models",
    "fine-tuning",
    "long training",
    "research probes",
]


@dataclass(frozen=True)
class StepCounts:
    """How many steps of a training were of which kind; `Method.cost` is computed from it.

    Attributes:
        steps: all steps.
        clean: steps that took a gradient at w, or had no other gradient.
        climbed: steps with perturbed weights.
        refreshed: steps that restarted a slope or a mask: from a full gradient, from single
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


Cost = Callable[[StepCounts], float]


@dataclass(frozen=True)
class Method:
    """One method or variant.

    Attributes:
        kind: "preset", a choice of parts of `SharpnessAware`, which keeps every promise; "stepper",
            an optimizer with its own step, which keeps all promises but those about
            `SharpnessAware` (`ascended`, theta, groups that are not perturbed); "loss" and
            "averager", which are no optimizers.
        what: one sentence.
        equation: in the letters of the papers, g the gradient at w and h the one at w + epsilon.
        paper: where it comes from.
        build: ``build(base, **settings)`` for presets and steppers.
        price: gradient evaluations per step, as text.
        cost: gradient evaluations of a whole training.
        vectors: vectors of state between steps, beyond those of the base.
        theta: whether variance suppression applies.
        needs: what it needs beyond a base and a closure.
        example: settings for a short training, where the defaults are not enough.
        alone: settings that leave the base alone, bit for bit, at one gradient a step.
        evidence: who has compared it with training without it: "ours", a record of this repository,
            whatever its answer; "published", its paper; "none".
        question: the section of the page of methods.
    """

    kind: Kind
    what: str
    equation: str
    paper: str
    build: Callable[..., Any]
    price: str = "2"
    cost: Cost = lambda counts: counts.clean + counts.climbed
    vectors: str = "0"
    theta: bool = False
    needs: tuple[Need, ...] = ()
    example: Mapping[str, Any] = field(default_factory=dict)
    alone: Mapping[str, Any] = field(default_factory=lambda: {"rho": 0.0})
    evidence: Evidence = "published"
    question: Question = "research probes"

    @property
    def call(self) -> str:
        """The call that makes it, with its required settings."""
        chosen = self.build if isinstance(self.build, partial) else partial(self.build)
        words = []
        for x in inspect.signature(chosen.func).parameters.values():
            if x.kind is x.POSITIONAL_OR_KEYWORD and x.default is x.empty:
                words.append(x.name)
            elif x.kind is x.KEYWORD_ONLY and (x.default is x.empty or x.name in self.needs):
                words.append(f"{x.name}={self.example.get(x.name, x.name)}")
        words += ["model=model"] if {"model", "adapters"} & {*self.needs} else []
        words += [f"{key}={value!r}" for key, value in chosen.keywords.items()]
        return f"{chosen.func.__name__}({', '.join(words)})"


class _Table(dict[str, Method]):
    """For an unknown name the error suggests the nearest row, by its name or by its class."""

    def __missing__(self, name: object) -> Method:
        rows = list(self.items())[::-1]  # reversed: the first row of a class wins
        for other, (_, reason) in NOT_HERE.items():
            if str(name).casefold() == other.casefold():
                raise KeyError(f"{other} is not built: {reason}.")
        known = {row.call.partition("(")[0]: key for key, row in rows}
        known |= {key: key for key in self}
        near = suggest(name, known)
        hint = f"Did you mean {known[near]!r}?" if near else "list(vasso.methods()) has them all."
        raise KeyError(f"there is no method {name!r}. {hint}")


def methods() -> Mapping[str, Method]:
    """Every method and variant: name -> what it is, how to build it, what it costs.

    Returns:
        A read-only mapping; for an unknown name the error suggests the nearest.

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
_FUNCTIONAL = "Singh et al., ICML 2025 (second-hand)"
_BAR = "Li, Zhang, He, NeurIPS 2024"
_BI_LORA = "Liu, Li, Huang, Yang, Huang, ICLR 2026"
_STABLE = "Tan, Zhang, Liu, Wang, Hao, JMLR 2025"
_WSAM = "Yue, Jiang, Ye, Gao, Liu, Zhang, KDD 2023"
_BEHIND = "Mordido, Malviya, Baratin, Chandar, ICML 2024"
_LATE = "Zhou, Wang, Mao, Li, Yan, ICLR 2025"
_ON = "Mueller, Vlaar, Rolnick, Hein, NeurIPS 2023"


def _one_pass(counts: StepCounts) -> float:
    return counts.steps


def _of_half(counts: StepCounts) -> float:
    half = max(1, round(counts.batch / 2)) / counts.batch
    return 2 * half * counts.climbed + (counts.steps - counts.climbed)


def _storm(counts: StepCounts) -> float:
    return counts.clean + counts.climbed + (counts.steps - counts.refreshed)


def _storm_and_full(counts: StepCounts) -> float:
    return _storm(counts) + counts.refreshed * counts.data / counts.batch


def _points(n: int) -> Cost:
    return lambda counts: counts.clean + n * counts.climbed


def row(
    build: Callable[..., Any],
    equation: str,
    paper: str,
    what: str,
    kind: Kind = "preset",
    needs: Need | tuple[Need, ...] = (),
    **facts: Any,
) -> Method:
    """One row of the table; theta applies to every preset that takes it."""
    made = build.func if isinstance(build, partial) else build
    theta = kind == "preset" and "theta" in inspect.signature(made).parameters
    wanted = (needs,) if isinstance(needs, str) else needs
    return Method(kind, what, equation, paper, build, theta=theta, needs=wanted, **facts)


Rows: TypeAlias = dict[str, Method]

# The tables, one for each question that users ask, are wrapped by hand.
# fmt: off
_WRONG_LABELS: Rows = {
    "SAM": row(p.SAM, "epsilon = rho g / ||g||, u = h", _SAM,
        "Descends by the gradient at weights perturbed along the gradient of the batch.",
        evidence="ours"),
    "VaSSO": row(p.VaSSO, "d = (1 - theta) d + theta g, epsilon = rho d / ||d||, u = h", _VASSO,
        "SAM along an averaged slope, so that one noisy batch cannot turn the perturbation.",
        vectors="1", evidence="ours"),
}

_CHEAPEST: Rows = {
    "Half-SAM": row(p.HalfSAM, "epsilon = rho g_half / ||g_half||, u = h_half", "unpublished",
        "Both passes are over the same random half of each batch.", price="1", cost=_of_half,
        needs="batch", evidence="ours"),
    "Half-VaSSO": row(partial(p.HalfSAM, theta=0.4),
        "d = (1 - theta) d + theta g_half, epsilon = rho d / ||d||, u = h_half", "unpublished",
        "Both passes are over the same random half of each batch, along an averaged slope.",
        price="1", cost=_of_half, vectors="1", needs="batch", evidence="none"),
    "Momentum-SAM": row(p.MSAM, "epsilon = -rho v / ||v||, v the momentum, u = h",
        "Becker, Altrock, Risse, 2024",
        "Perturbs along the base's momentum; needs no gradient at w.", price="1", cost=_one_pass,
        needs="momentum", example={"rho": 0.3}),
    "S2-SAM": row(p.S2SAM, "epsilon_t = rho h_{t-1} / ||h_{t-1}||, u = h_t",
        "Ji et al., NeurIPS 2024",
        "Perturbs along the gradient of the step before.", price="1", cost=_one_pass, vectors="1"),
    "SAM-ON": row(p.SAMON, "epsilon = rho g / ||g|| over normalisation layers, u = h", _ON,
        "Perturbs normalisation layers alone, and computes no other gradients at w.",
        price="2, in about 1.67 of the time", needs="model", evidence="ours"),
    "VaSSO-ON": row(partial(p.SAMON, theta=0.4),
        "d = (1 - theta) d + theta g, epsilon = rho d / ||d|| over normalisation layers, u = h",
        f"{_ON}; {_VASSO}", "SAM-ON along an averaged slope, which only these layers have.",
        price="2, in about 1.67 of the time", vectors="1, of these layers alone", needs="model",
        evidence="ours"),
    "LookSAM": row(p.LookSAM, "u = h, else g + alpha ||g|| / ||v|| v, v = h_perp(g)", _LOOK,
        "Perturbs every k-th step and reuses its effect on the gradient in between.",
        price="1 + 1/k", vectors="1"),
    "SS-SAM": row(p.SSSAM, "u = h with probability p, else g", _SS,
        "Perturbs with probability p.", price="1 + p"),
    "AE-SAM": row(p.AESAM, "u = h if ||g||^2 >= mu + c sigma, else g", _AE,
        "Perturbs when the gradient is large compared with its recent average.",
        price="1 + share of climbs", example={"total": 60}),
    "AE-LookSAM": row(p.AELookSAM,
        "u = h if ||g||^2 >= mu + c sigma, else g + alpha ||g|| / ||v|| v", _AE,
        "AE-SAM that reuses, as LookSAM does, the effect of the last perturbation.",
        price="1 + share of climbs", vectors="1", example={"total": 60}),
    "SAF": row(SAF, "loss + lam tau^2 KL(past || now)", "Du et al., NeurIPS 2022",
        "Penalises changes of the model's output on each sample over some epochs.", kind="loss",
        price="1", cost=_one_pass),
    "MESA": row(MESA, "loss + lam tau^2 KL(average || now)", "Du et al., NeurIPS 2022",
        "Penalises differences from the output of an average of past weights.", kind="loss",
        price="1 + 1/3", cost=_one_pass, vectors="1"),
    "late phase": row(p.LateSAM, "u = g before `start`, then h", f"{_REUSE}; {_LATE}",
        "Plain steps first, perturbations from a step on.", price="1 + share after start",
        example={"start": 7}),
    "warm start": row(p.LateSAM, "u = g before `start`, then h", "2509.21818",
        "A short plain start, because SAM with a large radius can stall where h = 0.",
        price="1 + share after start", example={"start": 3}),
    "late phase with reuse": row(partial(p.LateSAM, then=RefreshEveryK(3), theta=0.4),
        "u = g before `start`, then as reuse", "unpublished combination",
        "Both cheap forms in one: plain steps, then a slope that is seldom updated.",
        price="1 + share after start / k", vectors="1", example={"start": 7}, evidence="none"),
    "reuse, every k": row(p.ReusedSAM, "d = (1 - theta) d + theta g if t mod k = 0, u = h", _REUSE,
        "Every k-th step takes a new gradient at w; the slope stays in between.", price="1 + 1/k",
        vectors="1"),
    "reuse, at random": row(partial(p.ReusedSAM, refresh=RefreshRandomly(0.3)),
        "d = (1 - theta) d + theta g with probability p, u = h", _REUSE,
        "Random steps take a new gradient at w; the slope stays in between.", price="1 + p",
        vectors="1"),
    "reuse, adaptive": row(partial(p.ReusedSAM, refresh=RefreshAdaptive(warm_up=3, z=1.05)),
        "d = (1 - theta) d + theta g if tau > phi ||h||, u = h", _REUSE,
        "The slope stays until the norm of h has moved away from its average.",
        price="1 + share of new gradients", vectors="1"),
    "reuse, following": row(partial(p.ReusedSAM, stale="follow"),
        "d = (1 - theta) d + theta (g if t mod k = 0 else last h), u = h", _REUSE,
        "Between new gradients at w the slope follows the gradients at w + epsilon.",
        price="1 + 1/k", vectors="2"),
    "ESAM": row(p.ESAM, "epsilon = rho mask g / (beta ||g||), u = h of the top gamma of the batch",
        "Du et al., ICLR 2022",
        "Perturbs some of the weights, descends by the samples whose loss rises most.",
        price="1 + 1/3 + gamma", needs="batch",
        cost=lambda t: t.clean + t.climbed * (FORWARD + max(1, round(0.5 * t.batch)) / t.batch)),
    "m-SAM (subsample)": row(p.SubSampledSAM, "epsilon = rho g_m / ||g_m||, u = h of the batch",
        _VASSO,
        "The perturbation comes from m samples of the batch.", price="1 + m/b",
        cost=lambda t: t.climbed * (1 + min(12, t.batch) / t.batch) + (t.steps - t.climbed),
        needs="batch", example={"m": 12}),
    "VaSSO+LookSAM": row(partial(p.LookSAM, theta=0.4), "as LookSAM, d averaged",
        f"{_VASSO} (proposed), {_LOOK}",
        "LookSAM along a slope that is averaged in every step.", price="1 + 1/k", vectors="2",
        evidence="none"),
    "VaSSO+AE-SAM": row(partial(p.AESAM, theta=0.4), "as AE-SAM, d averaged",
        f"{_VASSO} (proposed), {_AE}",
        "AE-SAM along a slope that is averaged in every step.",
        price="1 + share of climbs", vectors="1", example={"total": 60}, evidence="none"),
    "SWA": row(AveragedModel, "w_swa = mean of w", "Izmailov et al., UAI 2018",
        "Averages the weights of late steps; torch's own, works on the restored weights.",
        kind="averager", price="1", cost=_one_pass, vectors="1"),
}

_LANGUAGE_MODELS: Rows = {
    "Functional-SAM": row(p.FunctionalSAM,
        "epsilon = rho g / ||g||, u = J_z(w + epsilon)^T v, v = dL/dz at w", _FUNCTIONAL,
        "Perturbs the network, while the gradient of the logits stays that at w.",
        needs="outputs", evidence="ours"),
    "preconditioned SAM": row(p.PreconditionedSAM,
        "epsilon = rho q d / sqrt(d.(q d)), q = 1 / M, M from the base's second moment", "ours",
        "SAM in the metric in which the base steps.", needs="second moment", evidence="ours"),
    "Functional-SAM, preconditioned": row(partial(p.FunctionalSAM, preconditioned=True),
        "epsilon = rho q d / sqrt(d.(q d)), u = J_z(w + epsilon)^T v", f"{_FUNCTIONAL}, ours",
        "Functional-SAM in the metric in which the base steps.",
        needs=("outputs", "second moment"), evidence="ours"),
    "VaSSO+Functional-SAM": row(partial(p.FunctionalSAM, theta=0.4),
        "as Functional-SAM, d averaged", f"{_VASSO} (proposed), {_FUNCTIONAL}",
        "Functional-SAM along an averaged slope.", vectors="1", needs="outputs", evidence="none"),
    "logits-SAM": row(p.LogitsSAM,
        "E = rho G / ||G||, G the gradient of the head's weight, u = gradient at W + E",
        "RitianLuo, logits-sam-dpo (code), ICLR 2026",
        "Perturbs the output layer alone, with one pass through the rest of the model.",
        price="1", cost=_one_pass, needs="head"),
}

_FINE_TUNING: Rows = {
    "nBAR": row(BAR, "A, B *= 1 +- alpha lr, + for the larger of ||g_A||, ||g_B||", _BAR,
        "Balances the factors of each LoRA pair: the one with the larger gradient grows.",
        kind="stepper", price="1", cost=_one_pass, needs="pairs", alone={"alpha": 0.0},
        evidence="ours"),
    "oBAR": row(partial(BAR, by="weights"),
        "A, B *= 1 -+ alpha lr, - for the larger of ||A||, ||B||", _BAR,
        "Balances the factors of each LoRA pair: the larger one shrinks.",
        kind="stepper", price="1", cost=_one_pass, needs="pairs", alone={"alpha": 0.0},
        evidence="ours"),
    "Bi-LoRA": row(BiLoRA,
        "W = W0 + B1 A1 + B2 A2, pair 1 descends, pair 2 ascends, then ||B2 A2|| <= rho", _BI_LORA,
        "A second pair of LoRA factors is the adversary, and moves in the same backward pass.",
        kind="stepper", price="1", cost=_one_pass, vectors="1, of the adapters alone",
        needs="adapters", evidence="ours"),
    "Flat-LoRA": row(FlatLoRA,
        "epsilon_ij ~ N(0, (rho ||W_i|| / sqrt(n))^2), W = W0 + B A, u = g(W + epsilon)",
        "Li, He, Li, Wang, Shang, Huang, ICML 2025",
        "The gradient of LoRA's factors where the merged weights carry random noise.",
        kind="stepper", price="1", cost=_one_pass, needs="adapters", example={"total": 60},
        evidence="ours"),
}

_LONG_TRAINING: Rows = {
    "ASAM": row(p.ASAM, "epsilon = rho T^2 d / ||T d||, T = |w| + eta, u = h", _ASAM,
        "SAM in a ball that scales with the weights.", evidence="ours"),
    "VaSSO+ASAM": row(partial(p.ASAM, theta=0.4), "epsilon = rho T^2 d / ||T d||, d averaged",
        f"{_VASSO} (proposed), {_ASAM}",
        "ASAM along an averaged slope.", vectors="1", evidence="none"),
    "FisherSAM": row(p.FisherSAM,
        "epsilon = rho q d / sqrt(d.(q d)), q = 1 / (1 + eta g^2), u = h", _FISHER,
        "SAM in the metric of the Fisher information.", evidence="ours"),
    "VaSSO+FisherSAM": row(partial(p.FisherSAM, theta=0.4),
        "epsilon = rho q d / sqrt(d.(q d)), d averaged", f"{_VASSO} (proposed), {_FISHER}",
        "FisherSAM along an averaged slope.", vectors="1", evidence="none"),
    "LE-SAM": row(p.LESAM,
        "rho = min(sigma ||d|| / (g.d), most), epsilon = rho d / ||d||, u = h",
        "2605.10183, ICML 2026",
        "The radius is such that the loss rises by sigma, to first order."),
    "GSAM": row(p.GSAM, "u = h - alpha g_perp(h)", _GSAM,
        "SAM that also reduces the gap between the losses at w + epsilon and at w.",
        evidence="ours"),
    "VaSSO+GSAM": row(partial(p.GSAM, theta=0.4),
        "epsilon = rho d / ||d||, u = h - alpha g_perp(h)", _VASSO,
        "The paper's V+G: GSAM along an averaged slope.", vectors="1", evidence="ours"),
    "gradient-norm penalty": row(p.PGN, "u = (1 - alpha) g + alpha h",
        "Zhao, Zhang, Hu, ICML 2022",
        "Mixes the gradients at w and at w + epsilon."),
    "StableSAM": row(p.StableSAM, "u = h ||g|| / ||h||", _STABLE,
        "Descends along the gradient at w + epsilon, as far as the one at w would."),
    "StableSAM (unnormalised)": row(partial(p.StableSAM, normalised=False),
        "epsilon = rho g, u = h ||g|| / ||h||", _STABLE,
        "The same, with a perturbation as long as the gradient."),
    "WSAM": row(p.WSAM, "u = g, then w = w - lr gamma / (1 - gamma) (h - g)", _WSAM,
        "The base steps by g; then the weights move by the weighted sharpness, past the base."),
    "WSAM (coupled)": row(partial(p.WSAM, decoupled=False), "u = g + gamma / (1 - gamma) (h - g)",
        _WSAM, "The weighted sharpness is part of the gradient."),
    "Eigen-SAM": row(p.EigenSAM,
        "epsilon = rho (n + alpha sign(g.v) (v - (n.v) n)), n = g / ||g||, H v = lam v, u = h",
        "Luo et al., NeurIPS 2024",
        "Perturbs along the gradient, tilted towards the top eigenvector of the Hessian.",
        price="2 + 5/every", vectors="1", example={"every": 6},
        cost=lambda t: t.clean + t.climbed + 5 * t.refreshed),
    "VaSSO+Eigen-SAM": row(partial(p.EigenSAM, theta=0.4),
        "epsilon = rho (n + alpha sign(g.v) (v - (n.v) n)), n = d / ||d||, u = h",
        f"{_VASSO} (proposed), Luo et al., NeurIPS 2024",
        "Eigen-SAM along an averaged slope.", price="2 + 5/every", vectors="2",
        cost=lambda t: t.clean + t.climbed + 5 * t.refreshed, example={"every": 6},
        evidence="none"),
    "LightSAM-I": row(p.LightSAM,
        "epsilon = rho g / sqrt(sum of ||g||^2), u = h / sqrt(sum of ||h||^2)",
        "withdrawn from ICLR 2025 (second-hand)",
        "Radius and learning rate fall as AdaGrad's do.", evidence="none"),
    "GCSAM": row(p.GCSAM, "epsilon = rho c / ||g||, c = g - mean of each row, u = h",
        "Hassan, Vakanski, Zhang, Xian, 2025",
        "Perturbs along the gradient, centred in each row or output channel."),
    "ZSharp": row(p.ZSharp, "epsilon = rho z / ||z||, z = g where it stands out, u = h",
        "Yun, 2025", "Perturbs along the entries that stand out in their tensor."),
    "ZSharp (norm of each tensor)": row(partial(p.ZSharp, norm="tensor"),
        "epsilon_l = rho z_l / ||z_l||, z = g where it stands out, u = h", "Yun, 2025 (code)",
        "The same as in the code: every tensor is perturbed by rho.", example={"rho": 0.02}),
    "Friendly-SAM": row(p.FriendlySAM, "m = lam m + (1 - lam) g, d = g - sigma m, u = h",
        "Li, Zhou, He, Cheng, Huang, CVPR 2024",
        "Subtracts the average from the gradient and perturbs along the rest.", vectors="1"),
    "Sparse SAM (Fisher)": row(p.SparseSAM, "epsilon = mask rho g / ||g||", _SPARSE,
        "Perturbs only weights with a large Fisher information.", price="2 + N_F/(b every)",
        cost=lambda t: t.clean + t.climbed + t.refreshed * min(16, t.batch) / t.batch,
        vectors="1", needs="batch", example={"every": 6}),
    "Sparse SAM (dynamic)": row(partial(p.SparseSAM, mask="dynamic"),
        "epsilon = mask rho g / ||g||", _SPARSE,
        "A random mask that exchanges the weights with the smallest gradients for others.",
        vectors="1", example={"every": 6}),
    "AWP": row(p.AWP, "epsilon_l = gamma ||w_l|| g_l / ||g_l||", "Wu, Xia, Wang, NeurIPS 2020",
        "Each layer moves in proportion to its own norm.", example={"rho": 0.02}),
    "SAMPa": row(SAMPa, "w~ = w + rho g(y) / ||g(y)||, u = (1 - lam) g(w~) + lam g(y')",
        "Xie, Pethick, Cevher, NeurIPS 2024",
        "Both gradients of a step can be computed at the same time.", kind="stepper", vectors="2",
        needs="SGD"),
    "m-SAM (chunks)": row(p.ChunkedSAM, "u = mean of g_i(w + rho g_i / ||g_i||)", _SAM,
        "Each chunk of m samples has its own perturbation.", needs="batch",
        example={"m": 12}),
    "VaSSO+m-SAM": row(partial(p.ChunkedSAM, theta=0.4),
        "d_i = (1 - theta) d + theta g_i, then d = mean of d_i", f"{_VASSO}, {_SAM}",
        "Each chunk is perturbed along the shared average with its own gradient in it.",
        vectors="1", needs="batch", example={"m": 12}, evidence="none"),
    "multi-step (last)": row(p.MultiStepSAM,
        "epsilon = Pi(epsilon + rho g(w + epsilon) / ||.||), n times, u = h",
        "Foret et al., 2021; Andriushchenko, Flammarion, 2022",
        "Perturbs in n steps with a new slope at each point.", price="n + 1", cost=_points(2)),
    "multi-step (mean)": row(partial(p.MultiStepSAM, mean=True), "u = mean of h_j",
        "Kim et al., 2023",
        "The same, but descends by the mean of the gradients at all points.", price="n + 1",
        cost=_points(2)),
    "Lookbehind-SAM": row(p.LookbehindSAM,
        "f_i = f_{i-1} - lr h_i, i = 1 to k, then w = w + alpha (f_k - w)", _BEHIND,
        "Climbs k times, steps the base by each gradient, goes part of the way to where it ends.",
        price="k + 1", cost=_points(2)),
    "Lookbehind-SAM (adaptive)": row(partial(p.LookbehindSAM, alpha=None),
        "as Lookbehind-SAM, alpha = (cos(f_1 - w, f_k - w) + 1) / 2", _BEHIND,
        "The part of the way is that of each tensor, larger the more its steps agree.",
        price="k + 1", cost=_points(2)),
    "VaSSO+multi-step": row(partial(p.MultiStepSAM, theta=0.4),
        "d_j = (1 - theta) d + theta g(w + epsilon_j)", f"{_VASSO} (proposed)",
        "Several ascent steps, each along the averaged slope with the gradient at its point.",
        price="n + 1", cost=_points(2), vectors="1", evidence="none"),
    "Entropy-SGD": row(EntropySGD, "u = w - mu, mu the average of L steps of SGLD",
        "Chaudhari et al., ICLR 2017",
        "Descends towards the mean of a short noisy trajectory around w.", kind="stepper",
        price="L", cost=lambda t: 20 * t.steps, needs="source", alone={"L": 0}),
}

_RESEARCH_PROBES: Rows = {
    "SAM-db": row(p.SAM, "epsilon = rho g' / ||g'||, g' of another batch, u = h", _VASSO,
        "The perturbation comes from another batch: step(closure, ascent_closure=other).",
        needs="other batch", evidence="ours"),
    "SAM-db-m/2": row(p.SAM, "as SAM-db with |B'| = b / 2", _VASSO,
        "The perturbation comes from another batch of half the size.",
        price="1.5, if the batches have a length",
        cost=lambda t: 1.5 * t.climbed + (t.steps - t.climbed), needs="other batch",
        evidence="ours"),
    "noisy SAM (relative)": row(p.NoisySAM, "d = g + zeta, E||zeta||^2 = kappa ||g||^2", _VASSO,
        "Adds noise to the slope, its power relative to the gradient's.", evidence="ours"),
    "noisy SAM (absolute)": row(partial(p.NoisySAM, kappa=0.0, sigma=1e-3),
        "d = g + zeta, zeta ~ N(0, sigma^2)", _VASSO,
        "Adds noise of a given standard deviation to the slope.", evidence="none"),
    "random adversary": row(p.RandomSAM, "epsilon = rho zeta / ||zeta||, zeta ~ N(0, I)", _VASSO,
        "Perturbs in a random direction.", price="1", cost=_one_pass, evidence="none"),
    "SAM (l-infinity)": row(p.LinfSAM, "epsilon = rho sign(g)", _SAM,
        "SAM in the cube.", example={"rho": 1e-3}),
    "STORM": row(p.StormSAM, "d = g_t(w_t) + (1 - a) (d - g_t(w_{t-1})), u = h",
        "Cutkosky, Orabona, NeurIPS 2019",
        "VaSSO with a correction for the movement of the weights.", price="3", cost=_storm,
        vectors="2", evidence="none"),
    "SVRG": row(p.SVRGSAM, "d = g_t(w) - g_t(snapshot) + full(snapshot), u = h",
        "Johnson, Zhang, NeurIPS 2013",
        "The gradient is corrected by a snapshot with a known full gradient.", price="3 + n/(b K)",
        cost=_storm_and_full, vectors="2", needs="source", example={"every": 6}, evidence="none"),
    "SARAH": row(p.SARAHSAM, "d = g_t(w_t) - g_t(w_{t-1}) + d, u = h",
        "Nguyen, Liu, Scheinberg, Takac, ICML 2017",
        "Differences of gradients are added to a full gradient.", price="3 + n/(b K)",
        cost=_storm_and_full, vectors="2", needs="source", example={"every": 6}, evidence="none"),
    "Frank-Wolfe": row(p.FrankWolfeSAM,
        "epsilon = (1 - gamma_k) epsilon + gamma_k rho d / ||d||, K times", "Reddi et al., 2016",
        "Moves part of the way to the maximum of each linear model.", price="K + 1",
        cost=_points(2), evidence="none"),
    "Frank-Wolfe with momentum": row(partial(p.FrankWolfeSAM, momentum=True, K=3),
        "d_k = (1 - r_k) d_{k-1} + r_k g(w + epsilon_k)", "Mokhtari, Hassani, Karbasi, 2018",
        "The same, with slopes averaged over the points of one step.", price="K + 1",
        cost=_points(3), evidence="none"),
}
# fmt: on

_BY_QUESTION: dict[Question, Rows] = {
    "wrong labels": _WRONG_LABELS,
    "cheapest": _CHEAPEST,
    "language models": _LANGUAGE_MODELS,
    "fine-tuning": _FINE_TUNING,
    "long training": _LONG_TRAINING,
    "research probes": _RESEARCH_PROBES,
}
NOT_HERE: Mapping[str, tuple[str, str]] = {
    "bSAM": (
        "Moellenhoff, Khan, ICLR 2023",
        "an optimizer of its own, whose step and noise come from one second moment: no wrapper",
    ),
    "SASSHA": (
        "Shin et al., ICML 2025",
        "an optimizer of its own: a Hessian diagonal takes the place of the base",
    ),
    "GAM": (
        "Zhang et al., CVPR 2023",
        "four gradients a step and two products with the Hessian; not read in full",
    ),
    "Focal-SAM": (
        "Li et al., ICML 2025",
        "needs the loss of each class and three gradients; its equation is known second-hand only",
    ),
    "SL-SAM": (
        "2602.09395",
        "trains a drawn part of the tensors, which breaks DDP's static graph and compiled models; "
        "two full forward passes remain",
    ),
    "infoSAM": (
        "2501.06603",
        "only a draft of its code was found, which cannot run and differs from the paper",
    ),
    "X-SAM": (
        "2601.10251",
        "the equation at hand changes with the sign of an eigenvector, which has none",
    ),
    "LightSAM-II and LightSAM-III": (
        "withdrawn from ICLR 2025",
        "forms per coordinate, known from no text that was found",
    ),
    "preSAM": (
        "2501.06603",
        "known from a summary alone, which does not say its norm; `PreconditionedSAM` is ours",
    ),
    "muP^2": (
        "2411.00075, NeurIPS 2024",
        "how its radii and scales follow the width is known from no text that was read",
    ),
    "SAM-Polyak": (
        "2606.01827, ICML 2026",
        "a schedule of the learning rate from the loss, known second-hand only",
    ),
    "DAS": (
        "2508.10435",
        "nBAR for more than two factors; its normalisation is not in any text that was found",
    ),
}
"""Methods that users ask for and that are not built: the source and the reason."""

_METHODS: Mapping[str, Method] = MappingProxyType(
    _Table({
        name: replace(method, question=question)
        for question, rows in _BY_QUESTION.items()
        for name, method in rows.items()
    })
)
