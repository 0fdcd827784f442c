"""Slopes of several thetas along the training of one optimizer, and their adversaries compared.

    d_t = (1 - theta) d_{t-1} + theta g_t(x_t),   d_0 = g_0

for several thetas at once, over the steps x_t that the optimizer takes. At chosen steps each
slope's adversary is compared with SAM's at the same weights, on the batch of the step and on
others:

| at              | radius                                                                       |
|-----------------|------------------------------------------------------------------------------|
| equal rho       | the same rho for all                                                         |
| equal rise      | where the loss of the step's batch rises as much as at SAM's adversary       |

The training is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

from vasso.diagnostics.adversary.radius import FIRST_OTHER_KEY
from vasso.diagnostics.adversary.slope_error import check_theta, update_slope
from vasso.diagnostics.passes import Objective
from vasso.diagnostics.probe import cosine
from vasso.numerics.vectors import Vector, norm
from vasso.optimizer import SharpnessAware
from vasso.records import StepRecord


@dataclass(frozen=True)
class SlopesAtStep:
    """Slopes of several thetas at one step.

    Attributes:
        step: number of steps completed before.
        params: the weights of the slopes.
        g: the gradient of the step's batch.
        slopes: theta -> d_t.
        before: theta -> d_{t-1}; empty at the first step.
    """

    step: int
    params: Vector
    g: Vector
    slopes: dict[float, Vector]
    before: dict[float, Vector]


class SlopeTracker:
    """Updates slopes of several thetas at every step of an optimizer.

    Each step must take a gradient at w. At the steps that `when(step)` chooses, `callback` is
    called with the slopes and with the weights at w. It must restore the model, as
    `vasso.diagnostics.passes.objective` does.

    Example:
        >>> from vasso import SAM
        >>> w = torch.tensor([1.0], requires_grad=True)
        >>> opt = SAM(torch.optim.SGD([w], lr=0.1), rho=0.1)
        >>> seen = []
        >>> callback = lambda at_step: seen.append(at_step.slopes[0.5][0].item())
        >>> with SlopeTracker(opt, callback, lambda step: True, thetas=(1.0, 0.5)):
        ...     for slope in (1.0, 3.0):
        ...         w.grad = None
        ...         (slope * w).sum().backward()
        ...         with opt.ascended():
        ...             (slope * w).sum().backward()
        ...         opt.step()
        >>> seen  # 1, then (1 + 3) / 2
        [1.0, 2.0]
    """

    def __init__(
        self,
        opt: SharpnessAware,
        callback: Callable[[SlopesAtStep], None],
        when: Callable[[int], bool],
        thetas: Sequence[float] = (1.0, 0.9, 0.4, 0.2),
    ) -> None:
        if not isinstance(opt, SharpnessAware):
            raise TypeError(
                f"opt must be a SharpnessAware optimizer, got {type(opt).__name__}: wrap it, "
                "rho=0 changes nothing"
            )
        for theta in thetas:
            check_theta(theta)
        self.callback, self.when = callback, when
        self.slopes: dict[float, Vector] = {theta: [] for theta in thetas}
        self._handle = opt.observe(self._observe)

    @torch.no_grad()
    def _observe(self, record: StepRecord) -> None:
        is_chosen = self.when(record.step)
        before = {}
        if is_chosen:
            before = {t: [x.clone() for x in d] for t, d in self.slopes.items() if d}
        self.slopes = {t: update_slope(d, record.g, t) for t, d in self.slopes.items()}
        if is_chosen:
            self.callback(SlopesAtStep(record.step, record.params, record.g, self.slopes, before))

    def __enter__(self) -> SlopeTracker:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


@dataclass(frozen=True)
class AdversaryEffect:
    """One adversary and its effect.

    Attributes:
        theta: of its slope.
        rho: its radius.
        own: rise of the loss on the step's batch.
        others: rise on each other batch.
        cos_dg: cosine between slope and gradient of the step's batch.
        cos_turn: cosine between this adversary and that of the step before; None without one.
    """

    theta: float
    rho: float
    own: float
    others: tuple[float, ...]
    cos_dg: float
    cos_turn: float | None


def compare_adversaries(
    f: Objective,
    at_step: SlopesAtStep,
    batch: Any,
    others: Sequence[Any],
    rho: float,
    *,
    reach: float = 6.0,
) -> dict[str, list[AdversaryEffect]]:
    """Effects of the adversaries of all slopes at one step, at "equal rho" and at "equal rise".

    `f` is the model over `at_step.params`, and no slope contains the batches of `others`. The
    radius of equal rise is searched up to `reach` times rho; a theta that does not reach it is left
    out.
    """
    if 1.0 not in at_step.slopes:
        raise ValueError(f"theta 1 is SAM's and must be among {list(at_step.slopes)}")
    losses = _Losses(f, batch, others)
    equal_rho = [losses.effect(at_step, theta, rho) for theta in at_step.slopes]
    rise = next(x.own for x in equal_rho if x.theta == 1)
    equal_rise = []
    for theta, v in at_step.slopes.items():
        radius = rho if theta == 1 else losses.radius(v, rise, rho, reach)
        if radius is not None:
            equal_rise.append(losses.effect(at_step, theta, radius))
    return {"equal rho": equal_rho, "equal rise": equal_rise}


class _Losses:
    """Losses of one step's batch and of others, at w and around it."""

    def __init__(self, f: Objective, batch: Any, others: Sequence[Any]) -> None:
        self.f, self.batch = f, batch
        self.others = list(enumerate(others, FIRST_OTHER_KEY))
        self.at_w = f.loss(batch)
        self.others_at_w = [f.loss(b, key=key) for key, b in self.others]

    def own_rise(self, v: Vector, rho: float) -> float:
        return self.f.loss(self.batch, _scaled(v, rho)) - self.at_w

    def effect(self, at_step: SlopesAtStep, theta: float, rho: float) -> AdversaryEffect:
        v = at_step.slopes[theta]
        epsilon = _scaled(v, rho)
        pairs = zip(self.others, self.others_at_w, strict=True)
        others = tuple(self.f.loss(b, epsilon, key=key) - at_w for (key, b), at_w in pairs)
        before = at_step.before.get(theta)
        turn = None if before is None else cosine(v, before)
        own = self.own_rise(v, rho)
        return AdversaryEffect(theta, rho, own, others, cosine(v, at_step.g), turn)

    def radius(self, v: Vector, rise: float, rho: float, reach: float) -> float | None:
        """The smallest radius with this rise: a grid of halves of rho, then root finding."""
        if not rise > 0:
            return None
        low = 0.0
        for high in np.arange(rho / 2, reach * rho * (1 + 1e-9), rho / 2):
            if self.own_rise(v, float(high)) >= rise:
                gap = lambda r: self.own_rise(v, r) - rise  # noqa: E731
                return float(brentq(gap, low, float(high), rtol=1e-3))
            low = float(high)
        return None


def _scaled(v: Vector, rho: float) -> Vector:
    length = norm(v).item()
    factor = rho / length if length and math.isfinite(length) else 0.0
    return [x * factor for x in v]
