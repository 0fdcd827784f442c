"""Descents: the gradient u that the base optimizer gets.

With g = g_t(x_t), h = g_t(x_t + epsilon_t), and v_perp(a) the component of v orthogonal to a:

| descent               | u with perturbation   | u without                           |
|-----------------------|-----------------------|-------------------------------------|
| `Perturbed`           | h                     | g                                   |
| `SurrogateGap`        | h - alpha g_perp(h)   | g                                   |
| `GradientNormPenalty` | (1 - alpha) g + alpha h | g                                 |
| `MeanOfPath`          | mean of all points    | g                                   |
| `Reuse`               | h, keeps h_perp(g)    | g + alpha norm(g) / norm(kept) kept |
| `Rescaled`            | h norm(g) / norm(h)   | g                                   |
| `Accumulated`         | h / sqrt(V), V the sum of all norm(h)^2 | g                 |
| `Lookbehind`          | h_1, ..., h_k one after the other, then part of the way | g |
| `WeightedSharpness`   | g; then x moves by -lr gamma / (1 - gamma) (h - g) | g      |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import mul, sub
from typing import ClassVar, Literal

import torch
from torch.optim import Optimizer

from vasso import validation
from vasso.numerics.vectors import (
    Gradient,
    Vector,
    combined,
    dot,
    full_precision,
    length_over,
    measured,
    norm,
    share_along,
    widened,
)
from vasso.parts.context import StepContext
from vasso.parts.memory import PartState
from vasso.parts.part import Part, Range, Setting


@dataclass(frozen=True)
class Descent(Part):
    """The gradient for the base.

    Attributes:
        needs_path: the gradients at all points are kept until the end, not only the last.
    """

    needs_path: ClassVar[bool] = False

    def __call__(
        self,
        g: Gradient | None,
        path: list[Gradient],
        memory: PartState,
        context: StepContext,
        **settings: list[float],
    ) -> Gradient:
        """The gradient for the base, for the tensors that may be perturbed; others keep theirs.

        Args:
            g: the gradient at w; None after a perturbation unless the part needs it.
            path: the gradients at the points w + epsilon in order; empty if this step did not
                perturb.
            memory: the vectors this part remembers, to be updated in place.
            context: the step.
            **settings: the value of each scheduled setting for each tensor.

        Returns:
            One gradient, or None, for each of `context.w`.
        """
        if self.moves_past_base:  # what a step that was not completed has left
            for p in list(memory.kept):
                for name in self.remembers:
                    memory.take(name, p)
        if path:
            return self.perturbed(g or [], path, memory, **settings)
        return self.unperturbed(g or [], memory, context, **settings)

    def perturbed(
        self, g: Gradient, path: list[Gradient], memory: PartState, **settings: list[float]
    ) -> Gradient:
        """u of a step that has perturbed the weights; g is empty if the part does not need it."""
        raise NotImplementedError

    def unperturbed(
        self, g: Gradient, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Gradient:
        """u of a step that has not."""
        return g


@dataclass(frozen=True)
class Perturbed(Descent):
    """The gradient at the perturbed weights: u = g_t(x_t + epsilon_t)."""

    def perturbed(
        self, g: Gradient, path: list[Gradient], memory: PartState, **settings: list[float]
    ) -> Gradient:
        return path[-1]


@dataclass(frozen=True)
class Mixture(Descent):
    """Mixes g and the last h in the tensors that have both; the others keep h."""

    needs_clean: ClassVar[bool] = True

    def perturbed(
        self, g: Gradient, path: list[Gradient], memory: PartState, **settings: list[float]
    ) -> Gradient:
        u = list(path[-1])
        rows, a, h = both(g, u)
        settings = {name: [values[i] for i in rows] for name, values in settings.items()}
        new = self.mixed(a, h, rows, memory, **settings) if rows else []
        for i, x in zip(rows, new, strict=True):
            u[i] = x
        return u

    def mixed(
        self, g: Vector, h: Vector, rows: list[int], memory: PartState, **settings: list[float]
    ) -> Vector:
        """u where there are both, from the g and h and the settings of these tensors.

        `rows` are their places among `memory.w`.
        """
        raise NotImplementedError


def both(g: Gradient, h: Gradient) -> tuple[list[int], Vector, Vector]:
    """The tensors with a gradient in both passes: their indices, and the two gradients."""
    rows = [i for i, (a, b) in enumerate(zip(g, h, strict=True)) if a is not None and b is not None]
    return (
        rows,
        [x for x in (g[i] for i in rows) if x is not None],
        [x for x in (h[i] for i in rows) if x is not None],
    )


def _plus(v: Vector, a: Vector, factors: list[float]) -> Vector:
    """v + factor a, tensor by tensor."""
    return list(torch._foreach_add(v, torch._foreach_mul(a, factors)))


def orthogonal(v: Vector, a: Vector) -> Vector:
    """v_perp(a) = v - (<v, a> / ||a||^2) a over all tensors together; v if a is 0."""
    return list(torch._foreach_sub(v, torch._foreach_mul(a, share_along(v, a))))


@dataclass(frozen=True)
class SurrogateGap(Mixture):
    """Also reduces the gap between the losses at w + epsilon and at w: u = h - alpha g_perp(h).

    GSAM, Zhuang et al., ICLR 2022. <u, h> = ||h||^2, so to first order the loss at w + epsilon
    falls as with SAM while the gap shrinks. alpha = 0 is SAM.

    Args:
        alpha: weight of the gap.
        minimise: "perturbed", the loss at w + epsilon and the gap; or "clean", the loss at w and
            the gap: u = g + alpha h_perp(g).
        decompose: g is the gradient of the "batch", or the averaged "slope" where there is one.
    """

    alpha: Setting = 0.4
    minimise: Literal["perturbed", "clean"] = "perturbed"
    decompose: Literal["batch", "slope"] = "batch"

    scheduled: ClassVar[Mapping[str, Range]] = {"alpha": Range()}

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.one_of("minimise", self.minimise, "perturbed", "clean")
        validation.one_of("decompose", self.decompose, "batch", "slope")

    def perturbed(
        self, g: Gradient, path: list[Gradient], memory: PartState, **settings: list[float]
    ) -> Gradient:
        if self.decompose == "slope":
            slopes = zip(memory.recall("d"), g, strict=True)
            g = [x if slope is None or x is None else slope.to(x.dtype) for slope, x in slopes]
        return super().perturbed(g, path, memory, **settings)

    def mixed(
        self, g: Vector, h: Vector, rows: list[int], memory: PartState, **settings: list[float]
    ) -> Vector:
        alpha = settings["alpha"]
        if self.minimise == "clean":
            return combined(lambda g, h: _plus(g, orthogonal(h, g), alpha), g, h)
        return combined(lambda g, h: _plus(h, orthogonal(g, h), [-x for x in alpha]), g, h)


@dataclass(frozen=True)
class GradientNormPenalty(Mixture):
    """Penalises the norm of the gradient: u = (1 - alpha) g + alpha h.

    Zhao, Zhang and Hu, ICML 2022. alpha = 1 is SAM, alpha = 0 the base; values above 1 are allowed.

    Args:
        alpha: penalty divided by rho.
        unit: normalise g to length 1, as in the authors' code: (1 - alpha) g / ||g||. In
            `ascended(accumulate=True)` that is done in each micro-batch, also of divided losses.
    """

    alpha: Setting = 0.8
    unit: bool = False

    scheduled: ClassVar[Mapping[str, Range]] = {"alpha": Range()}

    def mixed(
        self, g: Vector, h: Vector, rows: list[int], memory: PartState, **settings: list[float]
    ) -> Vector:
        if self.unit:
            g = widened(g, g)
            length = norm(g)
            g = list(torch._foreach_div(g, torch.where(length > 0, length, math.inf)))
        return combined(lambda g, h: map(torch.lerp, g, h, settings["alpha"]), g, h)


@dataclass(frozen=True)
class MeanOfPath(Descent):
    """The mean of the gradients at all points of a multi-step ascent.

    Kim et al., 2023. With one point it is `Perturbed`.
    """

    needs_path: ClassVar[bool] = True

    def perturbed(
        self, g: Gradient, path: list[Gradient], memory: PartState, **settings: list[float]
    ) -> Gradient:
        mean = [None if x is None else x.clone() for x in path[0]]
        for k, h in enumerate(path[1:], start=2):
            for i, x in enumerate(h):
                old = mean[i]
                if old is None:
                    mean[i] = None if x is None else x / k
                else:
                    old.lerp_(torch.zeros_like(old) if x is None else x, 1 / k)
        return mean


@dataclass(frozen=True)
class Reuse(Descent):
    """Between perturbations reuses what the last one added to the gradient.

    perturbed: u = h, and v = h_perp(g) is kept; otherwise: u = g + alpha ||g|| / ||v|| v

    LookSAM, Liu, Mai, Chen, Hsieh and You, CVPR 2022.

    Args:
        alpha: weight of what is reused.
    """

    alpha: Setting = 0.7

    scheduled: ClassVar[Mapping[str, Range]] = {"alpha": Range()}
    needs_clean: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ("g_v",)

    def perturbed(
        self, g: Gradient, path: list[Gradient], memory: PartState, **settings: list[float]
    ) -> Gradient:
        rows, a, h = both(g, path[-1])
        kept: Gradient = [None] * len(path[-1])
        h = [full_precision(x) for x in h]  # what is kept is in float32
        new = combined(lambda g, h: orthogonal(h, g), a, h) if rows else []
        for i, x in zip(rows, new, strict=True):
            kept[i] = x
        memory.keep("g_v", kept)
        return path[-1]

    def unperturbed(
        self, g: Gradient, memory: PartState, context: StepContext, **settings: list[float]
    ) -> Gradient:
        u, pairs = list(g), zip(memory.recall("g_v"), context.rho, strict=True)
        rows, a, v = both(u, [x if rho > 0 else None for x, rho in pairs])  # none where rho is 0
        if not rows:
            return u
        v, alpha = widened(v, a), [settings["alpha"][i] for i in rows]

        def with_v(g: Vector) -> Vector:
            ratio, rows = length_over(g, v), zip(g, v, alpha, strict=True)
            return [x + (factor * ratio * y).to(x.dtype) for x, y, factor in rows]

        for i, x in zip(rows, combined(with_v, a), strict=True):
            u[i] = x
        return u


@dataclass(frozen=True)
class Rescaled(Mixture):
    """Descends along h, as far as g would: u = h ||g|| / ||h||.

    StableSAM, Tan, Zhang, Liu, Wang and Hao, JMLR 2025. The norms are plain ones in every ball; in
    the authors' adaptive form that of h is weighed by the perturbed weights. With bases that divide
    by the size of past gradients, such as Adam, it does almost nothing where the ratio is steady.
    """

    def mixed(
        self, g: Vector, h: Vector, rows: list[int], memory: PartState, **settings: list[float]
    ) -> Vector:
        return combined(lambda g, h: torch._foreach_mul(h, length_over(g, h)), g, h)


@dataclass(frozen=True)
class Accumulated(Descent):
    """Divides by the root of all squares so far: u = h / sqrt(V), V_t = V_{t-1} + ||h_t||^2.

    The rate of AdaGrad in its form with one number, for SGD as base; half of LightSAM-I,
    second-hand. A step that does not perturb is one of the base, by g.

    Args:
        small: V is its square at first; above 0.
    """

    small: float = 1e-8

    counts: ClassVar[Mapping[str, float]] = {"h_squares": 0.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(above=0).check("small", self.small)

    def perturbed(
        self, g: Gradient, path: list[Gradient], memory: PartState, **settings: list[float]
    ) -> Gradient:
        rows, h, _ = both(path[-1], path[-1])
        length, value = measured(h)  # the first in float64 where float32 cannot hold it
        memory.numbers["h_squares"] += value**2
        share = value / math.sqrt(self.small**2 + memory.numbers["h_squares"])
        u = list(path[-1])
        for i, x in zip(rows, h, strict=True) if share else ():
            wide = x.to(length.dtype) / length.to(x.device)
            u[i] = (wide * share).to(x.dtype)
        return u


@dataclass(frozen=True)
class WeightedSharpness(Mixture):
    """Weighs the sharpness h - g by gamma / (1 - gamma), and moves by it past the base.

    u = g, and after the base's step x <- x - lr gamma / (1 - gamma) (h - g)

    WSAM, Yue, Jiang, Ye, Gao, Liu and Zhang, KDD 2023. Momentum, clipping and weight decay do not
    see the sharpness, whose weight is 9 at the default. Not decoupled, it is in the gradient:
    u = g + gamma / (1 - gamma) (h - g), which is SAM at gamma = 0.5. gamma = 0 is the base. With
    plain SGD both forms are equal. lr is that of the group. The authors clip g and h one by one
    and perturb on each rank by itself, which is ``sync="local"`` here.

    Args:
        gamma: share of the sharpness, in [0, 1).
        decoupled: whether the base does not see the sharpness.
    """

    gamma: Setting = 0.9
    decoupled: bool = True

    scheduled: ClassVar[Mapping[str, Range]] = {"gamma": Range(least=0, most=1 - 1e-6)}
    remembers: ClassVar[tuple[str, ...]] = ("sharpness",)
    like_gradients: ClassVar[tuple[str, ...]] = ("sharpness",)
    moves_past_base: ClassVar[bool] = True

    def keeps(self, **settings: float) -> tuple[str, ...]:
        return self.remembers if self.decoupled else ()

    def mixed(
        self, g: Vector, h: Vector, rows: list[int], memory: PartState, **settings: list[float]
    ) -> Vector:
        weights = [gamma / (1 - gamma) for gamma in settings["gamma"]]
        if not self.decoupled:
            return combined(lambda g, h: map(torch.lerp, g, h, weights), g, h)
        wide = [full_precision(x) for x in h]  # what is kept is in float32
        rise = combined(lambda g, h: map(mul, map(sub, h, g), weights), g, wide)
        for i, x in zip(rows, rise, strict=True):
            memory.store("sharpness", i, x)
        return g

    def after_base(self, memory: PartState, base: Optimizer) -> None:
        for group in base.param_groups:
            lr = float(group["lr"]) * (-1 if group.get("maximize") else 1)
            for p in group["params"]:
                sharpness = memory.take("sharpness", p)
                if sharpness is not None:
                    p.sub_((sharpness * lr).to(p.dtype))


@dataclass(frozen=True)
class Lookbehind(Descent):
    """Steps of the base by the gradients of all points, then part of the way to their end.

    f_0 = x_t,  f_i = the base's step from f_{i-1} by h_i,  x_{t+1} = x_t + alpha (f_k - x_t)

    Mordido, Malviya, Baratin and Chandar, ICML 2024. The points are those of
    ``MultiStep(k, project=False)``, of one batch. Momentum and decay act in each of the k steps,
    `clip_norm` in the first. A tensor without gradient at some point takes a single step.

    Args:
        k: the number of points.
        alpha: the part, in (0, 1]; None adapts it for each tensor to
            (cos(f_1 - x_t, f_k - x_t) + 1) / 2.
    """

    k: int = 2
    alpha: float | None = 0.5

    needs_path: ClassVar[bool] = True
    moves_past_base: ClassVar[bool] = True

    @property
    def remembers(self) -> tuple[str, ...]:  # type: ignore[override]
        """The weights before the step and the gradients after the first, until the step ends."""
        return ("x", *self.like_gradients)

    @property
    def like_gradients(self) -> tuple[str, ...]:  # type: ignore[override]
        """The gradients after the first."""
        return tuple(f"h_{i}" for i in range(2, self.k + 1))

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.count("k", self.k)
        if self.alpha is not None:
            Range(above=0, most=1).check("alpha", self.alpha)

    def perturbed(
        self, g: Gradient, path: list[Gradient], memory: PartState, **settings: list[float]
    ) -> Gradient:
        u = list(path[-1])
        for i, of_tensor in enumerate(zip(*path, strict=True)):
            if all(h is not None for h in of_tensor):
                u[i] = of_tensor[0]
                memory.store("x", i, memory.w[i].detach().clone())
                for j, h in enumerate(of_tensor[1:], start=2):
                    memory.store(f"h_{j}", i, h.clone())
        return u

    def after_base(self, memory: PartState, base: Optimizer) -> None:
        params = [p for group in base.param_groups for p in group["params"]]
        gradients = [p.grad for p in params]
        start = {p: x for p in params if (x := memory.take("x", p)) is not None}
        first = {p: full_precision(p - x) for p, x in start.items()} if self.alpha is None else {}
        for j in range(2, self.k + 1):
            for p in params:
                p.grad = memory.take(f"h_{j}", p)
            base.step()
        for p, x in start.items():
            alpha = self.alpha
            if alpha is None:
                a, b = [first[p]], [full_precision(p - x)]
                cos = dot(a, b) / (norm(a) * norm(b)).clamp_min(torch.finfo(torch.float32).tiny)
                alpha = (float(cos) + 1) / 2
            p.copy_(torch.lerp(x, p, alpha))
        for p, gradient in zip(params, gradients, strict=True):
            p.grad = gradient
