"""The error of a slope relative to the true gradient, at fixed weights.

    d_t = (1 - theta) d_{t-1} + theta g_t,   MSE = E||d - grad f||^2,   cos(d, grad f)

theta = 1 is the gradient of a batch. The paper's delta-stability, E|L(v) - L(grad f)| =
rho E| ||v|| - ||grad f|| |, depends on the length of a slope but not on its direction. So it is
reported together with its upper bound, rho E||v - grad f||.

For noise that is independent from batch to batch, the MSE is theta / (2 - theta) of that of g.
Errors of successive slopes have correlation 1 - theta, so intervals count fewer slopes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from vasso.diagnostics.estimates import Estimate, mean_of, row_of
from vasso.diagnostics.passes import BatchNorm, LossFn, OfModel, objective
from vasso.numerics.vectors import Vector, dot, full_precision, lerp_, norm


@dataclass(frozen=True)
class Stability:
    """The difference between the linearised sharpness of a slope and that of the true gradient.

    Attributes:
        rho: the radius.
        theta: of the slope.
        delta: E|L(v) - L(grad f)| = rho E| ||v|| - ||grad f|| |.
        bound: rho E||v - grad f||, an upper bound of delta.
    """

    rho: float
    theta: float
    delta: Estimate
    bound: Estimate

    def row(self) -> dict[str, Any]:
        """One row of a table: column -> value."""
        return row_of(self)


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
        slopes: number of slopes measured, without those of the warm-up.
    """

    theta: float
    mse: Estimate
    cosine: Estimate
    norm_gap: Estimate
    distance: Estimate
    full_norm: float
    slopes: int

    def stability(self, rho: float) -> Stability:
        """The paper's delta-stability at a radius rho of at least 0, with its bound."""
        return Stability(rho, self.theta, self.norm_gap.times(rho), self.distance.times(rho))

    def row(self) -> dict[str, Any]:
        """One row of a table: column -> value."""
        return row_of(self)


def check_theta(theta: float) -> None:
    """Raises unless theta is above 0 and at most 1, and has an effect in a float."""
    if not 0 < theta <= 1:
        raise ValueError(f"theta must be above 0 and at most 1, got {theta}")
    if 1 - theta == 1:
        raise ValueError(f"theta {theta} is too small: the slope would keep its first gradient")


def warm_up(theta: float) -> int:
    """Number of gradients after which d_0 = g_0 adds at most 1 % to the MSE of a slope."""
    check_theta(theta)
    if theta == 1:
        return 0
    return math.ceil(math.log(0.01 * theta / (2 - theta)) / (2 * math.log(1 - theta)))


def update_slope(d: Vector, g: Sequence[Tensor], theta: float) -> Vector:
    """d_t = (1 - theta) d_{t-1} + theta g_t, in place; an empty d becomes a copy of g."""
    new = [full_precision(x) for x in g]
    if not d:
        return [x.clone() for x in new]
    lerp_(d, new, [theta] * len(d))
    return d


class ErrorMeter:
    """Compares the slope of gradients that are added one by one with the true gradient `full`.

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
        self._warm_up = warm_up(theta)
        self._d: Vector = []
        self._values: dict[str, list[float]] = {"distance": [], "length": [], "cosine": []}

    @torch.no_grad()
    def add(self, g: Sequence[Tensor]) -> None:
        """Adds the gradient of the next batch."""
        self._d = update_slope(self._d, g, self.theta)
        if self._warm_up:
            self._warm_up -= 1
            return
        length = norm(self._d).item()
        product = dot(self._d, self.full).item()
        distance = norm(list(torch._foreach_sub(self._d, self.full))).item()
        lengths = length * self.full_norm
        self._values["distance"].append(distance)
        self._values["length"].append(length)
        self._values["cosine"].append(product / lengths if lengths else 0.0)

    def result(self, level: float = 0.95) -> SlopeError:
        """The estimates from the gradients added so far, which must exceed the warm-up."""
        distance, cosine = self._values["distance"], self._values["cosine"]
        if not distance:
            raise ValueError(
                f"theta {self.theta} needs more than {warm_up(self.theta)} batches to warm up its "
                "slope: pass more"
            )
        r = 1 - self.theta
        gaps = [abs(length - self.full_norm) for length in self._values["length"]]
        return SlopeError(
            self.theta,
            mean_of([x * x for x in distance], level=level, autocorrelation=r * r),
            mean_of(cosine, level=level, autocorrelation=r).within(-1, 1),
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
    """The errors of slopes at the weights of a model, for all thetas in one pass over the batches.

    Args:
        batches: independent batches of one size.
        full: the true gradient: `gradient_of` over all data, in the same mode.
        thetas: of the slopes; 1 is the gradient of a batch.
        most: largest number of batches to use; None for all.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> x = torch.ones(1, 1)  # the gradient of (w - y)^2 / 2 is w - y
        >>> batches = [(x, model.weight.detach() - g) for g in (1.0, 3.0) * 10]
        >>> loss = lambda out, y: (out - y).square().mean() / 2
        >>> errors = slope_errors(model, loss, batches, [2 * x], thetas=(1.0, 0.4))
        >>> [round(error.mse.value, 2) for error in errors]  # 0.25^2, as g alternates
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
