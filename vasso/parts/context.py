"""Context of a step for its parts: weights, settings, norms, random numbers, extra gradients."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from vasso.numerics.rng import mix_seed
from vasso.numerics.vectors import (
    Gradient,
    Vector,
    at_least_float32,
    is_safe,
    measured,
    norm,
    spread_like,
)
from vasso.parts.part import Part


class Norms:
    """The norms of a step, each computed once; correct also where squares over- or underflow.

    Only the host can see that a norm in float32 is outside about 1e-12 to 1e12, and it has to wait
    for the device to read one. The norm of the gradient at w is read anyway, to see whether it is
    finite. The slope is an average of gradients: its norm is read only if the last norms of the
    same tensors, or the gradient's, were near the limits.

    Attributes:
        checks: whether the host may read norms at all (not with ``nonfinite="ignore"``).
        reads: whether the host reads every norm until the next step.
        before: the norm of the remembered slope before this step, if it is known.
        descent_in_range: whether the last norm of a gradient of all groups was far from the limits.
    """

    def __init__(self, checks: bool = True) -> None:
        self.checks = checks
        self.descent_in_range = True
        self._trusted: Vector = []
        self.before: Tensor | None = None
        self._stored = self._descent = _NONE
        self.start()

    def start(self) -> None:
        """Begins a new step."""
        self.reads, self._in_range, self._descent = False, True, _NONE
        self._known: dict[int, tuple[Vector, Tensor]] = {}

    def __call__(self, v: Vector) -> Tensor:
        """||v|| over all tensors together, a 0-dim tensor; computed once for the same list."""
        if id(v) in self._known:
            return self._known[id(v)][1]
        return self.read(v)[0] if self.reads else self._note(v, norm(v))

    def read(self, v: Vector) -> tuple[Tensor, float]:
        """||v||, also as a number on the host."""
        length, value = measured(v)
        self._in_range = self._in_range and is_safe(value, v)
        return self._note(v, length), value

    def read_gradient_at_w(self, w: Vector, g: Vector) -> tuple[Tensor, float]:
        """||g||, also as a number; decides whether other norms of this step are read too."""
        length, value = self.read(g)
        same = len(self._trusted) == len(w)
        same = same and all(a is b for a, b in zip(self._trusted, w, strict=True))
        self.reads = not (same and self._in_range)
        self._trusted = [] if self.reads else w  # also in a step that takes no other norm
        return length, value

    def trust(self, w: Vector) -> None:
        """Remembers for the next step whether all norms of these tensors were in range."""
        self._trusted = w if self._in_range else []

    def read_descent(self, u: Vector) -> tuple[Tensor, float]:
        """||u|| of a gradient of all groups, also as a number on the host."""
        length, value = measured(u)
        self.descent_in_range = is_safe(value, u)
        self._descent = (u, _versions(u), length) if _are_plain(u) else _NONE
        return length, value

    def of_descent(self, u: Vector) -> Tensor:
        """||u||, read by the host only if the gradient it is made of was near the limits."""
        known = _unchanged(self._descent, u)
        if known is not None:
            return known
        return norm(u) if self.descent_in_range else measured(u)[0]

    def known(self, v: Vector) -> Tensor | None:
        """||v|| if it has been taken already."""
        return self._known[id(v)][1] if id(v) in self._known else None

    def store(self, v: Vector) -> None:
        """Keeps the norm of a slope, if it is known, until one of its tensors changes."""
        self._stored = (v, _versions(v), self.known(v)) if _are_plain(v) else _NONE

    def note_before(self, v: Gradient) -> None:
        """Looks up the norm of the slope that the last step has left."""
        self.before = _unchanged(self._stored, v)

    def forget(self) -> None:
        """Drops every vector a norm was taken of."""
        self._known = {}

    def _note(self, v: Vector, length: Tensor) -> Tensor:
        self._known[id(v)] = (v, length)
        return length

    def __reduce__(self) -> tuple[type[Norms], tuple[bool]]:
        """A copy trusts no norms yet."""
        return Norms, (self.checks,)


def _are_plain(v: Vector) -> bool:
    """Whether `_versions` sees every write."""
    return all(type(x) is Tensor for x in v)


def _versions(v: Vector) -> list[int]:
    return [x._version for x in v]


Stored: TypeAlias = tuple[Vector, list[int], Tensor | None]
"""Tensors, how often each had been written to, and their norm then."""

_NONE: Stored = ([], [], None)


def _unchanged(stored: Stored, v: Sequence[Tensor | None]) -> Tensor | None:
    """The stored norm, if v are the same tensors and nothing has been written to them."""
    tensors, versions, length = stored
    same = len(v) == len(tensors) and all(a is b for a, b in zip(v, tensors, strict=True))
    return length if same and _versions(tensors) == versions else None


def _unasked(*args: object, **kwargs: object) -> Any:
    raise RuntimeError("this step cannot give more data or gradients than its own")


@dataclass
class StepContext:
    """One step, as the parts see it.

    Attributes:
        step: how many steps have been completed before this one.
        w: the parameters that may be perturbed: those with a gradient at w, or all where none is
            taken there.
        x: the unperturbed values of w, also while the parameters are perturbed.
        g: the gradient at w, one tensor for each of w, while a part needs it; else empty.
        names: the name of each of w in the model, None where it is not known.
        settings: the current value of every setting, `rho` among them, for each of w.
        norm: the norm over all tensors of a list together, a 0-dim tensor on the device.
        base_state: parameter -> the base's entries, to read.
        base_groups: parameter -> its group in the base, to read.
        gradient: an extra gradient, ``gradient(at=vector, data="batch" | "full" | closure)``.
        samples: the first samples of the batch, ``samples(how many)``, each a closure.
        uphill: for each of w 1, or -1 where the base maximizes and the perturbation therefore goes
            down; empty for 1 everywhere.
    """

    step: int
    w: Vector = field(default_factory=list)
    x: Vector = field(default_factory=list)
    g: Vector = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    settings: dict[str, list[float]] = field(default_factory=dict)
    norm: Norms = field(default_factory=Norms)
    base_state: Callable[[Tensor], Mapping[str, Any]] = field(default=lambda p: {}, repr=False)
    gradient: Callable[..., Gradient] = field(default=_unasked, repr=False)
    samples: Callable[[int], list[Any]] = field(default=_unasked, repr=False)
    uphill: list[int] = field(default_factory=list)
    base_groups: Callable[[], Mapping[Tensor, Mapping[str, Any]]] = field(default=dict, repr=False)

    @property
    def rho(self) -> list[float]:
        """The radius for each of w."""
        return self.settings["rho"]

    @property
    def perturbs(self) -> bool:
        """Whether any radius is above 0."""
        return any(rho > 0 for rho in self.rho)

    def of(self, part: Part) -> dict[str, list[float]]:
        """The settings that a part has declared: name -> one value for each of w."""
        return {name: self.settings[name] for name in part.scheduled}

    @property
    def is_perturbed(self) -> bool:
        """Whether the parameters are at w + epsilon."""
        return any(x is not w for x, w in zip(self.x, self.w, strict=True))

    def gradients(self) -> Gradient:
        """The gradients of the last pass, for each of w."""
        return [p.grad for p in self.w]

    def where_rho_is_positive(self, d: Vector) -> tuple[StepContext, Vector]:
        """The step and the slope without tensors whose rho is 0 now; the same objects if none."""
        if all(radius > 0 for radius in self.rho):
            return self, d
        rows = [i for i, radius in enumerate(self.rho) if radius > 0]
        self.norm.reads = self.norm.checks  # of these alone no norm has been read
        some = StepContext(
            self.step,
            [self.w[i] for i in rows],
            [self.x[i] for i in rows],
            [self.g[i] for i in rows] if self.g else [],
            [self.names[i] for i in rows],
            {name: [values[i] for i in rows] for name, values in self.settings.items()},
            self.norm,
            self.base_state,
            self.gradient,
            self.samples,
            [self.uphill[i] for i in rows] if self.uphill else [],
            self.base_groups,
        )
        return some, [d[i] for i in rows]

    def noise(self, seed: int) -> Vector:
        """Standard normal tensors in the shapes of w, a function of seed and step alone."""
        return self._draw(seed, torch.randn)

    def uniform(self, seed: int) -> Vector:
        """Like `noise`, uniform in [0, 1)."""
        return self._draw(seed, torch.rand)

    def _draw(self, seed: int, draw: Callable[..., Tensor]) -> Vector:
        drawn = []
        for i, p in enumerate(self.w):
            generator = torch.Generator(p.device).manual_seed(mix_seed(seed, self.step, i))
            dtype = at_least_float32(p.dtype)
            x = draw(p.shape, generator=generator, device=p.device, dtype=dtype)
            drawn.append(spread_like(x, p))
        return drawn

    def coin(self, seed: int) -> float:
        """A number in [0, 1) that is a function of seed and step."""
        return random.Random(mix_seed(seed, self.step)).random()
