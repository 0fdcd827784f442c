"""Writes README.md: page.md with the tables of the study frontier, and of what was tried besides.

    vasso study frontier --store runs --jobs 2      # or a part of it: --only digits
    vasso export runs records --study frontier
    python records/frontier/trials.py radii 0 1 2
    python records/frontier/trials.py thetas 0 1 2
    python records/frontier/page.py

Everything is read from the lines of `runs.jsonl` and `trials.jsonl`. rho is chosen on validation
images, the tables show test images at the last epoch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `records`

from records.markdown_pages import EMPTY, describe_cost, fill_page, table_lines
from vasso.lab.report.cells import Cell, cells_of, variant
from vasso.lab.report.read import read_store
from vasso.lab.report.sections import task_title
from vasso.lab.report.text import format_half_width, format_number
from vasso.lab.statistics import chosen, mean, paired
from vasso.lab.studies import study as studies

HERE = Path(__file__).parent
HEADS = ("method", "rho", "gradients a step", "n", "test accuracy %", "less SAM at its rho")
SAM = "SAM"
WRONG = (0.75, 0.5, 0.0)


def cells() -> list[Cell]:
    """The cells of the study of which a run is finished."""
    wanted = studies.load("frontier").at("cpu").runs
    return [cell for cell in cells_of(wanted, read_store(HERE).runs.values()) if cell.finished]


def by_task(every: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells by data, model and wrong labels; longer trainings beside the others."""
    found: dict[str, list[Cell]] = {}
    for cell in every:
        found.setdefault(task_title(cell.task, ["wrong"]), []).append(cell)
    return found


def name_of(cell: Cell) -> str:
    """The method, and what differs in its budget."""
    task = cell.task
    return f"{variant(cell.method)}, {task.epochs} epochs of batches of {task.batch}"


def best_of(family: Sequence[Cell]) -> Cell:
    """The cell whose radius is best in validation, of those with as many seeds as any."""
    if len(family) == 1:
        return family[0]
    most = max(len(cell.seeds) for cell in family)
    tried = {cell.rho: cell for cell in family if len(cell.seeds) == most}
    scores = {rho: list(c.values("validation").values()) for rho, c in tried.items()}
    return tried[chosen(scores)]


def families(some: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Cells that differ in the radius alone, by name."""
    found: dict[str, list[Cell]] = {}
    for cell in some:
        found.setdefault(name_of(cell), []).append(cell)
    return found


def rho_of(cell: Cell, family: Sequence[Cell]) -> str:
    """The radius, and whether it is at an end of those tried."""
    if cell.rho is None:
        return EMPTY
    tried = sorted(other.rho for other in family if other.rho is not None)
    at_end = len(tried) > 1 and cell.rho in (tried[0], tried[-1])
    return f"{cell.rho:g}{' (end of those tried)' if at_end else ''}"


def gradients(cell: Cell) -> str:
    """What a step costs, held-out images included."""
    results = [trained.result for trained in cell.finished if trained.result is not None]
    return f"{mean([found['cost'] / found['steps'] for found in results]).value:.2f}"


def accuracy(values: Mapping[int, float]) -> str:
    found = mean(list(values.values()))
    return f"{format_number(found.value, 1)} {format_half_width(found, 1)}".rstrip()


def less_sam(cell: Cell, sam: Cell | None) -> str:
    """The difference over shared seeds, with its interval."""
    compared = paired(cell.values("last"), sam.values("last")) if sam not in (None, cell) else None
    if compared is None:
        return EMPTY
    found = compared.difference
    if compared.n < 2:
        return f"{found.value:+.1f} (n = 1)"
    return f"{found.value:+.1f} ({found.low:+.1f} to {found.high:+.1f})"


def lines(some: Sequence[Cell]) -> Iterator[tuple[str, ...]]:
    """A line for each method of a task, at its own radius."""
    best = {name: (best_of(family), family) for name, family in families(some).items()}
    sam = next((cell for cell, _ in best.values() if variant(cell.method) == SAM), None)
    for name, (cell, family) in best.items():
        values = cell.values("last")
        told = accuracy(values), less_sam(cell, sam)
        yield name, rho_of(cell, family), gradients(cell), str(len(values)), *told


def tables(every: Sequence[Cell]) -> Iterator[str]:
    """A table for each task."""
    for title, some in by_task(every).items():
        yield "\n".join([f"## {title}", "", *table_lines(HEADS, lines(some))])


Trials = dict[tuple[str, Any], dict[float, dict[int, float]]]
"""(rule, setting) -> wrong labels -> seed -> test accuracy."""


def trials(kind: str) -> Trials:
    """What was tried besides, by rule and setting."""
    found: Trials = {}
    for run in lines_of(kind):
        of_rule = found.setdefault((run["rule"], run["at"]), {})
        of_rule.setdefault(run["wrong"], {})[run["seed"]] = run["test"]
    return found


def lines_of(kind: str) -> list[dict[str, Any]]:
    """The lines of `trials.jsonl` of a kind."""
    every = map(json.loads, (HERE / "trials.jsonl").read_text().splitlines())
    return [run for run in every if run["kind"] == kind]


def trial(values: Mapping[int, float] | None) -> str:
    """A mean over seeds, and their number: too few for an interval."""
    return f"{mean(list(values.values())).value:.1f} ({len(values)})" if values else EMPTY


def watched() -> Iterator[tuple[str, ...]]:
    """R over G at a fixed rho, after 8, 20 and 40 epochs."""
    found: dict[float, dict[float, list[list[float]]]] = {}
    for run in lines_of("radii"):
        if ratios := run.get("R over G") if "watched" in run["rule"] else None:
            found.setdefault(run["at"], {}).setdefault(run["wrong"], []).append(ratios)
    for rho, of in found.items():
        means = ([mean(list(at)).value for at in zip(*of[wrong], strict=True)] for wrong in WRONG)
        yield f"{rho:g}", *(", ".join(f"{value:.1f}" for value in values) for values in means)


def trial_tables() -> dict[str, str]:
    """Rules for rho over wrong labels, and theta over rho; n in brackets."""
    by_rule = (
        (*key, *(trial(of.get(wrong)) for wrong in WRONG)) for key, of in trials("radii").items()
    )
    heads = ("rule", "rho or kappa", *(f"{100 * wrong:.0f} % wrong" for wrong in WRONG))
    by_theta = trials("thetas")
    columns = list(dict.fromkeys(at for _, at in by_theta))
    rows = dict.fromkeys(rule for rule, _ in by_theta)
    table = (
        (rule, *(trial(by_theta.get((rule, at), {}).get(0.5)) for at in columns)) for rule in rows
    )
    return {
        "radii": "\n".join(table_lines(heads, by_rule)),
        "watched": "\n".join(table_lines(heads[1:], watched())),
        "thetas": "\n".join(table_lines(("theta", *(f"rho {at}" for at in columns)), table)),
    }


def main() -> None:
    every = cells()
    if not every:
        sys.exit(f"{HERE} has no runs of the study frontier: run the first two commands")
    asked = len(studies.load("frontier").at("cpu").runs)
    done = sum(len(cell.finished) for cell in every)
    fields = {"tables": "\n\n".join(tables(every)), "done": f"{done}", "asked": f"{asked:,}"}
    cost, fields = describe_cost(every, "their batches"), fields | trial_tables()
    (HERE / "README.md").write_text(fill_page(HERE, __doc__, cost=cost, **fields))


if __name__ == "__main__":
    main()
