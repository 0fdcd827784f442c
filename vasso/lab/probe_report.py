"""How is a probe told? A table, sentences on rho, `probe.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vasso.extras import brought_by

with brought_by("lab"):
    from rich.table import Table

from vasso.diagnostics.density import Density
from vasso.diagnostics.eigen import Eigenpairs
from vasso.diagnostics.equal_effect import EqualEffect
from vasso.diagnostics.estimates import Estimate
from vasso.diagnostics.friendliness import Friendliness
from vasso.diagnostics.landscape import Surface
from vasso.diagnostics.radius import RiseCurve
from vasso.diagnostics.sharpness import Sharpness
from vasso.diagnostics.slope_error import SlopeError
from vasso.diagnostics.snr import Snr
from vasso.diagnostics.trace import Trace
from vasso.lab import atomic
from vasso.lab.certificate import certificate, now
from vasso.lab.probing import Depth, Findings
from vasso.lab.subject import Subject

FORMAT = 1
ARRAYS = {
    "density": ("nodes", "weights"),
    "landscape": ("across", "along", "losses", "errors"),
}
"""What of a result is kept besides its row, so that it can be drawn again."""


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes:
        measure: which.
        quantity: what.
        value: with its interval; without one where low and high are NaN.
        theta: of the slope, None if it concerns none.
        rho: the radius, None if it concerns none.
    """

    measure: str
    quantity: str
    value: Estimate
    theta: float | None = None
    rho: float | None = None


def lines_of(findings: Findings) -> list[Line]:
    """All that was found, a line for each quantity.

    Args:
        findings: of a probe.

    Returns:
        In the order of the measures.
    """
    pairs = ((name, result) for name, found in findings.results.items() for result in found)
    return [line for name, result in pairs for line in _lines(name, result)]


def _lines(name: str, x: Any) -> Iterator[Line]:
    if isinstance(x, Snr):
        yield Line(name, "signal / noise of a batch gradient", x.snr)
        yield Line(name, "signal ‖∇f‖²", x.signal)
        yield Line(name, "noise E‖g - ∇f‖²", x.noise)
    elif isinstance(x, SlopeError):
        yield Line(name, "error E‖d - ∇f‖²", x.mse, x.theta)
        yield Line(name, "cos(d, ∇f)", x.cosine, x.theta)
    elif isinstance(x, Friendliness):
        yield Line(name, "gain on its own batch, per rho", x.own_gain, x.theta, x.rho)
        yield Line(name, "gain on other batches, per rho", x.cross_gain, x.theta, x.rho)
        yield Line(name, "share of the gain carried over", x.carried, x.theta, x.rho)
        yield Line(name, "other batches whose loss falls", x.rate, x.theta, x.rho)
    elif isinstance(x, RiseCurve):
        for rho, own, others in zip(x.rhos, x.own, x.others, strict=True):
            yield Line(name, "rise on its own batch", own, x.theta, rho)
            yield Line(name, "rise on other batches", others, x.theta, rho)
    elif isinstance(x, EqualEffect):
        where = "its own batch" if x.on == "own" else "other batches"
        quantity = f"rho of equal effect on {where}"
        yield Line(name, quantity, x.rho, x.theta, x.reference_rho)
    else:
        yield from _lines_of_flatness(name, x)


def _lines_of_flatness(name: str, x: Any) -> Iterator[Line]:
    if isinstance(x, Sharpness):
        kinds = {"one-step": "rise at SAM's adversary", "apgd": "highest rise in the ball"}
        pieces = f" of {x.m} samples" if x.m else ""
        told = kinds.get(x.search, "mean rise at random weights as far")
        yield Line(name, told + pieces, x.sharpness, None, x.rho if x.search in kinds else None)
    elif isinstance(x, Eigenpairs):
        for i, (value, error) in enumerate(zip(x.values, x.residuals, strict=True), 1):
            near = Estimate(float(value), float(value - error), float(value + error), 1.0, 1)
            yield Line(name, f"λ{i} of the Hessian (± residual)", near)
        yield Line(name, f"λ1 / λ{len(x.values)}", _plain(x.ratio))
    elif isinstance(x, Trace):
        yield Line(name, "trace of the Hessian", x.estimate())
    elif isinstance(x, Density):
        mean, error = x.moment(1)
        yield Line(
            name, "mean eigenvalue", Estimate(mean, mean - 2 * error, mean + 2 * error, 0, 1)
        )
        yield Line(name, "smallest eigenvalue seen", _plain(float(x.nodes.min())))
        yield Line(name, "largest eigenvalue seen", _plain(float(x.nodes.max())))
    elif isinstance(x, Surface):
        yield Line(name, "lowest loss on the plane", _plain(float(x.losses.min())))
        yield Line(name, "highest loss on the plane", _plain(float(x.losses.max())))


def _plain(value: float) -> Estimate:
    return Estimate(value, math.nan, math.nan, 0.0, 1)


# -- for the eye ----------------------------------------------------------------------------------


def table_of(findings: Findings) -> Table:
    """A table for the terminal; of the curves only the rho of equal effect.

    Args:
        findings: of a probe.

    Returns:
        The table.
    """
    table = Table(title_justify="left", header_style="bold", pad_edge=False, box=None)
    for title in ("measure", "quantity"):
        table.add_column(title, no_wrap=title == "measure")
    for title in ("rho", "theta", "value", "95 % interval"):
        table.add_column(title, justify="right", no_wrap=True)
    last = ""
    for line in lines_of(findings):
        if line.quantity.startswith("rise on"):
            continue
        first = line.measure if line.measure != last else ""
        last = line.measure
        numbers = ["" if x is None else f"{x:g}" for x in (line.rho, line.theta)]
        table.add_row(first, line.quantity, *numbers, number(line.value.value), _ends(line.value))
    return table


def number(x: float) -> str:
    """Four digits.

    Args:
        x: any number.

    Returns:
        Text.

    Example:
        >>> number(0.123456), number(float("inf"))
        ('0.1235', 'beyond')
    """
    if math.isnan(x):
        return "none"
    return f"{x:.4g}" if math.isfinite(x) else "beyond"


def _ends(x: Estimate) -> str:
    if math.isnan(x.low):
        return ""
    return f"[{x.low:.4g}, {x.high:.4g}]"


def sentences(findings: Findings, depth: Depth) -> list[str]:
    """What to take from it: which rho for VaSSO, given SAM's.

    Args:
        findings: of a probe.
        depth: how it was measured.

    Returns:
        A sentence for each theta below 1.
    """
    equal = [x for x in findings.results.get("radius", ()) if isinstance(x, EqualEffect)]
    pairs: dict[Any, dict[str, EqualEffect]] = {}
    for x in equal:
        pairs.setdefault(x.theta, {})[x.on] = x
    return [_sentence(theta, **pair, depth=depth) for theta, pair in pairs.items()]


def _sentence(theta: float, own: EqualEffect, others: EqualEffect, depth: Depth) -> str:
    top = max(depth.radii) * depth.rho
    here, there = _radius(own.rho, top), _radius(others.rho, top)
    return (
        f"SAM with rho {depth.rho:g} raises the loss of its own batch by {own.rise.value:.3g}; "
        f"VaSSO with theta {theta:g} does so with rho {here}. On batches they have not seen, "
        f"SAM's rise of {others.rise.value:.3g} takes VaSSO rho {there}."
    )


def _radius(rho: Estimate, top: float) -> str:
    if math.isnan(rho.value):
        return "none (there is no rise to match)"
    if math.isinf(rho.value):
        return f"beyond {top:.3g}"
    return f"{rho.value:.3g} [{rho.low:.3g}, {rho.high:.3g}]"


# -- for programs ---------------------------------------------------------------------------------


def document(subject: Subject, depth: Depth, findings: Findings) -> dict[str, Any]:
    """All of it, as JSON may hold it.

    Args:
        subject: what was looked at.
        depth: how thoroughly.
        findings: what was found.

    Returns:
        With a birth certificate.
    """
    return {
        "format": FORMAT,
        "subject": subject.name,
        "about": dict(subject.about),
        "depth": asdict(depth),
        "batches": subject.count,
        "others": len(subject.others),
        "interrupted": findings.interrupted,
        "notes": findings.notes,
        "seconds": findings.seconds,
        "passes": findings.passes,
        "time": now(),
        "certificate": certificate(),
        "lines": [_flat(line) for line in lines_of(findings)],
        "results": {name: _rows(found) for name, found in findings.results.items()},
        "arrays": _arrays(findings.results),
        "sentences": sentences(findings, depth),
    }


def _flat(line: Line) -> dict[str, Any]:
    value = line.value
    told = {"measure": line.measure, "quantity": line.quantity, "theta": line.theta}
    ends = {"value": value.value, "low": value.low, "high": value.high, "n": value.n}
    return {**told, "rho": line.rho, **ends}


def _rows(found: list[Any]) -> list[dict[str, Any]]:
    return [row for x in found for row in (x.rows() if hasattr(x, "rows") else [x.row()])]


def _arrays(results: Mapping[str, list[Any]]) -> dict[str, Any]:
    """What figures need of densities and landscapes beyond a row, to five digits."""
    found = {}
    for name, fields in ARRAYS.items():
        for one in results.get(name, ())[:1]:
            whole = {f: _short(getattr(one, f).tolist()) for f in fields}
            counts = {
                f: getattr(one, f) for f in ("size", "products", "samples") if hasattr(one, f)
            }
            found[name] = {**whole, **counts}
    return found


def _short(value: Any) -> Any:
    return [_short(x) for x in value] if isinstance(value, list) else float(f"{value:.5g}")


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a document; infinity and NaN, which JSON has not, become null.

    Args:
        path: the file; its folder is made.
        content: plain values.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite(content), indent=1, allow_nan=False, ensure_ascii=False)
    atomic.replace(path, text.encode())


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
