"""Comparisons: which methods are compared at which radius, and what others have published of them.

    best     each method at the radius that validation chooses for it, against SAM at SAM's
    one      all at one radius, the one that validation chooses for SAM on clean labels: the paper's
             way. Where there are no clean runs, on the labels at hand
    given    methods that have but one radius each, and not the same
    base     SAM at its best radius against the plain base, and against it in more epochs

Each metric of a study is compared so (`metrics`), at the end of training. All comparisons of a
section, whatever the metric, are one family for Holm's correction.

A difference d of two published means with deviations s1 and s2 counts as a claim if it is larger
than they allow for: |d| > sqrt(s1^2 + s2^2).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from vasso.lab.experiment.method import PLAIN, MethodConfig
from vasso.lab.experiment.task import Task
from vasso.lab.report.cells import Cell, cells_of
from vasso.lab.report.metrics import ACCURACY, CRITERIA, Criteria, Metric
from vasso.lab.report.read import Contents
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
from vasso.lab.studies.study import Study

REFERENCE = "SAM"
Kind = Literal["best", "one", "given", "base"]


@dataclass(frozen=True)
class Pick:
    """The radius that validation chooses for a method.

    It is the best of `among` radii with enough seeds; the study has `of`. `at_end` is "smallest" or
    "largest" if a better radius may lie beyond, else "".
    """

    cell: Cell
    among: int
    of: int
    at_end: str


@dataclass(frozen=True)
class OneRadius:
    """One radius for all methods, chosen by `n` seeds.

    `labels` is "clean" if runs on clean labels have chosen it, "same" if those at hand, "none" if
    there is no other.
    """

    rho: float
    labels: Literal["clean", "same", "none"]
    n: int


@dataclass(frozen=True)
class PublishedFigure:
    """What a source says of a method on one network: a mean for each of its settings that match.

    `spread` is the deviation, if there is one mean.
    """

    means: tuple[float, ...]
    spread: float | None


@dataclass(frozen=True)
class PublishedDifference:
    """What a source says of a difference, for each of its settings that match ours.

    It `claims` something if all differences exceed their deviations and have the same sign.
    """

    source: str
    differences: tuple[float, ...]
    claims: bool


@dataclass(frozen=True)
class Agreement:
    """Whether our comparison agrees with a published one."""

    published: PublishedDifference
    verdict: Verdict | Literal["no claim"]


@dataclass(frozen=True)
class Comparison:
    """One method against another by one metric, at radii that the rule `kind` has chosen.

    `paired` is None if no seed is shared. `adjusted` is the p-value after Holm's correction, 1
    where there are too few seeds. `agreements` has one entry for each source. `seeds_needed` is for
    a difference of `metric.relevant` at the measured spread, None where either is not known.
    """

    metric: Metric
    kind: Kind
    table: Table
    ours: Cell
    theirs: Cell
    paired: Paired | None
    adjusted: float
    standing: Standing
    agreements: tuple[Agreement, ...]
    seeds_needed: int | None


def picks_of(table: Table, criteria: Criteria = CRITERIA["accuracy"]) -> dict[str, Pick]:
    """Each method at the radius that validation chooses, by name."""
    found = {name: _pick(cells, criteria) for name, cells in table.families().items()}
    return {name: pick for name, pick in found.items() if pick is not None}


def _pick(cells: list[Cell], criteria: Criteria) -> Pick | None:
    with_runs = [cell for cell in cells if cell.n]
    if len(cells) == 1 or any(cell.rho is None for cell in cells):
        return Pick(with_runs[0], 1, 1, "") if len(with_runs) == 1 == len(cells) else None
    by_rho = {cell.rho: cell for cell in with_runs if cell.rho is not None}
    known = _by_the_same_seeds({r: c.values(criteria.selector) for r, c in by_rho.items()})
    rho = chosen(known, criteria.better)
    if rho is None:
        return None
    full = [r for r, values in known.items() if len(values) >= min(LEAST, len(known[rho]))]
    ends = {min(full): "smallest", max(full): "largest"} if len(full) > 1 else {}
    return Pick(by_rho[rho], len(full), len(cells), ends.get(rho, ""))


def _by_the_same_seeds(known: dict[float, dict[int, float]]) -> dict[float, list[float]]:
    """Values of the seeds that all radii with enough seeds share, if these are enough."""
    enough = [set(values) for values in known.values() if len(values) >= LEAST]
    shared = set.intersection(*enough) if enough else set()
    if len(shared) < LEAST:
        return {rho: list(values.values()) for rho, values in known.items()}
    return {
        rho: [value for seed, value in values.items() if seed in shared or len(values) < LEAST]
        for rho, values in known.items()
    }


def one_radius(
    table: Table, contents: Contents, criteria: Criteria = CRITERIA["accuracy"]
) -> OneRadius | None:
    """The radius that validation chooses for SAM, on clean labels where the store has such runs.

    The clean runs may be of another study. None if no run of SAM has a validation number.
    """
    ours = [cell for cell in table.cells if _is_reference(cell)]
    if not ours:
        return None
    methods = {family(cell.method) for cell in ours}
    task = replace(table.task, wrong=0.0)
    same = contents.by_task.get(task, [])
    runs = [t.run for t in same if family(t.run.method) in methods]
    clean = _pick([cell for cell in cells_of(runs, same) if cell.rho is not None], criteria)
    if clean is not None and clean.among > 1 and clean.cell.rho is not None:
        return OneRadius(clean.cell.rho, "clean", clean.cell.n)
    own = _pick(ours, criteria)
    if own is None or own.cell.rho is None or own.among < min(2, own.of):
        return None
    return OneRadius(own.cell.rho, "same" if own.of > 1 else "none", own.cell.n)


def comparisons_of(section: Section, contents: Contents) -> list[Comparison]:
    criteria = section.criteria
    pairs = [
        (metric, t, *pair)
        for t in section.tables
        for of_table in [_pairs(t, contents, criteria)]
        for metric in criteria.metrics
        for pair in of_table
    ]
    found = [paired(a.values(m.name), b.values(m.name)) for m, _, _, a, b in pairs]
    tested = {i: p.p for i, p in enumerate(found) if p is not None and p.n >= LEAST}
    adjusted = holm(tested)
    return [
        _compare(section, *pair, found[i], adjusted.get(i, 1.0)) for i, pair in enumerate(pairs)
    ]


def _compare(
    section: Section,
    metric: Metric,
    table: Table,
    kind: Kind,
    ours: Cell,
    theirs: Cell,
    difference: Paired | None,
    adjusted: float,
) -> Comparison:
    stands = standing(difference, adjusted, metric.better)
    methods = ours.method, theirs.method
    equal = ours.task == theirs.task  # nobody has published the base in more epochs
    said = published_differences(section.study, table.task, *methods, metric) if equal else []
    agreements = tuple(
        Agreement(p, verdict(stands, p.differences[0], metric.better) if p.claims else "no claim")
        for p in said
    )
    needed = _seeds_needed(metric, difference)
    pair = (ours, theirs, difference, adjusted)
    return Comparison(metric, kind, table, *pair, stands, agreements, needed)


def _seeds_needed(metric: Metric, difference: Paired | None) -> int | None:
    if metric.relevant is None or difference is None or not math.isfinite(difference.spread):
        return None
    return seeds_to_decide(metric.relevant, difference.spread)


def _pairs(table: Table, contents: Contents, criteria: Criteria) -> list[tuple[Kind, Cell, Cell]]:
    picks = picks_of(table, criteria)
    cells = [pick.cell for pick in picks.values()]
    references = [cell for cell in cells if _is_reference(cell)]
    bases = [cell for cell in cells if cell.method.name == PLAIN]
    if not references:
        return [("base", c, base) for base in bases[:1] for c in cells if c is not base]
    first = references[0]
    rest = [cell for cell in cells if cell not in (first, *bases)]
    found: list[tuple[Kind, Cell, Cell]] = [("base", first, base) for base in bases]
    found += [
        (_kind(cell, other := _nearest(cell, references), picks), cell, other) for cell in rest
    ]
    known = [pair[1:] for pair in found]
    shared = _pairs_at(table, one_radius(table, contents, criteria))
    return found + [("one", *pair) for pair in shared if pair not in known]


def _kind(ours: Cell, theirs: Cell, picks: Mapping[str, Pick]) -> Kind:
    """Whether validation has chosen the radii of two picks, or the study has no others."""
    if any(pick.of > 1 for pick in picks.values() if pick.cell in (ours, theirs)):
        return "best"
    return "one" if ours.rho == theirs.rho else "given"


def _nearest(cell: Cell, references: list[Cell]) -> Cell:
    """The SAM to compare with: of several the one trained most alike; for another SAM the first."""
    if cell in references:
        return references[0]
    names = [f.name for f in fields(MethodConfig) if f.name not in {"name", "settings"}]

    def apart(other: Cell) -> int:
        return sum(getattr(cell.method, n) != getattr(other.method, n) for n in names)

    return min(references, key=apart)


def _pairs_at(table: Table, one: OneRadius | None) -> list[tuple[Cell, Cell]]:
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


NUMBERS = ("mean", "spread", "n")
Row = Mapping[str, Any]


def published_differences(
    study: Study, task: Task, ours: MethodConfig, theirs: MethodConfig, metric: Metric = ACCURACY
) -> list[PublishedDifference]:
    """What sources say of a difference, for each source that has both methods.

    Their figures match ours if they have the same share of wrong labels, and the same model where
    a source has it.
    """
    found = []
    for known in study.known:
        if metric.published_as not in known["measure"]:
            continue
        matching = _matching(known["figures"], task)
        first, second = _of_method(matching, ours), _of_method(matching, theirs)
        pairs = [(first[key], second[key]) for key in first if key in second]
        if pairs:
            found.append(_published_difference(known["source"], pairs))
    return found


def published_figures(
    study: Study, task: Task, method: MethodConfig, metric: Metric = ACCURACY
) -> dict[tuple[str, str], PublishedFigure]:
    """What sources say of a method, by source and network, which is "" where none is named."""
    by_network: dict[tuple[str, str], list[Row]] = {}
    for known in study.known:
        if metric.published_as in known["measure"]:
            for figure in _of_method(_matching(known["figures"], task), method).values():
                by_network.setdefault((known["source"], figure.get("model", "")), []).append(figure)
    return {key: _published_figure(figures) for key, figures in by_network.items()}


def _published_figure(figures: list[Row]) -> PublishedFigure:
    spread = figures[0].get("spread") if len(figures) == 1 else None
    return PublishedFigure(tuple(float(figure["mean"]) for figure in figures), spread)


def published_snr_range(study: Study) -> tuple[float, float] | None:
    """The range in which a source finds the signal-to-noise ratio."""
    ends = {
        figure["end"]: float(figure["mean"])
        for known in study.known
        for figure in known["figures"]
        if figure.get("end") in {"lower", "upper"}
    }
    return (ends["lower"], ends["upper"]) if len(ends) == 2 else None


def _published_difference(source: str, pairs: list[tuple[Row, Row]]) -> PublishedDifference:
    differences = tuple(round(a["mean"] - b["mean"], 6) for a, b in pairs)
    noise = [math.hypot(a.get("spread", 0.0), b.get("spread", 0.0)) for a, b in pairs]
    large = all(abs(d) > s for d, s in zip(differences, noise, strict=True))
    one_sign = len({d > 0 for d in differences}) == 1
    return PublishedDifference(source, differences, large and one_sign)


def _matching(figures: Iterable[Row], task: Task) -> list[Row]:
    """Figures of the same share of wrong labels, and of our model where there are any."""
    same = [figure for figure in figures if figure.get("wrong", task.wrong) == task.wrong]
    ours = [figure for figure in same if figure.get("model", task.model) == task.model]
    return ours or same


def _of_method(figures: Iterable[Row], method: MethodConfig) -> dict[tuple[Any, ...], Row]:
    """A method's figures by what else they say; one without a setting stands for all values."""
    name = method.base if method.name == PLAIN else method.name
    settings = dict(method.settings)
    found = {}
    for figure in figures:
        rest = {k: v for k, v in figure.items() if k not in {"method", *settings, *NUMBERS}}
        same = all(figure.get(key, value) == value for key, value in settings.items())
        if figure.get("method") == name and same:
            found[tuple(sorted(rest.items()))] = figure
    return found
