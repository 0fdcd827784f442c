"""What was found by a probe, read again? Results from `probe.json`, as far as they can be drawn.

Ends of intervals that JSON could not hold are infinite again, values that it could not hold are
NaN. What no figure needs (eigenvectors, signs of traces) is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from vasso.extras import brought_by

with brought_by("lab"):
    import numpy as np

from vasso.diagnostics.density import Density
from vasso.diagnostics.eigen import Eigenpairs
from vasso.diagnostics.estimates import Array, Estimate
from vasso.diagnostics.friendliness import Friendliness
from vasso.diagnostics.landscape import Surface
from vasso.diagnostics.radius import RiseCurve
from vasso.diagnostics.sharpness import Sharpness
from vasso.diagnostics.slope_error import SlopeError
from vasso.lab.probe_report import FORMAT

Row: TypeAlias = Mapping[str, Any]


def results_of(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The results of a probe.

    Args:
        document: what `probe.json` holds.

    Returns:
        measure -> results, for those that have figures; all else is in the document's `lines`.

    Raises:
        ValueError: it is damaged, or of a newer version.
    """
    version = document.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(f"a probe of format {version}, this version of vasso reads {FORMAT}")
    for name, kind in (("lines", list), ("sentences", list), ("notes", list), ("about", Mapping)):
        if not isinstance(document.get(name), kind):
            raise ValueError(f"damaged: the probe has no {name}")
    try:
        level = float(document["depth"]["level"])
        known = {name: rows for name, rows in document["results"].items() if name in READERS}
        found = {name: READERS[name](rows, level) for name, rows in known.items()}
        return found | _from_arrays(document.get("arrays", {}))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as trouble:
        told = f"{type(trouble).__name__}: {trouble}"
        raise ValueError(f"damaged: results of the probe cannot be read ({told})") from trouble


def estimate(row: Row, name: str, level: float) -> Estimate:
    """An estimate from its three columns; the inverse of `Estimate.row` but for n.

    Args:
        row: of a table.
        name: of the quantity.
        level: of its interval.

    Returns:
        The estimate.

    Example:
        >>> print(estimate({"snr": 0.2, "snr_low": 0.1, "snr_high": None}, "snr", 0.95))
        0.2 [0.1, inf]
    """
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return Estimate(
        math.nan if value is None else float(value),
        -math.inf if low is None else float(low),
        math.inf if high is None else float(high),
        level,
        math.nan,
    )


def _slope(rows: Sequence[Row], level: float) -> list[Any]:
    names = ("mse", "cosine", "norm_gap", "distance")
    return [
        SlopeError(
            theta=row["theta"],
            **{name: estimate(row, name, level) for name in names},
            full_norm=row["full_norm"],
            slopes=row["slopes"],
        )
        for row in rows
    ]


def _friendliness(rows: Sequence[Row], level: float) -> list[Any]:
    return [
        Friendliness(
            row["rho"],
            row["theta"],
            estimate(row, "own_gain", level),
            estimate(row, "cross_gain", level),
            estimate(row, "carried", level),
            estimate(row, "friendliness", level),
            row["adversaries"],
            row["batches"],
        )
        for row in rows
    ]


def _radius(rows: Sequence[Row], level: float) -> list[Any]:
    """Curves; rows on the radius of equal effect are in the sentences."""
    points = [row for row in rows if "own_rise" in row]
    curves = []
    for theta in dict.fromkeys(row["theta"] for row in points):
        mine = [row for row in points if row["theta"] == theta]
        own, others = (
            tuple(estimate(row, name, level) for row in mine)
            for name in ("own_rise", "others_rise")
        )
        rhos = tuple(float(row["rho"]) for row in mine)
        counts = mine[0]["adversaries"], mine[0]["batches"]
        curves.append(RiseCurve(rhos, own, others, theta, *counts))
    return curves


def _sharpness(rows: Sequence[Row], level: float) -> list[Any]:
    told = ("rho", "norm", "adaptive", "search", "m", "pieces", "passes")
    return [
        Sharpness(estimate(row, "sharpness", level), *(row[name] for name in told)) for row in rows
    ]


def _eigenvalues(rows: Sequence[Row], level: float) -> list[Any]:
    return [eigenpairs_of(row) for row in rows]


def eigenpairs_of(row: Row) -> Eigenpairs:
    """Eigenvalues from their row; the inverse of `Eigenpairs.row` but for the vectors.

    Args:
        row: of a table.

    Returns:
        Eigenvalues and residuals.

    Raises:
        ValueError: there is none.

    Example:
        >>> eigenpairs_of({"lambda1": 3.0, "residual1": 0.1, "products": 9, "samples": 5}).ratio
        1.0
    """
    count = sum(key.startswith("residual") for key in row)
    values, residuals = (
        np.array([float(row[f"{name}{i}"]) for i in range(1, count + 1)])
        for name in ("lambda", "residual")
    )
    if not count:
        raise ValueError("there is no eigenvalue")
    nothing: Array = np.zeros((0, count))
    return Eigenpairs(values, nothing, residuals, row["products"], row["samples"])


READERS: Mapping[str, Callable[[Sequence[Row], float], list[Any]]] = {
    "slope": _slope,
    "friendliness": _friendliness,
    "radius": _radius,
    "sharpness": _sharpness,
    "eigenvalues": _eigenvalues,
}


def _from_arrays(kept: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What is drawn of more than a row: densities and landscapes."""
    found: dict[str, list[Any]] = {}
    if "density" in kept:
        one = kept["density"]
        counts = one["size"], one["products"], one["samples"]
        found["density"] = [Density(_array(one["nodes"]), _array(one["weights"]), *counts)]
    if "landscape" in kept:
        one = kept["landscape"]
        names = ("across", "along", "losses", "errors")
        grid = {name: _array(one[name]) for name in names}
        found["landscape"] = [Surface(**grid, samples=one["samples"])]
    return found


def _array(values: Any) -> Array:
    found: Array = np.array(values, dtype=np.float64)  # None becomes NaN
    return found
