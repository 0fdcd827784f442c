"""Which gradient goes down? A descent makes the gradient u that the base optimizer sees.

With g = g_t(x_t), h = g_t(x_t + epsilon_t), and v_perp(a) what of v is orthogonal to a:

| descent               | u with a climb        | u without                           |
|-----------------------|-----------------------|-------------------------------------|
| `Perturbed`           | h                     | g                                   |
| `SurrogateGap`        | h - alpha g_perp(h)   | g                                   |
| `GradientNormPenalty` | (1 - alpha) g + alpha h | g                                 |
| `MeanOfPath`          | mean of all points    | g                                   |
| `Reuse`               | h, keeps h_perp(g)    | g + alpha norm(g) / norm(kept) kept |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from vasso.here import Gradient, Here, Memory
from vasso.parts import Part, Range, Setting
from vasso.vectors import Vector, length_over, norm, share_along


@dataclass(frozen=True)
class Descent(Part):
    """Which gradient goes down?

    Attributes:
        needs_path: the gradients of all points have to live until the end, not only the last.
    """

    needs_path: ClassVar[bool] = False

    def __call__(
        self,
        g: Gradient | None,
        path: list[Gradient],
        memory: Memory,
        here: Here,
        **settings: list[float],
    ) -> Gradient:
        """The gradient for the base of the tensors that may be climbed; others keep theirs.

        Args:
            g: the gradient at w; None after a climb unless the part needs it.
            path: the gradients at the points above w, the last one at the end; empty if this step
                did not climb.
            memory: the vectors this part remembers, to be updated in place.
            here: the step.
            **settings: the value of each scheduled setting for each tensor.

        Returns:
            One gradient, or None, for each of `here.w`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Perturbed(Descent):
    """Descends by the gradient at the adversary: u = g_t(x_t + epsilon_t)."""

    def __call__(
        self,
        g: Gradient | None,
        path: list[Gradient],
        memory: Memory,
        here: Here,
        **settings: list[float],
    ) -> Gradient:
        return path[-1] if path else (g or [])


def both(g: Gradient, h: Gradient) -> tuple[list[int], Vector, Vector]:
    """The tensors that have a gradient in both passes.

    Args:
        g: the gradient at w.
        h: the gradient above.

    Returns:
        Their places, and their gradients.
    """
    rows = [i for i, (a, b) in enumerate(zip(g, h, strict=True)) if a is not None and b is not None]
    return (
        rows,
        [x for x in (g[i] for i in rows) if x is not None],
        [x for x in (h[i] for i in rows) if x is not None],
    )


def orthogonal(v: Vector, a: Vector) -> Vector:
    """What of v is orthogonal to a: v - (<v, a> / ||a||^2) a, over all tensors together.

    Args:
        v: a vector.
        a: another; if it is 0, all of v is orthogonal to it.

    Returns:
        A new vector.
    """
    return list(torch._foreach_sub(v, torch._foreach_mul(a, share_along(v, a))))


@dataclass(frozen=True)
class SurrogateGap(Descent):
    """Also closes the gap between the loss above and the loss at w: u = h - alpha g_perp(h).

    GSAM, Zhuang et al., ICLR 2022. <u, h> = ||h||^2, so to first order the loss above falls as with
    SAM while the gap closes. alpha = 0 is SAM.

    Args:
        alpha: how much of it.
        minimise: "perturbed", the loss above and the gap; or "clean", the loss at w and the gap:
            u = g + alpha h_perp(g).
        decompose: the gradient of the "batch", or the averaged "slope" where there is one.
    """

    alpha: Setting = 0.4
    minimise: Literal["perturbed", "clean"] = "perturbed"
    decompose: Literal["batch", "slope"] = "batch"

    scheduled: ClassVar[Mapping[str, Range]] = {"alpha": Range()}
    needs_clean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minimise not in ("perturbed", "clean"):
            raise ValueError(f'minimise must be "perturbed" or "clean", got {self.minimise!r}')
        if self.decompose not in ("batch", "slope"):
            raise ValueError(f'decompose must be "batch" or "slope", got {self.decompose!r}')

    def __call__(
        self,
        g: Gradient | None,
        path: list[Gradient],
        memory: Memory,
        here: Here,
        **settings: list[float],
    ) -> Gradient:
        if not path:
            return g or []
        if self.decompose == "slope":
            slopes = zip(memory.recall("d"), g or [], strict=True)
            g = [x if slope is None or x is None else slope.to(x.dtype) for slope, x in slopes]
        u = list(path[-1])
        rows, a, h = both(g or [], u)
        if not rows:
            return u
        alpha = [settings["alpha"][i] for i in rows]
        if self.minimise == "perturbed":
            new = torch._foreach_sub(h, torch._foreach_mul(orthogonal(a, h), alpha))
        else:
            new = torch._foreach_add(a, torch._foreach_mul(orthogonal(h, a), alpha))
        for i, x in zip(rows, new, strict=True):
            u[i] = x
        return u


@dataclass(frozen=True)
class GradientNormPenalty(Descent):
    """Penalises the norm of the gradient: u = (1 - alpha) g + alpha h.

    Zhao, Zhang and Hu, ICML 2022. alpha = 1 is SAM, alpha = 0 the base, above 1 it is allowed.

    Args:
        alpha: penalty divided by rho.
        unit: whether the clean part has length 1, as in the authors' code: (1 - alpha) g / ||g||.
    """

    alpha: Setting = 0.8
    unit: bool = False

    scheduled: ClassVar[Mapping[str, Range]] = {"alpha": Range()}
    needs_clean: ClassVar[bool] = True

    def __call__(
        self,
        g: Gradient | None,
        path: list[Gradient],
        memory: Memory,
        here: Here,
        **settings: list[float],
    ) -> Gradient:
        if not path:
            return g or []
        u = list(path[-1])
        rows, a, h = both(g or [], u)
        if self.unit and a:
            length = norm(a)
            a = list(torch._foreach_div(a, torch.where(length > 0, length, math.inf)))
        for i, x, y in zip(rows, a, h, strict=True):
            u[i] = torch.lerp(x, y, settings["alpha"][i])
        return u


@dataclass(frozen=True)
class MeanOfPath(Descent):
    """Descends by the mean of the gradients at all points of a multi-step ascent.

    Kim et al., 2023. With one point it is `Perturbed`.
    """

    needs_path: ClassVar[bool] = True

    def __call__(
        self,
        g: Gradient | None,
        path: list[Gradient],
        memory: Memory,
        here: Here,
        **settings: list[float],
    ) -> Gradient:
        if not path:
            return g or []
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
    """Between climbs reuses what the last one added to the gradient.

    with a climb: u = h, and v = h_perp(g) is kept; without: u = g + alpha ||g|| / ||v|| v

    LookSAM, Liu, Mai, Chen, Hsieh and You, CVPR 2022.

    Args:
        alpha: how much of it.
    """

    alpha: Setting = 0.7

    scheduled: ClassVar[Mapping[str, Range]] = {"alpha": Range()}
    needs_clean: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ("g_v",)

    def __call__(
        self,
        g: Gradient | None,
        path: list[Gradient],
        memory: Memory,
        here: Here,
        **settings: list[float],
    ) -> Gradient:
        if path:
            rows, a, h = both(g or [], path[-1])
            kept: Gradient = [None] * len(here.w)
            for i, x in zip(rows, orthogonal(h, a) if rows else [], strict=True):
                kept[i] = x
            memory.keep("g_v", kept)
            return path[-1]
        u = list(g or [])
        found = zip(memory.recall("g_v"), here.rho, strict=True)
        rows, a, v = both(u, [x if rho > 0 else None for x, rho in found])  # none in a pause of rho
        if not rows:
            return u
        ratio = length_over(a, v)
        for i, x, y in zip(rows, a, v, strict=True):
            u[i] = x + (settings["alpha"][i] * ratio * y).to(x.dtype)
        return u
