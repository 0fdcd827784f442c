"""Is the adversary a friend of other data? The share of other batches whose loss falls there.

    cross-batch gain  = E[f_B'(w + epsilon) - f_B'(w)] / rho       B' not the adversary's batch
    friendliness rate = P(f_B'(w + epsilon) < f_B'(w))

An adversary in name only raises the loss of its own batch and lowers that of others (the paper's
section 3.1). Both the adversaries and the other batches are samples, and intervals count both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from vasso.diagnostics.estimates import (
    Estimate,
    crossed_mean,
    crossed_ratio,
    crossed_share,
    mean_of,
)
from vasso.diagnostics.passes import BatchNorm, LossFn, OfModel, objective
from vasso.diagnostics.radius import Rises, adversaries_of, rises_of


@dataclass(frozen=True)
class Friendliness:
    """What adversaries do to their own batch and to others.

    Attributes:
        rho: the radius.
        theta: of the slope; None for directions of the caller's.
        own_gain: rise of the loss on the own batch, divided by rho.
        cross_gain: on other batches, likewise.
        carried: cross-batch gain over own gain: 1 for an adversary of all data, 0 for one of its
            batch alone.
        rate: share of other batches whose loss falls.
        adversaries: how many.
        batches: how many other batches.
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
        """One row of a table.

        Returns:
            Column -> value.
        """
        return {
            "rho": self.rho,
            "theta": self.theta,
            **self.own_gain.row("own_gain"),
            **self.cross_gain.row("cross_gain"),
            **self.carried.row("carried"),
            **self.rate.row("friendliness"),
            "adversaries": self.adversaries,
            "batches": self.batches,
        }


def friendliness_of(
    rises: Rises, theta: float | None = None, level: float = 0.95
) -> list[Friendliness]:
    """What rises tell, for each of their radii.

    Args:
        rises: at each adversary.
        theta: of the slope, to be told.
        level: how often each interval is to hold the truth.

    Returns:
        One result for each radius.

    Raises:
        ValueError: a radius is 0, or a rise is not finite.

    Example:
        >>> from vasso.diagnostics.radius import Rises
        >>> others = np.array([[[0.1], [-0.1]], [[0.2], [0.2]]])  # of 2 on 2 batches
        >>> (found,) = friendliness_of(Rises((0.1,), np.array([[0.4], [0.4]]), others))
        >>> found.own_gain.value, found.carried.value, found.rate.value
        (4.0, 0.25, 0.25)
    """
    if not all(rho > 0 for rho in rises.rhos):
        raise ValueError(f"gains are per rho, which must be above 0, got {list(rises.rhos)}")
    odd = int((~np.isfinite(rises.own)).sum() + (~np.isfinite(rises.others)).sum())
    if odd:  # of NaN one cannot say whether it falls
        raise ValueError(
            f"{odd} of {rises.own.size + rises.others.size} rises are not finite: look for batches "
            "whose loss is NaN or infinite, or choose a smaller rho"
        )
    found = []
    for r, rho in enumerate(rises.rhos):
        own, others = rises.own[:, r], rises.others[:, :, r]
        found.append(
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
    return found


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
    """How friendly the adversaries of a slope are at the weights of a model; nothing is touched.

    Args:
        model: the model.
        loss_fn: its loss, the mean over samples; see `vasso.diagnostics.passes`.
        batches: their gradients make the slope; with theta < 1 many are needed.
        others: batches that are not among them.
        rho: the radius.
        theta: of the slope; 1 is SAM's.
        adversaries: how many to measure at.
        batchnorm: "batch" or "running"; see `objective`.
        dropout: whether dropout is on; masks are the same at w and at the adversary.
        level: how often each interval is to hold the truth.

    Returns:
        Gains and rate.

    Example:
        >>> import torch
        >>> model = nn.Linear(1, 1, bias=False)
        >>> nn.init.constant_(model.weight, 0.5) is model.weight
        True
        >>> x = torch.ones(1, 1)
        >>> batches, others = [(x, 0 * x)] * 2, [(x, x), (x, -x)]  # the loss is (w - y)^2
        >>> found = friendliness(model, nn.MSELoss(), batches, others, rho=0.1)
        >>> found.rate.value  # towards larger w, which the batch with y = 1 likes
        0.5
    """
    with objective(model, loss_fn, batches, others, batchnorm=batchnorm, dropout=dropout) as f:
        made = adversaries_of(f, batches, theta, adversaries)
        rises = rises_of(f, made, others, [rho])
    return friendliness_of(rises, theta, level)[0]
