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

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
from vasso.lab.statistics import LEAST, mean, paired

HERE = Path(__file__).parent
RECORDS = HERE.parent
STUDIES = {"radius": "ResNet-8, CIFAR-10", "radius-mlp": "MLP, Fashion-MNIST"}
WRONG = 0.75
NEAR, WIDE = 10.0, 6
"""Points below the best that are near enough, and radii that are needed to see where it ends."""
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
    order = sorted(entries, key=lambda name: _rank(name, found))
    figure.legend(
        [entries[name] for name in order], order, loc="outside lower center", ncols=len(entries)
    )
    return figure


def _rank(name: str, found: dict[str, tuple[Answered, Table]]) -> float:
    """The base first, then SAM, then VaSSO by falling theta."""
    families = (table.families() for _, table in found.values())
    return -next(_theta(cells[name][0]) for cells in families if name in cells)


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


Answer = tuple[str, str]
"""What is found, in a few words, and the numbers that say so."""
NOT_YET: Answer = ("there are not enough runs yet", "")


def whole(answer: Answer) -> str:
    """An answer with its numbers."""
    lead, numbers = answer
    return f"{lead}. {numbers}".rstrip()


def first_answer(answered: Answered, table: Table) -> str:
    """One radius for all: does accuracy rise from SAM over theta 0.9, 0.4, 0.2?"""
    one, there = _all_at_one(answered, table)
    if one is None:
        return "there are not enough runs yet to choose one radius."
    labels = "clean labels" if one.labels == "clean" else "these labels (no clean runs yet)"
    values = "; ".join(f"{name} {told(c)} (n = {c.n})" for name, c in there.items())
    return (
        f"at ρ = {one.rho:g}, SAM's best on {labels} (n = {one.n}): {values}. "
        f"{_trend(list(there.values()))} {_last_against_sam(answered, table, there)}"
    )


def _all_at_one(answered: Answered, table: Table) -> tuple[OneRadius | None, dict[str, Cell]]:
    """The one radius, and the methods of the paper's Table 6 at it."""
    one = one_radius(answered, table)
    there = {
        name: c
        for name, cells in table.families().items()
        for c in cells
        if one is not None and c.rho == one.rho and c.n
        if name == "SAM" or name[-3:] in {"0.9", "0.4", "0.2"}
    }
    return one, there


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
    c = None if cell is None else _compared(answered, table, "one", cell)
    if c is None or c.paired is None:
        return ""
    holm = f", p after Holm {p_value(c.adjusted)}" if c.standing != "no verdict" else ""
    return f"θ = 0.2 less SAM: {difference(c)}{_counted(c)}{holm}."


def second_answer(answered: Answered, table: Table) -> Answer:
    """Each at its best radius: does the order survive?"""
    found = {}
    for name, cell in picks(answered, table).items():
        c = _compared(answered, table, "best", cell)
        if c is not None and c.paired is not None:
            found[name] = c
    if not found:
        return NOT_YET
    parts = [
        f"{name} at ρ = {c.ours.rho:g}: {difference(c)}{_counted(c)}" for name, c in found.items()
    ]
    return _lead(found), f"Less SAM at its own best ρ, in points: {'; '.join(parts)}."


def _counted(c: Comparison) -> str:
    """The seeds, where `difference` has not told them."""
    return f" (n = {c.paired.n})" if c.paired is not None and c.paired.n >= LEAST else ""


def _lead(found: dict[str, Comparison]) -> str:
    """Who is ahead and who behind, in a sentence."""
    stands: dict[str, list[str]] = {}
    for name, c in found.items():
        stands.setdefault(c.standing, []).append(name.removeprefix("VaSSO "))
    if set(stands) == {"no verdict"}:
        return "too few seeds for a verdict"
    ahead = f"yes for {', '.join(stands['ahead'])}" if "ahead" in stands else "no theta is ahead"
    words = {"behind": "behind", "cannot tell": "not to be told from SAM", "no verdict": "too few"}
    rest = [f"{words[s]}: {', '.join(stands[s])}" for s in words if s in stands]
    return "; ".join([ahead, *rest])


def third_answer(answered: Answered, table: Table) -> Answer:
    """Does the adversary carry more of an equal rise to other batches than SAM's?"""
    sam = picks(answered, table).get("SAM")
    if sam is None:
        return NOT_YET
    parts, more_of = [], []
    for name, cells in table.families().items():
        theirs = {seed: _carried_at(cells, seed, sam) for seed in sam.seeds}
        known = {seed: value for seed, value in theirs.items() if value is not None}
        c = paired(known, sam.values("carried"))
        if name.startswith("VaSSO") and c is not None:
            if c.n >= LEAST and c.difference.low > 0:
                more_of.append(name.removeprefix("VaSSO "))
            more = number(c.difference.value, 2, sign=True)
            ends = f"{interval(c.difference, 2, sign=True)}, n = {c.n}"
            parts.append(f"{name} {number(mean(list(known.values())).value, 2)} ({more}, {ends})")
    if not parts:
        return NOT_YET
    lead = f"yes for {', '.join(more_of)}" if more_of else "not to be told yet"
    return lead, (
        f"SAM at its best ρ carries {told(sam, 'carried', 2)} of its rise over to "
        f"batches it has not seen. At that rise on the own batch: {'; '.join(parts)}."
    )


def _carried_at(cells: Sequence[Cell], seed: int, sam: Cell) -> float | None:
    """The share that a method carries where its rise is SAM's, between the radii it has."""
    pairs = [(cell.values("rise").get(seed), cell.values("carried").get(seed)) for cell in cells]
    known = sorted((x, y) for x, y in pairs if x is not None and y is not None)
    at = sam.values("rise").get(seed)
    if at is None or not known or not known[0][0] <= at <= known[-1][0]:
        return None
    rises, shares = zip(*known, strict=True)
    return float(np.interp(np.log(at), np.log(rises), shares))


def fourth_answer(table: Table) -> str:
    """How forgiving is the choice of rho?"""
    widths = {
        name: {seed: w for seed in cells[0].seeds if (w := _width(cells, seed)) is not None}
        for name, cells in table.families().items()
    }
    sam, parts = widths.get("SAM", {}), []
    for name, found in widths.items():
        if len(found) < LEAST:
            continue
        factor = f"{name} {math.exp(mean(list(found.values())).value):.1f}"
        c = paired(found, sam)
        if name.startswith("VaSSO") and c is not None and c.n >= LEAST:
            ends = " to ".join(f"{math.exp(x):.1f}" for x in (c.difference.low, c.difference.high))
            factor += f" ({math.exp(c.difference.value):.1f} times SAM's, {ends}, n = {c.n})"
        parts.append(factor)
    return f"{'; '.join(parts)}." if parts else "there are not enough runs yet."


def _width(cells: Sequence[Cell], seed: int) -> float | None:
    """The log of the largest over the smallest radius within ten points of the best."""
    pairs = ((cell.rho, cell.values("last").get(seed)) for cell in cells)
    known = sorted((math.log(rho), y) for rho, y in pairs if rho is not None and y is not None)
    if len(known) < WIDE:
        return None
    xs, ys = (np.array(column) for column in zip(*known, strict=True))
    fine = np.linspace(xs[0], xs[-1], 1001)
    good = np.interp(fine, xs, ys) >= ys.max() - NEAR
    best = int(np.argmax(np.interp(fine, xs, ys)))
    left = best - int(np.argmin(good[best::-1])) + 1 if not good[: best + 1].all() else 0
    right = best + int(np.argmin(good[best:])) - 1 if not good[best:].all() else len(fine) - 1
    return float(fine[right] - fine[left])


def at_equal_weights() -> str:
    """What the record `resnet-probe` says: same weights, same rise, one run after the other."""
    path = RECORDS / "resnet-probe" / "summary.json"
    found = {k: v for k, v in json.loads(path.read_text()).items() if k.startswith("wrong")}
    sam = " and ".join(f"{100 * x['SAM is a friend']['value']:.0f}" for x in found.values())
    parts = []
    for theta in ("0.9", "0.4", "0.2"):
        each = [x["theta"][theta]["less often a friend"]["equal rise"] for x in found.values()]
        told = (
            f"{100 * x['value']:.1f} ({100 * x['low']:.1f} to {100 * x['high']:.1f})" for x in each
        )
        parts.append(f"θ={theta} by {' and '.join(told)}")
    instants = next(iter(found.values()))["instants"]
    return (
        f"in {len(found)} runs SAM's adversary lowers the loss of {sam} % of the batches that it "
        f"has not seen; at equal rise VaSSO's does so less often, in points: {'; '.join(parts)} "
        f"(95 % intervals over {instants} instants of a run)"
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
    fields: dict[str, str] = {"computing": computing(found), "weights": at_equal_weights()}
    for short, name in names.items():
        answered, table = found[name]
        fields[f"first_{short}"] = first_answer(answered, table)
        fields[f"second_{short}"] = whole(second_answer(answered, table))
        fields[f"third_{short}"] = whole(third_answer(answered, table))
        fields[f"fourth_{short}"] = fourth_answer(table)
        fields[f"best_{short}"] = "\n".join(best_table(answered, table))
        fields[f"radii_{short}"] = "\n".join(radius_table(table))
        fields[f"wrong_{short}"] = "\n".join(radius_table(table, "wrong"))
        fields[f"rise_{short}"] = "\n".join(radius_table(table, "rise", 3))
        fields[f"carried_{short}"] = "\n".join(radius_table(table, "carried", 2))
    commands = (line for line in (__doc__ or "").splitlines() if line.startswith("    "))
    return (HERE / "page.md").read_text().format(**fields, commands="\n".join(commands))


def result(found: dict[str, tuple[Answered, Table]]) -> str:
    """The block of the project's README: what has seeds enough for a verdict, and the answers."""
    heads = [head for name in found for head in (STUDIES[name], "less SAM's, points")]
    chosen = {name: picks(*of) for name, of in found.items()}
    every = {method: cell for cells in chosen.values() for method, cell in cells.items()}
    methods = sorted(every, key=lambda method: -_theta(every[method]))
    lines = [row(["75 % of the labels wrong", *heads]), row(["---"] * (1 + len(heads)))]
    for method in methods:
        pairs = ((of, chosen[name].get(method)) for name, of in found.items())
        shown = [part for of, cell in pairs for part in _in_readme(*of, cell)]
        if any(shown):
            lines.append(row([method, *shown]))
    return "\n".join([BEGIN, "", *lines, "", *_short_answers(found), "", END])


def _theta(cell: Cell) -> float:
    """1 of SAM, more of the base."""
    return float(dict(cell.method.settings).get("theta", 2.0 if cell.rho is None else 1.0))


def _in_readme(answered: Answered, table: Table, cell: Cell | None) -> tuple[str, str]:
    """Accuracy with radius and seeds, and the difference; nothing for too few seeds."""
    if cell is None or cell.n < LEAST:
        return "", ""
    c = _compared(answered, table, "best", cell)
    rho = "" if cell.rho is None else f"ρ {cell.rho:g}, "
    return f"{told(cell)} ({rho}n {cell.n})", "" if c is None else difference(c)


def _short_answers(found: dict[str, tuple[Answered, Table]]) -> Iterator[str]:
    """The three questions, each in a line."""
    names = {name: STUDIES[name].partition(",")[0] for name in found}
    one = (f"{names[name]} {_at_one(*of)}" for name, of in found.items())
    yield f"- **One rho for all**, as in the paper: {'; '.join(one)}."
    best = (f"{names[name]}: {second_answer(*of)[0]}" for name, of in found.items())
    yield f"- **Each at its best rho**, ahead of SAM? {'. '.join(best)}."
    rise = (f"{names[name]}: {third_answer(*of)[0]}" for name, of in found.items())
    asked = "is more of it carried over to batches that the adversary has not seen?"
    yield f"- **At equal rise on its own batch**, {asked} {'. '.join(rise)}."
    wide = (f"{names[name]}: {fourth_answer(of[1])}" for name, of in found.items())
    known = [text for text in wide if "times" in text]
    if known:
        asked = "**How wide is the range of good rho?** Asked after seeing the curves"
        yield f"- {asked}: {' '.join(known)}"


def _at_one(answered: Answered, table: Table) -> str:
    one, there = _all_at_one(answered, table)
    if one is None:
        return "not enough runs yet"
    values = ", ".join(f"{name.removeprefix('VaSSO ')} {told(c)}" for name, c in there.items())
    trend = _trend(list(there.values())).rstrip(".")
    return f"at ρ = {one.rho:g}, SAM's best on {one.labels} labels, {values}: {trend.lower()}"


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
