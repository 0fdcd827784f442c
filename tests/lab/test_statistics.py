"""Statistics against scipy, closed forms and simulation."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vasso.lab import statistics
from vasso.lab.statistics import (
    chosen,
    holm,
    mean,
    paired,
    seeds_to_decide,
    sign_flip_p,
    standing,
    student_p,
    verdict,
)

SOME = np.random.default_rng(7).normal(0.4, 1.0, (20, 5))


@pytest.mark.parametrize("d", SOME)
def test_student_is_that_of_scipy(d: np.ndarray) -> None:
    theirs = stats.ttest_1samp(d, 0.0)
    compared = paired(dict(enumerate(d)), dict.fromkeys(range(5), 0.0))
    assert compared is not None
    low, high = theirs.confidence_interval(0.95)
    assert compared.p == pytest.approx(theirs.pvalue, rel=1e-12)
    assert compared.difference.low == pytest.approx(low, rel=1e-12)
    assert compared.difference.high == pytest.approx(high, rel=1e-12)


@pytest.mark.parametrize("d", SOME[:5])
def test_flips_are_those_of_scipy(d: np.ndarray) -> None:
    theirs = stats.permutation_test(
        (d,), lambda x, axis: np.mean(x, axis=axis), permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_p(d) == pytest.approx(theirs.pvalue, abs=1e-12)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=8))
def test_flips_by_counting(d: list[int]) -> None:
    sums = [
        abs(sum(s * x for s, x in zip(signs, d, strict=True)))
        for signs in product([-1, 1], repeat=len(d))
    ]
    assert sign_flip_p(d) == sum(s >= abs(sum(d)) for s in sums) / len(sums)


def test_flips_of_many_seeds_are_drawn_and_near_student() -> None:
    d = np.random.default_rng(3).normal(0.3, 1.0, 40)
    assert sign_flip_p(d) == sign_flip_p(d)
    assert sign_flip_p(d) == pytest.approx(student_p(d), abs=0.01)
    assert sign_flip_p(np.ones(40)) == pytest.approx(2**-16)


def test_pairs_are_the_seeds_that_both_have() -> None:
    compared = paired({0: 1.0, 1: 2.0, 5: 9.0}, {1: 1.5, 0: 0.0, 7: 3.0})
    assert compared is not None
    assert (compared.n, compared.difference.value) == (2, 0.75)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_of_one_seed_nothing_can_be_said() -> None:
    compared = paired({0: 1.0}, {0: 0.0})
    assert compared is not None
    assert compared.difference.low == -math.inf
    assert (compared.p, compared.p_flip) == (1.0, 1.0)
    assert mean([3.0]).high == math.inf


def test_differences_that_are_all_alike() -> None:
    assert student_p([0.3, 0.3, 0.3]) == 0.0
    assert student_p([0.1 + 0.2, 0.3, 0.3]) == 0.0
    assert student_p([0.0, 0.0, 0.0]) == 1.0


def test_holm_by_hand() -> None:
    adjusted = holm({"a": 0.04, "b": 0.01, "c": 0.03, "d": 0.02})
    assert adjusted == pytest.approx({"b": 0.04, "d": 0.06, "c": 0.06, "a": 0.06})
    assert list(adjusted) == ["a", "b", "c", "d"]
    assert holm({}) == {}
    assert holm({1: 0.7, 2: 0.8}) == {1: 1.0, 2: 1.0}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_rejects_what_the_closed_test_by_bonferroni_rejects(p: list[float]) -> None:
    """Holm is the closure of Bonferroni: i falls if every set that holds it falls."""
    adjusted = holm(dict(enumerate(p)))
    for i in range(len(p)):
        sets = [s for s in product([0, 1], repeat=len(p)) if s[i]]
        closed = max(
            min(1.0, sum(s) * min(x for x, on in zip(p, s, strict=True) if on)) for s in sets
        )
        assert adjusted[i] == pytest.approx(closed, abs=1e-12)


@pytest.mark.parametrize("n", [3, 5])
def test_intervals_hold_the_truth_in_95_of_100(n: int) -> None:
    rng, trials, held = np.random.default_rng(0), 1000, 0
    seeds = range(n)
    for _ in range(trials):
        common, a, b = rng.normal(0, 5, n), rng.normal(1.0, 1, n), rng.normal(0, 1, n)
        compared = paired(
            dict(zip(seeds, common + a, strict=True)), dict(zip(seeds, common + b, strict=True))
        )
        assert compared is not None
        held += compared.difference.low <= 1.0 <= compared.difference.high
    three_deviations = 3 * math.sqrt(0.95 * 0.05 / trials)
    assert held / trials == pytest.approx(0.95, abs=three_deviations)


def family(rng: np.random.Generator, effect: float) -> list[str]:
    """Verdicts on six methods against one: three without effect, three with one."""
    theirs = dict(enumerate(rng.normal(0, 1, 5)))
    truth = [0.0, 0.0, 0.0, effect, effect, effect]
    compared = [paired(dict(enumerate(rng.normal(m, 1, 5))), theirs) for m in truth]
    adjusted = holm({i: c.p for i, c in enumerate(compared) if c is not None})
    return [standing(c, adjusted[i]) for i, c in enumerate(compared)]


@pytest.mark.parametrize("effect", [0.0, 4.0])
def test_one_false_verdict_in_a_study_is_rare(effect: float) -> None:
    rng, trials = np.random.default_rng(1), 600
    studies = [family(rng, effect) for _ in range(trials)]
    null = slice(0, 3 if effect else 6)
    false = (
        sum(any(word != "no significant difference" for word in words[null]) for words in studies)
        / trials
    )
    assert false <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    if effect:
        assert sum(words[3] == "ahead" for words in studies) / trials > 0.5


def test_words() -> None:
    three = paired({0: 3.0, 1: 4.1, 2: 5.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    two = paired({0: 3.0, 1: 4.1}, {0: 1.0, 1: 2.0})
    assert standing(three, 0.04) == "ahead"
    assert standing(paired({0: 1.0, 1: 2.0, 2: 3.0}, {0: 3.0, 1: 4.1, 2: 5.0}), 0.04) == "behind"
    assert standing(three, statistics.ALPHA) == "no significant difference"
    assert standing(two, 0.0) == "too few seeds"
    assert standing(None, 0.0) == "too few seeds"
    assert [
        verdict(s, 2.0) for s in ("ahead", "behind", "no significant difference", "too few seeds")
    ] == ["agrees", "disagrees", "inconclusive", "too few seeds"]
    assert verdict("behind", -0.1) == "agrees"


def test_the_radius_is_chosen_by_mean_validation_accuracy() -> None:
    assert chosen({}) is None
    assert chosen({0.1: []}) is None
    assert chosen({0.2: [1.0], 0.1: [1.0]}) == 0.1
    assert chosen({0.1: [1.0, 9.0], 0.2: [6.0, 6.0]}) == 0.2
    assert chosen({0.1: [1.0, 2.0, 3.0], 0.2: [9.0, 9.0]}) == 0.1


def power_by_scipy(difference: float, spread: float, n: int) -> float:
    edge = stats.t.ppf(0.975, n - 1)
    return float(stats.nct.sf(edge, n - 1, np.sqrt(n) * abs(difference) / spread))


@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("spread", [0.05, 0.12, 0.15, 0.3, 0.9])
def test_so_many_seeds_have_the_power_and_one_fewer_has_not(spread: float, power: float) -> None:
    n = seeds_to_decide(-0.15, spread, power=power)
    assert power_by_scipy(0.15, spread, n) >= power
    assert n == 3 or power_by_scipy(0.15, spread, n - 1) < power


def test_seeds_are_those_of_the_tables_and_of_a_simulation() -> None:
    # Cohen, 1988, and every program since: effects of 0.2, 0.5 and 0.8 deviations
    assert [seeds_to_decide(d, 1.0) for d in (0.2, 0.5, 0.8)] == [199, 34, 15]
    drawn = np.random.default_rng(0).normal(0.15, 0.15, (20_000, seeds_to_decide(0.15, 0.15)))
    found = (stats.ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05).mean()
    assert found == pytest.approx(power_by_scipy(0.15, 0.15, 10), abs=4 * np.sqrt(0.16 / 20_000))


def test_seeds_of_what_has_no_spread_and_of_what_has_too_much() -> None:
    assert seeds_to_decide(0.15, 0.0) == 3
    assert seeds_to_decide(0.15, 1e-6) == 3
    assert 34_000 < seeds_to_decide(0.15, 10.0) < 36_000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0.0, 1.0), "difference must be a number other than 0, got 0.0"),
        ((0.1, -1.0), "spread must be a number, at least 0, got -1.0"),
        ((0.1, math.nan), "spread must be a number, at least 0, got nan"),
    ],
)
def test_seeds_of_nonsense(given: tuple[float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        seeds_to_decide(*given)
    with pytest.raises(ValueError, match="power must be between 0 and 1"):
        seeds_to_decide(0.1, 1.0, power=1.0)


@pytest.mark.parametrize(
    ("better", "words"),
    [
        ("more", ("ahead", "behind")),
        ("less", ("behind", "ahead")),
        ("neither", ("larger", "smaller")),
    ],
)
def test_what_is_better_is_for_the_number_to_say(better: Any, words: tuple[str, str]) -> None:
    zeros = dict.fromkeys(range(4), 0.0)
    up, down = (paired({s: sign * (1 + s / 9) for s in zeros}, zeros) for sign in (1, -1))
    assert (standing(up, 0.01, better), standing(down, 0.01, better)) == words
    assert standing(up, 0.05, better) == "no significant difference"
    for mine, published in zip(words, (0.2, -0.2), strict=True):
        assert verdict(mine, published, better) == "agrees"
        assert verdict(mine, -published, better) == "disagrees"


def test_the_spread_is_that_of_the_differences() -> None:
    two = paired({0: 3.0, 1: 5.0}, {0: 1.0, 1: 2.0})
    one = paired({0: 3.0}, {0: 1.0})
    assert two is not None
    assert one is not None
    assert two.spread == pytest.approx(np.sqrt(0.5))
    assert math.isnan(one.spread)
