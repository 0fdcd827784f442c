"""What would the adversaries of other thetas do along the same training?

    d_t = (1 - theta) d_{t-1} + theta g_t(x_t),   d_0 = g_0

for several thetas at once, over the steps x_t that one optimizer really takes. At chosen steps
each slope's adversary meets SAM's at the same weights, on the batch of the step and on others:

| at              | radius                                                                       |
|-----------------|------------------------------------------------------------------------------|
| equal rho       | the same rho for all                                                         |
| equal rise      | where the loss of the step's batch rises as much as at SAM's adversary       |

The training is not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

from vasso.diagnostics.passes import Objective
from vasso.diagnostics.probe import cosine
from vasso.diagnostics.radius import OTHERS
from vasso.diagnostics.slope_error import check_theta, follow
from vasso.optimizer import SharpnessAware
from vasso.records import StepRecord
from vasso.vectors import Vector, norm


@dataclass(frozen=True)
class Moment:
    """Slopes of several thetas at one step.

    Attributes:
        step: how many steps were completed before.
        params: the weights that slopes are of.
        g: the gradient of the step's batch.
        slopes: theta -> d_t.
        before: theta -> d_{t-1}; empty at the first step.
    """

    step: int
    params: Vector
    g: Vector
    slopes: dict[float, Vector]
    before: dict[float, Vector]


class Alongside:
    """Follows the steps of an optimizer with slopes of several thetas.

    Args:
        opt: the optimizer; each of its steps must take a gradient at w.
        look: is called at chosen steps, the weights at w; what it does to the model it must undo
            (`vasso.diagnostics.passes.objective` does).
        when: step -> whether to look.
        thetas: of the slopes.

    Raises:
        TypeError: the optimizer has no steps to observe.

    Example:
        >>> from vasso import SAM
        >>> w = torch.tensor([1.0], requires_grad=True)
        >>> opt = SAM(torch.optim.SGD([w], lr=0.1), rho=0.1)
        >>> seen = []
        >>> look = lambda moment: seen.append(moment.slopes[0.5][0].item())
        >>> with Alongside(opt, look, lambda step: True, thetas=(1.0, 0.5)):
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
        look: Callable[[Moment], None],
        when: Callable[[int], bool],
        thetas: Sequence[float] = (1.0, 0.9, 0.4, 0.2),
    ) -> None:
        if not isinstance(opt, SharpnessAware):
            raise TypeError(
                f"slopes follow a SharpnessAware optimizer, got {type(opt).__name__}: wrap it, "
                "rho=0 leaves it as it is"
            )
        for theta in thetas:
            check_theta(theta)
        self.look, self.when = look, when
        self.slopes: dict[float, Vector] = {theta: [] for theta in thetas}
        self._handle = opt.observe(self._see)

    @torch.no_grad()
    def _see(self, record: StepRecord) -> None:
        looks = self.when(record.step)
        before = {}
        if looks:
            before = {t: [x.clone() for x in d] for t, d in self.slopes.items() if d}
        self.slopes = {t: follow(d, record.g, t) for t, d in self.slopes.items()}
        if looks:
            self.look(Moment(record.step, record.params, record.g, self.slopes, before))

    def __enter__(self) -> Alongside:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


@dataclass(frozen=True)
class Meeting:
    """One adversary and what it does.

    Attributes:
        theta: of its slope.
        rho: its radius; None where the rise asked for is not reached.
        own: rise of the loss on the step's batch.
        others: rise on each other batch.
        cos_dg: cosine between slope and gradient of the step's batch.
        cos_turn: cosine between this adversary and that of the step before; None without one.
    """

    theta: float
    rho: float | None
    own: float
    others: tuple[float, ...]
    cos_dg: float
    cos_turn: float | None


def meet(
    f: Objective,
    moment: Moment,
    batch: Any,
    others: Sequence[Any],
    rho: float,
    *,
    reach: float = 6.0,
) -> dict[str, list[Meeting]]:
    """Compares the adversaries of a moment with SAM's.

    Args:
        f: the model, over `moment.params`.
        moment: slopes, 1 among their thetas.
        batch: of the step.
        others: batches that no slope remembers.
        rho: SAM's radius.
        reach: the rise is sought up to so many times rho.

    Returns:
        "equal rho" and "equal rise" -> one meeting for each theta; where a rise is not reached
        it is left out.

    Raises:
        ValueError: there is no slope of theta 1.
    """
    if 1.0 not in moment.slopes:
        raise ValueError(f"theta 1 is SAM's and must be among {list(moment.slopes)}")
    table = _Table(f, batch, others)
    equal_rho = [table.met(moment, theta, rho) for theta in moment.slopes]
    wanted = next(x.own for x in equal_rho if x.theta == 1)
    equal_rise = []
    for theta, v in moment.slopes.items():
        radius = rho if theta == 1 else table.radius(v, wanted, rho, reach)
        if radius is not None:
            equal_rise.append(table.met(moment, theta, radius))
    return {"equal rho": equal_rho, "equal rise": equal_rise}


class _Table:
    """Losses of one step's batch and of others, at w and around."""

    def __init__(self, f: Objective, batch: Any, others: Sequence[Any]) -> None:
        self.f, self.batch, self.others = f, batch, list(enumerate(others, OTHERS))
        self.here = f.loss(batch)
        self.there = [f.loss(b, key=key) for key, b in self.others]

    def own(self, v: Vector, rho: float) -> float:
        return self.f.loss(self.batch, _along(v, rho)) - self.here

    def met(self, moment: Moment, theta: float, rho: float) -> Meeting:
        v = moment.slopes[theta]
        epsilon = _along(v, rho)
        pairs = zip(self.others, self.there, strict=True)
        rest = tuple(self.f.loss(b, epsilon, key=key) - before for (key, b), before in pairs)
        before = moment.before.get(theta)
        turn = None if before is None else cosine(v, before)
        return Meeting(theta, rho, self.own(v, rho), rest, cosine(v, moment.g), turn)

    def radius(self, v: Vector, wanted: float, rho: float, reach: float) -> float | None:
        """The smallest radius on a grid of halves of rho, refined, with the rise wanted."""
        if not wanted > 0:
            return None
        low = 0.0
        for high in np.arange(rho / 2, reach * rho * (1 + 1e-9), rho / 2):
            if self.own(v, float(high)) >= wanted:
                gap = lambda r: self.own(v, r) - wanted  # noqa: E731
                return float(brentq(gap, low, float(high), rtol=1e-3))
            low = float(high)
        return None


def _along(v: Vector, rho: float) -> Vector:
    length = norm(v).item()
    factor = rho / length if length and math.isfinite(length) else 0.0
    return [x * factor for x in v]
