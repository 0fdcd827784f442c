"""Studies that measure something else than accuracy: read, compared, copied and shown."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console

from tests.lab.report.test_page import Reader
from tests.lab.stores import (
    as_lines,
    as_store,
    flattened,
    found_by_a_probe,
    noisy,
    probe_of,
    runs_of,
    trained,
    translator,
)
from vasso.diagnostics.figures.style import save
from vasso.lab.experiment.run import Run
from vasso.lab.probe.pictures import figures_of
from vasso.lab.probe.results import results_of
from vasso.lab.report.compare import Comparison
from vasso.lab.report.export import export
from vasso.lab.report.findings import Findings, SectionResult, findings
from vasso.lab.report.json import findings_as_table
from vasso.lab.report.page import page
from vasso.lab.report.read import Measurement, TrainedRun, from_line, read_store
from vasso.lab.report.terminal import render_findings
from vasso.lab.report.text import describe_comparison
from vasso.lab.statistics import mean, paired, seeds_to_decide
from vasso.lab.store.json import as_json
from vasso.lab.store.run_directory import StoreError
from vasso.lab.store.store import LINES, Store
from vasso.lab.studies import measurements
from vasso.lab.studies import study as studies
from vasso.lab.studies.measurement_settings import Spread

MAKERS: dict[str, Callable[[Run], TrainedRun]] = {
    "translation": lambda run: translator(run, bleu=1.0),
    "hessian": flattened,
    "snr": noisy,
}


def of(name: str, seeds: int = 3) -> list[TrainedRun]:
    return [MAKERS[name](run) for run in runs_of(name, seeds=seeds)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """All three studies as `vasso study` leaves them, one run of each method probed."""
    flat = of("hessian")
    flat[3] = replace(flat[3], probe=probe_of(flat[3].run))
    root = tmp_path_factory.mktemp("stores") / "store"
    made = as_store(root, [*flat, *of("translation"), *of("snr", seeds=1)])
    measurements.measure_spread(
        Spread([0.2, -0.1, 0.6], [0.2, 1.0, 2.0], [1.0, 0.1], [1.0, 0.4], 20), made
    )
    return made


@pytest.fixture(scope="module")
def found(store: Store) -> Findings:
    return findings(store.root, ["hessian", "snr", "translation"])


def section(found: Findings, name: str) -> SectionResult:
    return next(a for a in found.results if a.section.study.name == name)


def comparison(found: Findings, name: str, headline: str, ours: str, theirs: str) -> Comparison:
    """The comparison at one radius for all, or the only one."""
    pair = (headline, ours, theirs)
    return [
        c
        for c in section(found, name).comparisons
        if (c.metric.name, c.table.name(c.ours), c.table.name(c.theirs)) == pair
    ][-1]


def test_a_store_and_its_copy_say_the_same_of_what_was_measured(
    store: Store, tmp_path: Path
) -> None:
    export(store.root, tmp_path / "copy")
    whole, copied = read_store(store.root), read_store(tmp_path / "copy")
    assert copied.errors == ()
    assert whole.runs.keys() == copied.runs.keys()
    for name, one in whole.runs.items():
        other = copied.runs[name]
        assert one.measured.keys() == other.measured.keys() != set()
        assert one.probe == other.probe
        for kept in ("spectrum", "bleu"):
            if kept in one.measured:
                assert one.measured[kept] == other.measured[kept]  # to the last digit
    names = ("hessian", "translation")
    first, second = (
        findings_as_table(findings(root, names)) for root in (store.root, tmp_path / "copy")
    )
    for ours, theirs in zip(first["studies"], second["studies"], strict=True):
        assert ours["comparisons"] == theirs["comparisons"] != []


def test_a_copy_made_before_the_measurement_gets_it_the_next_time(tmp_path: Path) -> None:
    done = of("hessian")
    store = as_store(tmp_path / "store", [replace(one, measured={}) for one in done])
    export(store.root, tmp_path / "copy", ["hessian"])
    assert not any(one.measured for one in read_store(tmp_path / "copy").runs.values())
    first = done[0]
    table = {"settings": first.measured["spectrum"].settings}
    rows = [{**row, "run": first.run.id} for row in first.measured["spectrum"].rows]
    store.folder(first.run.id).write_measurement("spectrum", {**table, "rows": rows})
    export(store.root, tmp_path / "copy", ["hessian"])
    again = read_store(tmp_path / "copy").runs
    assert again[first.run.id].measured == first.measured
    (store.folder(first.run.id).path / "spectrum.json").unlink()
    export(store.root, tmp_path / "copy", ["hessian"])  # what only the copy knows stays
    assert read_store(tmp_path / "copy").runs == again


def test_of_two_copies_each_gives_what_it_has(tmp_path: Path) -> None:
    one = of("hessian")[0]
    as_lines(tmp_path, [replace(one, measured={})], "a")
    as_lines(tmp_path, [replace(one, probe=probe_of(one.run))], "b")
    both = read_store(tmp_path).runs[one.run.id]
    assert both.probe is not None
    expected = probe_of(one.run) | {"time": both.probe["time"]}
    assert (both.measured, both.probe) == (one.measured, expected)


def test_lines_of_before_there_were_measurements_are_read(tmp_path: Path) -> None:
    one = trained(runs_of("hessian")[0])
    assert "measured" not in json.loads(one.line())
    assert "probe" not in json.loads(one.line())
    assert from_line(one.line()).measured == {}


def test_what_is_damaged_is_named_and_costs_nothing_else(tmp_path: Path) -> None:
    runs = of("hessian")[:6]
    store = as_store(tmp_path / "store", runs)
    folders = [store.folder(one.run.id).path for one in runs]
    (folders[0] / "spectrum.json").write_text("{")
    (folders[1] / "spectrum.json").write_bytes(as_json({"settings": {}, "rows": []}))
    texts = as_json({"settings": {}, "rows": [{"lambda1": "x"}]})
    (folders[2] / "spectrum.json").write_bytes(texts)
    (folders[3] / "bleu.json").symlink_to(folders[4] / "spectrum.json")
    (folders[4] / "probe").mkdir()
    (folders[4] / "probe" / "probe.json").write_bytes(as_json(probe_of(runs[5].run)))
    broken = probe_of(runs[5].run)
    del broken["results"]["slope"][0]["mse"]
    (folders[5] / "probe").mkdir()
    (folders[5] / "probe" / "probe.json").write_bytes(as_json(broken))
    (store.root / "measured-spread-1").mkdir()
    empty = as_json({"settings": {}, "rows": [{}]})
    (store.root / "measured-spread-1" / "spread.json").write_bytes(empty)
    found = read_store(store.root)
    assert len(found.runs) == 6
    assert [len(found.runs[one.run.id].measured) for one in runs] == [0, 0, 0, 1, 1, 1]
    why = {trouble.where: trouble.why for trouble in found.errors}
    ids = [one.run.id for one in runs]
    assert why[f"{ids[0]}/spectrum.json"] == "damaged: not JSON"
    assert why[f"{ids[1]}/spectrum.json"].startswith("damaged: it has no rows")
    assert why[f"{ids[2]}/spectrum.json"] == "damaged: lambda1 is 'x', not a number"
    assert why[f"{ids[3]}/bleu.json"] == "a link, which may lead out of the store"
    assert why[f"{ids[4]}/probe/probe.json"] == f"it is a probe of {ids[5]}"
    assert "KeyError: 'mse'" in why[f"{ids[5]}/probe/probe.json"]
    assert why["measured-spread-1/spread.json"] == "snr is missing"
    assert len(why) == 7
    assert found.spreads == ()


def test_a_damaged_measurement_in_a_line_is_named_and_stops_an_export(tmp_path: Path) -> None:
    one = of("hessian")[0]
    line = json.loads(one.line())
    line["measured"]["spectrum"]["rows"]["lambda1"] = []
    path = as_lines(tmp_path / "to", [], "hessian") / "hessian" / LINES
    path.write_text(json.dumps(line) + "\n")
    found = read_store(tmp_path / "to")
    assert found.runs[one.run.id].measured == {}
    (trouble,) = found.errors
    assert trouble.where == f"hessian/{LINES}, line 1, spectrum"
    assert "differ in length" in trouble.why
    as_store(tmp_path / "store", [one])
    with pytest.raises(StoreError, match=r"line 1 is damaged \(spectrum: .*Nothing has been"):
        export(tmp_path / "store", tmp_path / "to", ["hessian"])


def test_a_large_probe_stays_behind_and_that_is_told(tmp_path: Path) -> None:
    one = of("hessian")[0]
    large = probe_of(one.run) | {"notes": ["x" * 41_000]}
    as_store(tmp_path / "store", [replace(one, probe=large)])
    said: list[str] = []
    export(tmp_path / "store", tmp_path / "to", ["hessian"], said.append)
    assert read_store(tmp_path / "to").runs[one.run.id].probe is None
    (text,) = said
    assert text.startswith(f"the probe of {one.run.id} is ")
    assert text.endswith(" kB and is not copied")


def test_bleu_and_perplexity_are_compared_each_by_its_own_better(found: Findings) -> None:
    pair = ("VaSSO θ=0.9", "SAM")
    bleu = comparison(found, "translation", "bleu", *pair)
    values = [
        {t.run.seed: t.measured["bleu"].rows[0]["bleu"] for t in cell.finished}
        for cell in (bleu.ours, bleu.theirs)
    ]
    assert bleu.paired == paired(*values)
    assert bleu.standing == "ahead"
    (judged,) = bleu.agreements
    assert (judged.published.differences, judged.verdict) == ((0.06,), "agrees")
    perplexity = comparison(found, "translation", "perplexity", *pair)
    assert perplexity.paired is not None
    assert perplexity.paired.difference.value == pytest.approx(-0.5, abs=0.05)
    assert perplexity.standing == "ahead"  # less is better
    (judged,) = perplexity.agreements
    assert (judged.published.differences, judged.verdict) == ((0.0,), "no claim")


def test_like_is_compared_with_like(found: Findings) -> None:
    pairs = {
        (c.table.name(c.ours), c.table.name(c.theirs))
        for c in section(found, "translation").comparisons
    }
    assert ("VaSSO θ=0.4 same_rng", "SAM same_rng") in pairs
    assert ("SAM same_rng", "SAM") in pairs
    assert ("VaSSO θ=0.4", "SAM") in pairs
    assert len(pairs) == 6


def test_eigenvalues_are_larger_or_smaller_and_neither_is_ahead(found: Findings) -> None:
    first = comparison(found, "hessian", "lambda1", "VaSSO θ=0.4", "SAM")
    assert first.paired is not None
    assert first.paired.difference.value == pytest.approx(-10, abs=0.5)
    assert first.standing == "smaller"
    (judged,) = first.agreements
    assert judged.published.differences == (pytest.approx(-3.08),)
    assert judged.verdict == "agrees"
    ratio = comparison(found, "hessian", "ratio", "VaSSO θ=0.4", "SAM")
    assert ratio.standing == "no significant difference"  # 5 for all
    assert ratio.agreements[0].published.differences == (pytest.approx(-0.26),)
    words = {c.standing for c in section(found, "hessian").comparisons}
    assert words == {"smaller", "no significant difference"}


def test_seeds_that_would_decide_are_those_of_the_spread(found: Findings) -> None:
    for c in section(found, "translation").comparisons:
        if c.metric.name == "bleu":
            assert c.paired is not None
            assert c.seeds_needed == seeds_to_decide(0.15, c.paired.spread)
            said = f"a difference of 0.15 BLEU takes {c.seeds_needed} seeds"
            assert said in describe_comparison(c)
        else:
            assert c.seeds_needed is None
    assert all(c.seeds_needed is None for c in section(found, "hessian").comparisons)


def test_rho_is_chosen_by_validation_perplexity_and_never_by_bleu(tmp_path: Path) -> None:
    study = tmp_path / "mine.toml"
    study.write_text(
        'question = "?"\nmeasure = "BLEU"\n[cpu]\nseeds = 3\n'
        'task = { data = "multi30k", model = "transformer-small", epochs = 2 }\n'
        '[[cpu.grid]]\nmethods = [{ name = "SAM", rho = [0.1, 0.2, 0.3] }]\n'
    )
    runs = []
    for one in map(translator, studies.load(str(study)).at("cpu").runs):
        rho = dict(one.run.method.settings)["rho"]
        row = {**one.measured["bleu"].rows[0], "bleu": 30 + 10 * rho}
        last = {**one.result["last"], "validation_perplexity": 4 + abs(rho - 0.2)}
        kept = {"bleu": Measurement(one.measured["bleu"].settings, (row,))}
        runs.append(replace(one, result={**one.result, "last": last}, measured=kept))
    found = findings(as_lines(tmp_path / "store", runs), [str(study)])
    (picks,) = found.results[0].picks
    assert (picks["SAM"].cell.rho, picks["SAM"].at_end) == (0.2, "")
    text = page(found)
    assert "Chosen by mean validation perplexity, less is better, over seeds" in text
    assert 'id="mine-cpu-1-bleu-title"' in text  # over the radius
    assert 'id="mine-cpu-1-perplexity-title"' in text


def test_what_was_measured_with_other_settings_is_named_and_not_counted(tmp_path: Path) -> None:
    runs = of("hessian")
    runs[0] = flattened(runs[0].run, images=10)
    found = findings(as_lines(tmp_path, runs), ["hessian"])
    (answered,) = found.results
    assert [one.run.id for one in answered.section.other_settings] == [runs[0].run.id]
    assert len(answered.section.cells[0].values("lambda1")) == 2
    assert answered.section.cells[0].n == 3
    text = Reader(page(found)).text
    assert "1 run was measured with other settings" in text
    assert "of 2 runs" in text


def test_a_study_of_accuracy_keeps_its_runs_to_itself_until_they_are_measured(
    tmp_path: Path,
) -> None:
    shared = [trained(run) for run in runs_of("hessian")]  # all are of studies of accuracy, too
    alone = [trained(run) for run in runs_of("m-sharpness")]
    found = findings(as_lines(tmp_path, [*shared, *alone]))
    names = {a.section.study.name for a in found.results}
    assert "m-sharpness" in names
    assert "hessian" not in names


def test_signal_and_noise_is_told_and_not_compared(found: Findings) -> None:
    answered = section(found, "snr")
    assert answered.comparisons == ()
    for cell in answered.section.cells:
        (one,) = cell.finished
        values = [row["snr"] for row in one.measured["noise"].rows]
        assert cell.values("snr_median") == {0: median(values)}
        assert cell.values("snr_lowest") == {0: min(values)}
        assert cell.values("snr_highest") == {0: 0.5}


def test_signal_and_noise_needs_no_file_of_its_own(store: Store, tmp_path: Path) -> None:
    one = of("snr")[0]
    again = from_line(one.line())
    assert "measured" not in json.loads(one.line())  # the epochs tell
    assert [row["epoch"] for row in again.measured["noise"].rows][:2] == [0, 1]
    bare = as_store(tmp_path / "bare", [replace(one, measured={})])
    rows = read_store(bare.root).runs[one.run.id].measured["noise"].rows
    assert rows == read_store(store.root).runs[one.run.id].measured["noise"].rows


@pytest.fixture(scope="module")
def text(found: Findings) -> str:
    return page(found)


def test_the_page_is_sound_and_its_numbers_are_the_statistics(found: Findings, text: str) -> None:
    reader = Reader(text)
    assert len(set(reader.ids)) == len(reader.ids)
    links = {given["href"][1:] for tag, given in reader.tags if tag == "a"}
    assert links <= set(reader.ids)
    checked = 0
    for answered in found.results:
        judging = answered.section.criteria
        for number, table in enumerate(answered.section.tables, 1):
            rows = reader.rows[f"{answered.section.anchor}-{number}-all"][1:]
            for row, cell in zip(rows, table.cells, strict=True):
                values = dict(row[::-1])
                for column in judging.columns:
                    if cell.values(column.name):
                        expected = mean(list(cell.values(column.name).values())).value
                        assert values[column.name] == expected
                        checked += 1
        for c in answered.comparisons:
            assert c.paired is not None
            assert f'<data value="{c.paired.difference.value}">' in text
    assert checked > 40


def test_headings_words_and_charts(text: str) -> None:
    for name in (
        "hessian-cpu-1-measured",
        "snr-cpu-1-measured",
        "translation-cpu-1-measured",
        "translation-cpu-1-epochs",
    ):
        assert f'id="{name}-title"' in text
    output = Reader(text).text
    assert "Which is larger" in output
    assert "Shaded: the published range, 0.01 to 0.1; of our " in output
    assert "a difference of 0.15 BLEU, the size of the paper's, needs" in output
    assert "SAM, ρ=0.1, seed 0, epoch 0: 0.5" in text  # a point of the chart
    assert "λ1: " in text
    assert "Crosses are the published means" not in output  # another corpus
    assert "Λ" not in output


def test_at_the_paper_s_scale_published_bleu_is_in_the_chart(tmp_path: Path) -> None:
    runs = [translator(run) for run in runs_of("translation", "paper")]
    html = page(findings(as_lines(tmp_path, runs), ["translation"]))
    assert "Crosses are the published means" in html
    assert "; published 34.75" in html


def test_a_probe_is_shown_with_its_run(found: Findings, text: str) -> None:
    (one,) = (t for t in found.contents.runs.values() if t.probe is not None)
    assert one.probe is not None
    output = Reader(text).text
    for sentence_ in one.probe["sentences"]:
        assert sentence_ in output
    assert "Note: trace could not be measured: <b>nothing</b>" in output
    assert "<b>" not in text
    for name in results_of(one.probe):
        assert f'id="hessian-cpu-probe-1-{name}-title"' in text


def test_figures_of_a_probe_are_the_same_when_drawn_from_its_file(tmp_path: Path) -> None:
    probed = found_by_a_probe()
    again = results_of(probe_of(runs_of("hessian")[0]))
    names = []
    for (name, make), (same, anew) in zip(
        figures_of(probed.results), figures_of(again), strict=True
    ):
        assert name == same
        first = save(make(), tmp_path / f"{name}.svg").read_bytes()
        assert save(anew(), tmp_path / f"{name}-2.svg").read_bytes() == first
        names.append(name)
    assert len(names) == 7


def test_a_probe_of_two_studies_is_drawn_once(tmp_path: Path) -> None:
    shared = next(run for run in runs_of("hessian") if run in runs_of("cifar10"))
    one = replace(flattened(shared), probe=probe_of(shared))
    html = page(findings(as_lines(tmp_path, [one]), ["cifar10", "hessian"]))
    assert html.count('-probe-1-friendliness-title">') == 1
    assert '<a href="#cifar10-cpu-probe-1">shown above</a>' in html


def test_a_probe_of_a_newer_version_is_refused() -> None:
    probe = probe_of(runs_of("hessian")[0])
    with pytest.raises(ValueError, match="a probe of format 9, this version of vasso reads 1"):
        results_of({**probe, "format": 9})
    with pytest.raises(ValueError, match="the probe has no sentences"):
        results_of({**probe, "sentences": None})


def test_the_sphere_of_a_store_is_a_table_and_needs_no_run(store: Store, text: str) -> None:
    (spread,) = read_store(store.root).spreads
    rows = Reader(text).rows["sphere-spread-1"]
    assert len(rows) == 1 + len(spread.rows) == 5
    assert "VaSSO theta=0.4" in text
    assert text.count('id="sphere"') == 1


def test_a_store_of_a_sphere_alone_has_a_page(tmp_path: Path) -> None:
    alone = Store(tmp_path / "alone")
    measurements.measure_spread(Spread([0.2, -0.1, 0.6], [0.2, 1.0, 2.0], [1.0], [1.0], 20), alone)
    assert 'id="sphere-spread-1"' in page(findings(alone.root))


def test_json_holds_what_was_measured(found: Findings) -> None:
    document = json.loads(json.dumps(findings_as_table(found), allow_nan=False))
    by_name = {study["study"]: study for study in document["studies"]}
    assert [h["better"] for h in by_name["hessian"]["metrics"]] == ["neither", "neither"]
    cell = by_name["hessian"]["tasks"][0]["cells"][0]
    rows = {seed: one["rows"][0]["lambda1"] for seed, one in cell["measured"]["spectrum"].items()}
    assert list(rows) == ["0", "1", "2"]
    assert cell["lambda1"]["values"] == list(rows.values())
    first = by_name["translation"]["comparisons"][0]
    assert first["measure"] == "bleu"
    assert first["seeds_to_decide"]["difference"] == 0.15
    probed = by_name["hessian"]["tasks"][0]["cells"][1]["probes"]
    assert probed["0"]["sentences"]
    assert document["spreads"][0]["settings"]["adversaries"] == 20


def test_the_terminal_shows_them(found: Findings) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    for part in render_findings(found):
        console.print(part, highlight=False)
    text = console.export_text()
    for words in (
        "BLEU (tokenised)",
        "BLEU, detokenised",
        "largest eigenvalue λ1",
        "SNR, median over epochs",
        "(largest eigenvalue, against the plain base)",
        ": smaller; agrees with Li and Giannakis, 2023, Table 5.",
        "Probe of SAM, ρ=0.1, seed 0:",
        "Adversaries on a sphere",
    ):
        assert words in text
    cell = section(found, "hessian").section.cells[0]
    top = cell.estimate("lambda1")
    assert top is not None
    assert f"{top.value:.2f} ± {(top.high - top.low) / 2:.2f}" in text
    assert math.isfinite(top.low)
