"""What is compared with what? Each method at its own best radius, and all at one radius.

    best     each method at the radius that validation chooses for it, against SAM at SAM's
    one      all at one radius, the one that validation chooses for SAM on clean labels: the paper's
             way. Where there are no clean runs, on the labels at hand
    given    methods that have but one radius each, and not the same
    base     SAM at its best radius against the plain base

Every headline of a study is compared so (`headlines`), at the end of training. All comparisons of a
section, whatever the headline, are one family for Holm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from vasso.lab.methods import PLAIN, Method
from vasso.lab.report.cells import Cell, cells_of
from vasso.lab.report.headlines import JUDGINGS, Headline, Judging
from vasso.lab.report.known import Published, published
from vasso.lab.report.reading import Contents
from vasso.lab.report.sections import Section, Table, family
from vasso.lab.statistics import (
    LEAST,
    Paired,
    Standing,
    Verdict,
    chosen,
    holm,
    paired,
    seeds_to_decide,
    standing,
    verdict,
)

REFERENCE = "SAM"
Kind = Literal["best", "one", "given", "base"]


@dataclass(frozen=True)
class Pick:
    """The radius that validation chooses for a method.

    Attributes:
        cell: the method at that radius.
        among: how many radii there were to choose from, of those with enough seeds.
        of: how many radii the study has for it.
        at_end: "smallest" or "largest" if it is at an end of them, so that a better one may lie
            beyond; else "".
    """

    cell: Cell
    among: int
    of: int
    at_end: str


@dataclass(frozen=True)
class OneRadius:
    """One radius for all methods.

    Attributes:
        rho: the radius.
        labels: "clean" if clean labels have chosen it, "same" if those at hand, "none" if it is the
            only one there is.
        n: seeds of the runs that it was chosen by.
    """

    rho: float
    labels: Literal["clean", "same", "none"]
    n: int


@dataclass(frozen=True)
class Judged:
    """A comparison of ours beside a published one.

    Attributes:
        published: what a source says.
        verdict: whether ours agrees; "no claim" if theirs is within its own deviations.
    """

    published: Published
    verdict: Verdict | Literal["no claim"]


@dataclass(frozen=True)
class Comparison:
    """One method against another.

    Attributes:
        headline: by which number.
        kind: which rule has chosen the radii.
        table: the task.
        ours: a method at a radius.
        theirs: another.
        paired: the difference; None if no seed is shared.
        adjusted: p-value after Holm; 1 where there is no verdict.
        standing: who is ahead, or which is larger.
        judged: one for each source.
        decides: seeds that would decide a difference of `headline.matters` at the spread seen; None
            where no such difference is named, or the spread is not known.
    """

    headline: Headline
    kind: Kind
    table: Table
    ours: Cell
    theirs: Cell
    paired: Paired | None
    adjusted: float
    standing: Standing
    judged: tuple[Judged, ...]
    decides: int | None


def picks_of(table: Table, judging: Judging = JUDGINGS["accuracy"]) -> dict[str, Pick]:
    """Each method at the radius that validation chooses.

    Args:
        table: a task.
        judging: by which number validation chooses.

    Returns:
        Name -> choice, of the methods for which there is one.
    """
    found = {name: _pick(cells, judging) for name, cells in table.families().items()}
    return {name: pick for name, pick in found.items() if pick is not None}


def _pick(cells: list[Cell], judging: Judging) -> Pick | None:
    with_runs = [cell for cell in cells if cell.n]
    if len(cells) == 1 or any(cell.rho is None for cell in cells):
        return Pick(with_runs[0], 1, 1, "") if len(with_runs) == 1 == len(cells) else None
    by_rho = {cell.rho: cell for cell in with_runs if cell.rho is not None}
    known = _by_the_same_seeds({r: c.values(judging.chooser) for r, c in by_rho.items()})
    rho = chosen(known, judging.best)
    if rho is None:
        return None
    full = [r for r, values in known.items() if len(values) >= min(LEAST, len(known[rho]))]
    ends = {min(full): "smallest", max(full): "largest"} if len(full) > 1 else {}
    return Pick(by_rho[rho], len(full), len(cells), ends.get(rho, ""))


def _by_the_same_seeds(known: dict[float, dict[int, float]]) -> dict[float, list[float]]:
    """Of radii with seeds enough, the values of those seeds that all of them have, if enough."""
    enough = [set(values) for values in known.values() if len(values) >= LEAST]
    shared = set.intersection(*enough) if enough else set()
    if len(shared) < LEAST:
        return {rho: list(values.values()) for rho, values in known.items()}
    return {
        rho: [value for seed, value in values.items() if seed in shared or len(values) < LEAST]
        for rho, values in known.items()
    }


def one_radius(
    table: Table, contents: Contents, judging: Judging = JUDGINGS["accuracy"]
) -> OneRadius | None:
    """The radius that suits SAM on clean labels.

    Args:
        table: a task.
        contents: the store, whose clean runs may be of another study.
        judging: by which number validation chooses.

    Returns:
        The radius; None if SAM has no run that could tell.
    """
    ours = [cell for cell in table.cells if _is_reference(cell)]
    if not ours:
        return None
    methods = {family(cell.method) for cell in ours}
    task = replace(table.task, wrong=0.0)
    same = [t for t in contents.runs.values() if t.run.task == task]
    runs = [t.run for t in same if family(t.run.method) in methods]
    clean = _pick([cell for cell in cells_of(runs, same) if cell.rho is not None], judging)
    if clean is not None and clean.among > 1 and clean.cell.rho is not None:
        return OneRadius(clean.cell.rho, "clean", clean.cell.n)
    own = _pick(ours, judging)
    if own is None or own.cell.rho is None or own.among < min(2, own.of):
        return None
    return OneRadius(own.cell.rho, "same" if own.of > 1 else "none", own.cell.n)


def comparisons_of(section: Section, contents: Contents) -> list[Comparison]:
    """Everything a section compares, with verdicts.

    Args:
        section: a study at one scale.
        contents: the store.

    Returns:
        Table by table.
    """
    judging = section.judging
    pairs = [
        (headline, t, *pair)
        for t in section.tables
        for headline in judging.headlines
        for pair in _pairs(t, contents, judging)
    ]
    found = [paired(a.values(h.name), b.values(h.name)) for h, _, _, a, b in pairs]
    tested = {i: p.p for i, p in enumerate(found) if p is not None and p.n >= LEAST}
    adjusted = holm(tested)
    return [
        _compared(section, *pair, found[i], adjusted.get(i, 1.0)) for i, pair in enumerate(pairs)
    ]


def _compared(
    section: Section,
    headline: Headline,
    table: Table,
    kind: Kind,
    ours: Cell,
    theirs: Cell,
    difference: Paired | None,
    adjusted: float,
) -> Comparison:
    stands = standing(difference, adjusted, headline.better)
    said = published(section.study, table.task, ours.method, theirs.method, headline)
    judged = tuple(
        Judged(p, verdict(stands, p.differences[0], headline.better) if p.claims else "no claim")
        for p in said
    )
    decides = _decides(headline, difference)
    pair = (ours, theirs, difference, adjusted)
    return Comparison(headline, kind, table, *pair, stands, judged, decides)


def _decides(headline: Headline, difference: Paired | None) -> int | None:
    if headline.matters is None or difference is None or not math.isfinite(difference.spread):
        return None
    return seeds_to_decide(headline.matters, difference.spread)


def _pairs(table: Table, contents: Contents, judging: Judging) -> list[tuple[Kind, Cell, Cell]]:
    picks = picks_of(table, judging)
    cells = [pick.cell for pick in picks.values()]
    references = [cell for cell in cells if _is_reference(cell)]
    base = next((cell for cell in cells if cell.method.name == PLAIN), None)
    if not references:
        return [] if base is None else [("base", c, base) for c in cells if c is not base]
    first = references[0]
    rest = [cell for cell in cells if cell not in (first, base)]
    found: list[tuple[Kind, Cell, Cell]] = []
    found += [("base", first, base)] if base is not None else []
    found += [
        (_rule(cell, other := _nearest(cell, references), picks), cell, other) for cell in rest
    ]
    known = [pair[1:] for pair in found]
    shared = _at_one_radius(table, one_radius(table, contents, judging))
    return found + [("one", *pair) for pair in shared if pair not in known]


def _rule(ours: Cell, theirs: Cell, picks: Mapping[str, Pick]) -> Kind:
    """Who has chosen the radii of two picks: validation, or the study, which has but these."""
    if any(pick.of > 1 for pick in picks.values() if pick.cell in (ours, theirs)):
        return "best"
    return "one" if ours.rho == theirs.rho else "given"


def _nearest(cell: Cell, references: list[Cell]) -> Cell:
    """The SAM to compare with: of several the one trained most alike; for another SAM the first."""
    if cell in references:
        return references[0]
    names = [f.name for f in fields(Method) if f.name not in {"name", "settings"}]

    def apart(other: Cell) -> int:
        return sum(getattr(cell.method, n) != getattr(other.method, n) for n in names)

    return min(references, key=apart)


def _at_one_radius(table: Table, one: OneRadius | None) -> list[tuple[Cell, Cell]]:
    if one is None:
        return []
    there = [cell for cell in table.cells if cell.rho == one.rho and cell.n]
    references = [cell for cell in there if _is_reference(cell)]
    if not references:
        return []
    pairs = ((cell, _nearest(cell, references)) for cell in there)
    return [(ours, theirs) for ours, theirs in pairs if ours is not theirs]


def _is_reference(cell: Cell) -> bool:
    return cell.method.name == REFERENCE and "theta" not in dict(cell.method.settings)
