"""The site is built without a warning, needs nothing from outside, and has all that is public."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from sphinx.util.inventory import InventoryFile

from vasso.lab import study as studies

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def builds() -> list[str]:
    """The command of `make docs`, as the Makefile has it."""
    (line,) = re.findall(r"\$\(BIN\)/python (-m sphinx .*)", (ROOT / "Makefile").read_text())
    assert "-W" in line
    return line.split()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [word if word != "docs/_build/html" else str(folder / "html") for word in builds()]
    command = [sys.executable, *words, "-d", str(folder / "doctrees")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def documented(site: Path) -> set[str]:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    return {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}


def public_names() -> set[str]:
    """Where `vasso/__init__.py` has its names from."""
    tree = ast.parse((ROOT / "vasso" / "__init__.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    found = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    moved = {"vasso.steppers.EntropySGD", "vasso.steppers.SAMPa", "vasso.schedules"}
    steppers = {"vasso.steppers.entropy_sgd.EntropySGD", "vasso.steppers.sampa.SAMPa"}
    return found - moved | steppers | {"vasso.schedules.proportional_to_lr"}


def test_every_public_name_has_an_entry(documented: set[str]) -> None:
    assert not public_names() - documented


@pytest.mark.parametrize("package", ["diagnostics", "integrations"])
def test_every_module_of_a_public_package_has_an_entry(documented: set[str], package: str) -> None:
    modules = (ROOT / "vasso" / package).glob("[!_]*.py")
    missing = {f"vasso.{package}.{path.stem}" for path in modules} - documented
    assert not missing, f"name them in docs/reference/{package}.md"


def test_nothing_is_fetched_by_a_page(site: Path) -> None:
    asks = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*")
    found = {path.name: asks.findall(path.read_text()) for path in site.rglob("*.html")}
    assert len(found) > 30
    assert not {name: urls for name, urls in found.items() if urls}


def test_a_page_is_the_same_in_every_build(site: Path) -> None:
    """No address in memory, no place on this machine."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r" at 0x[0-9a-f]{6}", text), path.name
        assert str(ROOT) not in text, path.name


def test_equations_are_drawn_without_a_script(site: Path) -> None:
    page = (site / "concepts" / "sharpness.html").read_text()
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') == 2
    assert "$$" not in page


def test_every_study_has_its_line_with_its_command(site: Path) -> None:
    page = (site / "reproduction.html").read_text()
    for name in studies.names():
        study = studies.load(name)
        (line,) = (row for row in page.split("<tr") if f"vasso study {name}</span>" in words(row))
        for scale in study.scales.values():
            assert f">{len(scale.runs)}<" in line.replace("<p>", "").replace("</p>", "")
        assert (study.shows or "ours") in line


def test_the_runs_that_are_made_are_counted(site: Path) -> None:
    page = (site / "reproduction.html").read_text()
    (line,) = (row for row in page.split("<tr") if "vasso study radius-mlp</span>" in words(row))
    kept = (ROOT / "records" / "radius-mlp" / "runs.jsonl").read_text().splitlines()
    wanted = len(studies.load("radius-mlp").at("cpu").runs)
    cells = re.findall(r"<td>(?:<p>)?(\d+)(?:</p>)?</td>", line)
    assert cells[:2] == [str(wanted), str(len(kept))]


def test_a_study_of_which_there_are_runs_has_a_link_to_its_record(site: Path) -> None:
    page = (site / "reproduction.html").read_text()
    there = [path.parent.name for path in (ROOT / "records").glob("*/runs.jsonl")]
    assert {"label-noise", "radius-mlp"} < set(there)
    for name in there:
        (line,) = (row for row in page.split("<tr") if f"vasso study {name}</span>" in words(row))
        assert 'href="records/' in line, name


def words(row: str) -> str:
    """A line of the table with the blanks of its command as they were typed."""
    return row.replace('</span> <span class="pre">', " ")


def test_every_record_has_a_page(site: Path) -> None:
    records = [path.parent.name for path in (ROOT / "records").glob("*/README.md")]
    assert records
    index = (site / "records" / "index.html").read_text()
    for name in records:
        assert (site / "records" / f"{name}.html").is_file()
        assert f'href="{name}.html"' in index


def test_a_link_to_a_file_that_a_page_shows_leads_to_the_page(site: Path) -> None:
    page = (site / "concepts" / "radius.html").read_text()
    (target,) = re.findall(r'href="([^"]*)"><span[^>]*>the record on wrong labels<', page)
    assert target == "../records/wrong-labels.html"


def test_what_stands_in_for_the_table_of_studies_is_not_on_the_site(site: Path) -> None:
    assert "The table stands here" in (DOCS / "reproduction.md").read_text()
    assert "The table stands here" not in (site / "reproduction.html").read_text()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import plain_docstrings

    return plain_docstrings


def test_docstrings_keep_their_bars_and_their_doctests(plain: ModuleType) -> None:
    told = ["rho d / ||d||, a*b and `c|d`.", "", ">>> 1 | 2", "3", "", "Args:", "    g_: |g|."]
    assert plain.as_rst(told) == [
        r"rho d / \|\|d\|\|, a\*b and `c|d`.", "", ">>> 1 | 2", "3", "", "Args:", r"    g\_: \|g\|."
    ]  # fmt: skip


def test_tables_and_equations_of_docstrings(plain: ModuleType) -> None:
    told = [
        "What.",
        "",
        "| a | b |",
        "|---|---|",
        "| 1 | ||d|| |",
        "",
        "    x = y",
        "",
        "    z",
        "",
        "So.",
    ]
    made = "\n".join(plain.as_rst([*told[:4], "| 1 | two |", *told[5:]]))
    assert ".. list-table::\n   :header-rows: 1\n\n   * - a\n     - b\n   * - 1\n     - two" in made
    assert "::\n\n        x = y\n        \n        z" in made.replace("    \n", "        \n")
