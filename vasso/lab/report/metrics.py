"""Metrics: the numbers by which the runs of a study are compared, and which way is better.

| measure | metrics compared | better | also in tables |
|---|---|---|---|
| accuracy | test accuracy of the last epoch | more | best epoch by validation, labels learnt |
| loss | test loss of the last epoch, nats per piece | less | loss in validation, perplexity |
| BLEU | BLEU of tokens; perplexity in validation | more; less | BLEU of detokenized text |
| Hessian spectrum | largest eigenvalue, and over the fifth | neither | test accuracy |
| signal-to-noise ratio | none, it is not compared | | median, lowest, highest over epochs |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vasso.lab.statistics import Better
from vasso.lab.studies import measurement_settings


@dataclass(frozen=True)
class Column:
    """A column of a table: a number of `cells.NUMBERS`, its title and digits after the point."""

    name: str
    title: str
    digits: int = 2


@dataclass(frozen=True)
class Metric(Column):
    """A number by which methods are compared; `quantity` is its name within a sentence.

    `unit` is that of a difference, "" if it has none. A published figure is of this metric if its
    `measure` contains `published_as`. `relevant` is the difference worth finding, if the paper
    names one.
    """

    quantity: str = ""
    unit: str = ""
    better: Better = "more"
    published_as: str = ""
    relevant: float | None = None

    def with_unit(self, text: str) -> str:
        """A difference with its unit."""
        return f"{text} {self.unit}".rstrip()


@dataclass(frozen=True)
class Criteria:
    """How the runs of a study are compared: by `metrics`, the most important first.

    `columns` of tables have metrics among them. The radius is chosen by `selector`, a number of
    validation, of which less is better if `select_least`. `measurement` is its name in a store, ""
    where results of runs are all.
    """

    heading: str
    metrics: tuple[Metric, ...]
    columns: tuple[Column, ...]
    selector: str = "validation"
    selector_text: str = "validation accuracy"
    select_least: bool = False
    evaluated_on: str = "test images"
    measurement: str = ""

    @property
    def better(self) -> Literal["more", "less"]:
        """Which way the number of validation is better."""
        return "less" if self.select_least else "more"


ACCURACY = Metric(
    "last", "last epoch %", quantity="test accuracy", unit="points", published_as="accuracy"
)
BLEU = Metric(
    "bleu", "BLEU (tokenised)", quantity="BLEU", unit="BLEU", published_as="BLEU", relevant=0.15
)
PERPLEXITY = Metric(
    "perplexity",
    "validation perplexity",
    3,
    quantity="validation perplexity",
    better="less",
    published_as="perplexity",
)
LOSS = Metric(
    "test_loss",
    "test loss",
    4,
    quantity="test loss",
    unit="nats",
    better="less",
    published_as="loss",
)
LARGEST = Metric(
    "lambda1",
    "largest eigenvalue λ1",
    quantity="largest eigenvalue",
    better="neither",
    published_as="eigenvalue of the Hessian",
)
RATIO = Metric(
    "ratio", "λ1 / λ5", quantity="λ1 / λ5", better="neither", published_as="over the fifth largest"
)
BEST = Column("best", "best by validation %")
LEARNT = (Column("training", "training labels learnt %"), Column("wrong", "wrong labels learnt %"))

EVERYTHING = "everything"
"""Runs of no study are compared by accuracy; tables show whatever is known of them."""
# fmt: off
OF_STUDIES: Mapping[str, Criteria] = {
    "accuracy": Criteria("Who is ahead", (ACCURACY,), (ACCURACY, BEST, *LEARNT)),
    "loss": Criteria("Who is ahead", (LOSS,),
        (LOSS, Column("test_perplexity", "test perplexity"),
        Column("validation_loss", "validation loss", 4)), selector="validation_loss",
        selector_text="validation loss, less is better,", select_least=True,
        evaluated_on="test sentences"),
    measurement_settings.BLEU: Criteria("Who is ahead", (BLEU, PERPLEXITY),
        (BLEU, PERPLEXITY, Column("detokenised", "BLEU, detokenised")), selector="perplexity",
        selector_text="validation perplexity, less is better,", select_least=True,
        evaluated_on="test sentences", measurement="bleu"),
    measurement_settings.SPECTRUM: Criteria("Which is larger", (LARGEST, RATIO),
        (LARGEST, RATIO, ACCURACY, BEST, *LEARNT), evaluated_on="training images",
        measurement="spectrum"),
    measurement_settings.NOISE:
        Criteria("", (), (Column("snr_median", "SNR, median over epochs", 4),
        Column("snr_lowest", "lowest", 4), Column("snr_highest", "highest", 4), ACCURACY),
        measurement="noise"),
}
# fmt: on
ALL = tuple(
    dict.fromkeys(c for name, each in OF_STUDIES.items() if name != "loss" for c in each.columns)
)
"""Not the loss, which runs on images have too."""
CRITERIA: Mapping[str, Criteria] = {
    **OF_STUDIES,
    EVERYTHING: Criteria("Who is ahead", (ACCURACY,), ALL),
}
"""Measure of a study -> its criteria; a measure that is not here has no runs to compare."""
