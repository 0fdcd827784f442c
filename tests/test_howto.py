"""All Python code of the how-to pages runs, each page from top to bottom in one namespace."""

import re
from pathlib import Path

import pytest
import torch

from tests.hosts import HOSTS_OWN_WARNINGS

pytestmark = HOSTS_OWN_WARNINGS
PAGES = sorted((Path(__file__).parent.parent / "docs" / "how-to").glob("*.md"))


def blocks(path: Path) -> list[tuple[int, str]]:
    """The code of a page, with the lines it begins at."""
    text = path.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [(text[: match.start(1)].count("\n"), match[1]) for match in found]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_code_of_a_page_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for what a page writes
    torch.manual_seed(0)
    namespace: dict[str, object] = {"__name__": path.stem}
    assert blocks(path)
    for line, code in blocks(path):
        exec(compile("\n" * line + code, str(path), "exec"), namespace)


def test_there_are_pages() -> None:
    assert PAGES
