"""All Python code in the documents runs, each document from top to bottom in one namespace."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

from vasso.lab import study as studies

ROOT = Path(__file__).parent.parent
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "path",
    [path for path in DOCUMENTS if blocks(path) and path.parent.name != "how-to"],  # test_howto
    ids=lambda path: path.name,
)
def test_the_code_of_a_document_runs(path: Path) -> None:
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": path.stem}
    for number, block in enumerate(blocks(path)):
        exec(compile(block, f"{path.name}, block {number}", "exec"), namespace)


def test_readme_and_contributing_have_code() -> None:
    assert blocks(ROOT / "README.md")
    assert blocks(ROOT / "CONTRIBUTING.md")


def test_the_first_page_tells_of_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "start.md").read_text(), re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`(.*?)`", row)]
    assert sorted(told) == sorted(project["optional-dependencies"])


def test_the_list_of_records_names_every_one_by_its_title() -> None:
    index = (ROOT / "docs" / "records" / "index.md").read_text()
    listed = re.findall(r"^- \[(.*?)\]\(\.\./\.\./(.*?)\)", index, re.MULTILINE)
    records = sorted((ROOT / "records").glob("*/README.md"))
    titles = [(path.read_text().splitlines()[0].removeprefix("# "), path) for path in records]
    assert sorted(listed) == sorted((title, str(path.relative_to(ROOT))) for title, path in titles)


def test_the_page_on_translation_tells_how_many_runs_there_are() -> None:
    runs = (ROOT / "records" / "translation" / "runs.jsonl").read_text().splitlines()
    asked = studies.load("translation").scales["cpu"].runs
    page = (ROOT / "docs" / "translation.md").read_text()
    assert f"{len(runs)} of the {len(asked)} runs of scale `cpu`" in page
