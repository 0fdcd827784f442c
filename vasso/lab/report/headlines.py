"""By which numbers is a study judged? Each measure has its headlines, and says which way is better.

| measure | headline | better | beside it |
|---|---|---|---|
| accuracy | test accuracy of the last epoch | more | best epoch by validation, labels learnt |
| BLEU | BLEU of tokens; perplexity in validation | more; less | BLEU of text put together again |
| Hessian spectrum | largest eigenvalue, and over the fifth | neither | test accuracy |
| signal-to-noise ratio | none, it is not compared | | median, lowest, highest over epochs |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vasso.lab import measures
from vasso.lab.statistics import Better


@dataclass(frozen=True)
class Column:
    """A number of a table.

    Attributes:
        name: one of `quantities.NUMBERS`.
        title: above the column.
        digits: after the point.
    """

    name: str
    title: str
    digits: int = 2


@dataclass(frozen=True)
class Headline(Column):
    """A number by which methods are compared.

    Attributes:
        quantity: what it is, in a sentence.
        unit: of a difference, "" if it has none.
        better: which way is better.
        about: a published figure whose `measure` holds these words is of this number.
        matters: a difference that one would want to tell, if the paper names such.
    """

    quantity: str = ""
    unit: str = ""
    better: Better = "more"
    about: str = ""
    matters: float | None = None

    def size(self, text: str) -> str:
        """A difference with its unit.

        Args:
            text: the difference.

        Returns:
            With the unit where there is one.

        Example:
            >>> ACCURACY.size("+0.3"), LARGEST.size("-3.1")
            ('+0.3 points', '-3.1')
        """
        return f"{text} {self.unit}".rstrip()


@dataclass(frozen=True)
class Judging:
    """How the runs of a measure are judged.

    Attributes:
        heading: above the comparisons.
        headlines: what is compared, the one that counts most first.
        columns: of tables, headlines among them.
        chooser: the number of validation by which a radius is chosen.
        chosen_by: the same in words.
        fewest: whether less of it is better.
        shown: on what results are shown.
        kept: name of the measurement in a store; "" where results of runs are all.
    """

    heading: str
    headlines: tuple[Headline, ...]
    columns: tuple[Column, ...]
    chooser: str = "validation"
    chosen_by: str = "validation accuracy"
    fewest: bool = False
    shown: str = "test images"
    kept: str = ""

    @property
    def best(self) -> Literal["more", "less"]:
        """Which way the number of validation is better."""
        return "less" if self.fewest else "more"


ACCURACY = Headline(
    "last", "last epoch %", quantity="test accuracy", unit="points", about="accuracy"
)
BLEU = Headline(
    "bleu", "BLEU (tokenised)", quantity="BLEU", unit="BLEU", about="BLEU", matters=0.15
)
PERPLEXITY = Headline(
    "perplexity",
    "validation perplexity",
    3,
    quantity="validation perplexity",
    better="less",
    about="perplexity",
)
LARGEST = Headline(
    "lambda1",
    "largest eigenvalue λ1",
    quantity="largest eigenvalue",
    better="neither",
    about="eigenvalue of the Hessian",
)
RATIO = Headline(
    "ratio", "λ1 / λ5", quantity="λ1 / λ5", better="neither", about="over the fifth largest"
)
BEST = Column("best", "best by validation %")
LEARNT = (Column("training", "training labels learnt %"), Column("wrong", "wrong labels learnt %"))

EVERYTHING = "everything"
"""Runs of no study are judged by accuracy; tables show whatever is known of them."""
STUDIED: Mapping[str, Judging] = {
    "accuracy": Judging("Who is ahead", (ACCURACY,), (ACCURACY, BEST, *LEARNT)),
    measures.BLEU: Judging(
        "Who is ahead",
        (BLEU, PERPLEXITY),
        (BLEU, PERPLEXITY, Column("detokenised", "BLEU, detokenised")),
        chooser="perplexity",
        chosen_by="validation perplexity, less is better,",
        fewest=True,
        shown="test sentences",
        kept="bleu",
    ),
    measures.SPECTRUM: Judging(
        "Which is larger",
        (LARGEST, RATIO),
        (LARGEST, RATIO, ACCURACY, BEST, *LEARNT),
        shown="training images",
        kept="spectrum",
    ),
    measures.NOISE: Judging(
        "",
        (),
        (
            Column("snr_median", "SNR, median over epochs", 4),
            Column("snr_lowest", "lowest", 4),
            Column("snr_highest", "highest", 4),
            ACCURACY,
        ),
        kept="noise",
    ),
}
ALL = tuple(dict.fromkeys(column for each in STUDIED.values() for column in each.columns))
JUDGINGS: Mapping[str, Judging] = {**STUDIED, EVERYTHING: Judging("Who is ahead", (ACCURACY,), ALL)}
"""Measure of a study -> how it is judged; what is not here has no runs to judge."""
