"""Writes README.md (page.md with numbers) and scores.svg of this record from its runs alone.

    vasso study translation --store runs --jobs 2
    vasso export runs records --study translation
    python records/translation/page.py

Words that depend on numbers are chosen by the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vasso.diagnostics.figures.style import canvas, save, styled
from vasso.lab.report.cells import Cell
from vasso.lab.report.comparing import Comparison
from vasso.lab.report.drawing import look_of
from vasso.lab.report.findings import Answered, findings
from vasso.lab.report.headlines import BLEU, PERPLEXITY, Headline
from vasso.lab.report.markdown import NOTHING, computing, difference, page_of, put_into, rows, told
from vasso.lab.report.sections import Table
from vasso.lab.report.words import half_width, interval, number, seeds
from vasso.lab.statistics import LEAST, paired

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
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


def answered() -> Answered:
    """The study at scale cpu."""
    found = findings(HERE, ["translation"]).answered
    return next(one for one in found if one.section.scale.name == "cpu")


def table_of(one: Answered) -> Table:
    """Its one task."""
    (table,) = one.section.tables
    return table


def there(table: Table) -> list[Cell]:
    """Cells with runs: the base first, then by radius."""
    return sorted((cell for cell in table.cells if cell.n), key=lambda cell: cell.rho or 0.0)


def chosen(one: Answered) -> dict[str, Cell]:
    """Each method at the radius that validation perplexity chooses for it."""
    return {name: pick.cell for name, pick in one.picks[0].items()}


# -- the table -------------------------------------------------------------------------------------


def results(one: Answered) -> list[str]:
    """Every method and radius, with its difference to SAM at the same radius."""
    heads = ("method", "ρ", "n", "BLEU", "less SAM's", "detokenised", "endless, by seed")
    more = ("validation perplexity", "less SAM's", "rise on its batch", "gradients a step")
    table = table_of(one)
    return rows((*heads, *more), (_row(table, cell) for cell in there(table)))


def _row(table: Table, cell: Cell) -> Iterator[object]:
    yield from (table.name(cell), NOTHING if cell.rho is None else f"{cell.rho:g}", cell.n)
    yield from (told(cell, "bleu", 2), _less(table, cell, "bleu", 2))
    yield told(cell, "detokenised", 2)
    yield ", ".join(f"{count:g}" for count in cell.values("endless").values())
    yield told(cell, "perplexity", 3)
    yield from (_less(table, cell, "perplexity", 3), told(cell, "rise", 4))
    yield f"{_gradients(cell):g}"


def _less(table: Table, cell: Cell, name: str, digits: int) -> str:
    """Less SAM at the same radius, trained in the same way."""
    twin = TWIN if cell.method.same_rng else ""
    alike = (c for c in there(table) if table.name(c) == f"SAM{twin}" and c.rho == cell.rho)
    sam = next((c for c in alike if c is not cell), None)
    found = None if sam is None else paired(cell.values(name), sam.values(name))
    if found is None:
        return NOTHING
    value = number(found.difference.value, digits, sign=True)
    return f"{value} {half_width(found.difference, digits)}".rstrip()


def _gradients(cell: Cell) -> float:
    """A step."""
    run = cell.finished[0]
    return float((run.result or {})["cost"]) / float(run.epochs[-1]["step"])


# -- what it says ----------------------------------------------------------------------------------


def sentences(one: Answered) -> Iterator[str]:
    """Each question in a line."""
    best = chosen(one)
    for name, question in QUESTIONS.items():
        if name in best:
            yield f"- **{question}** {_answer(one, best[name])}"
    yield f"- **How many seeds would tell 0.15 BLEU?** {_decide(one)}"
    if same := "; ".join(twins(table_of(one))):
        yield f"- **The same dropout in both passes of a step?** {same}."


def _answer(one: Answered, cell: Cell) -> str:
    """By BLEU, with perplexity beside it."""
    bleu, perplexity = (_compared(one, cell, headline) for headline in (BLEU, PERPLEXITY))
    if bleu is None or perplexity is None or bleu.paired is None:
        return "There are not enough runs yet."
    table = table_of(one)
    pair = f"{table.label(cell)} less {table.label(bleu.theirs)}"
    shown = f"BLEU {difference(bleu, 2)}; perplexity {difference(perplexity, 3)}"
    return f"{pair}, {seeds(bleu.paired.n)}: {shown}. {_published(bleu)}".rstrip()


def _compared(one: Answered, cell: Cell, headline: Headline) -> Comparison | None:
    """Against SAM; SAM itself against AdamW."""
    return next((c for c in one.by(headline) if c.ours is cell), None)


def _published(c: Comparison) -> str:
    found = [j.published for j in c.judged if j.published.source == PUBLISHED]
    if not found:
        return ""
    told = ", ".join(number(d, 2, sign=True) for d in found[0].differences)
    return f"The paper, on IWSLT-14: {told} BLEU."


def _decide(one: Answered) -> str:
    """The range over the comparisons."""
    found = {
        f"{c.table.label(c.ours)} less {c.table.label(c.theirs)}": c.decides
        for c in one.by(BLEU)
        if c.decides is not None and c.paired is not None and c.paired.n >= LEAST
    }
    if not found:
        return "There are not enough runs yet."
    each = ", ".join(f"{name} {count:,}" for name, count in found.items())
    return f"At the spread of the differences seen here, four times in five: {each}."


def twins(table: Table) -> Iterator[str]:
    """Each method with the same dropout in both passes, less itself without."""
    cells = {table.label(cell): cell for cell in there(table)}
    for label, cell in cells.items():
        without = label.replace(TWIN, "")
        if without != label and without in cells:
            parts = (
                _with_interval(cell, cells[without], headline, digits)
                for headline, digits in ((BLEU, 2), (PERPLEXITY, 3))
            )
            yield f"{without}, with it less without: {', '.join(parts)}"


def _with_interval(cell: Cell, other: Cell, headline: Headline, digits: int) -> str:
    found = paired(cell.values(headline.name), other.values(headline.name))
    if found is None:
        return f"{headline.quantity} not measured"
    d, few = found.difference, found.n < LEAST
    ends = seeds(found.n) if few else f"{interval(d, digits, sign=True)}, n = {found.n}"
    return f"{headline.quantity} {number(d.value, digits, sign=True)} ({ends})"


# -- the figure ------------------------------------------------------------------------------------


@styled
def scores(one: Answered) -> Figure:
    """BLEU and perplexity: every run a point, means and intervals beside."""
    cells = {table_of(one).label(cell): cell for cell in there(table_of(one))}
    figure = canvas("wide", 0.9 + 0.32 * len(cells), columns=2)
    for axes, headline in zip(figure.axes, (BLEU, PERPLEXITY), strict=True):
        for place, cell in enumerate(cells.values()):
            _draw(axes, place, cell, headline)
        axes.set_title(f"{headline.title}, {headline.better} is better")
        axes.set_ylim(len(cells) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(cells)), [])
    figure.axes[0].set_yticks(range(len(cells)), list(cells))
    return figure


def _draw(axes: Axes, place: int, cell: Cell, headline: Headline) -> None:
    look, values, found = look_of(cell), cell.values(headline.name), cell.estimate(headline.name)
    axes.plot(list(values.values()), [place] * len(values), "|", color=look.colour, markersize=10)
    if found is not None:
        axes.plot([found.value], [place], look.marker, color=look.colour, markersize=7)
        if found.n >= LEAST:
            axes.plot([found.low, found.high], [place, place], color=look.colour, alpha=0.5)


# -- the page --------------------------------------------------------------------------------------


def page(one: Answered) -> str:
    """The text of README.md: page.md with numbers."""
    table = table_of(one)
    base = chosen(one)["AdamW"].estimate("bleu")
    assert base is not None
    return page_of(
        HERE,
        __doc__,
        results="\n".join(results(one)),
        sentences="\n".join(sentences(one)),
        adamw=f"{number(base.value, 1)} {half_width(base, 1)}".rstrip(),
        computing=computing(table.cells, "batches of at most 1,024 pieces"),
    )


def result(one: Answered) -> str:
    """The block of the project's README: every method at its best radius."""
    best = chosen(one)
    heads = (
        "Multi30k, German to English",
        "BLEU",
        "less SAM's",
        "validation perplexity",
        "less SAM's",
    )
    lines = [_short(one, name, best[name]) for name in ("AdamW", *QUESTIONS) if name in best]
    return "\n".join(["\n", *rows(heads, lines), "", f"{_stand(one)} {_endless(one)}", "\n"])


def _short(one: Answered, name: str, cell: Cell) -> Iterator[object]:
    yield f"{name} (n = {cell.n})"
    for headline, digits in ((BLEU, 1), (PERPLEXITY, 2)):
        c = _compared(one, cell, headline)
        yield told(cell, headline.name, digits)
        yield "" if c is None or c.kind == "base" else difference(c, digits)


def _stand(one: Answered) -> str:
    """Who is ahead of SAM, who behind, after Holm."""
    found = [c for c in one.by(BLEU) if c.kind != "base"]
    parts = []
    for standing, words in (("ahead", "Ahead of SAM by BLEU, after Holm"), ("behind", "behind")):
        names = [c.table.name(c.ours) for c in found if c.standing == standing]
        parts.append(f"{words}: {', '.join(names) or 'nobody'}")
    counts = sorted(c.decides for c in found if c.decides is not None)
    most = f"{counts[0]:,} to {counts[-1]:,}" if counts else "more"
    return (
        f"{'; '.join(parts)}. At the spread seen here it would take {most} seeds, by method, to "
        "tell 0.15 BLEU four times in five."
    )


def _endless(one: Answered) -> str:
    """The run with the most translations that repeat themselves for ever."""
    runs = [
        (count, cell.values("bleu")[seed], table_of(one).name(cell), seed)
        for cell in there(table_of(one))
        for seed, count in cell.values("endless").items()
    ]
    count, bleu, name, seed = max(runs)
    return (
        f"Seed {seed} of {name} has {count:g} translations, of 1,000, that never end, and with "
        f"them {number(bleu, 1)} BLEU."
    )


def main() -> None:
    one = answered()
    save(scores(one), HERE / "scores.svg")
    (HERE / "README.md").write_text(page(one))
    README.write_text(put_into(README.read_text(), BLOCK, result(one)))


if __name__ == "__main__":
    main()
