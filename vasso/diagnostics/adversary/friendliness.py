"""Friendliness of an adversary: the share of other batches whose loss falls at it.

    cross-batch gain  = E[f_B'(w + epsilon) - f_B'(w)] / rho       B' not the adversary's batch
    friendliness rate = P(f_B'(w + epsilon) < f_B'(w))

A friendly adversary raises the loss of its own batch and lowers that of others (the paper's section
3.1). Adversaries and other batches are both samples, and intervals account for both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from vasso.diagnostics.adversary.radius import Rises, adversaries_of, rises_of
from vasso.diagnostics.estimates import (
    Estimate,
    crossed_mean,
    crossed_ratio,
    crossed_share,
    mean_of,
    row_of,
)
from vasso.diagnostics.passes import BatchNorm, LossFn, OfModel, objective


@dataclass(frozen=True)
class Friendliness:
    """The effect of adversaries on their own batch and on others.

    Attributes:
        rho: the radius.
        theta: of the slope; None for directions that the caller passes.
        own_gain: rise of the loss on the own batch, divided by rho.
        cross_gain: on other batches, likewise.
        carried: cross-batch gain over own gain: 1 if the adversary is one of all data, 0 if it is
            one of its own batch only.
        rate: share of other batches whose loss falls.
        adversaries: number of adversaries.
        batches: number of other batches.
    """

    rho: float
    theta: float | None
    own_gain: Estimate
    cross_gain: Estimate
    carried: Estimate
    rate: Estimate
    adversaries: int
    batches: int

    def row(self) -> dict[str, Any]:
        """One row of a table: column -> value."""
        return {name.replace("rate", "friendliness"): x for name, x in row_of(self).items()}


def friendliness_of(
    rises: Rises, theta: float | None = None, level: float = 0.95
) -> list[Friendliness]:
    """The friendliness at each radius of some rises; theta is for the results.

    Raises:
        ValueError: a radius is 0, or a rise is not finite.

    Example:
        >>> from vasso.diagnostics.adversary.radius import Rises
        >>> others = np.array([[[0.1], [-0.1]], [[0.2], [0.2]]])  # of 2 on 2 batches
        >>> (result,) = friendliness_of(Rises((0.1,), np.array([[0.4], [0.4]]), others))
        >>> result.own_gain.value, result.carried.value, result.rate.value
        (4.0, 0.25, 0.25)
    """
    if not all(rho > 0 for rho in rises.rhos):
        raise ValueError(f"gains are per rho, which must be above 0, got {list(rises.rhos)}")
    bad = int((~np.isfinite(rises.own)).sum() + (~np.isfinite(rises.others)).sum())
    if bad:  # NaN < 0 is false: such batches would count as raised
        raise ValueError(
            f"{bad} of {rises.own.size + rises.others.size} rises are not finite: look for batches "
            "whose loss is NaN or infinite, or choose a smaller rho"
        )
    results = []
    for r, rho in enumerate(rises.rhos):
        own, others = rises.own[:, r], rises.others[:, :, r]
        results.append(
            Friendliness(
                rho,
                theta,
                mean_of(own, level=level).times(1 / rho),
                crossed_mean(others, level=level).times(1 / rho),
                crossed_ratio(others, own, level=level),
                crossed_share((others < 0).astype(np.float64), level=level),
                *others.shape,
            )
        )
    return results


def friendliness(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    others: Iterable[Any],
    *,
    rho: float,
    theta: float = 1.0,
    adversaries: int = 8,
    batchnorm: BatchNorm = "batch",
    dropout: bool = True,
    level: float = 0.95,
) -> Friendliness:
    """The friendliness of a slope's adversaries at the weights of a model; the model is restored.

    Args:
        batches: the slope is made of their gradients; theta < 1 needs many.
        others: batches that are not among them.
        theta: of the slope; 1 is SAM's.
        adversaries: largest number of adversaries.

    Example:
        >>> import torch
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 0.5)
        >>> x = torch.ones(1, 1)
        >>> batches, others = [(x, 0 * x)] * 2, [(x, x), (x, -x)]  # the loss is (w - y)^2
        >>> result = friendliness(model, nn.MSELoss(), batches, others, rho=0.1)
        >>> result.rate.value  # w grows, and the loss of the batch with y = 1 falls
        0.5
    """
    with objective(model, loss_fn, batches, others, batchnorm=batchnorm, dropout=dropout) as f:
        rises = rises_of(f, adversaries_of(f, batches, theta, adversaries), others, [rho])
    return friendliness_of(rises, theta, level)[0]
