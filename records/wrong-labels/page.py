"""Writes README.md (page.md with numbers), the figures, and the result of the project's README.

    vasso study radius --store runs --jobs 2
    vasso study radius-mlp --store runs --jobs 2
    vasso study label-noise --store runs --jobs 2
    vasso export runs records
    python records/wrong-labels/page.py

Everything is read from the lines of `records/*/runs.jsonl`; words that depend on numbers are chosen
by the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vasso.diagnostics.figures.style import canvas, save, styled
from vasso.lab.methods import PLAIN
from vasso.lab.report.cells import Cell
from vasso.lab.report.charts import Mark, draw_series, look_of, round_numbers
from vasso.lab.report.comparing import Comparison, OneRadius
from vasso.lab.report.findings import Answered, Findings, findings
from vasso.lab.report.hover import Tips
from vasso.lab.report.sections import Table
from vasso.lab.report.words import duration, half_width, interval, number, p_value, seeds
from vasso.lab.statistics import LEAST, paired

HERE = Path(__file__).parent
RECORDS = HERE.parent
STUDIES = {"radius": "ResNet-8, CIFAR-10", "radius-mlp": "MLP, Fashion-MNIST"}
WRONG = 0.75
BEGIN, END = "<!-- result: written by records/wrong-labels/page.py -->", "<!-- end of result -->"


# -- what was found --------------------------------------------------------------------------------


def tables(found: Findings) -> dict[str, tuple[Answered, Table]]:
    """Study -> its answers and its table of wrong labels."""
    return {
        answered.section.study.name: (answered, table)
        for answered in found.answered
        if answered.section.study.name in STUDIES and answered.section.scale.name == "cpu"
        for table in answered.section.tables
        if table.task.wrong == WRONG
    }


def picks(answered: Answered, table: Table) -> dict[str, Cell]:
    """Each method at the radius that validation images choose for it."""
    return {name: pick.cell for name, pick in answered.picks[_place(answered, table)].items()}


def one_radius(answered: Answered, table: Table) -> OneRadius | None:
    """The one radius for all."""
    return answered.radii[_place(answered, table)]


def _place(answered: Answered, table: Table) -> int:
    return answered.section.tables.index(table)


def row(cells: Iterable[Any]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def told(cell: Cell, name: str = "last", digits: int = 1) -> str:
    """A number of a cell with its half-width; one run has none."""
    found = cell.estimate(name)
    if found is None:
        return "–"
    return f"{number(found.value, digits)} {half_width(found, digits)}".rstrip()


# -- each at its best radius -----------------------------------------------------------------------


def best_table(answered: Answered, table: Table) -> Iterator[str]:
    """Every method at its best radius, and its difference to SAM."""
    heads = ("method", "ρ", "n", "test accuracy %", "wrong labels learnt %", "less SAM's, points")
    yield row((*heads, "rise on its batch", "carried to others", "gradients a step"))
    yield row(["---"] * 9)
    for name, cell in picks(answered, table).items():
        against = _compared(answered, table, "best", cell)
        yield row((
            name,
            "–" if cell.rho is None else f"{cell.rho:g}",
            cell.n,
            told(cell),
            told(cell, "wrong"),
            "–" if against is None else difference(against),
            told(cell, "rise", 3),
            told(cell, "carried", 2),
            2 if cell.method.name != PLAIN else 1,
        ))  # fmt: skip


def _compared(answered: Answered, table: Table, kind: str, cell: Cell) -> Comparison | None:
    mine = (c for c in answered.of(table) if c.kind == kind and c.ours is cell)
    return next(mine, None)


def difference(c: Comparison) -> str:
    """A difference, its interval and what can be said of it."""
    if c.paired is None:
        return "–"
    value = number(c.paired.difference.value, 1, sign=True)
    if c.paired.n < LEAST:
        return f"{value} ({seeds(c.paired.n)})"
    ends = c.paired.difference.low, c.paired.difference.high
    low, high = (number(end, 1, sign=True) for end in ends)
    return f"{value} ({low} to {high}), {c.standing}"


# -- the curve over the radius ---------------------------------------------------------------------


def radius_table(table: Table, of: str = "last", digits: int = 1) -> Iterator[str]:
    """A number of every method and radius, with n."""
    radii = sorted({cell.rho for cell in table.cells if cell.rho is not None and cell.n})
    yield row(["ρ", *(f"{rho:g}" for rho in radii)])
    yield row(["---"] * (1 + len(radii)))
    for name, cells in table.families().items():
        by_rho = {cell.rho: cell for cell in cells if cell.n}
        if None in by_rho:
            continue
        there = (by_rho.get(rho) for rho in radii)
        yield row([name, *("–" if c is None else f"{told(c, of, digits)}" for c in there)])


@styled
def over_radius(found: dict[str, tuple[Answered, Table]]) -> Figure:
    """Test accuracy over the radius and over what it does, a row for each task."""
    figure = canvas("wide", 3.2, rows=len(found), columns=2)
    for i, (name, (_, table)) in enumerate(found.items()):
        left, right = figure.axes[2 * i : 2 * i + 2]
        for axes, over in ((left, "rho"), (right, "rise")):
            _draw(axes, table, over)
        left.set_ylabel("test accuracy, %")
        left.set_title(f"{STUDIES[name]}, 75 % of the labels wrong")
        right.set_title("the same over what ρ does")
        left.set_xlabel("radius ρ")
        right.set_xlabel("rise of the loss on the own batch, first epoch")
    named = [axes.get_legend_handles_labels() for axes in figure.axes]
    entries = {
        label: handle
        for handles, labels in named
        for handle, label in zip(handles, labels, strict=True)
    }
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=len(entries))
    return figure


def _draw(axes: Any, table: Table, over: str) -> None:
    """One panel; SGD, which has no radius, is a line across the left one."""
    every = []
    for name, cells in table.families().items():
        shown = _marks(cells, over)
        every += [mark.x for mark in shown]
        if shown:
            draw_series(axes, name, look_of(cells[0]), shown, Tips())
        elif over == "rho" and cells[0].method.name == PLAIN and cells[0].n:
            level = cells[0].estimate("last")
            style = {"color": look_of(cells[0]).colour, "linestyle": (0, (5, 2)), "label": name}
            axes.axhline(level.value if level else 0.0, **style)
    axes.set_xscale("log")
    ticks = round_numbers(min(every), max(every))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))


def _marks(cells: Sequence[Cell], over: str) -> list[Mark]:
    found = []
    for cell in sorted(cells, key=lambda cell: cell.rho or 0.0):
        y, x = cell.estimate("last"), cell.estimate("rise")
        if y is not None and x is not None and cell.rho is not None:
            found.append(Mark(cell.rho if over == "rho" else x.value, y, ""))
    return found


# -- the answers -----------------------------------------------------------------------------------


def first_answer(answered: Answered, table: Table) -> str:
    """One radius for all: does accuracy rise from SAM over theta 0.9, 0.4, 0.2?"""
    one = one_radius(answered, table)
    if one is None:
        return "there are not enough runs yet to choose one radius."
    labels = "clean labels" if one.labels == "clean" else "these labels (no clean runs yet)"
    there = {
        name: c
        for name, cells in table.families().items()
        for c in cells
        if c.rho == one.rho and c.n and (name == "SAM" or name[-3:] in {"0.9", "0.4", "0.2"})
    }
    values = "; ".join(f"{name} {told(c)} (n = {c.n})" for name, c in there.items())
    return (
        f"at ρ = {one.rho:g}, SAM's best on {labels} (n = {one.n}): {values}. "
        f"{_trend(list(there.values()))} {_last_against_sam(answered, table, there)}"
    )


def _trend(cells: list[Cell]) -> str:
    found = [cell.estimate("last") for cell in cells]
    means = [estimate.value for estimate in found if estimate is not None]
    if len(means) < 3:
        return "Some thetas are missing."
    if means == sorted(means):
        return "The means rise in the paper's order."
    return "The means fall." if means == sorted(means, reverse=True) else "There is no one order."


def _last_against_sam(answered: Answered, table: Table, there: dict[str, Cell]) -> str:
    cell = next((c for name, c in there.items() if name.endswith("0.2")), None)
    sam = there.get("SAM")
    if (
        cell is None
        or sam is None
        or (c := paired(cell.values("last"), sam.values("last"))) is None
    ):
        return ""
    tested = _compared(answered, table, "one", cell)
    holm = "" if tested is None else f", p after Holm {p_value(tested.adjusted)}"
    change, ends = number(c.difference.value, 1, sign=True), interval(c.difference, 1, sign=True)
    return f"θ = 0.2 less SAM: {change} points ({ends}, n = {c.n}{holm})."


def second_answer(answered: Answered, table: Table) -> str:
    """Each at its best radius: does the order survive?"""
    parts, stands = [], set()
    for name, cell in picks(answered, table).items():
        c = _compared(answered, table, "best", cell)
        if c is not None and c.paired is not None:
            parts.append(f"{name} at ρ = {cell.rho:g}: {difference(c)} (n = {c.paired.n})")
            stands.add(c.standing)
    if not parts:
        return "there are not enough runs yet."
    verdict = {
        frozenset({"cannot tell"}): "No difference can be told",
        frozenset({"no verdict"}): "Too few seeds for a verdict",
    }.get(frozenset(stands), "Verdicts differ")
    return f"{verdict}; less SAM at its own best ρ, in points: {'; '.join(parts)}."


def third_answer(answered: Answered, table: Table) -> str:
    """Does the adversary carry more of its rise to other batches than SAM's?"""
    best = picks(answered, table)
    sam = best.get("SAM")
    if sam is None:
        return "there are not enough runs yet."
    parts = [f"SAM {told(sam, 'carried', 2)} of a rise of {told(sam, 'rise', 3)}"]
    for name, cell in best.items():
        c = paired(cell.values("carried"), sam.values("carried"))
        if name.startswith("VaSSO") and c is not None:
            more, ends = (
                number(c.difference.value, 2, sign=True),
                interval(c.difference, 2, sign=True),
            )
            share = f"{name} {told(cell, 'carried', 2)} of {told(cell, 'rise', 3)}"
            parts.append(f"{share} ({more}, {ends}, n = {c.n})")
    return (
        "each at its best ρ, over its own training, the share of the rise that carries over to "
        f"batches it has not seen: {'; '.join(parts)}."
    )


def computing(found: dict[str, tuple[Answered, Table]]) -> str:
    """Runs, gradients, hours, commits."""
    runs = [t for _, table in found.values() for cell in table.cells for t in cell.finished]
    gradients = sum((t.result or {})["cost"] for t in runs)
    spent = sum((t.result or {})["seconds"] for t in runs)
    commits = sorted({(t.certificate["commit"] or "none")[:7] for t in runs})
    return (
        f"{len(runs)} runs, {gradients:,.0f} gradients of batches of 128, {duration(spent)} on one "
        f"core (of a busy machine), commit {', '.join(commits)}"
    )


# -- the page --------------------------------------------------------------------------------------


def page(found: dict[str, tuple[Answered, Table]]) -> str:
    """The text of README.md: page.md with numbers."""
    names = {"conv": "radius", "mlp": "radius-mlp"}
    fields: dict[str, str] = {"computing": computing(found)}
    for short, name in names.items():
        answered, table = found[name]
        fields[f"first_{short}"] = first_answer(answered, table)
        fields[f"second_{short}"] = second_answer(answered, table)
        fields[f"third_{short}"] = third_answer(answered, table)
        fields[f"best_{short}"] = "\n".join(best_table(answered, table))
        fields[f"radii_{short}"] = "\n".join(radius_table(table))
        fields[f"wrong_{short}"] = "\n".join(radius_table(table, "wrong"))
        fields[f"rise_{short}"] = "\n".join(radius_table(table, "rise", 3))
        fields[f"carried_{short}"] = "\n".join(radius_table(table, "carried", 2))
    commands = (line for line in (__doc__ or "").splitlines() if line.startswith("    "))
    return (HERE / "page.md").read_text().format(**fields, commands="\n".join(commands))


def result(found: dict[str, tuple[Answered, Table]]) -> str:
    """The block of the project's README: what has seeds enough for a verdict."""
    heads = ("75 % of the labels wrong", "ρ", "test accuracy %", "less SAM's, points", "n")
    lines = [row(heads), row(["---"] * len(heads))]
    for name, (answered, table) in found.items():
        for method, cell in picks(answered, table).items():
            if cell.n < LEAST:
                continue
            c = _compared(answered, table, "best", cell)
            less = "" if c is None else difference(c)
            rho = "" if cell.rho is None else f"{cell.rho:g}"
            lines.append(row((f"{STUDIES[name]}: {method}", rho, told(cell), less, cell.n)))
    shown = lines if len(lines) > 2 else ["No method has three seeds yet."]
    return "\n".join([BEGIN, "", *shown, "", END])


def with_result(readme: str, block: str) -> str:
    """The project's README with the block in its place."""
    before, _, rest = readme.partition(BEGIN)
    return before + block + rest.partition(END)[2]


def main() -> None:
    found = tables(findings(RECORDS, [*STUDIES, "label-noise"]))
    save(over_radius(found), HERE / "over-radius.svg")
    (HERE / "README.md").write_text(page(found))
    readme = RECORDS.parent / "README.md"
    readme.write_text(with_result(readme.read_text(), result(found)))


if __name__ == "__main__":
    main()
