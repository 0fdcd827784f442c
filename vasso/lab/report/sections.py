"""Which runs answer which question? Runs of a store by study, scale and task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

from vasso.lab import measures
from vasso.lab import study as studies
from vasso.lab.methods import Method
from vasso.lab.report.cells import Cell, cells_of, key_of, variant
from vasso.lab.report.headlines import EVERYTHING, JUDGINGS, Column, Judging
from vasso.lab.report.reading import Contents, Trained
from vasso.lab.study import Scale, Study
from vasso.lab.tasks import Task

OTHER = "other-runs"
TOLD = ("data", "model", "wrong")
"""Settings of a task that its title tells in words."""


@dataclass(frozen=True)
class Table:
    """All cells of one task.

    Attributes:
        task: what is learnt.
        title: in what it differs from the other tasks of its section.
        cells: one for each method and its settings.
        names: family -> how it is called here.
    """

    task: Task
    title: str
    cells: tuple[Cell, ...]
    names: Mapping[str, str]

    def name(self, cell: Cell) -> str:
        """What the method of a cell is called, without its radius.

        Args:
            cell: one of the table.

        Returns:
            Unlike any other of the table.
        """
        return self.names[family(cell.method)]

    def label(self, cell: Cell) -> str:
        """The same, with its radius.

        Args:
            cell: one of the table.

        Returns:
            Such as "VaSSO θ=0.4, ρ=0.1".
        """
        rho = dict(cell.method.settings).get("rho")
        told = f"{rho:g}" if isinstance(rho, float) else rho
        return self.name(cell) if rho is None else f"{self.name(cell)}, ρ={told}"

    def families(self) -> dict[str, list[Cell]]:
        """Cells that differ in the radius only.

        Returns:
            Name -> cells, in the order of the study.
        """
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(self.name(cell), []).append(cell)
        return found


@dataclass(frozen=True)
class Section:
    """A study at one scale, as far as a store answers it.

    Attributes:
        study: the question.
        scale: its size.
        tables: one for each task.
        otherwise: runs that were measured, but not as this study asks; they count as not measured.
    """

    study: Study
    scale: Scale
    tables: tuple[Table, ...]
    otherwise: tuple[Trained, ...] = ()

    @property
    def judging(self) -> Judging:
        """By which numbers it is judged."""
        return JUDGINGS[self.study.measure]

    @property
    def anchor(self) -> str:
        """A name for links."""
        return f"{self.study.name}-{self.scale.name}" if self.scale.name else self.study.name

    @property
    def cells(self) -> list[Cell]:
        """All cells."""
        return [cell for table in self.tables for cell in table.cells]

    def counts(self) -> dict[str, int]:
        """How many runs are wanted, finished, under way and missing.

        Returns:
            Name -> number; runs of seeds beyond those wanted are `further`.
        """
        wanted = sum(len(cell.wanted) for cell in self.cells)
        further = sum(len(set(cell.seeds) - set(cell.wanted)) for cell in self.cells)
        finished = sum(cell.n for cell in self.cells) - further
        begun = sum(len(cell.under_way) for cell in self.cells)
        rest = wanted - finished - begun
        names = ("wanted", "finished", "under way", "missing", "further")
        return dict(zip(names, (wanted, finished, begun, max(rest, 0), further), strict=True))


def sections_of(contents: Contents, chosen: Iterable[str] = ()) -> list[Section]:
    """The studies of which a store holds runs.

    Args:
        contents: the store.
        chosen: only these studies, by name or as a TOML file; by default all that come with the
            package, and the runs of no study as a section of their own.

    Returns:
        At each scale of which there is a run.
    """
    every = not (named := list(chosen))
    there = list(contents.runs.values())
    loaded = [studies.load(name) for name in named] or shipped()
    judged = [study for study in loaded if study.measure in JUDGINGS]
    found = [_section(s, s.at(scale), there) for s in judged for scale in s.scales]
    begun = [section for section in found if any(c.finished or c.under_way for c in section.cells)]
    shown = [section for section in begun if not every or _has_something_to_say(section, begun)]
    rest = _of_no_study(there, shown) if every else None
    return [*shown, *([rest] if rest else [])]


def _has_something_to_say(section: Section, others: list[Section]) -> bool:
    """Whether runs are measured as the study wants, or belong to it alone."""
    if not section.judging.kept:
        return True
    if any(cell.values(column.name) for cell in section.cells for column in _own(section.judging)):
        return True
    elsewhere = {t.run.id for s in others if not s.judging.kept for t in _runs(s)}
    return any(trained.run.id not in elsewhere for trained in _runs(section))


def _own(judging: Judging) -> list[Column]:
    """Columns that no study of accuracy has."""
    return [c for c in judging.columns if c not in JUDGINGS["accuracy"].columns]


def _runs(section: Section) -> list[Trained]:
    return [one for cell in section.cells for one in (*cell.finished, *cell.under_way)]


@cache
def shipped() -> list[Study]:
    """The studies that come with the package, read once.

    Returns:
        All of them.
    """
    return [studies.load(name) for name in studies.names()]


def _section(study: Study, scale: Scale, there: list[Trained]) -> Section:
    cells = cells_of(scale.runs, there)
    kept = JUDGINGS[study.measure].kept
    if not kept:
        return Section(study, scale, _tables(cells))
    where = f"study {study.name}, {scale.name}, measurement"
    settings = measures.settings_of(study.measure, scale.measurement, scale.runs, where)
    asked = json.loads(json.dumps(asdict(settings)))
    done = [trained for cell in cells for trained in cell.finished if kept in trained.measured]
    otherwise = tuple(t for t in done if t.measured[kept].settings != asked)
    tables = _tables([_without(cell, kept, otherwise) for cell in cells])
    return Section(study, scale, tables, otherwise)


def _without(cell: Cell, kept: str, these: tuple[Trained, ...]) -> Cell:
    """A cell without a measurement of some of its runs."""
    ids = {trained.run.id for trained in these}

    def bared(one: Trained) -> Trained:
        rest = {name: found for name, found in one.measured.items() if name != kept}
        return replace(one, measured=rest) if one.run.id in ids else one

    return replace(cell, finished=tuple(bared(one) for one in cell.finished))


def _of_no_study(there: list[Trained], found: list[Section]) -> Section | None:
    known = {key_of(run) for section in found for run in section.scale.runs}
    rest = [trained for trained in there if key_of(trained.run) not in known]
    if not rest:
        return None
    question = "What else is in this store? Runs of no study above, by their accuracy."
    study = Study(OTHER, "Other runs", question, "", EVERYTHING, (), {})
    runs = tuple(trained.run for trained in rest)
    return _section(study, Scale("", "", (), runs, {}), rest)


def _tables(cells: list[Cell]) -> tuple[Table, ...]:
    by_task: dict[Task, list[Cell]] = {}
    for cell in cells:
        by_task.setdefault(cell.task, []).append(cell)
    apart = [f.name for f in fields(Task) if len({getattr(t, f.name) for t in by_task}) > 1]
    if len({tuple(getattr(t, name) for name in TOLD) for t in by_task}) == len(by_task):
        apart = [name for name in apart if name in TOLD]  # no need for more
    return tuple(
        Table(task, titled(task, apart), tuple(some), _names(some))
        for task, some in by_task.items()
    )


def titled(task: Task, apart: Iterable[str]) -> str:
    """What a task is, in a few words.

    Args:
        task: the task.
        apart: settings to be told beside data, model and wrong labels.

    Returns:
        The words.

    Example:
        >>> titled(Task(wrong=0.75), ["wrong", "epochs"])
        'digits, mlp, 75 % wrong labels, epochs=20'
    """
    words = [task.data, task.model]
    if task.wrong or "wrong" in apart:
        words.append(f"{100 * task.wrong:g} % wrong labels" if task.wrong else "clean labels")
    return ", ".join([*words, *(f"{n}={getattr(task, n)}" for n in apart if n not in TOLD)])


def family(method: Method) -> str:
    """What methods that differ in the radius only have in common.

    Args:
        method: one of them.

    Returns:
        A key.
    """
    table = {name: value for name, value in method.as_table().items() if name != "rho"}
    return json.dumps(table, sort_keys=True)


def _names(cells: Iterable[Cell]) -> dict[str, str]:
    """Names of families; where two are alike, with the settings in which they differ."""
    methods = {family(cell.method): cell.method for cell in cells}
    alike: dict[str, list[Method]] = {}
    for method in methods.values():
        alike.setdefault(variant(method), []).append(method)
    return {key: _told_apart(method, alike[variant(method)]) for key, method in methods.items()}


def _told_apart(method: Method, alike: list[Method]) -> str:
    names = (f.name for f in fields(Method) if f.name not in {"name", "settings"})
    apart = [name for name in names if len({getattr(m, name) for m in alike}) > 1]
    told = (_setting(name, getattr(method, name)) for name in apart)
    return " ".join([variant(method), *(text for text in told if text)])


def _setting(name: str, value: Any) -> str:
    """A setting in a name; of a switch only that it is on."""
    if isinstance(value, bool):
        return name if value else ""
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
