"""Tables of studies in which one seed chooses the radius of a method, and all seeds compare.

Every radius is trained with the first seed, the chosen one with all. Differences are paired by
seeds, with Student's 95 % interval; outcomes are after Holm's correction over the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from records.markdown_pages import (
    EMPTY,
    describe_cost,
    fill_page,
    short_standing,
    table_lines,
)
from vasso.lab.report.cells import GREEK, Cell, cells_of, variant
from vasso.lab.report.read import read_store
from vasso.lab.report.sections import task_title
from vasso.lab.report.text import format_half_width, format_number
from vasso.lab.statistics import LEAST, Paired, holm, mean, paired, standing
from vasso.lab.studies import study as studies

TWICE = "with 2 times the steps"
OUTCOMES = {
    "ahead": "significantly ahead",
    "behind": "significantly behind",
    "no significant difference": "no significant difference",
    "too few seeds": "too few seeds to say",
}
TUNED = ("rho", "alpha")
"""Settings that validation chooses."""


@dataclass(frozen=True)
class Measure:
    """A number of `cells.NUMBERS` that is compared, and one of validation that chooses."""

    number: str
    selector: str
    better: Literal["more", "less"]
    title: str
    chosen_by: str
    digits: int


LOSS = Measure("test_loss", "validation_loss", "less", "test loss", "validation loss", 3)
ACCURACY = Measure("last", "validation", "more", "test accuracy %", "validation accuracy %", 1)


def cells(study: str, folder: Path) -> list[Cell]:
    """The cells of a study at scale cpu of which a run is finished."""
    wanted = studies.load(study).at("cpu").runs
    return [cell for cell in cells_of(wanted, read_store(folder).runs.values()) if cell.finished]


def tuned(cell: Cell) -> str:
    """The setting that validation chooses, such as "ρ = 0.1"; "" for the base."""
    found = {k: v for k, v in cell.method.settings if k in TUNED}
    return ", ".join(f"{GREEK[name]} = {value}" for name, value in found.items())


def name_of(cell: Cell, shortest: int) -> str:
    """The method without that setting; the base says for how many times the epochs it trains."""
    kept = [pair for pair in cell.method.settings if pair[0] not in TUNED]
    words = [f"{GREEK.get(name, name)}={value}" for name, value in kept]
    times = cell.task.epochs // shortest
    more = [f"with {times} times the steps"] if times > 1 else []
    name = variant(cell.method) if not cell.method.settings else cell.method.name
    return " ".join([name, *words, *more])


@dataclass(frozen=True)
class Family:
    """A method with all settings that were tried."""

    name: str
    cells: tuple[Cell, ...]

    def scores(self, by: Measure) -> dict[str, float]:
        """The number of validation by setting, of the seed that all of them have."""
        seed = min(set.intersection(*(set(cell.seeds) for cell in self.cells)))
        return {tuned(cell): cell.values(by.selector)[seed] for cell in self.cells}

    def best(self, by: Measure) -> Cell:
        """The cell that validation chooses."""
        scores = self.scores(by)
        pick = min if by.better == "less" else max
        chosen = pick(scores, key=lambda name: scores[name])
        return next(cell for cell in self.cells if tuned(cell) == chosen)

    def setting(self, by: Measure) -> str:
        """The chosen setting, and whether it is at an end of those tried."""
        chosen, all_of_them = tuned(self.best(by)), [tuned(cell) for cell in self.cells]
        ends = len(self.cells) > 1 and chosen in (all_of_them[0], all_of_them[-1])
        return f"{chosen or EMPTY}{' (end of those tried)' if ends else ''}"


def families(some: Sequence[Cell]) -> dict[str, Family]:
    """Methods by name, in the order of the study."""
    shortest = min(cell.task.epochs for cell in some)
    found: dict[str, list[Cell]] = {}
    for cell in some:
        found.setdefault(name_of(cell, shortest), []).append(cell)
    return {name: Family(name, tuple(cells)) for name, cells in found.items()}


@dataclass(frozen=True)
class Result:
    """The methods of one task at their chosen settings, and their differences to some rivals."""

    by: Measure
    rivals: tuple[str, ...]
    methods: Mapping[str, Family]

    def compared(self) -> dict[tuple[str, str], Paired]:
        """The differences by method and rival."""
        number = self.by.number
        best = {name: m.best(self.by).values(number) for name, m in self.methods.items()}
        pairs = (
            (name, rival)
            for i, rival in enumerate(self.rivals)
            for name in best
            if rival in best and name not in self.rivals[: i + 1]
        )
        found = {(a, b): paired(best[a], best[b]) for a, b in pairs}
        return {pair: one for pair, one in found.items() if one is not None}

    def standings(self) -> dict[tuple[str, str], str]:
        """The outcomes by method and rival, after Holm's correction."""
        found = self.compared()
        adjusted = holm({pair: one.p for pair, one in found.items() if one.n >= LEAST})
        return {
            pair: standing(one, adjusted.get(pair, 1.0), self.by.better)
            for pair, one in found.items()
        }

    def table(self) -> list[str]:
        """A line for each method at its setting."""
        heads = ("method", "setting", "gradients a step", "gradients", "n", self.by.title)
        return table_lines((*heads, *(f"minus {rival}" for rival in self.rivals)), self._rows())

    def _rows(self) -> Iterator[tuple[str, ...]]:
        compared, stands = self.compared(), self.standings()
        for name, method in self.methods.items():
            cell = method.best(self.by)
            found = mean(list(cell.values(self.by.number).values()))
            value = format_number(found.value, self.by.digits)
            value += f" {format_half_width(found, self.by.digits)}" if found.n >= LEAST else ""
            row = (name, method.setting(self.by), *_cost(cell), f"{cell.n}", value)
            differences = (
                self._difference(compared.get((name, r)), stands.get((name, r), ""))
                for r in self.rivals
            )
            yield (*row, *differences)

    def _difference(self, found: Paired | None, stands: str) -> str:
        if found is None:
            return EMPTY
        value = format_number(found.difference.value, self.by.digits, sign=True)
        if found.n < LEAST:
            return f"{value} (n = {found.n})"
        ends = found.difference.low, found.difference.high
        low, high = (format_number(end, self.by.digits, sign=True) for end in ends)
        return f"{value} ({low} to {high}), {short_standing(stands)}"  # type: ignore[arg-type]

    def grid(self) -> list[str]:
        """Validation by setting, of one seed."""
        heads = ("method", f"{self.by.chosen_by} of one seed, by setting")
        rows = (
            (name, "; ".join(f"{s}: {format_number(v, self.by.digits)}" for s, v in scores.items()))
            for name, scores in ((n, m.scores(self.by)) for n, m in self.methods.items())
            if len(scores) > 1
        )
        return table_lines(heads, rows)

    def sentence(self, rival: str) -> str:
        """Who is significantly ahead of a rival, and who behind."""
        stands = {
            ours: word for (ours, theirs), word in self.standings().items() if theirs == rival
        }
        names = {word: [name for name, w in stands.items() if w == word] for word in OUTCOMES}
        told = (f"{OUTCOMES[word]}: {' / '.join(some)}" for word, some in names.items() if some)
        return f"Against {rival}: {'; '.join(told) or 'no runs'}."


def _cost(cell: Cell) -> tuple[str, str]:
    """Gradients of a step and of a run."""
    results = [trained.result for trained in cell.finished if trained.result is not None]
    a_step = mean([r["cost"] / r["steps"] for r in results]).value
    return f"{a_step:.2f}", f"{mean([r['cost'] for r in results]).value:,.0f}"


def results(every: Sequence[Cell], by: Measure, rivals: Sequence[str]) -> dict[str, Result]:
    """The tasks of a study, longer trainings beside the others, by their wrong labels."""
    found: dict[str, list[Cell]] = {}
    for cell in every:
        found.setdefault(task_title(cell.task, ["wrong"]), []).append(cell)
    return {title: Result(by, tuple(rivals), families(some)) for title, some in found.items()}


def write(
    folder: Path, script: str | None, by: Measure, rivals: Sequence[str], batches: str
) -> None:
    """Writes the README of a record; its page has fields tables, answers, grid and cost."""
    every = cells(folder.name, folder)
    tasks = results(every, by, rivals)
    tables, grids, answers = [], [], []
    for title, result in tasks.items():
        head = [f"## {title.replace(', clean labels', '') if len(tasks) == 1 else title}", ""]
        tables.append("\n".join([*head, *result.table()]))
        grids.append("\n".join([*([f"{title}:", ""] if len(tasks) > 1 else []), *result.grid()]))
        named = f"{title}: " if len(tasks) > 1 else ""
        answers += [f"- {named}{result.sentence(rival)}" for rival in rivals]
    fields = {
        "tables": "\n\n".join(tables),
        "grid": "\n\n".join(grids),
        "answers": "\n".join(answers),
        "cost": describe_cost(every, batches),
    }
    (folder / "README.md").write_text(fill_page(folder, script, **fields))
