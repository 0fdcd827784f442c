"""All Python code in the documents runs; examples run; links lead somewhere; lists are complete.

The code of a document runs from top to bottom in one namespace. Scripts that need several ranks
are shown as they are in `examples/` and run from there.
"""

import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from tests.hosts import HOSTS_OWN_WARNINGS
from tests.support.ranks import launch, torchrun
from vasso.lab.studies import study as studies

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "how-to" / "index.md"
HOW_TO = sorted(path for path in INDEX.parent.glob("*.md") if path != INDEX)
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts]
WITH_CODE = {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *HOW_TO}
FOLDERS = ("docs", "records", "benchmarks", "examples", "tests", "vasso")


def blocks(path: Path) -> list[tuple[int, str]]:
    """The code of a page, with the lines it begins at."""
    text = path.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [(text[: match.start(1)].count("\n"), match[1]) for match in found]


def runs(path: Path) -> object:
    marks = HOSTS_OWN_WARNINGS if path in HOW_TO else []
    return pytest.param(path, id=str(path.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize(
    "path", [runs(x) for x in sorted({*PAGES, *WITH_CODE}) if x in WITH_CODE or blocks(x)]
)
def test_documents_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path in HOW_TO:
        monkeypatch.chdir(tmp_path)  # for what a page writes
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": path.stem}
    assert blocks(path)
    for line, code in blocks(path):
        exec(compile("\n" * line + code, str(path), "exec"), namespace)


def scripts() -> list[tuple[str, str]]:
    """The files that pages show, and what they show of them."""
    shown = r'^```py title="(.*?)"\n(.*?)^```'
    return [x for p in HOW_TO for x in re.findall(shown, p.read_text(), re.DOTALL | re.MULTILINE)]


def test_scripts_are_shown_as_they_are() -> None:
    assert {name for name, _ in scripts()} == {"examples/ddp.py", "examples/fsdp2.py"}
    assert [name for name, text in scripts() if text != (ROOT / name).read_text()] == []


EXAMPLES = {
    "minimal": f"after {2 * 10 * -(-1297 // 64)} gradient evaluations",
    "lightning_trainer": "40 steps, 80 gradients",
    "lightning_fabric": "after 160 gradients",
    "transformers_trainer": "120 gradients for 60 steps",
    "accelerate_loop": "110 gradients for 55 steps",
    "lora_language_model": "2 gradients a step",
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.filterwarnings("default")  # of hosts
def test_an_example_takes_two_gradients_for_each_of_its_steps(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert EXAMPLES[name] in capfd.readouterr().out


def ranks_of(example: str, *arguments: str) -> str:
    """What an example prints on two ranks that end when it does."""
    return launch("tests.support.ranks:run_script", example, *arguments)


@pytest.mark.ranks
def test_a_script_that_fails_is_heard_of() -> None:
    with pytest.raises(AssertionError, match="'no such sync'"):
        ranks_of("examples.ddp", "no such sync")


@pytest.mark.ranks
def test_an_example_runs_under_torchrun_and_keeps_replicas_together() -> None:
    said = torchrun("tests.support.ranks", "examples.ddp", "global")
    assert "2 ranks, 54 gradients each, replicas 0.0 apart" in said


@pytest.mark.ranks
def test_local_adversaries_keep_replicas_together() -> None:
    assert "2 ranks, 54 gradients each, replicas 0.0 apart" in ranks_of("examples.ddp", "local")


@pytest.mark.ranks
def test_fsdp2_leaves_half_of_the_weights_on_each_rank() -> None:
    said = ranks_of("examples.fsdp2")
    assert "2 ranks, 54 gradients each, 4933 of 9866 weights on this one" in said


def titles(paths: list[Path]) -> set[tuple[str, str]]:
    """The first line of each document, and where it is."""
    first = ((path.read_text().splitlines()[0].removeprefix("# "), path) for path in paths)
    return {(title, str(path.relative_to(ROOT))) for title, path in first}


def test_lists_of_how_tos_and_of_records_name_every_one_by_its_title() -> None:
    listed = re.findall(r"^- \[(.*?)\]\((.*?)\): ", INDEX.read_text(), re.MULTILINE)
    assert {(title, f"docs/how-to/{name}") for title, name in listed} == titles(HOW_TO)
    index = (ROOT / "docs" / "records" / "index.md").read_text()
    listed = re.findall(r"^- \[(.*?)\]\(\.\./\.\./(.*?)\)", index, re.MULTILINE)
    assert set(listed) == titles(list((ROOT / "records").glob("*/README.md")))


def test_the_first_page_tells_of_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "start.md").read_text(), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(.*?)`", row)]
    assert sorted(names) == sorted(project["optional-dependencies"])


def test_the_page_on_translation_tells_how_many_runs_there_are() -> None:
    kept = (ROOT / "records" / "translation" / "runs.jsonl").read_text().splitlines()
    asked = studies.load("translation").scales["cpu"].runs
    page = (ROOT / "docs" / "translation.md").read_text()
    assert f"{len(kept)} of the {len(asked)} runs of scale `cpu`" in page


def is_made(path: Path) -> bool:
    """Whether the build of the site writes it: then no fresh checkout has it."""
    made = path.parent == ROOT / "docs" / "records" and path.stem != "index"
    return made or "_build" in path.parts


def documents() -> list[Path]:
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))
    return sorted(path for path in [*ROOT.glob("*.md"), *inside] if not is_made(path))


def prose(path: Path) -> str:
    """A document without its code, in which brackets are not links."""
    fences = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", fences.sub("", path.read_text()))


def links(path: Path) -> list[tuple[str, str]]:
    """Text and target of links and images that stay in the repository, without anchors."""
    found = re.findall(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)[^)]*\)", prose(path))
    return found + [
        ("html", x) for x in re.findall(r'(?:src|href)="(?!https?:|#)(.*?)"', prose(path))
    ]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_of_the_repository_lead_somewhere(path: Path) -> None:
    targets = {target: (path.parent / target).resolve() for _, target in links(path)}
    assert not [link for link, file in targets.items() if is_made(file) or not file.exists()]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_has_words_of_its_own(path: Path) -> None:
    """Sphinx puts a title into an empty link; read as plain Markdown there is nothing to see."""
    assert not [target for text, target in links(path) if not text]


def test_links_are_found_in_every_kind_of_document() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in documents() if links(path)}
    assert {"README.md", "docs", "records"} <= folders
