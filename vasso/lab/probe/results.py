"""Results of a probe: lines of a table, sentences on rho, and `probe.json`, written and read.

`probe.json` holds a row for each result, and the arrays of densities and landscapes to five
digits. That suffices to draw every figure again; eigenvectors and the signs of traces are not
kept. JSON has no infinity and no NaN: both are null. Read again, the end of an interval becomes
infinite, any other null NaN.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_type_hints

from vasso.optional import needs_extra

with needs_extra("lab"):
    import numpy as np
    from rich.table import Table

from vasso.diagnostics.adversary.equal_effect import EqualEffect
from vasso.diagnostics.adversary.friendliness import Friendliness
from vasso.diagnostics.adversary.radius import RiseCurve
from vasso.diagnostics.adversary.slope_error import SlopeError
from vasso.diagnostics.adversary.snr import Snr
from vasso.diagnostics.curvature.density import Density
from vasso.diagnostics.curvature.eigen import Eigenpairs
from vasso.diagnostics.curvature.trace import Trace
from vasso.diagnostics.estimates import Array, Estimate
from vasso.diagnostics.landscape import Surface
from vasso.diagnostics.sharpness import Sharpness
from vasso.lab.probe.run import Depth, ProbeResults
from vasso.lab.probe.target import Subject
from vasso.lab.store import atomic
from vasso.lab.store.json import as_json, table_in
from vasso.lab.store.provenance import certificate, now

FILE = "probe.json"
FORMAT = 1
Row: TypeAlias = Mapping[str, Any]
R = TypeVar("R")


@dataclass(frozen=True)
class Line:
    """One line of the table: a quantity of a measure, with its interval.

    Low and high are NaN if there is none. `theta` and `rho` are None where nothing depends on them.
    """

    measure: str
    quantity: str
    value: Estimate
    theta: float | None = None
    rho: float | None = None


def lines_of(findings: ProbeResults) -> list[Line]:
    """A line for each quantity, in the order of the measures."""
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
        yield Line(name, f"rho of equal effect on {where}", x.rho, x.theta, x.reference_rho)
    else:
        yield from _lines_of_flatness(name, x)


def _lines_of_flatness(name: str, x: Any) -> Iterator[Line]:
    if isinstance(x, Sharpness):
        kinds = {"one-step": "rise at SAM's adversary", "apgd": "highest rise in the ball"}
        pieces = f" of {x.m} samples" if x.m else ""
        quantity = kinds.get(x.search, "mean rise at random weights as far") + pieces
        yield Line(name, quantity, x.sharpness, None, x.rho if x.search in kinds else None)
    elif isinstance(x, Eigenpairs):
        for i, (value, error) in enumerate(zip(x.values, x.residuals, strict=True), 1):
            near = Estimate(float(value), float(value - error), float(value + error), 1.0, 1)
            yield Line(name, f"λ{i} of the Hessian (± residual)", near)
        yield Line(name, f"λ1 / λ{len(x.values)}", _without_interval(x.ratio))
    elif isinstance(x, Trace):
        yield Line(name, "trace of the Hessian", x.estimate())
    elif isinstance(x, Density):
        mean, error = x.moment(1)
        near = Estimate(mean, mean - 2 * error, mean + 2 * error, 0, 1)
        yield Line(name, "mean eigenvalue", near)
        yield Line(name, "smallest eigenvalue seen", _without_interval(x.nodes.min()))
        yield Line(name, "largest eigenvalue seen", _without_interval(x.nodes.max()))
    elif isinstance(x, Surface):
        yield Line(name, "lowest loss on the plane", _without_interval(x.losses.min()))
        yield Line(name, "highest loss on the plane", _without_interval(x.losses.max()))


def _without_interval(value: float) -> Estimate:
    return Estimate(float(value), math.nan, math.nan, 0.0, 1)


def table_of(findings: ProbeResults) -> Table:
    """A table for the terminal; of the curves it shows only the rho of equal effect."""
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
        x = line.value
        ends = "" if math.isnan(x.low) else f"[{x.low:.4g}, {x.high:.4g}]"
        table.add_row(first, line.quantity, *numbers, number(x.value), ends)
    return table


def number(x: float) -> str:
    """A number to four digits."""
    if math.isnan(x):
        return "none"
    return f"{x:.4g}" if math.isfinite(x) else "beyond"


def sentences(findings: ProbeResults, depth: Depth) -> list[str]:
    """Which rho VaSSO needs for the effect of SAM's: a sentence for each theta below 1."""
    pairs: dict[Any, dict[str, EqualEffect]] = {}
    for x in findings.results.get("radius", ()):
        if isinstance(x, EqualEffect):
            pairs.setdefault(x.theta, {})[x.on] = x
    return [_sentence(theta, **pair, depth=depth) for theta, pair in pairs.items()]


def _sentence(theta: float, own: EqualEffect, others: EqualEffect, depth: Depth) -> str:
    top = max(depth.radii) * depth.rho
    on_own, on_others = _radius(own.rho, top), _radius(others.rho, top)
    return (
        f"SAM with rho {depth.rho:g} raises the loss of its own batch by {own.rise.value:.3g}; "
        f"VaSSO with theta {theta:g} does so with rho {on_own}. On batches they have not seen, "
        f"SAM's rise of {others.rise.value:.3g} takes VaSSO rho {on_others}."
    )


def _radius(rho: Estimate, top: float) -> str:
    if math.isnan(rho.value):
        return "none (there is no rise to match)"
    if math.isinf(rho.value):
        return f"beyond {top:.3g}"
    return f"{rho.value:.3g} [{rho.low:.3g}, {rho.high:.3g}]"


def document(subject: Subject, depth: Depth, findings: ProbeResults) -> dict[str, Any]:
    """Everything that was found, with its provenance, as `write` takes it."""
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
        "lines": [_line_row(line) for line in lines_of(findings)],
        "results": {name: _rows(found) for name, found in findings.results.items()},
        "arrays": _arrays(findings.results),
        "sentences": sentences(findings, depth),
    }


def _line_row(line: Line) -> dict[str, Any]:
    x = line.value
    what = {"measure": line.measure, "quantity": line.quantity, "theta": line.theta}
    return {**what, "rho": line.rho, "value": x.value, "low": x.low, "high": x.high, "n": x.n}


def _rows(found: list[Any]) -> list[dict[str, Any]]:
    return [row for x in found for row in (x.rows() if hasattr(x, "rows") else [x.row()])]


def _arrays(results: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Densities and landscapes, field by field: a row does not suffice to draw them."""
    found = {}
    for name in WITH_ARRAYS:
        for one in results.get(name, ())[:1]:
            values = {f.name: getattr(one, f.name) for f in fields(one)}
            found[name] = {
                key: _five_digits(value.tolist()) if isinstance(value, np.ndarray) else value
                for key, value in values.items()
            }
    return found


def _five_digits(value: Any) -> Any:
    return [_five_digits(x) for x in value] if isinstance(value, list) else float(f"{value:.5g}")


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a document as JSON, and makes its directory; numbers that are not finite are null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace(path, as_json(content, indent=1))


def free_folder(folder: Path, probe: Mapping[str, Any]) -> Path:
    """The folder to write a probe to: this one, or the first of probe-2, probe-3, ...

    A probe is replaced by one of the same subject that has all of its measures, from as many
    batches. Any other stays, with its pictures.
    """
    full = folder if folder.name not in {"", ".."} else folder.resolve()
    others = (full.with_name(f"{full.name}-{i}") for i in count(2))
    found = folder
    while reason_to_keep(found, probe):
        found = next(others)
    return found


def reason_to_keep(folder: Path, probe: Mapping[str, Any]) -> str:
    """What the probe in a folder has that another lacks, in a few words; "" if nothing."""
    try:
        old = table_in(folder / FILE)
        lost = [name for name in old["results"] if name not in probe["results"]]
        subject, batches = str(old["subject"]), int(old["batches"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # there is none, or it is damaged
    if subject != probe["subject"]:
        return f"a probe of {subject}"
    if lost:
        return f"a probe with {', '.join(lost)}"
    return f"a probe from {batches} batches" if batches > probe["batches"] else ""


def results_of(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The results in a document that have figures; all else is in its `lines`.

    Raises ValueError if the document is damaged or of a newer version.
    """
    version = document.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(f"a probe of format {version}, this version of vasso reads {FORMAT}")
    for name, kind in (("lines", list), ("sentences", list), ("notes", list), ("about", Mapping)):
        if not isinstance(document.get(name), kind):
            raise ValueError(f"damaged: the probe has no {name}")
    try:
        level, arrays = float(document["depth"]["level"]), document.get("arrays", {})
        known = {name: rows for name, rows in document["results"].items() if name in READERS}
        found = {name: READERS[name](rows, level) for name, rows in known.items()}
        kept = {name: kind for name, kind in WITH_ARRAYS.items() if name in arrays}
        return found | {name: [from_row(kind, arrays[name])] for name, kind in kept.items()}
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"damaged: results of the probe cannot be read ({why})") from error


def from_row(
    kind: type[R], row: Row, level: float = math.nan, columns: Mapping[str, str] | None = None
) -> R:
    """A result from its row: fields by type hints, under their names or those in `columns`.

    Example:
        >>> row = {"nodes": [[1, None]], "weights": [[0.5, 0.5]], "size": 2}
        >>> from_row(Density, {**row, "products": 2, "samples": 3}).nodes
        array([[ 1., nan]])
    """
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        column = (columns or {}).get(name, name)
        if hint is Estimate:
            values[name] = estimate(row, column, level)
        elif hint == Array:
            values[name] = np.array(row[column], dtype=np.float64)  # None becomes NaN
        else:
            values[name] = row[column]
    return kind(**values)


def estimate(row: Row, name: str, level: float) -> Estimate:
    """An estimate from its three columns: the inverse of `Estimate.row`, without n."""
    ends = {"": math.nan, "_low": -math.inf, "_high": math.inf}
    columns = ((row[name + end], missing) for end, missing in ends.items())
    value, low, high = (missing if x is None else float(x) for x, missing in columns)
    return Estimate(value, low, high, level, math.nan)


def _curves(rows: Sequence[Row], level: float) -> list[Any]:
    """Curves, a point in each row; rows without a point are on the radius of equal effect."""
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


def eigenpairs_of(row: Row) -> Eigenpairs:
    """Eigenvalues from their row: the inverse of `Eigenpairs.row`, without the vectors."""
    size = sum(key.startswith("residual") for key in row)
    values, residuals = (
        np.array([float(row[f"{name}{i}"]) for i in range(1, size + 1)])
        for name in ("lambda", "residual")
    )
    if not size:
        raise ValueError("there is no eigenvalue")
    vectors: Array = np.zeros((0, size))
    return Eigenpairs(values, vectors, residuals, row["products"], row["samples"])


WITH_ARRAYS: Mapping[str, type[Any]] = {"density": Density, "landscape": Surface}
READERS: Mapping[str, Callable[[Sequence[Row], float], list[Any]]] = {
    "slope": lambda rows, level: [from_row(SlopeError, row, level) for row in rows],
    "friendliness": lambda rows, level: [
        from_row(Friendliness, row, level, {"rate": "friendliness"}) for row in rows
    ],
    "radius": _curves,
    "sharpness": lambda rows, level: [from_row(Sharpness, row, level) for row in rows],
    "eigenvalues": lambda rows, level: [eigenpairs_of(row) for row in rows],
}
