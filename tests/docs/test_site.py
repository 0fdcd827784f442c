"""The site builds without a warning, fetches nothing and documents every public name.

The build takes long, so it is slow; public names are looked for in the sources of the pages too.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fontTools.ttLib import TTFont
from sphinx.util.inventory import InventoryFile

import vasso
from vasso.lab.studies import study as studies

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
DEFINITIONS = (ast.ClassDef, ast.FunctionDef)


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
def built(site: Path) -> set[str]:
    """All names that have an entry on the site."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    return {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}


def public_names() -> set[str]:
    """The names of `vasso` by the modules that define them."""
    names = {name: getattr(vasso, name) for name in dir(vasso) if name[0].isupper()}
    names["methods"] = vasso.methods
    return {f"{value.__module__}.{name}" for name, value in names.items()}


def named_in_sources() -> set[str]:
    """What directives of `docs/reference` name, and what is defined in the modules they name."""
    text = "".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
    found = set(re.findall(r"^\.\. auto(?:class|function|data|module):: (.*)", text, re.MULTILINE))
    for module in re.findall(r"^\.\. automodule:: (.*)", text, re.MULTILINE):
        path = ROOT / module.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(source.read_text()).body
        found |= {f"{module}.{node.name}" for node in tree if isinstance(node, DEFINITIONS)}
    return found


def test_every_public_name_is_named_in_the_reference() -> None:
    assert len(public_names()) > 60
    assert not public_names() - named_in_sources()


@pytest.mark.slow
def test_every_public_name_has_an_entry(built: set[str]) -> None:
    assert not public_names() - built


@pytest.mark.parametrize("package", ["diagnostics", "integrations"])
def test_every_module_of_a_public_package_has_an_entry(package: str) -> None:
    modules = (ROOT / "vasso" / package).glob("[!_]*.py")
    missing = {f"vasso.{package}.{path.stem}" for path in modules} - named_in_sources()
    assert not missing, f"name them in docs/reference/{package}.md"


@pytest.mark.slow
def test_nothing_is_fetched_by_a_page(site: Path) -> None:
    asks = re.compile(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*")
    found = {path.name: asks.findall(path.read_text()) for path in site.rglob("*.html")}
    assert len(found) > 30
    assert not {name: urls for name, urls in found.items() if urls}


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_fit_and_say_nothing_on_the_console(
    browser: Any, site: Path, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said, wide = [], []
    page.on("console", lambda message: said.append((page.url, message.text)))
    page.on("pageerror", lambda error: said.append((page.url, str(error))))
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(path.name)
    assert (said, wide) == ([], [])


@pytest.mark.slow
def test_search_works_without_a_server(browser: Any, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=accumulation")
    page.get_by_role("link", name="Accumulating gradients").first.wait_for(timeout=30_000)


@pytest.mark.slow
def test_a_page_is_the_same_in_every_build(site: Path) -> None:
    """No address in memory, no place on this machine."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert not re.search(r" at 0x[0-9a-f]{6}", text), path.name
        assert str(ROOT) not in text, path.name


@pytest.mark.slow
def test_equations_are_drawn_without_a_script(site: Path) -> None:
    page = (site / "concepts" / "sharpness.html").read_text()
    drawn = re.findall(r'<div class="equation">(.*?)</div>', page, re.DOTALL)
    assert [equation.count('display="block"') for equation in drawn] == [1, 2]
    assert "$$" not in page


@pytest.mark.slow
def test_the_font_of_equations_has_their_signs_and_their_measures(site: Path) -> None:
    font = TTFont(site / "_static" / "math.woff")
    pages = "".join(path.read_text() for path in site.rglob("*.html"))
    equations = re.findall(r"<math.*?</math>", pages, re.DOTALL)
    signs = {sign for equation in equations for sign in re.sub(r"<[^>]*>", "", equation)}
    missing = {sign for sign in signs if not sign.isspace() and ord(sign) not in font.getBestCmap()}
    assert (len(signs) > 50, missing, "MATH" in font) == (True, set(), True)


@pytest.mark.slow
def test_an_optimizer_is_shown_with_its_arguments(site: Path) -> None:
    page = (site / "reference" / "presets.html").read_text()
    shown = re.sub(r"<[^>]+>", "", page)
    assert "class VaSSO(base, *, rho=0.05, theta=0.4, slope_dtype=None, **options)" in shown
    assert "*given" not in shown


@pytest.mark.slow
def test_every_study_has_its_line_with_its_command(site: Path) -> None:
    page = (site / "reproduction.html").read_text()
    for name in studies.names():
        study = studies.load(name)
        (line,) = (row for row in page.split("<tr") if f"vasso study {name}</span>" in words(row))
        for scale in study.scales.values():
            assert f">{len(scale.runs)}<" in line.replace("<p>", "").replace("</p>", "")
        assert (study.shows or "ours") in line


@pytest.mark.slow
def test_the_runs_that_are_made_are_counted(site: Path) -> None:
    page = (site / "reproduction.html").read_text()
    (line,) = (row for row in page.split("<tr") if "vasso study radius-mlp</span>" in words(row))
    kept = (ROOT / "records" / "radius-mlp" / "runs.jsonl").read_text().splitlines()
    wanted = len(studies.load("radius-mlp").at("cpu").runs)
    cells = re.findall(r"<td>(?:<p>)?(\d+)(?:</p>)?</td>", line)
    assert cells[:2] == [str(wanted), str(len(kept))]


@pytest.mark.slow
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


@pytest.mark.slow
def test_every_record_has_a_page(site: Path) -> None:
    records = [path.parent.name for path in (ROOT / "records").glob("*/README.md")]
    assert records
    index = (site / "records" / "index.html").read_text()
    for name in records:
        assert (site / "records" / f"{name}.html").is_file()
        assert f'href="{name}.html"' in index


@pytest.mark.slow
def test_a_link_to_a_file_that_a_page_shows_leads_to_the_page(site: Path) -> None:
    page = (site / "concepts" / "radius.html").read_text()
    (target,) = re.findall(r'href="([^"]*)"><span[^>]*>the record on wrong labels<', page)
    assert target == "../records/wrong-labels.html"


@pytest.mark.slow
def test_what_stands_in_for_the_table_of_studies_is_not_on_the_site(site: Path) -> None:
    stand_in = "The built site has the table here"
    assert stand_in in (DOCS / "reproduction.md").read_text()
    assert stand_in not in (site / "reproduction.html").read_text()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import plain_docstrings

    return plain_docstrings


def test_docstrings_keep_their_bars_and_their_doctests(plain: ModuleType) -> None:
    lines = ["rho d / ||d||, a*b and `c|d`.", "", ">>> 1 | 2", "3", "", "Args:", "    g_: |g|."]
    assert plain.as_rst(lines) == [
        r"rho d / \|\|d\|\|, a\*b and `c|d`.", "", ">>> 1 | 2", "3", "", "Args:", r"    g\_: \|g\|."
    ]  # fmt: skip


def test_tables_and_equations_of_docstrings(plain: ModuleType) -> None:
    lines = [
        "What.",
        "",
        "| a | b |",
        "|---|---|",
        "| 1 | ||d|| |",
        "",
        "    a and",
        "",
        "    z",
        "",
        "epsilon_t = rho g,",
        "u = h",
        "",
        "x = 1 is the plain step.",
    ]
    made = "\n".join(plain.as_rst([*lines[:4], "| 1 | two |", *lines[5:]]))
    assert ".. list-table::\n   :header-rows: 1\n\n   * - a\n     - b\n   * - 1\n     - two" in made
    assert "::\n\n        a and\n        \n        z" in made.replace("    \n", "        \n")
    assert made.endswith(
        ".. math:: \\epsilon_t = \\rho g,\n\n\n.. math:: u = h\n\n\nx = 1 is the plain step."
    )
