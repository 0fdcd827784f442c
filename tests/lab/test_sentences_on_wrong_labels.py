"""Sentences that people wrote about the record of wrong labels still say what its runs say."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from tests.lab.records import RECORDS, ROOT, imported
from vasso.lab.report.findings import findings
from vasso.lab.statistics import paired

NUMBERS = {8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}


class Evidence:
    """What the sentences speak of, of one study."""

    def __init__(self, record: ModuleType, found: Any, study: str) -> None:
        self.record, self.of = record, found[study]
        self.answers = imported("wrong-labels", "answers")
        self.one, self.there = self.answers.all_at_one(*self.of)
        self.best = record.picks(*self.of)

    def ahead_at_one(self) -> Any:
        """Theta 0.2 against SAM at the one radius."""
        return self.record.compared(*self.of, "one", self.there["VaSSO θ=0.2"])

    def standings(self) -> set[str]:
        """How the methods stand against SAM, each at its best radius."""
        compared = (self.record.compared(*self.of, "best", cell) for cell in self.best.values())
        return {c.standing for c in compared if c is not None}

    def factors(self) -> list[float]:
        """The best radius over SAM's, by falling theta."""
        radii = [cell.rho for cell in self.best.values() if cell.rho is not None]
        return [rho / radii[0] for rho in radii[1:]]


@pytest.fixture(scope="module")
def evidence() -> Callable[[str], Evidence]:
    record = imported("wrong-labels")
    found = record.tables(findings(RECORDS, [*record.STUDIES, "label-noise"]))
    return partial(Evidence, record, found)


def sentence(page: str, words: str) -> None:
    """The page has these words, however its lines are broken."""
    assert words in " ".join((ROOT / page).read_text().split()), f"{page} says it no longer"


def test_sam_is_ahead_of_sgd_that_is_stopped_early(evidence: Callable[[str], Evidence]) -> None:
    sentence("README.md", "SAM's gain is large, also over SGD that is stopped early")
    for study in ("radius", "radius-mlp"):
        best = evidence(study).best
        stopped, sam = best["SGD"].values("best"), best["SAM"].values("last")
        assert paired(sam, stopped).difference.low > 0, study


def test_one_rho_is_too_large_for_sam_on_the_resnet(evidence: Callable[[str], Evidence]) -> None:
    sentence("README.md", "suits SAM on clean labels is too large for it under wrong ones")
    sentence(
        "docs/how-to/choosing-rho.md", "lies above SAM's optimum under wrong labels on a ResNet"
    )
    conv = evidence("radius")
    assert conv.one.labels == "clean"
    assert conv.one.rho > conv.best["SAM"].rho


def test_at_that_rho_theta_02_is_ahead_by_so_many_points(
    evidence: Callable[[str], Evidence],
) -> None:
    comparison = evidence("radius").ahead_at_one()
    assert comparison.standing == "ahead"
    points = NUMBERS[round(comparison.paired.difference.value)]
    sentence(
        "README.md",
        "VaSSO with theta 0.2, which turns less of rho into a rise, "
        f"stands {points} points above SAM",
    )


def test_with_its_own_rho_each_nobody_is_ahead(evidence: Callable[[str], Evidence]) -> None:
    sentence("README.md", "with its own best rho each we cannot show it ahead")
    sentence("docs/concepts/when-not.md", "it cannot be told apart")
    assert evidence("radius").standings() == {"cannot tell"}
    assert evidence("radius-mlp").standings() == {"cannot tell"}


def test_one_rho_is_too_small_on_the_mlp(evidence: Callable[[str], Evidence]) -> None:
    sentence(
        "README.md", "the rho of clean labels is too small for all of them, and there is no order"
    )
    mlp = evidence("radius-mlp")
    assert all(mlp.one.rho < cell.rho for cell in mlp.best.values() if cell.rho is not None)
    assert mlp.answers.trend(list(mlp.there.values())).endswith("the means have no order")


def test_how_much_larger_the_best_rho_is(evidence: Callable[[str], Evidence]) -> None:
    factors = evidence("radius").factors()
    assert factors == sorted(factors)
    said = (
        f"up to {max(factors):.1f} times on a ResNet, the more the smaller `theta`, "
        "and no more at all on a perceptron"
    )
    sentence("docs/concepts/radius.md", said)
    assert set(evidence("radius-mlp").factors()) == {1.0}


def test_more_is_carried_and_the_range_is_wider(evidence: Callable[[str], Evidence]) -> None:
    sentence(
        "README.md",
        "other batches feel more of it than of SAM's, whose adversary is often their friend; "
        "on the MLP the range of rho that works is wider with theta 0.4 or less",
    )
    for study in ("radius", "radius-mlp"):
        of = evidence(study)
        lead, _ = of.record.third_answer(*of.of)
        assert lead.startswith("yes for"), study
        assert "θ=0.4, θ=0.2" in lead, study
    mlp = evidence("radius-mlp")
    answer = mlp.record.fourth_answer(mlp.of[1])
    for theta in ("0.4", "0.2", "0.1"):
        said = answer.split(f"θ={theta}")[1]
        assert float(said.split("SAM's, ")[1].split(" to ")[0]) > 1, said
