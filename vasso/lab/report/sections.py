"""Sections: the runs of a store by study, scale and task."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

from vasso.lab.experiment.method import PLAIN, MethodConfig, is_auto, not_built
from vasso.lab.experiment.task import Task
from vasso.lab.report.cells import Cell, cells_of, variant, without_radius
from vasso.lab.report.metrics import CRITERIA, EVERYTHING, Column, Criteria
from vasso.lab.report.read import Contents, TrainedRun
from vasso.lab.schema import assignments
from vasso.lab.store.run_directory import StoreError
from vasso.lab.store.store import CHANGES
from vasso.lab.studies import measurement_settings, names
from vasso.lab.studies import study as studies
from vasso.lab.studies.study import Scale, Study

OTHER = "other-runs"
IN_TITLE = ("data", "model", "wrong")
"""Settings of a task that its title always states in words."""


@dataclass(frozen=True)
class Table:
    """All cells of one task, and those of its base alone in more epochs.

    The title says in what the task differs from the others of its section. `names` are the names
    of methods by `family`.
    """

    task: Task
    title: str
    cells: tuple[Cell, ...]
    names: Mapping[str, str]

    def name(self, cell: Cell) -> str:
        """The method of a cell without its radius, unlike any other name in the table."""
        name = self.names[family(cell.method)]
        times = cell.task.epochs / self.task.epochs
        return name if times == 1 else f"{name}, {times:g} times the epochs"

    def label(self, cell: Cell) -> str:
        """The method of a cell with its radius, such as "VaSSO θ=0.4, ρ=0.1"."""
        rho = dict(cell.method.settings).get("rho")
        text = f"{rho:g}" if isinstance(rho, float) else rho
        return self.name(cell) if rho is None or is_auto(rho) else f"{self.name(cell)}, ρ={text}"

    def families(self) -> dict[str, list[Cell]]:
        """Cells that differ only in the radius, by name, in the order of the study."""
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(self.name(cell), []).append(cell)
        return found

    def columns(self, criteria: Criteria) -> list[Column]:
        """The columns for which at least one run has a number."""
        return [c for c in criteria.columns if any(cell.values(c.name) for cell in self.cells)]


@dataclass(frozen=True)
class Section:
    """A study at one scale: a table for each task.

    Runs in `other_settings` were measured, but not as this study asks: they count as not measured.
    `changed` are the settings that all runs have in place of the study's, as name=value.
    """

    study: Study
    scale: Scale
    tables: tuple[Table, ...]
    other_settings: tuple[TrainedRun, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def criteria(self) -> Criteria:
        return CRITERIA[self.study.measure]

    @property
    def anchor(self) -> str:
        words = (self.study.name, self.scale.name, *self.changed)
        return re.sub(r"[^\w.-]+", "-", "-".join(word for word in words if word))

    @property
    def cells(self) -> list[Cell]:
        return [cell for table in self.tables for cell in table.cells]

    def counts(self) -> dict[str, int]:
        """How many runs are wanted, finished, under way, missing, and of further seeds."""
        wanted = sum(len(cell.wanted) for cell in self.cells)
        further = sum(len(set(cell.seeds) - set(cell.wanted)) for cell in self.cells)
        finished = sum(cell.n for cell in self.cells) - further
        begun = sum(len(cell.under_way) for cell in self.cells)
        rest = wanted - finished - begun
        names = ("wanted", "finished", "under way", "missing", "further")
        return dict(zip(names, (wanted, finished, begun, max(rest, 0), further), strict=True))

    def probes(self) -> Iterator[tuple[str, TrainedRun]]:
        """Label of the method and run, for runs that were probed."""
        for table in self.tables:
            for cell in table.cells:
                for trained in cell.finished:
                    if trained.probe is not None:
                        task = f" ({table.title})" if len(self.tables) > 1 else ""
                        yield table.label(cell) + task, trained


def sections_of(contents: Contents, names: Iterable[str] = ()) -> list[Section]:
    """The studies of which a store holds runs, at each scale.

    Studies are chosen by name or as a TOML file; by default all shipped studies, and a section of
    runs that belong to none.
    """
    every = not (named := list(names))
    there = list(contents.runs.values())
    loaded = [studies.load(name) for name in named] or shipped()
    compared = [study for study in loaded if study.measure in CRITERIA]
    found = [_section(s, s.at(scale), there) for s in compared for scale in s.scales]
    found += [_changed(s, c, there) for s in compared for c in contents.changes if _has(s, c)]
    begun = [section for section in found if any(c.finished or c.under_way for c in section.cells)]
    shown = [section for section in begun if not every or _adds_something(section, begun)]
    rest = _of_no_study(there, shown) if every else None
    return [*shown, *([rest] if rest else [])]


def _has(study: Study, change: Mapping[str, Any]) -> bool:
    return study.name == change["study"] and change["scale"] in study.scales


def _changed(study: Study, change: Mapping[str, Any], there: list[TrainedRun]) -> Section:
    """The section of a study with other settings, which its title tells."""
    scale = study.at(change["scale"])
    words = tuple(change["set"])
    try:
        runs = tuple(studies.changed(scale.runs, assignments(words)))
    except ValueError as error:
        message = (
            f"{CHANGES} has {study.name} with {' '.join(words)}, which is refused now ({error})"
        )
        raise StoreError(f"{message}: remove that line") from error
    marked = replace(study, title=f"{study.title}, changed: {', '.join(words)}")
    return replace(_section(marked, replace(scale, runs=runs), there), changed=words)


def _adds_something(section: Section, others: list[Section]) -> bool:
    """Whether runs are measured as the study wants, or belong to it alone."""
    if not section.criteria.measurement:
        return True
    of_accuracy = CRITERIA["accuracy"].columns
    own = [column for column in section.criteria.columns if column not in of_accuracy]
    if any(cell.values(column.name) for cell in section.cells for column in own):
        return True
    elsewhere = {t.run.id for s in others if not s.criteria.measurement for t in _runs(s)}
    return any(trained.run.id not in elsewhere for trained in _runs(section))


def _runs(section: Section) -> list[TrainedRun]:
    return [one for cell in section.cells for one in (*cell.finished, *cell.under_way)]


@cache
def shipped() -> list[Study]:
    """The studies that come with the package, read once."""
    with not_built():
        return [studies.load(name) for name in names()]


def _section(study: Study, scale: Scale, there: list[TrainedRun]) -> Section:
    cells = cells_of(scale.runs, there)
    name = CRITERIA[study.measure].measurement
    if not name:
        return Section(study, scale, _tables(cells))
    where = f"study {study.name}, {scale.name}, measurement"
    settings = measurement_settings.parse_settings(
        study.measure, scale.measurement, scale.runs, where
    )
    asked = json.loads(json.dumps(asdict(settings)))
    done = [trained for cell in cells for trained in cell.finished if name in trained.measured]
    other = tuple(t for t in done if t.measured[name].settings != asked)
    tables = _tables([_without(cell, name, other) for cell in cells])
    return Section(study, scale, tables, other)


def _without(cell: Cell, name: str, runs: tuple[TrainedRun, ...]) -> Cell:
    """A cell without a measurement of some of its runs."""
    ids = {trained.run.id for trained in runs}

    def stripped(one: TrainedRun) -> TrainedRun:
        rest = {key: found for key, found in one.measured.items() if key != name}
        return replace(one, measured=rest) if one.run.id in ids else one

    return replace(cell, finished=tuple(stripped(one) for one in cell.finished))


def _of_no_study(there: list[TrainedRun], found: list[Section]) -> Section | None:
    known = {run.cell_key for section in found for run in section.scale.runs}
    rest = [trained for trained in there if trained.run.cell_key not in known]
    if not rest:
        return None
    question = "Runs of this store that belong to no study above, compared by accuracy."
    study = Study(OTHER, "Other runs", question, "", EVERYTHING, (), {})
    runs = tuple(trained.run for trained in rest)
    return _section(study, Scale("", "", (), runs, {}), rest)


def _tables(cells: list[Cell]) -> tuple[Table, ...]:
    by_task: dict[Task, list[Cell]] = {}
    for cell in cells:
        by_task.setdefault(cell.task, []).append(cell)
    longer = _with_more_epochs(by_task)
    apart = [f.name for f in fields(Task) if len({getattr(t, f.name) for t in by_task}) > 1]
    if len({tuple(getattr(t, name) for name in IN_TITLE) for t in by_task}) == len(by_task):
        apart = [name for name in apart if name in IN_TITLE]  # these suffice
    return tuple(
        Table(task, task_title(task, apart), (*some, *more), _names(some) | _names(more))
        for task, some in by_task.items()
        for more in [longer.get(task, [])]
    )


def _with_more_epochs(by_task: dict[Task, list[Cell]]) -> dict[Task, list[Cell]]:
    """Takes tasks of the base alone that are another in more epochs; those cells by the other."""
    found: dict[Task, list[Cell]] = {}
    for task, cells in list(by_task.items()):
        shorter = (t for t in by_task if t.epochs < task.epochs)
        same = next((t for t in shorter if replace(t, epochs=task.epochs) == task), None)
        if same is not None and all(cell.method.name == PLAIN for cell in cells):
            found.setdefault(same, []).extend(by_task.pop(task))
    return found


def task_title(task: Task, apart: Iterable[str]) -> str:
    """Data, model and wrong labels of a task, and the settings that tell it apart from others."""
    parts = [task.data, task.model]
    if task.wrong or "wrong" in apart:
        parts.append(f"{100 * task.wrong:g} % wrong labels" if task.wrong else "clean labels")
    return ", ".join([*parts, *(f"{n}={getattr(task, n)}" for n in apart if n not in IN_TITLE)])


def family(method: MethodConfig) -> str:
    """A key that methods share if they differ only in the radius."""
    return json.dumps(without_radius(method.as_table()), sort_keys=True)


def _names(cells: Iterable[Cell]) -> dict[str, str]:
    """Names of families; equal names get the settings in which the methods differ."""
    methods = {family(cell.method): cell.method for cell in cells}
    alike: dict[str, list[MethodConfig]] = {}
    for method in methods.values():
        alike.setdefault(variant(method), []).append(method)
    return {key: _unique_name(method, alike[variant(method)]) for key, method in methods.items()}


def _unique_name(method: MethodConfig, alike: list[MethodConfig]) -> str:
    names = (f.name for f in fields(MethodConfig) if f.name not in {"name", "settings"})
    apart = [name for name in names if len({getattr(m, name) for m in alike}) > 1]
    settings = (_setting(name, getattr(method, name)) for name in apart)
    return " ".join([variant(method), *(text for text in settings if text)])


def _setting(name: str, value: Any) -> str:
    """A setting within a name; a switch that is off is left out."""
    if isinstance(value, bool):
        return name if value else ""
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
