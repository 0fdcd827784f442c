"""All Python code of the how-to pages runs, each page from top to bottom in one namespace.

Scripts that need several ranks are shown as they are in `examples/` and run from there.
"""

import re
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import torchrun
from tests.hosts import HOSTS_OWN_WARNINGS

pytestmark = HOSTS_OWN_WARNINGS
ROOT = Path(__file__).parent.parent
INDEX = ROOT / "docs" / "how-to" / "index.md"
PAGES = sorted(path for path in INDEX.parent.glob("*.md") if path != INDEX)


def blocks(path: Path) -> list[tuple[int, str]]:
    """The code of a page, with the lines it begins at."""
    text = path.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [(text[: match.start(1)].count("\n"), match[1]) for match in found]


def scripts() -> list[tuple[str, str]]:
    """The files that pages show, and what they show of them."""
    shown = r'^```py title="(.*?)"\n(.*?)^```'
    return [x for p in PAGES for x in re.findall(shown, p.read_text(), re.DOTALL | re.MULTILINE)]


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


def test_the_index_names_every_page_by_its_title() -> None:
    listed = dict(re.findall(r"^- \[(.*?)\]\((.*?)\): ", INDEX.read_text(), re.MULTILINE))
    titles = {path.read_text().splitlines()[0].removeprefix("# "): path.name for path in PAGES}
    assert listed == titles


def test_some_scripts_are_shown() -> None:
    assert {name for name, _ in scripts()} == {"examples/ddp.py", "examples/fsdp2.py"}


@pytest.mark.parametrize(("name", "text"), scripts(), ids=[name for name, _ in scripts()])
def test_a_script_is_shown_as_it_is(name: str, text: str) -> None:
    assert text == (ROOT / name).read_text()


def ranks_of(example: str, *arguments: str) -> str:
    """What an example prints on two ranks that end when it does."""
    return torchrun("tests.distributed.script", example, *arguments)


def test_a_script_that_fails_is_heard_of() -> None:
    with pytest.raises(AssertionError, match="'no such sync'"):
        ranks_of("examples.ddp", "no such sync")


@pytest.mark.parametrize("sync", ["global", "local"])
def test_ddp_keeps_replicas_together(sync: str) -> None:
    assert "2 ranks, 54 gradients each, replicas 0.0 apart" in ranks_of("examples.ddp", sync)


def test_fsdp2_leaves_half_of_the_weights_on_each_rank() -> None:
    said = ranks_of("examples.fsdp2")
    assert "2 ranks, 54 gradients each, 4933 of 9866 weights on this one" in said
