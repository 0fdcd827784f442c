"""Geometries: the ball of radius rho, and the maximum over it of a linear function with slope d.

| geometry        | epsilon                                     | ball                            |
|-----------------|---------------------------------------------|---------------------------------|
| `L2`            | rho d / norm(d)                             | norm(epsilon) <= rho            |
| `Unnormalised`  | rho d                                       | norm(epsilon) <= rho norm(d)    |
| `Centred`       | rho c / norm(d), c = d less its mean in each row or channel | that of `L2`   |
| `ZScore`        | rho z / norm(z), z = d where it stands out in its tensor    | that of `L2`   |
| `Linf`          | rho sign(d)                                 | max abs(epsilon) <= rho         |
| `Adaptive`      | rho T^2 d / norm(T d), T = abs(w) + eta     | norm(epsilon / T) <= rho        |
| `Fisher`        | rho q d / sqrt(d.(q d)), q = 1/(1 + eta F)  | epsilon.(epsilon / q) <= rho^2  |
| `Preconditioned` | rho q d / sqrt(d.(q d)), q = 1/M         | epsilon.(M epsilon) <= rho^2 |
| `LayerRelative` | rho norm(w_l) d_l / norm(d_l), each layer   | norm(epsilon_l) <= rho norm(w_l) |
| `Masked`        | that of another geometry, times a mask      | inside the ball of the other    |
| `Normalisation` | that of another, norm layers alone          | that of the other               |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from vasso import validation
from vasso.numerics.vectors import (
    Vector,
    as_dtypes,
    at_least_float32,
    by_peak,
    full_precision,
    norm,
    peak,
    spread_like,
    sum_dtype,
    whole,
    widened,
)
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState
from vasso.parts.part import Part, Range, Setting


@dataclass(frozen=True)
class Geometry(Part):
    """The ball in which the weights are perturbed.

    Attributes:
        depends_on_w: the ball changes with the weights, so epsilon cannot be recomputed from the
            slope alone. The ball is always that of `context.x`, the unperturbed weights.
        needs_names: weights and biases are treated differently.
        needs_batch: a closure is not enough: the geometry needs a `Batch`.
        keeps_mask: it remembers zeros and ones, which have no mean.
        asks_more: the geometry takes extra gradients (`context.gradient`).
        selects: only parameters of modules that it `covers` are perturbed: it needs the model.
    """

    depends_on_w: ClassVar[bool] = False
    needs_names: ClassVar[bool] = False
    needs_batch: ClassVar[bool] = False
    keeps_mask: ClassVar[bool] = False
    asks_more: ClassVar[bool] = False
    selects: ClassVar[bool] = False

    def covers(self, module: nn.Module) -> bool:
        """Whether the parameters that a module owns itself are perturbed; asked if `selects`."""
        return True

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        """The maximiser of <d, epsilon> over the ball, as epsilon = rho push / length.

        Args:
            d: the slope, one tensor for each of `context.w`.
            memory: the vectors this part remembers, to be updated in place.
            context: the step.

        Returns:
            The push, one tensor for each of `context.w`, and the length, a 0-dim tensor that is
            infinite if the slope is 0.
        """
        raise NotImplementedError

    def length(self, v: Vector, context: StepContext) -> Tensor:
        """The norm of v whose ball of radius rho this is, as a 0-dim tensor."""
        raise NotImplementedError


def or_infinite(length: Tensor) -> Tensor:
    """The length, or infinity if it is 0: dividing by it gives 0 without a host synchronisation."""
    return torch.where(length > 0, length, math.inf)


@dataclass(frozen=True)
class L2(Geometry):
    """The Euclidean ball over all weights together: epsilon = rho d / ||d||, and 0 where d is 0.

    Args:
        eps: added to ||d||. Published codes add 1e-7 or 1e-12; here it is not needed, because a
            slope of 0 gives epsilon = 0.
    """

    eps: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.eps < math.inf:
            raise ValueError(f"eps must be at least 0 and finite, got {self.eps}")

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        return d, or_infinite(context.norm(d)) + self.eps

    def length(self, v: Vector, context: StepContext) -> Tensor:
        return context.norm(v)


@dataclass(frozen=True)
class Unnormalised(Geometry):
    """No ball of fixed radius: epsilon = rho d, so that small gradients perturb little.

    So a factor of the loss is one of epsilon, as where losses are divided for accumulation.
    """

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        return d, _one(d)

    def length(self, v: Vector, context: StepContext) -> Tensor:
        return context.norm(v) / or_infinite(context.norm(context.g))


@dataclass(frozen=True)
class Centred(Geometry):
    """Perturbs along the centred slope: epsilon = rho c / ||d||.

    c = d less its mean over all dimensions but the first, in tensors of two or more dimensions

    GCSAM, Hassan, Vakanski, Zhang and Xian, 2025: one mean for each row or output channel. In the
    authors' code, as here, only the perturbation is centred, and ||d|| is taken before, so that
    ||epsilon|| <= rho. The paper is said to centre the descent too, which is not built.

    Args:
        norm: "before", ||d|| as in the code; or "after", ||c||, so that ||epsilon|| = rho.
    """

    norm: Literal["before", "after"] = "before"

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("norm", self.norm, "before", "after")

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        d = widened(d, context.w)
        centred = [
            x - x.mean(tuple(range(1, x.dim())), keepdim=True) if x.dim() > 1 else x for x in d
        ]
        return centred, or_infinite(context.norm(d if self.norm == "before" else centred))

    def length(self, v: Vector, context: StepContext) -> Tensor:
        return context.norm(v)


@dataclass(frozen=True)
class ZScore(Geometry):
    """Perturbs along the entries that stand out in their tensor: epsilon = rho z / ||z||.

    z = d where abs(d - mean) / std is above its q-quantile, else 0, in tensors of two or more
    dimensions; others keep d. Where nothing stands out, z = d. std is the unbiased one, which as a
    common factor decides nothing.

    ZSharp, Yun, 2025.

    Args:
        q: quantile of each tensor, in [0, 1): a share 1 - q of its entries is perturbed.
        norm: "global", ||z|| over all tensors, as in the paper; or "tensor", as in its code: each
            filtered tensor by its own norm, all others by ||d||, so that ||epsilon|| is about rho
            times the root of the number of tensors.
    """

    q: float = 0.95
    norm: Literal["global", "tensor"] = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0, most=1 - 1e-6).check("q", self.q)
        validation.one_of("norm", self.norm, "global", "tensor")

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        d = widened(d, context.w)
        kept = [self._filtered(x) if x.dim() > 1 else x for x in d]
        if self.norm == "global":
            return kept, or_infinite(context.norm(kept))
        total = or_infinite(context.norm(d))
        lengths = [or_infinite(norm([x])) if x.dim() > 1 else total for x in kept]
        return [x / length for x, length in zip(kept, lengths, strict=True)], _one(d)

    def _filtered(self, x: Tensor) -> Tensor:
        """The entries above the quantile; all if there is none, as where all are equal."""
        flat = whole(x).flatten()
        if flat.numel() < 2:
            return x
        z = (flat - flat.mean()).abs() / (flat.std() + 1e-12)
        at = math.floor(self.q * (z.numel() - 1)) + 1
        kept = torch.where(z > z.kthvalue(at).values, flat, 0.0)
        found = torch.where(kept.any(), kept, flat).reshape(x.shape)
        return spread_like(found, x)

    def length(self, v: Vector, context: StepContext) -> Tensor:
        if self.norm == "tensor":
            raise ValueError(f"{self} has no ball: every tensor has a length of its own")
        return context.norm(v)


@dataclass(frozen=True)
class Linf(Geometry):
    """The cube: epsilon = rho sign(d)."""

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        return list(torch._foreach_sign(d)), _one(d)

    def length(self, v: Vector, context: StepContext) -> Tensor:
        return torch.stack([peak(x) for x in v if x.numel()]).max()


@dataclass(frozen=True)
class Adaptive(Geometry):
    """A ball that scales with the weights: epsilon = rho T^2 d / ||T d||, T = |w| + eta.

    ASAM, Kwon, Kim, Park and Choi, ICML 2021. T is 1 for parameters whose name has no "weight"
    (biases); the scale of a BatchNorm counts as a weight. With eta = 0 the method is invariant to
    a rescaling of the weights that does not change the network's function.

    Args:
        eta: keeps T away from 0, at least 0.
        p: 2, or infinity for epsilon = rho T sign(d).
        everywhere: T = |w| + eta for biases too.
    """

    eta: float = 0.01
    p: float = 2.0
    everywhere: bool = False

    depends_on_w: ClassVar[bool] = True
    needs_names: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0).check("eta", self.eta)
        if self.p not in (2, math.inf):
            raise ValueError(f"p must be 2 or infinity, got {self.p}")

    def _scale(self, context: StepContext) -> Vector:
        """T, from the unperturbed weights."""
        rows = zip(context.x, context.names, strict=True)
        return [
            full_precision(x.detach()).abs() + self.eta
            if self.everywhere or is_weight(x, name)
            else torch.ones_like(x)
            for x, name in rows
        ]

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        t = self._scale(context)
        if self.p == math.inf:
            return list(torch._foreach_mul(torch._foreach_sign(d), t)), _one(d)
        scaled = list(torch._foreach_mul(widened(d, context.w), t))
        length = context.norm(scaled)
        return list(torch._foreach_mul(scaled, t)), or_infinite(length)

    def length(self, v: Vector, context: StepContext) -> Tensor:
        t = self._scale(context)
        inside = [torch.where(s > 0, x / s, 0.0) for x, s in zip(v, t, strict=True)]
        return context.norm(inside) if self.p == 2 else Linf().length(inside, context)


@dataclass(frozen=True)
class Fisher(Geometry):
    """A ball in the metric of the Fisher information, taken as diag(g^2) and damped.

    epsilon = rho q d / sqrt(d.(q d)),  q = 1 / (1 + eta F),  F = (scale g)^2

    FisherSAM, Kim, Li, Hu and Hospedales, ICML 2022. eta = 0 is SAM. For the mean gradient of a
    batch, F is tiny in large networks and the method close to SAM; `scale` turns means into sums.

    Args:
        eta: weight of the metric, at least 0.
        source: F from the gradient of the "batch", from its average over steps ("ema"), or from
            the slope itself ("direction").
        decay: weight of the old average, for "ema".
        scale: multiplies the gradient before it is squared.
    """

    eta: float = 1.0
    source: Literal["batch", "ema", "direction"] = "batch"
    decay: float = 0.9
    scale: float = 1.0

    needs_clean: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ("fisher",)

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0).check("eta", self.eta)
        Range(above=0).check("scale", self.scale)
        Range(least=0, most=1).check("decay", self.decay)
        validation.one_of("source", self.source, "batch", "ema", "direction")

    def keeps(self, **settings: float) -> tuple[str, ...]:
        return self.remembers if self.source == "ema" else ()

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        g = as_dtypes(d if self.source == "direction" else context.g, d)
        sizes = self._scaled(g)
        roots = self._roots(self._averaged(sizes, memory) if self.source == "ema" else sizes)
        scaled = list(torch._foreach_mul(d, roots))
        return list(torch._foreach_mul(scaled, roots)), or_infinite(context.norm(scaled))

    def _scaled(self, g: Vector) -> Vector:
        return [full_precision(x) * self.scale for x in g]

    def _averaged(self, sizes: Vector, memory: PartState) -> Vector:
        """The root of the average of F, which is kept finite."""
        average = memory.recall("fisher")
        for i, (old, x) in enumerate(zip(average, sizes, strict=True)):
            F = x.square().clamp_(max=torch.finfo(x.dtype).max / 2)
            average[i] = (
                memory.store("fisher", i, F) if old is None else old.lerp_(F, 1 - self.decay)
            )
        return [x.sqrt() for x in average if x is not None]

    def _roots(self, sizes: Vector) -> Vector:
        """sqrt(q) = 1 / hypot(1, sqrt(eta F)) from sqrt(F): no square may overflow."""
        damped = (x * math.sqrt(self.eta) for x in sizes)
        return [torch.hypot(x, torch.ones_like(x)).reciprocal() for x in damped]

    def length(self, v: Vector, context: StepContext) -> Tensor:
        if self.source != "batch":
            raise ValueError(f"the ball of {self} is not known outside its own step")
        return context.norm(list(torch._foreach_div(v, self._roots(self._scaled(context.g)))))


@dataclass(frozen=True)
class Preconditioned(Geometry):
    """A ball in the metric in which the base steps: epsilon.(M epsilon) <= rho^2.

    epsilon = rho q d / sqrt(d.(q d)),  q = 1 / M,  M = sqrt(v) / rms(sqrt(v)) + damping

    where v is the base's average of squared gradients, without its bias, and rms is over all
    tensors together. M is 1 where the base has no average yet, so before its first step this is
    `L2`. The ball is ours: publications that precondition the perturbation do not agree on its
    norm. As M is relative, epsilon does not depend on the scale of the loss.

    For Adam, AdamW, NAdam, RAdam, RMSprop, Adafactor (torch's and transformers') and other bases
    whose state has the same keys.

    Args:
        damping: the least M, above 0: without it a weight whose first gradient is now would take
            the whole ball.
    """

    damping: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(above=0).check("damping", self.damping)

    def check_base(self, base: Optimizer) -> None:
        """Raises TypeError if the base keeps no average of squared gradients."""
        if not _SECOND_MOMENT.intersection(base.defaults):
            raise TypeError(
                f"{type(base).__name__} keeps no average of squared gradients to precondition by: "
                "use AdamW, Adam, RMSprop or Adafactor"
            )

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        roots = [m.rsqrt() for m in self._metric(context)]
        scaled = list(torch._foreach_mul(widened(d, context.w), roots))
        return list(torch._foreach_mul(scaled, roots)), or_infinite(context.norm(scaled))

    def length(self, v: Vector, context: StepContext) -> Tensor:
        return context.norm([x * m.sqrt() for x, m in zip(v, self._metric(context), strict=True)])

    def _metric(self, context: StepContext) -> Vector:
        """M, in float32 at least."""
        groups = context.base_groups()
        moments = [second_moment(context.base_state(w), groups.get(w, {})) for w in context.w]
        roots = [x.sqrt() for x in moments if x is not None]
        rms = norm(roots) / math.sqrt(max(1, sum(x.numel() for x in roots)))
        each = iter(roots)
        return [
            torch.ones_like(w, dtype=at_least_float32(w.dtype))
            if x is None
            else torch.where(rms > 0, next(each) / or_infinite(rms), 1.0) + self.damping
            for w, x in zip(context.w, moments, strict=True)
        ]


_SECOND_MOMENT = frozenset({"betas", "alpha", "beta2_decay", "decay_rate"})
"""A setting of each base that averages squared gradients."""


def second_moment(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
    """The average of squared gradients that a base keeps of a tensor; None before its first step.

    Args:
        state: the base's entries of the tensor.
        group: its settings.

    Returns:
        The average without its bias towards 0, in float32 at least, or None.

    Raises:
        TypeError: the base keeps something else.
    """
    v = state.get("max_exp_avg_sq", state.get("exp_avg_sq", state.get("square_avg")))
    v = state.get("variance") if v is None else v  # of a vector in torch's Adafactor
    row = state.get("row_var", _column(state.get("exp_avg_sq_row"), -1))
    if isinstance(v, Tensor):
        v = full_precision(v)
        if "betas" in group and "step" in state:  # RMSprop and Adafactor do not correct either
            return v / _one_less_power(float(group["betas"][1]), state["step"]).to(v)
        return v
    if row is not None:
        column = state.get("col_var", _column(state.get("exp_avg_sq_col"), -2))
        mean = full_precision(row).mean(dim=-2, keepdim=True)
        return full_precision(row) @ full_precision(column) / or_infinite(mean)
    if state:
        raise TypeError(
            f"the base keeps {', '.join(state)} and no average of squared gradients that is known "
            "here: use AdamW, Adam, RMSprop or Adafactor"
        )
    return None


def _one_less_power(beta: float, step: Tensor | float) -> Tensor:
    """1 - beta^step, to the last digit of the step's dtype and on its device."""
    step = torch.as_tensor(step, dtype=None if isinstance(step, Tensor) else torch.float64)
    step = step.double() if step.device.type == "cpu" else step
    return -torch.expm1(step * math.log(beta)) if beta > 0 else torch.ones_like(step)


def _column(x: Tensor | None, dim: int) -> Tensor | None:
    return None if x is None else x.unsqueeze(dim)


@dataclass(frozen=True)
class LayerRelative(Geometry):
    """Each layer in proportion to its own norm: epsilon_l = rho ||w_l|| d_l / ||d_l||.

    Adversarial weight perturbation, Wu, Xia and Wang, NeurIPS 2020. Only weights of two or more
    dimensions move; biases and norms stay.
    """

    depends_on_w: ClassVar[bool] = True
    needs_names: ClassVar[bool] = True

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        push = [torch.zeros_like(slope) for slope in d]
        for i in _layers(context):
            (unit,), _ = by_peak([d[i]])
            push[i] = unit * (norm([context.x[i].detach()]) / or_infinite(norm([unit])))
        return push, _one(d)

    def length(self, v: Vector, context: StepContext) -> Tensor:
        lengths = [(norm([v[i]]), norm([context.x[i]])) for i in _layers(context)]
        ratios = [length / or_infinite(size) for length, size in lengths]
        return torch.stack(ratios).max() if ratios else _one(v)


def _layers(context: StepContext) -> list[int]:
    rows = enumerate(zip(context.x, context.names, strict=True))
    return [i for i, (x, name) in rows if x.dim() > 1 and is_weight(x, name)]


@dataclass(frozen=True)
class Masked(Geometry):
    """Perturbs only some of the weights: epsilon = scale mask * (epsilon of another geometry).

    The norm is taken before the mask, as in the published methods.

    Args:
        inner: the other geometry.
    """

    inner: Geometry = field(default_factory=L2)

    depends_on_w: ClassVar[bool] = True

    def mask(self, memory: PartState, context: StepContext) -> Vector:
        """The mask of this step: zeros and ones, or a multiple, for each of `context.w`."""
        raise NotImplementedError

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        push, length = self.inner(widened(d, context.w), memory, context)
        return list(torch._foreach_mul(push, as_dtypes(self.mask(memory, context), push))), length

    def length(self, v: Vector, context: StepContext) -> Tensor:
        return self.inner.length(v, context)


@dataclass(frozen=True)
class RandomMask(Masked):
    """Perturbs each weight with probability beta, scaled by 1 / beta: the mean is unchanged.

    The stochastic weight perturbation of ESAM, Du et al., ICLR 2022. beta = 1 is no mask.

    Args:
        inner: the other geometry.
        beta: probability that a weight is perturbed, in (0, 1].
        level: one draw for each "element", as in the paper, or for each "tensor".
        seed: seed of the mask, which is a function of seed and step.
    """

    beta: float = 0.6
    level: Literal["element", "tensor"] = "element"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(above=0, most=1).check("beta", self.beta)
        validation.one_of("level", self.level, "element", "tensor")

    def mask(self, memory: PartState, context: StepContext) -> Vector:
        if self.beta == 1:
            return [torch.ones_like(w) for w in context.w]
        draws = context.uniform(self.seed)
        if self.level == "tensor":
            draws = [x.flatten()[:1].reshape([1] * x.dim()).expand_as(x) for x in draws]
        return [(x < self.beta).to(x.dtype) / self.beta for x in draws]


@dataclass(frozen=True)
class KeptMask(Masked):
    """A mask that is kept for several steps: the base of Sparse SAM's two forms.

    Args:
        inner: the other geometry.
        sparsity: share of weights that are not perturbed, in [0, 1).
        every: steps between updates of the mask.
        seed: seed of what is random in the mask.
    """

    sparsity: float = 0.5
    every: int = 100
    seed: int = 0

    remembers: ClassVar[tuple[str, ...]] = ("mask",)
    keeps_mask: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0).check("sparsity", self.sparsity)
        if self.sparsity >= 1 or self.every < 1:
            raise ValueError(
                f"sparsity must be below 1 and every at least 1, got {self.sparsity}, {self.every}"
            )

    def mask(self, memory: PartState, context: StepContext) -> Vector:
        old = memory.recall("mask")
        due = context.step % self.every == 0 and not context.is_perturbed
        if any(x is None for x in old) or due:
            known = [x for x in old if x is not None]
            memory.keep(
                "mask", list(self.refreshed(known if len(known) == len(old) else None, context))
            )
        return [x for x in memory.recall("mask") if x is not None]

    def refreshed(self, old: Vector | None, context: StepContext) -> Vector:
        """A new mask of zeros and ones; `old` is the one so far, None at first."""
        raise NotImplementedError


@dataclass(frozen=True)
class FisherMask(KeptMask):
    """Perturbs only weights with a large Fisher information.

    Sparse SAM (F), Mi et al., NeurIPS 2022: F = sum of the squared gradients of single samples, the
    top 1 - sparsity of all weights are kept. The samples are the first ones of the current batch,
    so `step` needs a `Batch`.

    Args:
        inner: as for `KeptMask`; so are sparsity and every. The seed is not used.
        samples: number of single-sample gradients, at most the size of the batch.
    """

    samples: int = 16

    asks_more: ClassVar[bool] = True
    needs_batch: ClassVar[bool] = True

    def refreshed(self, old: Vector | None, context: StepContext) -> Vector:
        fisher = [torch.zeros_like(w, dtype=at_least_float32(w.dtype)) for w in context.w]
        for sample in context.samples(self.samples):
            gradient = context.gradient(data=sample)
            for total, x in zip(fisher, gradient, strict=True):
                if x is not None:
                    total.hypot_(x)  # its square is the sum
        return _top(fisher, 1 - self.sparsity)


@dataclass(frozen=True)
class DynamicMask(KeptMask):
    """A random mask that regularly exchanges the weights with the smallest gradients for others.

    Sparse SAM (D), Mi et al., NeurIPS 2022: of the perturbed weights, a share `drop` with the
    smallest |g| is exchanged for as many of the others, chosen at random. Over `total` steps the
    share falls along half a cosine.

    Args:
        inner: as for `KeptMask`; so are sparsity, every and seed.
        drop: share of the perturbed weights that is exchanged.
        total: steps of the training; None keeps the share.
    """

    drop: float = 0.5
    total: int | None = None

    needs_clean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(least=0, most=1).check("drop", self.drop)

    def refreshed(self, old: Vector | None, context: StepContext) -> Vector:
        scores = context.uniform(self.seed)
        if old is None:
            return _top(scores, 1 - self.sparsity)
        share = self.drop
        if self.total is not None:
            share *= (1 + math.cos(math.pi * min(context.step / self.total, 1.0))) / 2
        live = int(sum(whole(x.sum()) for x in old))  # the host waits, once
        dead = sum(x.numel() for x in old) - live
        stay = live - min(round(share * live), dead)
        alive = [x > 0 for x in old]
        kept = _largest([g.abs() for g in context.g], alive, stay)
        grown = _largest(scores, [~x for x in alive], live - stay)
        return [(a | b).to(x.dtype) for a, b, x in zip(kept, grown, old, strict=True)]


NORMALISATION = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Batch and instance normalisation of any dimension, also synchronised, and torch's others."""


def _of_inner(name: str) -> Any:
    """A property that is the one of the geometry inside."""
    return property(attrgetter(f"inner.{name}"))


@dataclass(frozen=True)
class Normalisation(Geometry):
    """Perturbs the weights and biases of normalisation layers alone, in another geometry.

    SAM-ON, Mueller, Vlaar, Rolnick and Hein, NeurIPS 2023. Norms are over these parameters alone,
    and so are the slope and the copy of the weights; all others descend by the gradient at
    w + epsilon too. Layers are known by their type, not by their name. In `step(closure)` the pass
    at w computes no gradients of other weights.

    Args:
        inner: the geometry of the layers' parameters.
        also: further types of normalisation layers, such as a model's own RMSNorm.
    """

    inner: Geometry = field(default_factory=L2)
    also: tuple[type[nn.Module], ...] = ()

    selects: ClassVar[bool] = True

    scheduled = _of_inner("scheduled")
    counts = _of_inner("counts")
    remembers = _of_inner("remembers")
    needs_clean = _of_inner("needs_clean")
    depends_on_w = _of_inner("depends_on_w")
    needs_names = _of_inner("needs_names")
    needs_batch = _of_inner("needs_batch")
    keeps_mask = _of_inner("keeps_mask")
    asks_more = _of_inner("asks_more")

    def __post_init__(self) -> None:
        validation.part("inner", self.inner, Geometry)

    def value_of(self, name: str) -> Setting:
        return self.inner.value_of(name)

    def keeps(self, **settings: float) -> tuple[str, ...]:
        return self.inner.keeps(**settings)

    def check_base(self, base: Optimizer) -> None:
        """Raises where the inner geometry does."""
        self.inner.check_base(base)

    def covers(self, module: nn.Module) -> bool:
        return isinstance(module, (*NORMALISATION, *self.also))

    def __call__(self, d: Vector, memory: PartState, context: StepContext) -> tuple[Vector, Tensor]:
        return self.inner(d, memory, context)

    def length(self, v: Vector, context: StepContext) -> Tensor:
        return self.inner.length(v, context)


def kept_mask(kind: str, *, sparsity: float, every: int, seed: int) -> KeptMask:
    """The geometry of one of Sparse SAM's two forms: "fisher" or "dynamic"."""
    validation.one_of("mask", kind, "fisher", "dynamic")
    mask = FisherMask if kind == "fisher" else DynamicMask
    return mask(sparsity=sparsity, every=every, seed=seed)


def _top(scores: Vector, share: float) -> Vector:
    """Ones at the largest scores of all tensors, exactly this share, zeros elsewhere."""
    count = round(share * sum(x.numel() for x in scores))
    chosen = _largest(scores, [torch.ones_like(x, dtype=torch.bool) for x in scores], count)
    return [x.to(score.dtype) for x, score in zip(chosen, scores, strict=True)]


def _largest(scores: Vector, allowed: Vector, count: int) -> Vector:
    """True at the `count` largest scores where allowed, over all tensors together."""
    flat = torch.cat([whole(x).flatten() for x in scores])
    open_ = torch.cat([whole(x).flatten() for x in allowed])
    best = flat.masked_fill(~open_, -math.inf).topk(count).indices
    chosen = torch.zeros_like(open_).index_fill_(0, best, True) & open_
    pieces = torch.split(chosen, [x.numel() for x in scores])
    return [spread_like(p.reshape(x.shape), x) for p, x in zip(pieces, scores, strict=True)]


def is_weight(tensor: Tensor, name: str | None) -> bool:
    """Whether the name has "weight" in it, as a BatchNorm's scale; without a name, if dim > 1."""
    return tensor.dim() > 1 if name is None else "weight" in name


def _one(d: Vector) -> Tensor:
    return torch.ones((), device=d[0].device, dtype=sum_dtype(d))
