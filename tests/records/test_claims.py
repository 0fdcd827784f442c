"""The page of claims: its verdicts follow from the raw runs, recomputed here with scipy alone."""

import json
from itertools import product
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import t, ttest_rel

from tests.records.records import RECORDS, ROOT, imported
from vasso.lab.report import claims
from vasso.lab.report.findings import Findings, findings
from vasso.lab.statistics import Paired, paired

CLEAR, FAINT = (3.0, 3.1, 2.9, 3.0), (1.0, -1.2, 0.9, -0.6)
GAIN, NO_GAIN = (5.0, 5.2, 4.9, 5.1), (0.5, -0.5, 0.4, -0.6)


@pytest.fixture(scope="module")
def record() -> ModuleType:
    return imported("claims")


@pytest.fixture(scope="module")
def every(record: ModuleType) -> Findings:
    return findings(RECORDS, record.NAMES)


def less(*values: float) -> Paired:
    found = paired(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("differences", "sign", "gained", "verdict"),
    [
        (CLEAR, 1, None, "confirmed"),
        (CLEAR, -1, None, "contradicted"),
        (CLEAR, 1, GAIN, "confirmed"),
        (CLEAR, 1, NO_GAIN, "no verdict: SAM has no significant gain here"),
        (CLEAR, 1, [-x for x in GAIN], "no verdict: SAM has no significant gain here"),
        (CLEAR[:2], 1, None, "undecided: n = 2, too few seeds"),
        (CLEAR, 1, GAIN[:2], "undecided: n = 2, too few seeds"),
        (FAINT, 1, None, "undecided: needs 1000 seeds or more"),
        ((1.0, -0.4, 0.8), 1, None, "undecided: needs 23 seeds"),
    ],
)
def test_what_is_confirmed_contradicted_and_left_open(
    differences: tuple, sign: int, gained: tuple | None, verdict: str
) -> None:
    pair = less(*differences)
    gate = None if gained is None else less(*gained)
    assert claims._verdict(pair, pair.p, sign, gate) == verdict


def test_every_verdict_follows_from_the_raw_runs(every: Findings) -> None:
    """Difference, interval and word, from the test accuracies in `runs.jsonl`."""
    files = RECORDS.glob("*/runs.jsonl")
    lines = (json.loads(line) for file in files for line in file.read_text().splitlines())
    accuracy = {line["id"]: line["result"]["last"].get("test_accuracy") for line in lines}
    page = (ROOT / "docs" / "claims.md").read_text()
    checked = 0
    for claim, one in product(claims.CLAIMS, every.results):
        is_of = claim.study == one.section.study.name and one.section.scale.name != "paper"
        if not is_of or claims.metric_of(claim, one).name != "last":
            continue
        tables = (x for x in one.section.tables if claim.wrong in (None, x.task.wrong))
        for table, rule in product(tables, claim.rules):
            found = claims.differences(claim, one, table, rule)
            pairs = [raw(f.ours, f.theirs, accuracy) for f in found]
            adjusted = stepped_down([ttest_rel(a, b).pvalue for a, b in pairs if len(a) > 2])
            gate = claims.gain(one, table) if claim.gate else None
            words = claims.verdicts_of(found, claim.sign, gate)
            for f, (a, b), word in zip(found, pairs, words, strict=True):
                if len(a) < 3 or word.startswith("no verdict"):
                    continue
                d, p = np.subtract(a, b), adjusted.pop(0)
                half = t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d))
                assert f.paired.difference.high == pytest.approx(d.mean() + half)
                sure = "confirmed" if d.mean() * claim.sign > 0 else "contradicted"
                assert word == sure if p < 0.05 else word.startswith("undecided: needs")
                assert f"| {claims.format_pair(f.paired, 1)} |" in page
                checked += 1
    assert checked > 20


def test_eigenvalues_are_not_compared_at_losses_that_only_one_method_has() -> None:
    low, high = [(0.01, 5.0), (0.1, 20.0)], [(0.3, 40.0), (0.5, 60.0)]
    assert claims.at_equal_loss(low, high) is claims.at_equal_loss(high, low) is None
    assert claims.at_equal_loss(low, [*high, (0.1, 10.0)]) == pytest.approx((20.0, 10.0))


def test_eigenvalues_at_equal_loss_are_those_of_the_raw_runs(every: Findings) -> None:
    files = RECORDS.glob("*/runs.jsonl")
    runs = {r["id"]: r for f in files for r in map(json.loads, f.read_text().splitlines())}
    lines = [line for line in claims.claim_lines(every) if line.study == claims.EQUAL_LOSS]
    assert len(lines) == len(claims.EQUAL_LOSS_PAIRS)
    for line in lines:
        points: dict[bool, dict[int, list]] = {True: {}, False: {}}
        for trained in (one for cell in line.cells for one in cell.finished):
            run, spectrum = trained.run, runs[trained.run.id].get("measured", {}).get("spectrum")
            ours = cell_name(run) == line.method
            if spectrum is not None:
                loss = runs[run.id]["result"]["last"]["training_loss"]
                pair = (np.log(loss), np.log(spectrum["rows"]["lambda1"][0]))
                points[ours].setdefault(run.seed, []).append(pair)
        differences = []
        for seed in points[True].keys() & points[False].keys():
            a, b = (np.array(sorted(points[ours][seed])) for ours in (True, False))
            level = max(a[0, 0], b[0, 0])
            if level <= min(a[-1, 0], b[-1, 0]):
                values = [np.exp(np.interp(level, *each.T)) for each in (a, b)]
                differences.append(values[0] - values[1])
        assert line.seeds == len(differences) > 2
        assert line.measured.startswith(f"{np.mean(differences):+.1f} (".replace("-", "−"))


def cell_name(run) -> str:
    theta = dict(run.method.settings).get("theta")
    return run.method.name if theta is None else f"{run.method.name} θ={theta}"


def raw(ours, theirs, accuracy: dict[str, float]) -> tuple[list[float], list[float]]:
    ids = [{t.run.seed: t.run.id for t in cell.finished} for cell in (ours, theirs)]
    shared = sorted(ids[0].keys() & ids[1].keys())
    return tuple([accuracy[each[seed]] for seed in shared] for each in ids)


def stepped_down(p: list[float]) -> list[float]:
    """Holm's correction, as its paper says it: the smallest times m, the next times m - 1, ..."""
    order = np.argsort(p)
    steps = np.maximum.accumulate([p[i] * (len(p) - k) for k, i in enumerate(order)])
    return [float(min(1, steps[list(order).index(i)])) for i in range(len(p))]


def test_every_table_figure_and_theorem_of_the_paper_has_a_line() -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    tables = [f"Table {i}" for i in range(1, 7)]
    figures = [f"Figure {name}" for name in ("1a", "1b", "1c", "2a to 2d", "2e")]
    for place in (*tables, *figures, "Theorem 1", "Theorem 2", "Theorem 3", "Corollary 1"):
        assert f"\n| {place} | " in page, place
