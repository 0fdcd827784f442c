"""What does a store say? Everything that a page or a table shows, computed and not yet drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vasso.lab.report.comparing import (
    Comparison,
    OneRadius,
    Pick,
    comparisons_of,
    one_radius,
    picks_of,
)
from vasso.lab.report.headlines import Headline
from vasso.lab.report.reading import Contents, read
from vasso.lab.report.sections import Section, Table, sections_of
from vasso.lab.store import StoreError


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

    def of(self, table: Table) -> list[Comparison]:
        """The comparisons of one table.

        Args:
            table: one of the section.

        Returns:
            In order.
        """
        return [comparison for comparison in self.comparisons if comparison.table is table]

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
        answered: one for each study and scale of which there is a run.
    """

    name: str
    contents: Contents
    answered: tuple[Answered, ...]


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
        raise StoreError(
            f"{root} holds no run: `vasso study label-noise --store {root}` makes some"
        )
    if not (found := sections_of(contents, named := list(studies))) and contents.runs:
        raise StoreError(f"{root} holds no run of {', '.join(named)}")
    answered = tuple(_answered(s, contents) for s in found)
    return Findings(Path(root).absolute().name, contents, answered)


def _answered(section: Section, contents: Contents) -> Answered:
    judging = section.judging
    picks = tuple(picks_of(table, judging) for table in section.tables)
    radii = tuple(one_radius(table, contents, judging) for table in section.tables)
    return Answered(section, tuple(comparisons_of(section, contents)), picks, radii)
