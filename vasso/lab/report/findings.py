"""Findings: everything that the page, the tables and the JSON show, computed and not yet drawn."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vasso.lab.report.compare import (
    Comparison,
    Kind,
    OneRadius,
    Pick,
    comparisons_of,
    one_radius,
    picks_of,
)
from vasso.lab.report.metrics import Metric
from vasso.lab.report.read import Contents, read_store
from vasso.lab.report.sections import Section, Table, sections_of
from vasso.lab.schema import printable
from vasso.lab.statistics import Standing
from vasso.lab.store.run_directory import StoreError
from vasso.lab.store.store import STORE

FIRST: tuple[Kind, ...] = ("best", "given", "base", "one")
"""Comparisons come in this order in a summary."""
MOST = 6
"""Comparisons of a study in a summary."""


@dataclass(frozen=True)
class SectionResult:
    """A section with all its comparisons, and for each table the picks and the one radius."""

    section: Section
    comparisons: tuple[Comparison, ...]
    picks: tuple[Mapping[str, Pick], ...]
    radii: tuple[OneRadius | None, ...]

    @property
    def decided(self) -> bool:
        """Whether any comparison has enough seeds for a test."""
        return any(comparison.standing != "too few seeds" for comparison in self.comparisons)

    def first(self, most: int = MOST) -> list[Comparison]:
        """The first comparisons by the study's first metric, in the order of `FIRST` and tables."""
        found = [c for m in self.section.criteria.metrics[:1] for c in self.of_metric(m)]
        return sorted((c for c in found if c.paired), key=lambda c: FIRST.index(c.kind))[:most]

    def rest(self, most: int = MOST) -> Counter[Standing]:
        """How often each outcome occurs among the comparisons that are not the first."""
        shown = self.first(most)
        return Counter(c.standing for c in self.comparisons if c not in shown)

    def of_table(self, table: Table) -> list[Comparison]:
        return [comparison for comparison in self.comparisons if comparison.table is table]

    def of_metric(self, metric: Metric) -> list[Comparison]:
        return [comparison for comparison in self.comparisons if comparison.metric is metric]

    def radius_compared(self, table: Table) -> OneRadius | None:
        """The one radius, where methods of a table are compared at it."""
        one = self.radii[self.section.tables.index(table)]
        at = {c.ours.rho for c in self.of_table(table) if c.kind == "one"}
        return one if one is not None and one.rho in at else None


@dataclass(frozen=True)
class Findings:
    """What a store shows: a result for each study and scale, those with a test first.

    `store` is the directory in which its runs can be trained again.
    """

    name: str
    contents: Contents
    results: tuple[SectionResult, ...]
    store: str


def findings(root: str | Path, studies: Iterable[str] = ()) -> Findings:
    """Reads a store, or compact copies of one, and compares its runs.

    Studies are chosen by name or as a TOML file. Raises `StoreError` if there is no run.
    """
    contents = read_store(root, whole=False)
    if not contents.runs and not contents.errors and not contents.spreads:
        raise StoreError(f"{root} holds no run: {_remedy(Path(root).expanduser())}")
    if not (found := sections_of(contents, named := list(studies))) and contents.runs:
        raise StoreError(f"{root} holds no run of {', '.join(named)}")
    results = sorted((_result(s, contents) for s in found), key=lambda r: not r.decided)
    name = printable(Path(root).absolute().name)
    return Findings(name, contents, tuple(results), printable(_store(Path(root))))


def _store(root: Path) -> str:
    """The store as the user has named it; nothing is trained in compact copies."""
    full = root.expanduser()
    is_store = (full / "store.json").exists() or any(full.glob("*/run.json"))
    return str(root if is_store else STORE)


def _remedy(root: Path) -> str:
    """What to do where there is no run: a store inside may hold some, as that of `vasso demo`."""
    within = sorted(path.parent for path in root.glob("*/store.json"))
    if within:
        return f"`vasso report {shlex.quote(str(within[0]))}` shows the store within"
    return f"`vasso study label-noise --store {shlex.quote(str(root))}` makes some"


def _result(section: Section, contents: Contents) -> SectionResult:
    criteria = section.criteria
    picks = tuple(picks_of(table, criteria) for table in section.tables)
    radii = tuple(one_radius(table, contents, criteria) for table in section.tables)
    return SectionResult(section, tuple(comparisons_of(section, contents)), picks, radii)
