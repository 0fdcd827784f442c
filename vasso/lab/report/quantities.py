"""Which numbers are known of one finished run? Accuracies, cost, rises, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any, TypeAlias

from vasso.lab.report.reading import Trained

Of: TypeAlias = Callable[[Trained], float | None]


def rise(trained: Trained) -> float | None:
    """The effective radius: how far the adversary lifts the loss of its own batch.

    In the first epoch, where all methods are in about the same place. Later rises are an outcome: a
    network that learns wrong labels by heart has larger ones, whatever its radius.

    Args:
        trained: a run.

    Returns:
        The mean over the steps of the first epoch; None where there was no adversary.
    """
    return _mean([epoch.get("rise") for epoch in trained.epochs[:1]])


def own(trained: Trained) -> float | None:
    """How far the adversary lifts the loss of its own batch, at the steps somebody has looked at.

    In the first half of the training, as `carried`, so that one can be told at equal values of the
    other.

    Args:
        trained: a run.

    Returns:
        The mean over the epochs; None where nobody has looked.
    """
    return _mean([own for _, own in _looks(trained)])


def carried(trained: Trained) -> float | None:
    """How much of the rise other batches share: their rise over that of the own batch.

    In the first half of the training: a network that has begun to learn wrong labels by heart has
    steep walls around each batch, whatever the adversary.

    Args:
        trained: a run.

    Returns:
        The ratio of the sums over the epochs; None where nobody has looked.
    """
    found = _looks(trained)
    total = math.fsum(own for _, own in found)
    return math.fsum(others for others, _ in found) / total if total > 0 else None


def _looks(trained: Trained) -> list[tuple[float, float]]:
    """The rise on other batches and on the own one, of the epochs of the first half."""
    half = trained.epochs[: (len(trained.epochs) + 1) // 2]
    seen = [epoch["adversary"] for epoch in half if epoch.get("adversary")]
    pairs = [(_mean(one.get("others", ())), one.get("own")) for one in seen]
    return [(others, own) for others, own in pairs if others is not None and own is not None]


def skipped(trained: Trained) -> float | None:
    """The share of steps that were not taken, because a gradient was not finite.

    Args:
        trained: a run.

    Returns:
        In %; None where no step was asked for.
    """
    result = trained.result or {}
    missed, taken = result.get("skipped", 0), result.get("steps", 0)
    return 100 * missed / taken if taken else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _of(part: str, name: str) -> Of:
    return lambda trained: _number(((trained.result or {}).get(part) or {}).get(name))


def _whole(name: str) -> Of:
    return lambda trained: float((trained.result or {})[name])


# -- what was measured besides ---------------------------------------------------------------------


def rows_of(trained: Trained, name: str) -> tuple[Mapping[str, Any], ...]:
    """The rows of a measurement.

    Args:
        trained: a run.
        name: of the measurement.

    Returns:
        None of them if there is none.
    """
    return trained.measured[name].rows if name in trained.measured else ()


def _first(measurement: str, name: str) -> Of:
    def number(trained: Trained) -> float | None:
        rows = rows_of(trained, measurement)
        return _number(rows[0].get(name)) if rows else None

    return number


def ratio(trained: Trained) -> float | None:
    """The largest eigenvalue over the fifth.

    Args:
        trained: a run.

    Returns:
        lambda_1 / lambda_5; None where fewer were measured.
    """
    first, fifth = (_first("spectrum", name)(trained) for name in ("lambda1", "lambda5"))
    return first / fifth if first is not None and fifth else None


def _over_epochs(of: Callable[[list[float]], float]) -> Of:
    """A number of the signal-to-noise ratios of all epochs."""

    def number(trained: Trained) -> float | None:
        values = [row["snr"] for row in rows_of(trained, "noise") if row.get("snr") is not None]
        return of(values) if values else None

    return number


ALWAYS: Mapping[str, Of] = {
    "last": _of("last", "test_accuracy"),
    "best": _of("best", "test_accuracy"),
    "validation": _of("last", "validation_accuracy"),
    "training": _of("last", "training_accuracy"),
    "wrong": _of("last", "wrong_accuracy"),
    "cost": _whole("cost"),
    "seconds": _whole("seconds"),
    "skipped": skipped,
    "rise": rise,
    "own": own,
    "carried": carried,
}
"""What is known of a finished run: accuracies in %, gradients, seconds, steps not taken, rises."""
NUMBERS: Mapping[str, Of] = {
    **ALWAYS,
    "bleu": _first("bleu", "bleu"),
    "detokenised": _first("bleu", "detokenised"),
    "endless": _first("bleu", "endless"),
    "perplexity": _of("last", "validation_perplexity"),
    "lambda1": _first("spectrum", "lambda1"),
    "ratio": ratio,
    "snr_median": _over_epochs(median),
    "snr_lowest": _over_epochs(min),
    "snr_highest": _over_epochs(max),
}
"""The same, and what was measured of it."""
