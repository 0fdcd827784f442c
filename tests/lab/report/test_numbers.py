"""What a store says: reading, matching, choosing, comparing; and compact copies of it."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.calls import called
from tests.lab.stores import accuracy, as_lines, as_store, rewritten, runs_of, trained
from vasso.lab.experiment.method import MethodConfig
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.report.cells import NUMBERS, cells_of
from vasso.lab.report.compare import (
    Comparison,
    OneRadius,
    comparisons_of,
    picks_of,
    published_differences,
    published_figures,
)
from vasso.lab.report.export import export
from vasso.lab.report.findings import Findings, SectionResult, findings
from vasso.lab.report.json import findings_as_table
from vasso.lab.report.read import Contents, read_store
from vasso.lab.report.sections import sections_of
from vasso.lab.report.text import describe_comparison, train_command
from vasso.lab.statistics import mean
from vasso.lab.store.json import as_json
from vasso.lab.store.run_directory import StoreError
from vasso.lab.store.store import LINES
from vasso.lab.studies import study as studies

SMALL = {"epochs": 4, "train_size": 100, "validation": 50, "wrong": 0.5, "others": 2}
"""A task of no study."""


def some(name: str, rho: float, seeds: int = 3, **task: object) -> list[Run]:
    method = {"name": name, "rho": rho} if rho else {"name": name}
    table = {"task": {**SMALL, **task}, "method": method}
    return [Run.of({**table, "seed": seed}) for seed in range(seeds)]


def contents(runs: list[Run]) -> Contents:
    return Contents({run.id: trained(run) for run in runs}, ())


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Label noise at two shares, three seeds; the radius study shares runs with it."""
    root = tmp_path_factory.mktemp("noisy")
    runs = [trained(run) for run in runs_of("label-noise", seeds=3, wrong=(0.0, 0.75))]
    return findings(as_lines(root, runs))


def section(found: Findings, anchor: str) -> SectionResult:
    return next(a for a in found.results if a.section.anchor == anchor)


def test_a_store_and_its_compact_copy_say_the_same(tmp_path: Path) -> None:
    runs = [*some("SAM", 0.1), *some("SAM", 0.2), *some("SGD", 0)]
    store = as_store(
        tmp_path / "store", [*map(trained, runs), trained(some("SAM", 0.4)[0], finished=False)]
    )
    export(store.root, tmp_path / "copy")
    copied = findings_as_table(findings(tmp_path / "copy"))
    whole = findings_as_table(findings(store.root))
    assert whole["runs"] == copied["runs"] + 1
    (first,), (second,) = whole["studies"], copied["studies"]
    assert first["runs"] == {
        "wanted": 10,
        "finished": 9,
        "under way": 1,
        "missing": 0,
        "further": 0,
    }
    done = [cell for cell in first["tasks"][0]["cells"] if cell["n"]]
    for ours, theirs in zip(done, second["tasks"][0]["cells"], strict=True):
        for name in ("last", "best", "validation", "wrong", "cost", "seconds"):
            assert ours[name] == theirs[name]
        if ours["rise"]:
            assert ours["rise"]["mean"] == pytest.approx(theirs["rise"]["mean"], rel=1e-5)
            assert ours["carried"]["mean"] == pytest.approx(theirs["carried"]["mean"], rel=1e-5)
    assert first["comparisons"] == second["comparisons"]


def test_reading_writes_nothing(tmp_path: Path) -> None:
    store = as_store(tmp_path / "store", [trained(some("SAM", 0.1)[0])])
    (store.root / "store.json").unlink()
    before = sorted((p, p.stat().st_mtime_ns) for p in store.root.rglob("*"))
    assert len(read_store(store.root).runs) == 1
    assert sorted((p, p.stat().st_mtime_ns) for p in store.root.rglob("*")) == before


def test_what_a_page_keeps_of_runs_gives_the_numbers_of_all_there_is(tmp_path: Path) -> None:
    runs = [*some("SAM", 0.1), *some("SGD", 0), *some("SAM", 0.2, epochs=5)]
    unfinished = trained(some("SAM", 0.4)[0], finished=False)
    root = as_store(tmp_path, [*map(trained, runs), unfinished]).root
    whole, shown = read_store(root), read_store(root, whole=False)
    for name, quantity in NUMBERS.items():
        of_whole, of_shown = (
            [quantity(one) for one in found.runs.values() if one.result is not None]
            for found in (whole, shown)
        )
        assert of_whole == of_shown, name
    for run_id, one in shown.runs.items():
        for name in ("epoch", "test_accuracy", "step"):
            both = (each.epochs for each in (one, whole.runs[run_id]))
            assert len({tuple(epoch.get(name) for epoch in epochs) for epochs in both}) == 1
        assert "train_loss" not in one.epochs[0]


def test_what_is_damaged_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    runs = [*some("SAM", 0.1, 5), *some("SGD", 0, 1)]
    store = as_store(tmp_path / "store", map(trained, runs))
    damage = {"run.json": b"{", "result.json": as_json({"cost": 3})}
    for (name, content), run in zip(damage.items(), runs, strict=False):
        (store.root / run.id / name).write_bytes(content)
    longer = runs[2].changed({"epochs": 5}).in_full()
    rewritten(store.root / runs[2].id / "run.json", run=longer)
    rewritten(store.root / runs[3].id / "run.json", format=99)
    (store.root / "linked").symlink_to(store.root / runs[4].id)
    with (store.root / LINES).open("wb") as lines:
        lines.write(b'{"format": 99, "id": "x"}\n\xff\n[]\n')
    found = read_store(store.root)
    assert sorted(found.runs) == sorted(run.id for run in runs[4:])
    values = {trouble.where: trouble.why for trouble in found.errors}
    for run, why in [(runs[0], "not JSON"), (runs[1], "it lacks the last epoch")]:
        assert f"is damaged: {why}. Remove the folder {run.id} to begin" in values[run.id]
    assert values[runs[3].id].startswith(f"{runs[3].id}/run.json has format 99, of a newer version")
    assert values[runs[2].id].startswith("its settings are those of digits-mlp-sam-rho-0.1-s2-")
    assert values["linked"] == "a link, which may lead out of the store"
    assert values[f"{LINES}, line 1"] == "of format 99, this version of vasso reads 1"
    assert values[f"{LINES}, line 3"] == "not a run"
    assert len(values) == 8


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda lines: None, "4 of 4 epochs are not in it; the result counts"),
        (lambda lines: [], "4 of 4 epochs are not in it; the result counts"),
        (lambda lines: [*lines, "junk"], "line 5 is damaged: not a table in JSON; the result"),
        (lambda lines: [lines[0], "junk", *lines[2:]], "1 of 4 epochs are not in it"),
        (lambda lines: [*lines[:2], '{"kin', as_json({"kind": "start"}).decode(), *lines[2:]], ""),
    ],
    ids=["deleted", "emptied", "appended", "overwritten", "torn by a crash"],
)
def test_metrics_of_a_finished_run_are_all_there_or_missed(
    damage: Callable[[list[str]], list[str] | None], why: str, tmp_path: Path
) -> None:
    """Of a run under way the last lines may be lost; they are written again."""
    done, begun = some("SAM", 0.1, 2)
    store = as_store(tmp_path / "store", [trained(done), trained(begun, finished=False)])
    for run in (done, begun):
        path = store.root / run.id / "metrics.jsonl"
        lines = damage(path.read_text().splitlines())
        path.unlink()
        if lines is not None:
            path.write_text("".join(f"{line}\n" for line in lines))
    found = read_store(store.root)
    assert found.runs[done.id].result is not None
    assert len(found.runs) == 2
    assert [t.where for t in found.errors][:1] == ([f"{done.id}/metrics.jsonl"] if why else [])
    assert [t.why for t in found.errors if why not in t.why] == []


def test_of_a_run_that_is_there_twice_the_finished_one_counts(tmp_path: Path) -> None:
    run = some("SAM", 0.1)[0]
    as_lines(tmp_path, [trained(run, finished=False)], "a")
    as_lines(tmp_path, [trained(run)], "b")
    as_lines(tmp_path, [trained(run, finished=False)], "c")
    assert read_store(tmp_path).runs[run.id].result is not None


def test_clear_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "store.json").write_bytes(as_json({"format": 9}))
    full = str(as_lines(tmp_path / "full", map(trained, some("SAM", 0.1))))
    for words, code, message in [
        (["report", str(tmp_path / "none")], 1, "is not there: name the directory"),
        (["report", str(tmp_path / "empty")], 1, "holds no run: `vasso study label-noise"),
        (["report", str(tmp_path / "newer")], 1, "has format 9"),
        (["report", full, "--study", "radios"], 2, "Did you mean 'radius'?"),
        (["report", full, "--study", "radius"], 1, "holds no run of radius"),
        (["export", full, str(tmp_path / "to"), "--study", "radius"], 1, "no finished run"),
    ]:
        assert (
            called(*words, *(["-o", str(tmp_path / "x.html")] if words[0] == "report" else []))
            == code
        )
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
    assert not (tmp_path / "to").exists()


def test_a_run_counts_for_every_study_that_asks_for_it(noisy: Findings) -> None:
    anchors = [a.section.anchor for a in noisy.results]
    assert anchors == ["label-noise-cpu", "normalisation-desk", "radius-cpu"]
    counts = section(noisy, "label-noise-cpu").section.counts()
    wanted = {run.id for run in runs_of("label-noise")}
    missing = wanted - set(noisy.contents.runs)
    assert len(missing) > 10
    found = [counts[name] for name in ("wanted", "finished", "missing")]
    assert found == [len(wanted), len(wanted) - len(missing), len(missing)]
    shared = {run.id for run in runs_of("radius")} & set(noisy.contents.runs)
    assert section(noisy, "radius-cpu").section.counts()["finished"] == len(shared) > 10


def test_further_seeds_count_and_are_told() -> None:
    first = runs_of("cifar10")[0]
    seeds = [replace(first, seed=seed) for seed in (0, 7)]
    (found,) = (s for s in sections_of(contents(seeds)) if s.study.name == "cifar10")
    cell = found.cells[0]
    assert (cell.n, cell.seeds, cell.missing) == (2, (0, 7), (1, 2, 3, 4))
    counts = found.counts()
    wanted = len(runs_of("cifar10"))
    assert (counts["finished"], counts["further"], counts["missing"]) == (1, 1, wanted - 1)


def test_the_base_with_as_many_gradients_stands_beside_its_rivals() -> None:
    some = [run for run in runs_of("cifar10") if run.method.name in ("plain", "SAM")]
    assert {run.task.epochs for run in some} == {12, 24}
    there = contents(some)
    (found,) = (s for s in sections_of(there) if s.study.name == "cifar10")
    (table,) = found.tables
    names = ["SGD", "SAM", "SGD, 2 times the epochs"]
    assert [name for name in table.families() if not name.startswith(("VaSSO", "A", "F"))] == names
    pairs = {table.name(c.theirs): c for c in comparisons_of(found, there) if c.kind == "base"}
    assert pairs.keys() == {"SGD", "SGD, 2 times the epochs"}
    assert pairs["SGD"].agreements
    assert not pairs["SGD, 2 times the epochs"].agreements  # nobody has published it


def test_the_paper_s_scale_is_found_too_and_runs_of_no_study_are_shown() -> None:
    runs = [runs_of("label-noise", "paper")[0], *some("SAM", 0.1)]
    found = sections_of(contents(runs))
    assert [s.anchor for s in found] == ["label-noise-paper", "other-runs"]
    assert found[1].cells[0].n == 3


def test_a_study_of_something_else_is_not_judged_by_accuracy() -> None:
    every = sections_of(contents(runs_of("translation")[:6]))
    (found,) = (s for s in every if s.study.name == "translation")
    assert (found.anchor, found.counts()["finished"]) == ("translation-cpu", 6)
    assert "last" not in {headline.name for headline in found.criteria.metrics}


def test_methods_of_one_name_are_told_apart() -> None:
    runs = [*some("SAM", 0.1), *(r.changed({"lr": 0.2}) for r in some("SAM", 0.1))]
    (found,) = sections_of(contents(runs))
    assert sorted(found.tables[0].families()) == ["SAM lr=0.05", "SAM lr=0.2"]


def test_numbers_of_a_cell_are_those_of_its_runs() -> None:
    runs = some("VaSSO", 0.2)
    (cell,) = cells_of(runs, [trained(run) for run in runs])
    finals = [trained(run).result["last"]["test_accuracy"] for run in runs]
    assert cell.estimate("last") == mean(finals)
    epochs = trained(runs[0]).epochs
    assert cell.values("rise")[0] == epochs[0]["rise"] != epochs[1]["rise"]
    half = [epoch["adversary"] for epoch in epochs[: (len(epochs) + 1) // 2]]
    others = math.fsum(math.fsum(one["others"]) / 4 for one in half)
    own = math.fsum(one["own"] for one in half)
    assert cell.values("own")[0] == pytest.approx(own / len(half))
    assert cell.values("carried")[0] == pytest.approx(others / own)


def test_the_radius_is_chosen_by_validation_and_never_by_test() -> None:
    runs = [*some("SAM", 0.1), *some("SAM", 0.2), *some("SAM", 0.3)]
    there = {}
    for run in runs:
        rho = dict(run.method.settings)["rho"]
        one = trained(run)
        last = {"test_accuracy": 90.0 - 100 * rho, "validation_accuracy": 100 * rho}
        there[run.id] = replace(one, result={**one.result, "last": last})
    found = sections_of(Contents(there, ()))[0]
    pick = picks_of(found.tables[0])["SAM"]
    assert (pick.cell.rho, pick.among, pick.of, pick.at_end) == (0.3, 3, 3, "largest")


def test_radii_are_compared_by_the_seeds_that_all_have() -> None:
    """The weakest seed is missing at 0.1: without it the mean is higher, though 0.2 is better."""
    weak = {0: 20.0}
    there = {}
    for rho, seeds, bonus in ((0.1, (1, 2, 3), 0.0), (0.2, (0, 1, 2, 3), 1.0)):
        run = some("SAM", rho)[0]
        for seed in seeds:
            one = trained(replace(run, seed=seed))
            last = {"validation_accuracy": weak.get(seed, 50.0) + bonus, "test_accuracy": 50.0}
            there[one.run.id] = replace(one, result={**one.result, "last": last})
    pick = picks_of(sections_of(Contents(there, ()))[0].tables[0])["SAM"]
    assert pick.cell.rho == 0.2


def test_one_radius_for_all_is_sam_s_best_on_clean_labels(noisy: Findings) -> None:
    label_noise = section(noisy, "label-noise-cpu")
    by_task = {
        t.task.wrong: one
        for t, one in zip(label_noise.section.tables, label_noise.radii, strict=True)
    }
    assert {(one.rho, one.labels) for wrong, one in by_task.items() if one} == {(0.11, "clean")}
    radius = section(noisy, "radius-cpu").radii[0]
    assert radius is not None
    assert (radius.rho, radius.labels, radius.n) == (0.11, "clean", 3)


def found_for(noisy: Findings, kind: str, theta: float) -> Comparison:
    (only,) = (
        c
        for c in section(noisy, "label-noise-cpu").comparisons
        if c.kind == kind
        and c.table.task.wrong == 0.75
        and dict(c.ours.method.settings).get("theta") == theta
    )
    return only


def test_what_is_compared_with_what(noisy: Findings) -> None:
    best, one = found_for(noisy, "best", 0.2), found_for(noisy, "one", 0.2)
    assert (best.ours.rho, best.theirs.rho) == (0.2, 0.11)
    assert (one.ours.rho, one.theirs.rho) == (0.11, 0.11)
    assert one.standing == "behind"  # at SAM's best radius an averaged slope does too little
    assert one.paired is not None
    truth = accuracy(one.ours.run) - accuracy(one.theirs.run)
    assert one.paired.difference.low < truth < one.paired.difference.high
    (judged,) = one.agreements
    assert (judged.published.differences, judged.verdict) == ((9.66,), "disagrees")
    assert "disagrees with Li and Giannakis, 2023, Table 6" in describe_comparison(one)


def test_radii_that_nobody_has_chosen_are_not_called_best(tmp_path: Path) -> None:
    """The demo's study has one radius for each method; that of eigenvalues one for all."""
    demo = [trained(run) for run in runs_of("noisy-digits", seeds=3)]
    (found,) = findings(as_lines(tmp_path / "demo", demo), ["noisy-digits"]).results
    assert [c.kind for c in found.comparisons] == ["base", "given"]
    assert found.radius_compared(found.section.tables[0]) is None
    flat = [trained(run) for run in runs_of("hessian", seeds=3)]
    (sharp,) = findings(as_lines(tmp_path / "flat", flat), ["hessian"]).results
    assert {c.kind for c in sharp.comparisons} == {"base", "one"}
    (table,) = sharp.section.tables
    assert sharp.radius_compared(table) == OneRadius(0.1, "none", 3)
    elsewhere = OneRadius(0.05, "clean", 3)  # where nothing is compared
    assert replace(sharp, radii=(elsewhere,)).radius_compared(table) is None


def test_all_comparisons_of_a_section_are_one_family(noisy: Findings) -> None:
    compared = section(noisy, "label-noise-cpu").comparisons
    smallest = min(compared, key=lambda c: c.paired.p if c.paired else 1.0)
    assert smallest.paired is not None
    assert smallest.adjusted == pytest.approx(smallest.paired.p * len(compared))
    assert len(compared) > 8


def test_two_seeds_have_no_verdict_however_large_the_difference() -> None:
    runs = [*some("SAM", 0.1, 2), *some("SGD", 0, 2)]
    there = {run.id: trained(run, gain=50.0 * (run.method.name == "SAM")) for run in runs}
    everything = Contents(there, ())
    (compared,) = comparisons_of(sections_of(everything)[0], everything)
    assert (compared.standing, compared.adjusted) == ("too few seeds", 1.0)


def test_no_significant_difference_is_said_once(noisy: Findings) -> None:
    every = [
        c for a in noisy.results for c in a.comparisons if c.standing == "no significant difference"
    ]
    claims = [c for c in every if any(j.published.claims for j in c.agreements)]
    assert claims
    for c in claims:
        assert describe_comparison(c).count("no significant difference") == 1
        assert "no significant difference; inconclusive about " in describe_comparison(c)


def test_published_differences_and_what_they_claim() -> None:
    study = studies.load("label-noise")
    sam, vasso = MethodConfig.of({"name": "SAM", "rho": 0.1}), {"name": "VaSSO", "rho": 0.1}
    fitting = {
        (wrong, theta): published_differences(
            study, Task(wrong=wrong), MethodConfig.of({**vasso, "theta": theta}), sam
        )
        for wrong in (0.0, 0.25, 0.75)
        for theta in (0.9, 0.2)
    }
    assert [(p.differences, p.claims) for p in fitting[0.75, 0.2]] == [((9.66,), True)]
    assert [p.claims for p in fitting[0.25, 0.2]] == [False]  # 0.09 within 0.12 and 0.09
    assert fitting[0.0, 0.2] == []


def test_of_several_networks_ours_counts_if_it_is_there() -> None:
    study = studies.load("cifar10")
    vasso = MethodConfig.of({"name": "VaSSO", "rho": 0.1, "theta": 0.4})
    sam = MethodConfig.of({"name": "SAM", "rho": 0.1})
    paper, again = published_differences(study, Task(model="resnet18"), vasso, sam)
    assert (paper.differences, paper.claims) == ((0.19,), True)
    assert (again.differences, again.claims) == ((-0.05,), False)
    assert published_differences(study, Task(model="mlp"), vasso, sam)[0].differences == (
        0.28,
        0.19,
        0.22,
        0.08,
    )
    sgd = MethodConfig.of({"name": "SGD"})
    assert published_figures(study, Task(model="resnet18"), sgd)[
        paper.source, "resnet18"
    ].means == (96.25,)


def every_kind() -> list[Run]:
    found = {}
    for name in studies.names():
        for scale in studies.load(name).scales.values():
            for run in scale.runs:
                found[scale.name, run.method.name] = run
    return list(found.values())


def test_the_command_of_a_run_is_that_run() -> None:
    import shlex

    import tyro

    from vasso.lab.cli.train import RunFlags

    for run in every_kind():
        words = shlex.split(train_command(run))
        assert words[:2] == ["vasso", "train"]
        assert Run.of(tyro.cli(RunFlags, args=words[2:]).as_tables()).id == run.id


def test_copies_are_sorted_merged_and_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [trained(run) for run in runs_of("radius", seeds=1)]
    as_lines(tmp_path / "one", runs[3:])
    as_lines(tmp_path / "two", runs[:4])
    for name in ("one", "two"):
        assert called("export", str(tmp_path / name), str(tmp_path / "to")) == 0
    path = tmp_path / "to" / "radius" / LINES
    assert f"{path}: {len(runs)} runs" in capsys.readouterr().out
    ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert ids == sorted(one.run.id for one in runs)
    assert path.stat().st_size / len(runs) < 10_000  # 200 runs in less than 2 MB
    before = path.read_bytes()
    export(tmp_path / "one", tmp_path / "to")
    assert path.read_bytes() == before


def test_a_damaged_copy_stops_the_export_and_nothing_is_written(tmp_path: Path) -> None:
    as_lines(tmp_path / "store", map(trained, runs_of("radius", seeds=1)))
    damaged = as_lines(tmp_path / "to", [], "radius") / "radius" / LINES
    damaged.write_text('{"format": 1')
    with pytest.raises(StoreError, match=r"line 1 is damaged .* Nothing has been written"):
        export(tmp_path / "store", tmp_path / "to")
    assert sorted(p.name for p in (tmp_path / "to").iterdir()) == ["radius"]
    assert damaged.read_text() == '{"format": 1'


def test_a_run_that_came_out_otherwise_replaces_its_copy_only_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (trained(run) for run in runs_of("radius", seeds=1)[:2])
    last = {**second.result["last"], "seconds": 9.0, "images_per_second": 1.0}
    slower = replace(second, result={**second.result, "last": last})
    other = replace(second, result={**slower.result, "last": {**last, "test_accuracy": 1.5}})
    for name, one in {"there": second, "slow": slower, "store": other}.items():
        as_lines(tmp_path / name, [first, one])
    to = str(tmp_path / "to")
    for name in ("there", "slow"):
        assert called("export", str(tmp_path / name), to) == 0
    path = tmp_path / "to" / "radius" / LINES
    before = path.read_bytes()
    words = ["export", str(tmp_path / "store"), to]
    assert called(*words) == 1
    said = capsys.readouterr().err
    assert "1 of the runs in " in said
    assert second.run.id in said
    assert path.read_bytes() == before
    assert called(*words, "--again") == 0
    results = [json.loads(line)["result"] for line in path.read_text().splitlines()]
    assert 1.5 in [result["last"]["test_accuracy"] for result in results]


def test_unfinished_runs_are_not_copied(tmp_path: Path) -> None:
    first, second = runs_of("radius", seeds=1)[:2]
    as_lines(tmp_path / "store", [trained(first), trained(second, finished=False)])
    assert list(export(tmp_path / "store", tmp_path / "to", ["radius"]).values()) == [1]


def test_what_cannot_be_read_is_told_when_runs_are_copied(tmp_path: Path) -> None:
    first, second = runs_of("radius", seeds=1)[:2]
    store = as_store(tmp_path / "store", [trained(first), trained(second)])
    (store.root / second.id / "result.json").write_text("{")
    recorded: list[str] = []
    assert [*export(store.root, tmp_path / "to", ["radius"], recorded.append).values()] == [1]
    (line,) = recorded
    assert line.startswith("could not be read: ")
    assert second.id in line
