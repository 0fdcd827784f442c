"""Writes README.md (page.md with numbers) and scores.svg of this record from its runs alone.

    vasso study translation --store runs --jobs 2
    vasso export runs records --study translation
    python records/translation/page.py

Words that depend on numbers are chosen by the numbers.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # for `records`

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from records.markdown_pages import (
    EMPTY,
    describe_cost,
    fill_page,
    format_cell,
    format_difference,
    replace_block,
    table_lines,
)
from vasso.diagnostics.figures.style import canvas, save, styled
from vasso.lab.report.cells import Cell
from vasso.lab.report.charts.drawing import look_of
from vasso.lab.report.compare import Comparison
from vasso.lab.report.findings import SectionResult, findings
from vasso.lab.report.metrics import BLEU, PERPLEXITY, Metric
from vasso.lab.report.sections import Table
from vasso.lab.report.text import format_half_width, format_interval, format_number, format_seeds
from vasso.lab.statistics import LEAST, paired

HERE = Path(__file__).parent
EVIDENCE = HERE.parents[1] / "docs" / "claims.md"
BLOCK = "records/translation/page.py"
"""The part of the project's README that is written here."""
TWIN = " same_rng"
QUESTIONS = {
    "SAM": "Does SAM help AdamW?",
    "ASAM": "Is ASAM better than SAM?",
    "VaSSO θ=0.9": "Is VaSSO with theta 0.9?",
    "VaSSO θ=0.4": "And with theta 0.4?",
}
PUBLISHED = "Li and Giannakis, 2023, Table 4"


def answered() -> SectionResult:
    """The study at scale cpu."""
    found = findings(HERE, ["translation"]).results
    return next(one for one in found if one.section.scale.name == "cpu")


def table_of(one: SectionResult) -> Table:
    """Its one task."""
    (table,) = one.section.tables
    return table


def there(table: Table) -> list[Cell]:
    """Cells with runs: the base first, then by radius."""
    return sorted((cell for cell in table.cells if cell.n), key=lambda cell: cell.rho or 0.0)


def chosen(one: SectionResult) -> dict[str, Cell]:
    """Each method at the radius that validation perplexity chooses for it."""
    return {name: pick.cell for name, pick in one.picks[0].items()}


# -- the table -------------------------------------------------------------------------------------


def results(one: SectionResult) -> list[str]:
    """Every method and radius, with its difference to SAM at the same radius."""
    heads = ("method", "ρ", "n", "BLEU", "minus SAM's", "detokenised", "endless, by seed")
    more = ("validation perplexity", "minus SAM's", "rise on its batch", "gradients a step")
    table = table_of(one)
    return table_lines((*heads, *more), (_row(table, cell) for cell in there(table)))


def _row(table: Table, cell: Cell) -> Iterator[object]:
    yield from (table.name(cell), EMPTY if cell.rho is None else f"{cell.rho:g}", cell.n)
    yield from (format_cell(cell, "bleu", 2), _less(table, cell, "bleu", 2))
    yield format_cell(cell, "detokenised", 2)
    yield ", ".join(f"{count:g}" for count in cell.values("endless").values())
    yield format_cell(cell, "perplexity", 3)
    yield from (_less(table, cell, "perplexity", 3), format_cell(cell, "rise", 4))
    yield f"{_gradients(cell):g}"


def _less(table: Table, cell: Cell, name: str, digits: int) -> str:
    """Less SAM at the same radius, trained in the same way."""
    twin = TWIN if cell.method.same_rng else ""
    alike = (c for c in there(table) if table.name(c) == f"SAM{twin}" and c.rho == cell.rho)
    sam = next((c for c in alike if c is not cell), None)
    found = None if sam is None else paired(cell.values(name), sam.values(name))
    if found is None:
        return EMPTY
    value = format_number(found.difference.value, digits, sign=True)
    return f"{value} {format_half_width(found.difference, digits)}".rstrip()


def _gradients(cell: Cell) -> float:
    """A step."""
    run = cell.finished[0]
    return float((run.result or {})["cost"]) / float(run.epochs[-1]["step"])


# -- what it says ----------------------------------------------------------------------------------


def sentences(one: SectionResult) -> Iterator[str]:
    """Each question in a line."""
    best = chosen(one)
    for name, question in QUESTIONS.items():
        if name in best:
            yield f"- **{question}** {_answer(one, best[name])}"
    yield f"- **How many seeds does a difference of 0.15 BLEU need?** {_decide(one)}"
    if same := "; ".join(twins(table_of(one))):
        yield f"- **The same dropout in both passes of a step?** {same}."


def _answer(one: SectionResult, cell: Cell) -> str:
    """By BLEU and by perplexity."""
    bleu, perplexity = (_compared(one, cell, metric) for metric in (BLEU, PERPLEXITY))
    if bleu is None or perplexity is None or bleu.paired is None:
        return "There are not enough runs yet."
    table = table_of(one)
    pair = f"{table.label(cell)} minus {table.label(bleu.theirs)}"
    shown = f"BLEU {format_difference(bleu, 2)}; perplexity {format_difference(perplexity, 3)}"
    return f"{pair}, {format_seeds(bleu.paired.n)}: {shown}. {_published(bleu)}".rstrip()


def _compared(one: SectionResult, cell: Cell, metric: Metric) -> Comparison | None:
    """Against SAM; SAM itself against AdamW."""
    return next((c for c in one.of_metric(metric) if c.ours is cell), None)


def _published(c: Comparison) -> str:
    found = [j.published for j in c.agreements if j.published.source == PUBLISHED]
    if not found:
        return ""
    values = ", ".join(format_number(d, 2, sign=True) for d in found[0].differences)
    return f"The paper, on IWSLT-14: {values} BLEU."


def _decide(one: SectionResult) -> str:
    """The range over the comparisons."""
    found = {
        f"{c.table.label(c.ours)} minus {c.table.label(c.theirs)}": c.seeds_needed
        for c in one.of_metric(BLEU)
        if c.seeds_needed is not None and c.paired is not None and c.paired.n >= LEAST
    }
    if not found:
        return "There are not enough runs yet."
    each = ", ".join(f"{name} {count:,}" for name, count in found.items())
    return f"At the observed spread, for a power of 80 %: {each}."


def twins(table: Table) -> Iterator[str]:
    """Each method with the same dropout in both passes, less itself without."""
    cells = {table.label(cell): cell for cell in there(table)}
    for label, cell in cells.items():
        without = label.replace(TWIN, "")
        if without != label and without in cells:
            parts = (
                _with_interval(cell, cells[without], metric, digits)
                for metric, digits in ((BLEU, 2), (PERPLEXITY, 3))
            )
            yield f"{without}, with it minus without: {', '.join(parts)}"


def _with_interval(cell: Cell, other: Cell, metric: Metric, digits: int) -> str:
    found = paired(cell.values(metric.name), other.values(metric.name))
    if found is None:
        return f"{metric.quantity} not measured"
    d, few = found.difference, found.n < LEAST
    ends = (
        format_seeds(found.n) if few else f"{format_interval(d, digits, sign=True)}, n = {found.n}"
    )
    return f"{metric.quantity} {format_number(d.value, digits, sign=True)} ({ends})"


# -- the figure ------------------------------------------------------------------------------------


@styled
def scores(one: SectionResult) -> Figure:
    """BLEU and perplexity: every run a point, with means and intervals."""
    cells = {table_of(one).label(cell): cell for cell in there(table_of(one))}
    figure = canvas("wide", 0.9 + 0.32 * len(cells), columns=2)
    for axes, metric in zip(figure.axes, (BLEU, PERPLEXITY), strict=True):
        for place, cell in enumerate(cells.values()):
            _draw(axes, place, cell, metric)
        axes.set_title(f"{metric.title}, {metric.better} is better")
        axes.set_ylim(len(cells) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(cells)), [])
    figure.axes[0].set_yticks(range(len(cells)), list(cells))
    return figure


def _draw(axes: Axes, place: int, cell: Cell, metric: Metric) -> None:
    look, values, found = look_of(cell), cell.values(metric.name), cell.estimate(metric.name)
    axes.plot(list(values.values()), [place] * len(values), "|", color=look.colour, markersize=10)
    if found is not None:
        axes.plot([found.value], [place], look.marker, color=look.colour, markersize=7)
        if found.n >= LEAST:
            axes.plot([found.low, found.high], [place, place], color=look.colour, alpha=0.5)


# -- the page --------------------------------------------------------------------------------------


def page(one: SectionResult) -> str:
    """The text of README.md: page.md with numbers."""
    table = table_of(one)
    base = chosen(one)["AdamW"].estimate("bleu")
    assert base is not None
    return fill_page(
        HERE,
        __doc__,
        results="\n".join(results(one)),
        sentences="\n".join(sentences(one)),
        adamw=f"{format_number(base.value, 1)} {format_half_width(base, 1)}".rstrip(),
        cost=describe_cost(table.cells, "batches of at most 1,024 pieces"),
    )


def result(one: SectionResult) -> str:
    """The block of docs/claims.md: every method at its best radius."""
    best = chosen(one)
    heads = (
        "Multi30k, German to English",
        "BLEU",
        "minus SAM's",
        "validation perplexity",
        "minus SAM's",
    )
    lines = [_short(one, name, best[name]) for name in ("AdamW", *QUESTIONS) if name in best]
    return "\n".join(["\n", *table_lines(heads, lines), "", f"{_stand(one)} {_endless(one)}", "\n"])


def _short(one: SectionResult, name: str, cell: Cell) -> Iterator[object]:
    yield f"{name} (n = {cell.n})"
    for metric, digits in ((BLEU, 1), (PERPLEXITY, 2)):
        c = _compared(one, cell, metric)
        yield format_cell(cell, metric.name, digits)
        yield "" if c is None or c.kind == "base" else format_difference(c, digits)


def _stand(one: SectionResult) -> str:
    """Who is ahead of SAM, who behind, after Holm."""
    found = [c for c in one.of_metric(BLEU) if c.kind != "base"]
    parts = []
    for standing, words in (("ahead", "Significantly ahead of SAM by BLEU"), ("behind", "behind")):
        names = [c.table.name(c.ours) for c in found if c.standing == standing]
        parts.append(f"{words}: {', '.join(names) or 'none'}")
    counts = sorted(c.seeds_needed for c in found if c.seeds_needed is not None)
    most = f"{counts[0]:,} to {counts[-1]:,}" if counts else "more"
    return (
        f"{'; '.join(parts)}. At the observed spread a difference of 0.15 BLEU needs {most} seeds "
        "(power 80 %), depending on the method."
    )


def _endless(one: SectionResult) -> str:
    """The run with the most translations that never end."""
    runs = [
        (count, cell.values("bleu")[seed], table_of(one).name(cell), seed)
        for cell in there(table_of(one))
        for seed, count in cell.values("endless").items()
    ]
    count, bleu, name, seed = max(runs)
    return (
        f"Seed {seed} of {name} has {count:g} translations, of 1,000, that never end, and with "
        f"them {format_number(bleu, 1)} BLEU."
    )


def main() -> None:
    one = answered()
    save(scores(one), HERE / "scores.svg")
    (HERE / "README.md").write_text(page(one))
    EVIDENCE.write_text(replace_block(EVIDENCE.read_text(), BLOCK, result(one)))


if __name__ == "__main__":
    main()
