"""Can a subject be probed at all? One pass before hundreds, so that nothing odd is measured."""

from __future__ import annotations

import math
from typing import Any

from vasso.diagnostics.batches import rows_of, samples_in
from vasso.diagnostics.passes import Objective, objective
from vasso.lab.subject import Subject


def fit(subject: Subject) -> Subject:
    """Takes the loss and the gradient of one batch, and sees whether the loss is a mean.

    Args:
        subject: what is to be probed; nothing of it is touched.

    Returns:
        The same.

    Raises:
        ValueError: there is no loss, it is not finite or has no gradient, or it is a sum.
    """
    batch = subject.still[0]
    try:
        with objective(subject.model, subject.loss_fn) as f:
            loss, g = f.loss_and_gradient(batch)
            adds_up = _adds_up(f, batch, loss)
    except Exception as trouble:
        told = f"{type(trouble).__name__}: {trouble}"
        raise ValueError(f"{subject.name}: a batch has no loss and gradient ({told})") from trouble
    if not math.isfinite(loss) or not all(bool(x.isfinite().all()) for x in g):
        raise ValueError(
            f"{subject.name}: the loss of a batch is {loss:g} and its gradient is not finite "
            "everywhere: there is nothing to measure at these weights"
        )
    if adds_up:
        raise ValueError(
            f"{subject.name}: the loss of {samples_in(batch)} samples is the sum of those of its "
            "halves: return the mean over samples (reduction='mean')"
        )
    return subject


def _adds_up(f: Objective, batch: Any, loss: float) -> bool:
    """Whether the loss is a sum over samples: f(a and b) = f(a) + f(b), to a thousandth."""
    n = samples_in(batch)
    if n < 2 or not loss:
        return False
    halves = f.loss(rows_of(batch, slice(0, n // 2))), f.loss(rows_of(batch, slice(n // 2, n)))
    mean = (halves[0] * (n // 2) + halves[1] * (n - n // 2)) / n
    return abs(sum(halves) - loss) < 1e-3 * abs(loss) and abs(mean - loss) > 0.1 * abs(loss)
