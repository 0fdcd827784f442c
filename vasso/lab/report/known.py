"""What have others published of a comparison? Differences of their figures, and whether they claim.

A difference d of two published means with deviations s1 and s2 is a claim if it is larger than they
allow for:

    |d| > sqrt(s1^2 + s2^2)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vasso.lab.methods import PLAIN, Method
from vasso.lab.report.headlines import ACCURACY, Headline
from vasso.lab.study import Study
from vasso.lab.tasks import Task

NUMBERS = ("mean", "spread", "n")


@dataclass(frozen=True)
class Published:
    """What one source says of a difference.

    Attributes:
        source: who.
        differences: one for each of its settings that fit ours.
        claims: whether all are larger than their deviations allow, and of one sign.
    """

    source: str
    differences: tuple[float, ...]
    claims: bool


def published(
    study: Study, task: Task, ours: Method, theirs: Method, headline: Headline = ACCURACY
) -> list[Published]:
    """What sources say of a difference.

    Args:
        study: which holds their figures.
        task: ours; theirs have the same share of wrong labels, and the same model if they have it.
        ours: a method.
        theirs: another.
        headline: of which number.

    Returns:
        One for each source that has both.
    """
    found = []
    for known in study.known:
        if headline.about not in known["measure"]:
            continue
        fitting = _fitting(known["figures"], task)
        first, second = _of_method(fitting, ours), _of_method(fitting, theirs)
        pairs = [(first[key], second[key]) for key in first if key in second]
        if pairs:
            found.append(_said(known["source"], pairs))
    return found


@dataclass(frozen=True)
class Figure:
    """What one source says of a method.

    Attributes:
        source: who.
        means: one for each of its settings that fit ours.
        spread: the deviation, if there is one mean.
        models: of which networks.
    """

    source: str
    means: tuple[float, ...]
    spread: float | None
    models: tuple[str, ...]


def figures(
    study: Study, task: Task, method: Method, headline: Headline = ACCURACY
) -> dict[str, Figure]:
    """What sources say of a method.

    Args:
        study: which holds their figures.
        task: ours.
        method: ours.
        headline: of which number.

    Returns:
        Source -> figure, of those that have it.
    """
    found = {}
    for known in study.known:
        fitting = _fitting(known["figures"], task) if headline.about in known["measure"] else []
        some = list(_of_method(fitting, method).values())
        if some:
            spread = some[0].get("spread") if len(some) == 1 else None
            models = tuple(dict.fromkeys(str(f["model"]) for f in some if "model" in f))
            means = tuple(float(f["mean"]) for f in some)
            found[known["source"]] = Figure(known["source"], means, spread, models)
    return found


def band(study: Study) -> tuple[float, float] | None:
    """The range in which a source finds the signal-to-noise ratio.

    Args:
        study: which holds the figures.

    Returns:
        Its ends; None if nobody has published any.

    Example:
        >>> from vasso.lab import study as studies
        >>> band(studies.load("snr"))
        (0.01, 0.1)
    """
    ends = {
        figure["end"]: float(figure["mean"])
        for known in study.known
        for figure in known["figures"]
        if figure.get("end") in {"lower", "upper"}
    }
    return (ends["lower"], ends["upper"]) if len(ends) == 2 else None


def _said(source: str, pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Published:
    differences = tuple(round(a["mean"] - b["mean"], 6) for a, b in pairs)
    noise = [math.hypot(a.get("spread", 0.0), b.get("spread", 0.0)) for a, b in pairs]
    large = all(abs(d) > s for d, s in zip(differences, noise, strict=True))
    one_sign = len({d > 0 for d in differences}) == 1
    return Published(source, differences, large and one_sign)


def _fitting(figures: Iterable[Mapping[str, Any]], task: Task) -> list[Mapping[str, Any]]:
    """Figures of the same share of wrong labels, and of our model where there are any."""
    same = [figure for figure in figures if figure.get("wrong", task.wrong) == task.wrong]
    ours = [figure for figure in same if figure.get("model", task.model) == task.model]
    return ours or same


def _of_method(
    figures: Iterable[Mapping[str, Any]], method: Method
) -> dict[tuple[Any, ...], Mapping[str, Any]]:
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
