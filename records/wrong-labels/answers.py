"""The three questions, and one that came after seeing the curves."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from evidence import compared, ends, families, one_radius, picks

from records.markdown_pages import format_cell, format_difference
from vasso.lab.report.cells import Cell
from vasso.lab.report.compare import Comparison, OneRadius
from vasso.lab.report.findings import SectionResult
from vasso.lab.report.sections import Table
from vasso.lab.report.text import format_interval, format_number, format_p
from vasso.lab.statistics import LEAST, Paired, holm, mean, paired, standing

PROBED = Path(__file__).parent.parent / "resnet-probe" / "summary.json"
NEAR, WIDE = 10.0, 6
"""Points below the best that are near enough, and radii that are needed to see where it ends."""
Answer = tuple[str, str]
"""What is found, in a few words, and the numbers that say so."""
NOT_YET: Answer = ("there are not enough runs yet", "")


def whole(answer: Answer) -> str:
    """An answer with its numbers."""
    lead, numbers = answer
    return f"{lead}. {numbers}".rstrip()


def first_answer(answered: SectionResult, table: Table) -> Answer:
    """One radius for all: does accuracy rise from SAM over theta 0.9, 0.4, 0.2?"""
    one, there = all_at_one(answered, table)
    if one is None:
        return NOT_YET
    labels = "clean labels" if one.labels == "clean" else "these labels (no clean runs yet)"
    values = "; ".join(f"{name} {format_cell(c)} (n = {c.n})" for name, c in there.items())
    found = {name: compared(answered, table, "one", cell) for name, cell in there.items()}
    known = {name: c for name, c in found.items() if c is not None and c.paired is not None}
    order = trend(there)
    lead = "; ".join([_lead(known, {}), order] if known else [order])
    return lead, (
        f"At ρ = {one.rho:g}, SAM's best on {labels} (n = {one.n}): {values}. Minus SAM's, in "
        f"points: {_differences(known)}."
    )


def _differences(found: dict[str, Comparison]) -> str:
    """Each with its seeds, and the p-value where there is a test."""
    parts = []
    for name, c in found.items():
        holm = f", p (Holm) {format_p(c.adjusted)}" if c.standing != "too few seeds" else ""
        parts.append(f"{name} {format_difference(c)}{_counted(c)}{holm}")
    return "; ".join(parts)


def all_at_one(answered: SectionResult, table: Table) -> tuple[OneRadius | None, dict[str, Cell]]:
    """The one radius, and the methods at it, SAM first."""
    one = one_radius(answered, table)
    there = {
        name: c
        for name, cells in families(table).items()
        for c in cells
        if one is not None and c.rho == one.rho and c.n
    }
    return one, there


def trend(there: dict[str, Cell]) -> str:
    """The methods in the order of their means over the seeds that all have."""
    seeds = [set(cell.seeds) for cell in there.values()]
    shared = sorted(set.intersection(*seeds)) if seeds else []
    if len(there) < 3 or not shared:
        return "some thetas are missing"
    values = {name: cell.values("last") for name, cell in there.items()}
    means = {name: mean([v[seed] for seed in shared]).value for name, v in values.items()}
    rising = sorted(means, key=lambda name: means[name])
    order = " < ".join(name.removeprefix("VaSSO ") for name in rising)
    paper = ", the paper's order" if rising == list(there) else ""
    return f"in order of their means over the {len(shared)} seeds that all have: {order}{paper}"


def second_answer(answered: SectionResult, table: Table) -> Answer:
    """Each at its best radius: does the order survive?"""
    found, open_ends = {}, ends(answered, table)
    for name, cell in picks(answered, table).items():
        c = compared(answered, table, "best", cell)
        if c is not None and c.paired is not None:
            found[name] = c
    if not found:
        return NOT_YET
    parts = [
        f"{name} at ρ = {c.ours.rho:g}{end_of(name, open_ends)}: "
        f"{format_difference(c)}{_counted(c)}"
        for name, c in found.items()
    ]
    return _lead(found, open_ends), f"Minus SAM at its own best ρ, in points: {'; '.join(parts)}."


def _counted(c: Comparison) -> str:
    """The seeds, that `format_difference` leaves out."""
    return f" (n = {c.paired.n})" if c.paired is not None and c.paired.n >= LEAST else ""


def end_of(name: str, open_ends: dict[str, str]) -> str:
    """A word on a radius beyond which a better one may lie."""
    return f", the {open_ends[name]} tried" if name in open_ends else ""


def _lead(found: dict[str, Comparison], open_ends: dict[str, str]) -> str:
    """Who is ahead and who behind, in a sentence; nobody is behind who may have a better rho."""
    stands: dict[str, list[str]] = {}
    for name, c in found.items():
        stands_at_end = name in open_ends and c.standing in ("behind", "no significant difference")
        standing = "open" if stands_at_end else c.standing
        stands.setdefault(standing, []).append(name.removeprefix("VaSSO "))
    if set(stands) == {"too few seeds"}:
        return "too few seeds for a test"
    ahead = f"yes for {', '.join(stands['ahead'])}" if "ahead" in stands else "no theta is ahead"
    words = {
        "behind": "behind",
        "no significant difference": "no significant difference",
        "open": "a better rho may lie beyond those tried",
        "too few seeds": "too few seeds",
    }
    rest = [f"{words[s]}: {', '.join(stands[s])}" for s in words if s in stands]
    return "; ".join([ahead, *rest])


def third_answer(answered: SectionResult, table: Table) -> Answer:
    """Does the adversary carry more of an equal rise to other batches than SAM's?"""
    sam = picks(answered, table).get("SAM")
    if sam is None:
        return NOT_YET
    found = {}
    for name, cells in families(table).items():
        theirs = {seed: _carried_at(cells, seed, sam) for seed in sam.seeds}
        known = {seed: value for seed, value in theirs.items() if value is not None}
        c = paired(known, sam.values("carried"))
        if name.startswith("VaSSO") and c is not None:
            found[name] = mean(list(known.values())).value, c
    if not found:
        return NOT_YET
    return _carries(found), (
        f"SAM at its best ρ carries {format_cell(sam, 'carried', 2)} of its rise over to batches "
        "it has not seen, in the first half of the training. At that rise on the own batch, at the "
        f"same steps: {'; '.join(_share(name, *one) for name, one in found.items())}."
    )


def _carries(found: dict[str, tuple[float, Paired]]) -> str:
    """Which adversaries carry significantly more: Holm's correction over the thetas."""
    adjusted = holm({name: c.p for name, (_, c) in found.items()})
    stands: dict[str, list[str]] = {}
    for name, (_, c) in found.items():
        word = standing(c, adjusted[name], "neither")
        stands.setdefault(word, []).append(name.removeprefix("VaSSO "))
    words = {
        "larger": "yes for",
        "smaller": "less for",
        "no significant difference": "no significant difference for",
    }
    words["too few seeds"] = "too few seeds for"
    said = (f"{words[word]} {', '.join(stands[word])}" for word in words if word in stands)
    return "; ".join(said)


def _share(name: str, share: float, c: Paired) -> str:
    """What is carried, and how much more that is than SAM's."""
    more = format_number(c.difference.value, 2, sign=True)
    span = f"{format_interval(c.difference, 2, sign=True)}, n = {c.n}"
    return f"{name} {format_number(share, 2)} ({more}, {span})"


def _carried_at(cells: Sequence[Cell], seed: int, sam: Cell) -> float | None:
    """The share that a method carries where its rise is SAM's, between the radii it has."""
    pairs = [(cell.values("own").get(seed), cell.values("carried").get(seed)) for cell in cells]
    known = sorted((x, y) for x, y in pairs if x is not None and y is not None)
    at = sam.values("own").get(seed)
    if at is None or not known or not known[0][0] <= at <= known[-1][0]:
        return None
    rises, shares = zip(*known, strict=True)
    return float(np.interp(np.log(at), np.log(rises), shares))


def fourth_answer(table: Table) -> str:
    """How forgiving is the choice of rho?"""
    widths = {
        name: {seed: w for seed in cells[0].seeds if (w := _width(cells, seed)) is not None}
        for name, cells in families(table).items()
    }
    sam, parts = widths.get("SAM", {}), []
    for name, found in widths.items():
        if len(found) < LEAST:
            continue
        factor = f"{name} {math.exp(mean(list(found.values())).value):.1f}"
        c = paired(found, sam)
        if name.startswith("VaSSO") and c is not None and c.n >= LEAST:
            ends = " to ".join(f"{math.exp(x):.1f}" for x in (c.difference.low, c.difference.high))
            factor += f" ({math.exp(c.difference.value):.1f} times SAM's, {ends}, n = {c.n})"
        parts.append(factor)
    return f"{'; '.join(parts)}." if parts else "there are not enough runs yet."


def _width(cells: Sequence[Cell], seed: int) -> float | None:
    """The log of the largest over the smallest radius within ten points of the best."""
    pairs = ((cell.rho, cell.values("last").get(seed)) for cell in cells)
    known = sorted((math.log(rho), y) for rho, y in pairs if rho is not None and y is not None)
    if len(known) < WIDE:
        return None
    xs, ys = (np.array(column) for column in zip(*known, strict=True))
    fine = np.linspace(xs[0], xs[-1], 1001)
    good = np.interp(fine, xs, ys) >= ys.max() - NEAR
    best = int(np.argmax(np.interp(fine, xs, ys)))
    left = best - int(np.argmin(good[best::-1])) + 1 if not good[: best + 1].all() else 0
    right = best + int(np.argmin(good[best:])) - 1 if not good[best:].all() else len(fine) - 1
    return float(fine[right] - fine[left])


def at_equal_weights() -> str:
    """What the record `resnet-probe` says: same weights, same rise, one run after the other."""
    found = {k: v for k, v in json.loads(PROBED.read_text()).items() if k.startswith("wrong")}
    sam = " and ".join(f"{100 * x['SAM is a friend']['value']:.0f}" for x in found.values())
    parts = []
    for theta in ("0.9", "0.4", "0.2"):
        each = [x["theta"][theta]["less often a friend"]["equal rise"] for x in found.values()]
        values = (
            f"{100 * x['value']:.1f} ({100 * x['low']:.1f} to {100 * x['high']:.1f})" for x in each
        )
        parts.append(f"θ={theta} by {' and '.join(values)}")
    instants = next(iter(found.values()))["instants"]
    return (
        f"in {len(found)} runs SAM's adversary lowers the loss of {sam} % of the batches that it "
        f"has not seen; at equal rise VaSSO's does so less often, in points: {'; '.join(parts)} "
        f"(95 % confidence intervals over {instants} instants of a run)"
    )
