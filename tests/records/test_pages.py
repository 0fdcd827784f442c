"""Pages and figures of records: their scripts, run on a copy, change no file."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from records.markdown_pages import replace_block, table_lines
from tests.records.records import AGAIN, RECORDS, ROOT, imported

SCRIPTS = {
    "frontier": ["page.py"],
    "images": ["page.py"],
    "language-model": ["page.py"],
    "lora": ["page.py"],
    "noisy-digits": ["page.py"],
    "normalisation": ["page.py"],
    "resnet-probe": ["run.py", "--show"],
    "translation": ["page.py"],
    "wrong-labels": ["page.py"],
    "claims": ["page.py"],  # last: it links the pages of the others
}
SLOW = {"theory"}  # half a minute, and its numbers depend on the processor
NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def files(folder: Path) -> dict[str, bytes]:
    """What scripts may write: pages, figures and summaries."""
    paths = [folder / "README.md", folder / "docs/claims.md", *folder.glob("records/**/*")]
    written = (path for path in paths if path.suffix in {".md", ".svg", ".json"})
    return {str(path.relative_to(folder)): path.read_bytes() for path in written}


def test_every_record_with_a_page_has_its_script_here() -> None:
    assert {path.parent.name for path in RECORDS.glob("*/README.md")} - {"mutation"} == {
        *SCRIPTS,
        *SLOW,
    } - {"claims"}


ALL = """
import runpy, sys
from pathlib import Path

for record, (name, *flags) in {scripts}.items():
    folder = Path("records", record).resolve()
    sys.argv, sys.path[0] = [name, *flags], str(folder)
    runpy.run_path(str(folder / name), run_name="__main__")
    for path in folder.glob("*.py"):  # other records may use the names of its modules
        sys.modules.pop(path.stem, None)
"""


def test_pages_and_figures_are_made_of_the_runs(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for page in ("README.md", "docs/claims.md"):
        shutil.copy(ROOT / page, tmp_path / page)
    shutil.copytree(RECORDS, tmp_path / "records")
    for folder in (tmp_path / "records" / record for record in SCRIPTS):
        for path in (folder / "README.md", folder / "summary.json", *folder.glob("*.svg")):
            path.unlink(missing_ok=True)
    command = [sys.executable, "-c", ALL.format(scripts=SCRIPTS)]
    subprocess.run(command, check=True, cwd=tmp_path)
    made, kept = files(tmp_path), files(ROOT)
    assert {x for x in made.keys() | kept.keys() if made.get(x) != kept.get(x)} == set(), AGAIN


@pytest.mark.slow
def test_the_page_of_theory_is_what_its_script_finds() -> None:
    """Words to the letter; numbers up to what another processor's sines do to them."""
    kept = (RECORDS / "theory" / "README.md").read_text()
    made = imported("theory", "run").page()
    assert NUMBER.sub("#", made) == NUMBER.sub("#", kept), AGAIN
    ours, theirs = ([float(n.replace("−", "-")) for n in NUMBER.findall(t)] for t in (made, kept))
    assert len(ours) > 300
    assert ours == pytest.approx(theirs, rel=0.01, abs=2e-3), AGAIN


def test_a_page_without_marks_is_not_written() -> None:
    page = "ours <!-- begin: n --> 1 <!-- end: n --> ours"
    assert replace_block(page, "n", " 2 ") == page.replace("1", "2")
    for text in ("no mark", "<!-- begin: n --> no end"):
        with pytest.raises(ValueError, match="has no <!-- begin: n -->"):
            replace_block(text, "n", "new")


def test_a_table_has_its_heads_and_lines() -> None:
    lines = ["| method | n |", "| --- | --- |", "| SAM | 3 |"]
    assert table_lines(["method", "n"], [["SAM", 3]]) == lines
