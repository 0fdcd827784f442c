"""All Python code in the documents runs, each document from top to bottom in one namespace."""

import re
from pathlib import Path

import pytest
import torch

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


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_of_the_repository_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", path.read_text())
    assert not [target for target in targets if not _source(path.parent / target).exists()]


def _source(page: Path) -> Path:
    """What a page is made of: those of docs/records are made of the records when the site is."""
    made = page.resolve().parent == ROOT / "docs" / "records" and page.stem != "index"
    return ROOT / "records" / page.stem / "README.md" if made else page
