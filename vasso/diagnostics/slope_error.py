"""How far is a slope from the true gradient? Of g (theta = 1) and of d, at fixed weights.

    d_t = (1 - theta) d_{t-1} + theta g_t,   MSE = E||d - grad f||^2,   cos(d, grad f)

and the paper's delta-stability, E|L(v) - L(grad f)| = rho E| ||v|| - ||grad f|| |, which sees the
length of a slope but not its direction; so rho E||v - grad f||, which bounds it, stands beside it.

For noise that is independent from batch to batch, MSE is theta / (2 - theta) of that of g, and
errors of successive slopes are correlated by 1 - theta: intervals count fewer slopes accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from vasso.diagnostics.estimates import Estimate, mean_of
from vasso.diagnostics.passes import BatchNorm, LossFn, OfModel, objective
from vasso.vectors import Vector, dot, full_precision, lerp_, norm


@dataclass(frozen=True)
class Stability:
    """How much the linearised sharpness of a slope differs from that of the true gradient.

    Attributes:
        rho: the radius.
        theta: of the slope.
        delta: E|L(v) - L(grad f)| = rho E| ||v|| - ||grad f|| |.
        bound: rho E||v - grad f||, which no delta exceeds.
    """

    rho: float
    theta: float
    delta: Estimate
    bound: Estimate

    def row(self) -> dict[str, Any]:
        """One row of a table.

        Returns:
            Column -> value.
        """
        names = {"rho": self.rho, "theta": self.theta}
        return {**names, **self.delta.row("delta"), **self.bound.row("bound")}


@dataclass(frozen=True)
class SlopeError:
    """The quality of a slope.

    Attributes:
        theta: 1 is the gradient of a batch.
        mse: E||v - grad f||^2.
        cosine: between the slope and the true gradient.
        norm_gap: E| ||v|| - ||grad f|| |.
        distance: E||v - grad f||.
        full_norm: ||grad f||.
        slopes: how many were looked at, after those that still know how they began.
    """

    theta: float
    mse: Estimate
    cosine: Estimate
    norm_gap: Estimate
    distance: Estimate
    full_norm: float
    slopes: int

    def stability(self, rho: float) -> Stability:
        """The paper's delta-stability at a radius.

        Args:
            rho: the radius, at least 0.

        Returns:
            It and its bound.
        """
        return Stability(rho, self.theta, self.norm_gap.times(rho), self.distance.times(rho))

    def row(self) -> dict[str, Any]:
        """One row of a table.

        Returns:
            Column -> value.
        """
        return {
            "theta": self.theta,
            **self.mse.row("mse"),
            **self.cosine.row("cosine"),
            **self.norm_gap.row("norm_gap"),
            **self.distance.row("distance"),
            "full_norm": self.full_norm,
            "slopes": self.slopes,
        }


# -- slopes ---------------------------------------------------------------------------------------


def check_theta(theta: float) -> None:
    """Raises unless theta is the weight of a new gradient.

    Args:
        theta: what was given.

    Raises:
        ValueError: it is not above 0 and at most 1.
    """
    if not 0 < theta <= 1:
        raise ValueError(f"theta must be above 0 and at most 1, got {theta}")


def warm_up(theta: float) -> int:
    """After how many gradients a slope has forgotten that it began as the first, to 1 % of its MSE.

    Args:
        theta: weight of the new gradient.

    Returns:
        A number of gradients.

    Example:
        >>> [warm_up(theta) for theta in (1.0, 0.9, 0.4, 0.2)]
        [0, 2, 6, 16]
    """
    check_theta(theta)
    if theta == 1:
        return 0
    return math.ceil(math.log(0.01 * theta / (2 - theta)) / (2 * math.log(1 - theta)))


def follow(d: Vector, g: Sequence[Tensor], theta: float) -> Vector:
    """d_t = (1 - theta) d_{t-1} + theta g_t, from d_0 = g_0.

    Args:
        d: the slope so far, updated in place; empty before the first gradient.
        g: the gradient of the next batch.
        theta: its weight.

    Returns:
        The slope.
    """
    new = [full_precision(x) for x in g]
    if not d:
        return [x.clone() for x in new]
    lerp_(d, new, [theta] * len(d))
    return d


# -- their errors ---------------------------------------------------------------------------------


class ErrorMeter:
    """Takes in gradients one by one and follows the slope of one theta.

    Args:
        full: the true gradient.
        theta: of the slope.

    Example:
        >>> meter = ErrorMeter([torch.tensor([2.0])], theta=1.0)
        >>> for g in (1.0, 3.0, 3.0):
        ...     meter.add([torch.tensor([g])])
        >>> print(meter.result().mse)
        1 [1, 1]
    """

    def __init__(self, full: Sequence[Tensor], theta: float) -> None:
        self.full = [full_precision(x) for x in full]
        self.theta, self.full_norm = theta, norm(full).item()
        self._wait = warm_up(theta)
        self._d: Vector = []
        self._seen: dict[str, list[float]] = {"distance": [], "length": [], "cosine": []}

    @torch.no_grad()
    def add(self, g: Sequence[Tensor]) -> None:
        """One more gradient.

        Args:
            g: its tensors.
        """
        self._d = follow(self._d, g, self.theta)
        if self._wait:
            self._wait -= 1
            return
        length = norm(self._d).item()
        product = dot(self._d, self.full).item()
        apart = norm(list(torch._foreach_sub(self._d, self.full))).item()
        both = length * self.full_norm
        self._seen["distance"].append(apart)
        self._seen["length"].append(length)
        self._seen["cosine"].append(product / both if both else 0.0)

    def result(self, level: float = 0.95) -> SlopeError:
        """What the gradients so far tell.

        Args:
            level: how often each interval is to hold the truth.

        Returns:
            The estimates.

        Raises:
            ValueError: the slope still knows how it began.
        """
        distance, cosine = self._seen["distance"], self._seen["cosine"]
        if not distance:
            raise ValueError(
                f"theta {self.theta} needs more than {warm_up(self.theta)} batches before its "
                "slope has forgotten the first: pass more"
            )
        r = 1 - self.theta
        gaps = [abs(length - self.full_norm) for length in self._seen["length"]]
        return SlopeError(
            self.theta,
            mean_of([x * x for x in distance], level=level, autocorrelation=r * r),
            mean_of(cosine, level=level, autocorrelation=r),
            mean_of(gaps, level=level, autocorrelation=r),
            mean_of(distance, level=level, autocorrelation=r),
            self.full_norm,
            len(distance),
        )


def slope_errors(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    full: Sequence[Tensor],
    thetas: Sequence[float] = (1.0, 0.9, 0.4, 0.2),
    *,
    most: int | None = None,
    batchnorm: BatchNorm = "batch",
    dropout: bool = True,
    level: float = 0.95,
) -> list[SlopeError]:
    """The errors of slopes at the weights of a model, over one pass of batches for all thetas.

    Args:
        model: the model.
        loss_fn: its loss, the mean over samples; see `vasso.diagnostics.passes`.
        batches: independent batches of one size.
        full: the true gradient: `gradient_of` over all data, in the same mode.
        thetas: of the slopes; 1 is the gradient of a batch.
        most: how many batches to use; all if None.
        batchnorm: "batch" or "running"; see `objective`.
        dropout: whether dropout is on.
        level: how often each interval is to hold the truth.

    Returns:
        One result for each theta.

    Raises:
        ValueError: `full` does not fit the weights.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> x = torch.ones(1, 1)  # the gradient of (w - y)^2 / 2 is w - y
        >>> batches = [(x, model.weight.detach() - g) for g in (1.0, 3.0) * 10]
        >>> loss = lambda out, y: (out - y).square().mean() / 2
        >>> found = slope_errors(model, loss, batches, [2 * x], thetas=(1.0, 0.4))
        >>> [round(error.mse.value, 2) for error in found]  # 0.25^2, as g alternates
        [1.0, 0.06]
    """
    meters = [ErrorMeter(full, theta) for theta in thetas]
    with objective(model, loss_fn, batches, batchnorm=batchnorm, dropout=dropout) as f:
        if [x.shape for x in full] != [p.shape for p in f.params]:
            raise ValueError(
                "full does not have the shapes of the weights that require a gradient: compute it "
                "with gradient_of(model, loss_fn, batches)"
            )
        for key, batch in enumerate(islice(batches, most)):
            g = f.gradient(batch, key=key)
            for meter in meters:
                meter.add(g)
    return [meter.result(level) for meter in meters]
