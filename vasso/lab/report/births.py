"""Where do the numbers of a section come from? Commits, versions, hardware, seeds and time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vasso.lab.report.reading import Trained


@dataclass(frozen=True)
class Birth:
    """What the runs of a section have noted of themselves.

    Attributes:
        facts: what -> the values with the number of runs that have them.
        seconds: of training, all runs together.
        cost: gradient evaluations, all runs together.
        seeds: that occur.
        first: when the first run was begun.
        last: when the last one has ended.
    """

    facts: dict[str, list[tuple[str, int]]]
    seconds: float
    cost: float
    seeds: tuple[int, ...]
    first: str
    last: str


NOT_NOTED = "not noted"
"""Runs of earlier versions have not."""
FACTS: dict[str, Callable[[Any], object]] = {
    "commit": lambda c: c.get("commit") or "not under version control",
    "vasso": lambda c: c.get("vasso"),
    "Python": lambda c: c.get("python"),
    "torch": lambda c: c.get("packages", {}).get("torch"),
    "numpy": lambda c: c.get("packages", {}).get("numpy"),
    "Fabric": lambda c: _fabric(c.get("packages", {})),
    "processor": lambda c: c.get("processor"),
    "instructions": lambda c: c.get("instructions", NOT_NOTED),
    "threads of a run": lambda c: c.get("threads", NOT_NOTED),
    "machine": lambda c: f"{c.get('system')} {c.get('machine')}, {c.get('cores')} cores",
    "devices": lambda c: ", ".join(c.get("devices", ())) or "no GPU",
}


def _fabric(packages: Mapping[str, str]) -> str | None:
    """Its version: once it came in one package with all of Lightning."""
    return packages.get("lightning-fabric", packages.get("lightning"))


def birth(finished: Iterable[Trained]) -> Birth | None:
    """What finished runs have noted of themselves.

    Args:
        finished: the runs.

    Returns:
        None if there is no run.
    """
    runs = list(finished)
    if not runs:
        return None
    facts = {name: _counted(str(f(t.certificate)) for t in runs) for name, f in FACTS.items()}
    results = [dict(t.result or {}) for t in runs]
    return Birth(
        facts,
        math.fsum(r["seconds"] for r in results),
        math.fsum(r["cost"] for r in results),
        tuple(sorted({t.run.seed for t in runs})),
        min(t.begun for t in runs),
        max(str(r.get("ended", "")) for r in results),
    )


def _counted(values: Iterable[str]) -> list[tuple[str, int]]:
    return Counter(values).most_common()
