"""What does a store say? Everything that a page or a table shows, computed and not yet drawn."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vasso.lab.folder import StoreError
from vasso.lab.place import STORE
from vasso.lab.report.comparing import (
    Comparison,
    Kind,
    OneRadius,
    Pick,
    comparisons_of,
    one_radius,
    picks_of,
)
from vasso.lab.report.headlines import Headline
from vasso.lab.report.reading import Contents, read
from vasso.lab.report.sections import Section, Table, sections_of
from vasso.lab.statistics import Standing


@dataclass(frozen=True)
class Answered:
    """A section with its comparisons.

    Attributes:
        section: a study at one scale.
        comparisons: all of them, with verdicts.
        picks: for each table, each method at its best radius.
        radii: for each table, the one radius for all, if there is one.
    """

    section: Section
    comparisons: tuple[Comparison, ...]
    picks: tuple[Mapping[str, Pick], ...]
    radii: tuple[OneRadius | None, ...]

    @property
    def decided(self) -> bool:
        """Whether any comparison has seeds enough for a verdict."""
        return any(comparison.standing != "no verdict" for comparison in self.comparisons)

    def tally(self) -> dict[Kind, Counter[Standing]]:
        """How often each verdict was given.

        Returns:
            Rule by which radii were chosen -> verdict -> comparisons.
        """
        found: dict[Kind, Counter[Standing]] = {}
        for comparison in self.comparisons:
            found.setdefault(comparison.kind, Counter())[comparison.standing] += 1
        return found

    def of(self, table: Table) -> list[Comparison]:
        """The comparisons of one table.

        Args:
            table: one of the section.

        Returns:
            In order.
        """
        return [comparison for comparison in self.comparisons if comparison.table is table]

    def one_for_all(self, table: Table) -> OneRadius | None:
        """The one radius, where methods of a table are compared at it.

        Args:
            table: one of the section.

        Returns:
            None if nothing is compared there.
        """
        one = self.radii[self.section.tables.index(table)]
        at = {comparison.ours.rho for comparison in self.of(table) if comparison.kind == "one"}
        return one if one is not None and one.rho in at else None

    def by(self, headline: Headline) -> list[Comparison]:
        """The comparisons by one number.

        Args:
            headline: the number.

        Returns:
            In order.
        """
        return [comparison for comparison in self.comparisons if comparison.headline is headline]


@dataclass(frozen=True)
class Findings:
    """What a store says.

    Attributes:
        name: of the store.
        contents: all that was read.
        answered: one for each study and scale of which there is a run; those with a verdict first.
        place: the store that its runs can be trained in again.
    """

    name: str
    contents: Contents
    answered: tuple[Answered, ...]
    place: str


def findings(root: str | Path, studies: Iterable[str] = ()) -> Findings:
    """Reads a store and answers what it can answer.

    Args:
        root: the store, or compact copies of one.
        studies: only these, by name or as a TOML file.

    Returns:
        The findings; an error if there is no such store or study.

    Raises:
        StoreError: there is no run in it.
    """
    contents = read(root)
    if not contents.runs and not contents.troubles and not contents.spreads:
        raise StoreError(f"{root} holds no run: {_instead(Path(root).expanduser())}")
    if not (found := sections_of(contents, named := list(studies))) and contents.runs:
        raise StoreError(f"{root} holds no run of {', '.join(named)}")
    answered = sorted((_answered(s, contents) for s in found), key=lambda a: not a.decided)
    return Findings(Path(root).absolute().name, contents, tuple(answered), _place(Path(root)))


def _place(root: Path) -> str:
    """A store as the user has named it; compact copies are none, and nothing is trained there."""
    full = root.expanduser()
    is_store = (full / "store.json").exists() or any(full.glob("*/run.json"))
    return str(root if is_store else STORE)


def _instead(root: Path) -> str:
    """What to do where there is no run: a store within may hold some, as that of `vasso demo`."""
    within = sorted(path.parent for path in root.glob("*/store.json"))
    if within:
        return f"`vasso report {shlex.quote(str(within[0]))}` shows the store within"
    return f"`vasso study label-noise --store {shlex.quote(str(root))}` makes some"


def _answered(section: Section, contents: Contents) -> Answered:
    judging = section.judging
    picks = tuple(picks_of(table, judging) for table in section.tables)
    radii = tuple(one_radius(table, contents, judging) for table in section.tables)
    return Answered(section, tuple(comparisons_of(section, contents)), picks, radii)
