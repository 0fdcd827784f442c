"""The page: one file, sound HTML, every number the statistic, nothing fetched, nothing run."""

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from rich.console import Console, RenderableType

from tests.lab.stores import as_lines, as_store, runs_of, trained
from vasso.lab import cli
from vasso.lab import study as studies
from vasso.lab.report import words, write_report
from vasso.lab.report.findings import Findings, findings
from vasso.lab.report.page import page
from vasso.lab.report.terminal import told
from vasso.lab.statistics import mean

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
    for answered in found.answered:
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
    for answered in found.answered:
        for c in answered.comparisons:
            assert c.paired is not None
            assert f'<data value="{c.paired.difference.value}">' in text
            assert c.standing == "no verdict" or f'<data value="{c.adjusted}">' in text


def test_studies_with_verdicts_come_first(tmp_path: Path) -> None:
    """The study of one run stands before the other by its name, and after it on the page."""
    runs = [trained(run) for run in runs_of("label-noise", seeds=3, wrong=(0.75,))]
    one = trained(runs_of("cifar10")[0])
    found = findings(as_lines(tmp_path, [*runs, one]))
    names = [answered.section.study.name for answered in found.answered]
    assert names.index("cifar10") > names.index("label-noise")
    assert [a.decided for a in found.answered] == sorted(a.decided for a in found.answered)[::-1]


def test_a_card_tells_verdicts_by_the_rule_that_chose_the_radii(found: Findings, text: str) -> None:
    (answered,) = (a for a in found.answered if a.section.study.name == "label-noise")
    summary = text.partition('<section id="summary"')[2].partition("</section>")[0]
    card = next(c for c in summary.split("<article") if "#label-noise-cpu" in c)
    told = " ".join(re.sub(r"<[^>]+>", " ", card).split())
    kinds = Counter((c.kind, c.standing) for c in answered.comparisons)
    assert len({kind for kind, _ in kinds}) == 3
    for (kind, standing), count in kinds.items():
        line = told.partition(f"{words.RIVALS[kind]}:")[2].partition("Against")[0]
        assert f"{standing} {count}" in line


def test_what_is_missing_and_what_has_no_verdict_is_shown(tmp_path: Path) -> None:
    runs = [trained(run) for run in runs_of("radius", seeds=1)[:3]]
    wanted = len(studies.load("radius").at("cpu").runs)
    html = page(findings(as_lines(tmp_path, runs)))
    text = Reader(html).text
    assert "n = 1, no verdict" in text
    assert f"{wanted} wanted, 3 finished, {wanted - 3} missing." in text
    assert f"Not finished: {wanted - 3} runs" in text
    assert html.count("badge ahead") == 1  # where words are explained


def test_steps_that_were_not_taken_are_shown(tmp_path: Path) -> None:
    runs = runs_of("radius")[:10]
    every = [trained(run) for run in runs]
    store = as_store(tmp_path / "store", every)
    assert "skipped" not in page(findings(store.root))
    assert "skipped" not in rendered(told(findings(store.root)))
    path = store.root / runs[3].id / "result.json"
    path.write_text(path.read_text().replace('"skipped": 0', '"skipped": 936'))
    seeds = sum(replace(run, seed=0) == replace(runs[3], seed=0) for run in runs)
    assert f">{50 / seeds:.1f} % of steps skipped<" in page(findings(store.root))
    assert f" {50 / seeds:.1f} " in rendered(told(findings(store.root)))
    assert "skipped steps" in rendered(told(findings(store.root)))


def test_page_and_terminal_say_who_has_chosen_the_one_radius(found: Findings, read: Reader) -> None:
    """Without the runs on clean labels the radius is another, and the answer may turn round."""
    said = "One ρ for all: ρ = 0.11, the best for SAM on these labels (there are no runs on clean"
    assert said in read.text
    assert said in rendered(told(found))


def rendered(parts: Iterable[RenderableType]) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def test_charts_tell_their_values(found: Findings, text: str) -> None:
    cell = next(c for c in found.answered[0].section.cells if c.n and c.rho)
    last = cell.estimate("last")
    assert last is not None
    assert f"{cell.variant}, ρ={cell.rho:g}: {last.value:.2f} ±" in text
    tables = found.answered[0].section.tables
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
    from vasso.lab import study as studies

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
    out, numbers = tmp_path / "deep" / "page.html", tmp_path / "numbers.json"
    words = ["report", str(store.root), "--study", "radius", "-o", str(out)]
    with pytest.raises(SystemExit) as end:
        cli.main([*words, "--table", "--json", str(numbers)])
    assert end.value.code == 1  # something could not be read
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
    runs = [one for cell in found.answered[0].section.cells for one in cell.finished]
    spent = sum((one.result or {})["seconds"] for one in runs)
    assert f"<td>{words.duration(spent)}, " in text
    assert "hours" not in text
    assert "no epoch and no seed is picked by its test accuracy" in text


@pytest.mark.parametrize(
    ("study", "rule"),
    [("radius", "at its best ρ by validation"), ("hessian", "at the ρ it has here")],
)
def test_the_caption_of_epochs_says_who_has_chosen_the_radii(
    tmp_path: Path, study: str, rule: str
) -> None:
    runs = as_lines(tmp_path, map(trained, runs_of(study, seeds=1)))
    shown = page(findings(runs, [study]))
    assert f"Test accuracy, each method {rule}; mean over seeds" in shown


def test_sources_of_one_study_are_told_apart_by_what_they_measure(tmp_path: Path) -> None:
    shown = page(
        findings(as_lines(tmp_path, map(trained, runs_of("hessian", seeds=1))), ["hessian"])
    )
    summaries = re.findall(r"<summary>(Li and Giannakis.*?)</summary>", shown)
    assert len(summaries) == len(set(summaries)) == 2


def test_a_title_tells_no_more_than_it_takes_to_tell_tasks_apart(tmp_path: Path) -> None:
    runs = map(trained, runs_of("imagenet", seeds=1))
    (found,) = findings(as_lines(tmp_path, runs), ["imagenet"]).answered
    titles = [table.title for table in found.section.tables]
    assert titles == ["tiny-imagenet-20, resnet8", "tiny-imagenet-20, vit_s4"]


def test_the_function_others_call(tmp_path: Path) -> None:
    store = as_lines(tmp_path / "store", [trained(runs_of("radius")[0])])
    path = write_report(store, tmp_path / "page.html", ("radius",))
    assert Reader(path.read_text()).text.startswith("\n")


def test_the_wheel_holds_templates_style_and_script(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (built,) = WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    inside = set(zipfile.ZipFile(built).namelist())
    folder = root / "vasso" / "lab" / "report" / "templates"
    assert {f"vasso/lab/report/templates/{f.name}" for f in folder.iterdir()} <= inside
    assert len(list(folder.iterdir())) >= 10
