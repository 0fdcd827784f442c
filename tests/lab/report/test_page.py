"""The page: one file, sound HTML, every number the statistic, nothing fetched, nothing run."""

import io
import json
import re
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from rich.console import Console, RenderableType

from tests.lab.calls import called
from tests.lab.stores import as_lines, as_store, rewritten, runs_of, trained
from vasso.diagnostics.figures.palette import DARK, contrast, look
from vasso.lab.experiment.method import PLAIN
from vasso.lab.report.charts.drawing import looks_of
from vasso.lab.report.claims import judged_claims
from vasso.lab.report.findings import FIRST, Findings, findings
from vasso.lab.report.json import findings_as_table
from vasso.lab.report.page import page, write_page
from vasso.lab.report.terminal import render_findings
from vasso.lab.report.text import format_duration, format_number, summarize
from vasso.lab.statistics import mean
from vasso.lab.studies import study as studies

VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = '<script>alert("1")</script>'


class Reader(HTMLParser):
    """Reads a page, checks that every tag is closed, keeps what tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.rows: dict[str, list[list[tuple[str, float]]]] = {}
        self.table, self.cell, self.text = "", "", ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.tags.append((tag, given))
        if "id" in given:
            self.ids.append(given["id"])
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.table = given["id"]
            self.rows[self.table] = []
        elif tag == "tr":
            self.rows[self.table].append([])
        elif tag in {"td", "th"}:
            self.cell = given.get("data-name", "")
        elif tag == "data" and self.cell:
            self.rows[self.table][-1].append((self.cell, float(given["value"])))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Three seeds of label noise, a run of no study, and one under way."""
    runs = [trained(run) for run in runs_of("label-noise", seeds=3, wrong=(0.75,))]
    more = trained(runs_of("label-noise", wrong=(0.5,))[0], finished=False)
    return findings(as_lines(tmp_path_factory.mktemp("store"), [*runs, more]))


@pytest.fixture(scope="module")
def text(found: Findings) -> str:
    return page(found)


@pytest.fixture(scope="module")
def read(text: str) -> Reader:
    return Reader(text)


def test_every_id_is_there_once_and_every_link_leads_somewhere(read: Reader) -> None:
    assert len(set(read.ids)) == len(read.ids) > 20
    for tag, given in read.tags:
        if tag == "a":
            assert given["href"][0] == "#"
            assert given["href"][1:] in read.ids
        if "aria-labelledby" in given:
            assert set(given["aria-labelledby"].split()) <= set(read.ids)


def test_nothing_is_loaded_from_anywhere(text: str, read: Reader) -> None:
    for _, given in read.tags:
        assert not any(given.get(key, "").startswith(("http", "//")) for key in ("src", "href"))
        assert "url(" not in given.get("style", "").replace("url(#", "")
    assert "@import" not in text
    assert {m for m in re.findall(r"https?://[\w./]+", text)} <= {"http://www.w3.org/2000/svg"}
    policy = next(g["content"] for t, g in read.tags if "http-equiv" in g)
    assert policy.startswith("default-src 'none';")


def test_every_number_of_a_table_is_the_statistic(found: Findings, read: Reader) -> None:
    checked = 0
    for answered in found.results:
        for number, table in enumerate(answered.section.tables, 1):
            cells = [cell for cell in table.cells if cell.n]
            shown = read.rows.get(f"{answered.section.anchor}-{number}-all", [[]])[1:]
            assert len(shown) == len(cells)
            for row, cell in zip(shown, cells, strict=True):
                values = dict(row[::-1])  # of gradients and time in one cell, the gradients
                for name in ("last", "best", "training", "wrong", "cost"):
                    assert values[name] == mean(list(cell.values(name).values())).value
                    checked += 1
                assert values["n"] == cell.n
                assert values.get("rho") == cell.rho
    assert checked > 60


def test_written_numbers_are_rounded_from_the_values(text: str) -> None:
    pairs = re.findall(r'data-name="last">\s*<data value="([\d.]+)">([\d.]+)</data>', text)
    assert len(pairs) > 20
    assert all(f"{float(value):.2f}" == shown for value, shown in pairs)


def test_differences_and_p_values_are_those_of_the_comparisons(found: Findings, text: str) -> None:
    for answered in found.results:
        for c in answered.comparisons:
            assert c.paired is not None
            assert f'<data value="{c.paired.difference.value}">' in text
            assert c.standing == "too few seeds" or f'<data value="{c.adjusted}">' in text


def test_studies_with_verdicts_come_first(tmp_path: Path) -> None:
    """The study of one run stands before the other by its name, and after it on the page."""
    runs = [trained(run) for run in runs_of("label-noise", seeds=3, wrong=(0.75,))]
    one = trained(runs_of("cifar10")[0])
    found = findings(as_lines(tmp_path, [*runs, one]))
    names = [answered.section.study.name for answered in found.results]
    assert names.index("cifar10") > names.index("label-noise")
    assert [a.decided for a in found.results] == sorted(a.decided for a in found.results)[::-1]


def test_a_card_shows_the_means_and_the_difference(
    found: Findings, read: Reader, text: str
) -> None:
    (answered,) = (a for a in found.results if a.section.study.name == "label-noise")
    first, rest = answered.first(), answered.rest()
    assert len(first) == 6
    assert len({c.kind for c in first}) > 1
    assert (order := [FIRST.index(c.kind) for c in first]) == sorted(order)
    card = text.partition('id="label-noise-cpu-first"')[2].partition("</article>")[0]
    values = [float(value) for value in re.findall(r'<data value="([^"]+)">', card)]
    expected = []
    for c in first:
        assert c.paired is not None
        means = [mean([*cell.values("last").values()]).value for cell in (c.ours, c.theirs)]
        expected += [*means, c.paired.difference.value]
    assert values == expected
    assert sum(rest.values()) == len(answered.comparisons) - len(first) > 0
    assert f"{sum(rest.values())} more" in read.text


def test_the_introduction_is_what_was_asked_what_was_found_and_how_sure(
    found: Findings, tmp_path: Path
) -> None:
    asked, said, sure = summarize(found)
    assert asked.startswith("3 studies with ")
    assert "against SAM, each at its own ρ, " in said
    assert sure.startswith("Paired tests over 3 seeds, Holm-corrected, decide; ")
    runs = [trained(run) for run in runs_of("noisy-digits", seeds=1)]
    one = summarize(findings(as_lines(tmp_path, runs)))
    assert one[0] == studies.load("noisy-digits").question
    assert re.match(r"Found: VaSSO θ=0.2, ρ=1.25 [\d.]+ against SAM, ρ=1 [\d.]+, ", one[1])
    assert "±" not in one[1]
    assert one[2].startswith("3 runs in “")
    assert "2 comparisons have too few seeds to be tested" in one[2]


def test_variants_of_a_method_have_colours_and_marks_of_their_own(tmp_path: Path) -> None:
    for study in ("noisy-adversary", "imagenet", "friendly-adversary"):
        root = as_lines(tmp_path / study, map(trained, runs_of(study, seeds=1)))
        for table in findings(root, [study]).results[0].section.tables:
            looks = looks_of(table).values()
            assert len({own.colour for own in looks}) == len(looks) > 2
            assert len({own.marker for own in looks}) == len(looks)


def test_dark_colours_have_a_contrast_of_4_5(text: str) -> None:
    """Text on what is behind it, and every line, mark and band of a chart on its panel."""
    dark = text.partition(':root[data-theme="dark"] {')[2].partition("}")[0]
    names = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", dark))
    assert names["panel"] == DARK
    for front in ("ink", "soft", "link", "warn", "good", "bad", "open"):
        for back in ("paper", "panel", "stripe"):
            assert contrast(names[front], names[back]) >= 4.5
        if f"{front}-back" in names:
            assert contrast(names[front], names[f"{front}-back"]) >= 4.5
    drawn = set(re.findall(r"light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", text))
    assert look("SAM").colour in {light for light, _ in drawn}
    assert {light for light, _ in drawn if contrast(light, DARK) < 4.5}
    assert min(contrast(shown, DARK) for _, shown in drawn) >= 4.5


def test_captions_say_nothing_of_intervals_where_each_point_is_one_run(tmp_path: Path) -> None:
    for seeds, said in ((1, False), (3, True)):
        runs = map(trained, runs_of("radius", seeds=seeds))
        shown = page(findings(as_lines(tmp_path / str(seeds), runs), ["radius"]))
        captions = " ".join(re.findall(r"<figcaption>(.*?)</figcaption>", shown))
        assert bool(re.search("interval|band", captions, re.IGNORECASE)) == said


def test_a_published_column_is_of_one_network(tmp_path: Path) -> None:
    runs = map(trained, runs_of("imagenet", seeds=1))
    shown = Reader(page(findings(as_lines(tmp_path, runs), ["imagenet"]))).text
    assert "Table 3, resnet50, %" in shown
    assert "Table 3, vit_s32, %" in shown
    assert "networks" not in shown


def test_what_is_missing_and_what_has_no_verdict_is_shown(tmp_path: Path) -> None:
    runs = [trained(run) for run in runs_of("radius", seeds=1)[:3]]
    wanted = len(studies.load("radius").at("cpu").runs)
    html = page(findings(as_lines(tmp_path, runs)))
    text = Reader(html).text
    assert "n = 1, too few seeds" in text
    assert f"{wanted} wanted, 3 finished, {wanted - 3} missing." in text
    assert f"Not finished: {wanted - 3} runs" in text
    assert html.count("badge ahead") == 1  # where words are explained


def test_steps_that_were_not_taken_are_shown(tmp_path: Path) -> None:
    runs = runs_of("radius")[:10]
    every = [trained(run) for run in runs]
    store = as_store(tmp_path / "store", every)
    assert "skipped" not in page(findings(store.root))
    assert "skipped" not in rendered(render_findings(findings(store.root)))
    rewritten(store.root / runs[3].id / "result.json", skipped=936)
    seeds = sum(replace(run, seed=0) == replace(runs[3], seed=0) for run in runs)
    assert f">{50 / seeds:.1f} % of steps skipped<" in page(findings(store.root))
    assert f" {50 / seeds:.1f} " in rendered(render_findings(findings(store.root)))
    assert "skipped steps" in rendered(render_findings(findings(store.root)))


def test_page_and_terminal_say_who_has_chosen_the_one_radius(found: Findings, read: Reader) -> None:
    """Without the runs on clean labels the radius is another, and the answer may turn round."""
    said = "One ρ for all: ρ = 0.11, the best for SAM on these labels (there are no runs on clean"
    assert said in read.text
    assert said in rendered(render_findings(found))


def rendered(parts: Iterable[RenderableType]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def test_charts_tell_their_values(found: Findings, text: str) -> None:
    cell = next(c for c in found.results[0].section.cells if c.n and c.rho)
    last = cell.estimate("last")
    assert last is not None
    assert f"{cell.variant}, ρ={cell.rho:g}: {last.value:.2f} ±" in text
    tables = found.results[0].section.tables
    place = next(n for n, table in enumerate(tables, 1) if table.task.wrong == 0.75)
    for name in ("accuracy", "difference", "wrong", "effective", "carried", "epochs"):
        assert f'id="label-noise-cpu-{place}-{name}-title"' in text


def test_hostile_names_are_words(tmp_path: Path) -> None:
    study = tmp_path / "mine.toml"
    study.write_text(
        f"title = '{HOSTILE}'\nquestion = '{HOSTILE} ?'\n[cpu]\nabout = '{HOSTILE}'\n"
        f"open = ['{HOSTILE}']\ntask = {{ epochs = 2, data = '{HOSTILE}:x' }}\n"
        "[[cpu.grid]]\nmethods = [{ name = 'SGD' }, { name = 'SAM', rho = [0.1, 0.2, 0.3] }]\n"
        f"[[known]]\nsource = '{HOSTILE}'\nmeasure = 'accuracy {HOSTILE}'\n"
        f"figures = [{{ method = 'SGD', mean = 1.0, note = '{HOSTILE}' }}]\n"
    )
    runs = [trained(run) for run in studies.load(str(study)).at("cpu").runs]
    root = as_lines(tmp_path / "<b>store</b>", runs)
    (root / "<i>x").mkdir()
    (root / "<i>x" / "run.json").write_text("{")
    text = page(findings(root, [str(study)]))
    reader = Reader(text)
    assert HOSTILE not in text
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert not {"b", "i"} & {tag for tag, _ in reader.tags}
    assert reader.text.count(HOSTILE) > 6
    assert "<i>x" in reader.text


def test_the_command_writes_page_table_and_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run = runs_of("radius")[0]
    store = as_store(tmp_path / "runs", [trained(run)])
    (store.root / "torn").mkdir()
    (store.root / "torn" / "run.json").write_text("{")
    out, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    words = ["report", str(store.root), "--study", "radius", "-o", str(out)]
    assert called(*words, "--table", "--json", str(numbers)) == 1  # something could not be read
    said = capsys.readouterr()
    assert "could not be read: torn: torn/run.json is damaged: not JSON. Remove" in said.err
    last = trained(run).result["last"]["test_accuracy"]
    assert f"{last:.2f}" in said.out
    (study,) = json.loads(numbers.read_text())["studies"]
    assert study["tasks"][0]["cells"][0]["last"] == {
        "mean": last,
        "low": None,
        "high": None,
        "values": [last],
    }
    assert "torn/run.json is damaged" in Reader(out.read_text()).text


def test_the_page_says_how_to_run_it_again_where_its_runs_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be trained in compact copies: their commands are those for everybody."""
    monkeypatch.chdir(tmp_path)
    runs = [trained(run) for run in runs_of("noisy-digits", seeds=1)]
    as_store(tmp_path / "some where", runs)
    as_lines(tmp_path / "records", runs)
    own = Reader(page(findings("some where"))).text
    assert "study noisy-digits --scale cpu --jobs 2 --store 'some where'\n" in own
    assert "vasso report 'some where' -o report.html" in own
    assert own.count(" --seed 0 --store 'some where'") == len(runs)
    copied = Reader(page(findings(tmp_path / "records"))).text
    assert "study noisy-digits --scale cpu --jobs 2 --store runs\n" in copied
    assert copied.count("--store") == 1
    assert str(tmp_path) not in own + copied


def test_the_page_tells_time_and_what_is_not_chosen(found: Findings, text: str) -> None:
    runs = [one for cell in found.results[0].section.cells for one in cell.finished]
    spent = sum((one.result or {})["seconds"] for one in runs)
    assert f"<td>{format_duration(spent)}, " in text
    assert "hours" not in text
    assert "no epoch and no seed is selected by test accuracy" in text


@pytest.mark.parametrize(
    ("study", "rule"),
    [("radius", "at its best ρ by validation"), ("hessian", "at the ρ that the study has")],
)
def test_the_caption_of_epochs_says_who_has_chosen_the_radii(
    tmp_path: Path, study: str, rule: str
) -> None:
    runs = as_lines(tmp_path, map(trained, runs_of(study, seeds=1)))
    shown = page(findings(runs, [study]))
    assert f"Test accuracy, each method {rule}; one run each." in shown


def test_sources_of_one_study_are_told_apart_by_what_they_measure(tmp_path: Path) -> None:
    shown = page(
        findings(as_lines(tmp_path, map(trained, runs_of("hessian", seeds=1))), ["hessian"])
    )
    summaries = re.findall(r"<summary>(Li and Giannakis.*?)</summary>", shown)
    assert len(summaries) == len(set(summaries)) == 2


def test_a_title_tells_no_more_than_it_takes_to_tell_tasks_apart(tmp_path: Path) -> None:
    runs = map(trained, runs_of("imagenet", seeds=1))
    (found,) = findings(as_lines(tmp_path, runs), ["imagenet"]).results
    titles = [table.title for table in found.section.tables]
    assert titles == ["tiny-imagenet-20, resnet8", "tiny-imagenet-20, vit_s4"]


def test_the_function_others_call(tmp_path: Path) -> None:
    store = as_lines(tmp_path / "store", [trained(runs_of("radius")[0])])
    path = write_page(findings(store, ("radius",)), tmp_path / "page.html")
    assert Reader(path.read_text()).text.startswith("\n")


def test_the_wheel_holds_templates_style_and_script(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    (built,) = WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    inside = set(zipfile.ZipFile(built).namelist())
    folder = root / "vasso" / "lab" / "report" / "templates"
    assert {f"vasso/lab/report/templates/{f.name}" for f in folder.iterdir()} <= inside
    assert len(list(folder.iterdir())) >= 10


def test_claims_of_the_paper_are_judged_by_the_runs_of_the_store(found: Findings) -> None:
    lines = judged_claims(found)
    assert {line.place for line in lines} == {"Table 6", "Section 3"}
    assert all(line.seeds == 3 and "75 % wrong" in line.tested for line in lines)
    text = " ".join(Reader(page(found)).text.split())
    for line in lines:
        assert line.measured in text
        assert line.verdict.removeprefix(f"{line.word}: ") in text
    of_json = findings_as_table(found)["claims"]
    assert [row["verdict"] for row in of_json] == [line.verdict for line in lines]
    assert all(len(row["runs"]) == 6 for row in of_json)


def test_a_store_without_the_runs_of_a_claim_has_no_section_of_claims(tmp_path: Path) -> None:
    run = trained(runs_of("noisy-digits", scale="cpu")[0])
    assert 'id="claims"' not in page(findings(as_lines(tmp_path, [run])))


def test_figures_of_the_paper_are_drawn_relative_to_the_base(tmp_path: Path) -> None:
    """As Figures 1a and 1b: each method minus SGD, the mean over the seeds that both have."""
    runs = [trained(run) for run in runs_of("friendly-adversary", seeds=3)]
    of_seed = {
        (one.run.method.name, one.run.seed): one.result["last"]["test_accuracy"]
        for one in runs
        if dict(one.run.method.settings).get("rho", 0.1) == 0.1
    }
    d = [of_seed["SAM-db", seed] - of_seed[PLAIN, seed] for seed in range(3)]
    html = page(findings(as_lines(tmp_path, runs), ["friendly-adversary"]))
    titles = re.findall(r"<title>(SAM-db[,:] [^<]*)</title>", html)
    assert any(f": {format_number(mean(d).value)} ±" in title for title in titles), titles
    assert "Test accuracy relative to SGD" in html
