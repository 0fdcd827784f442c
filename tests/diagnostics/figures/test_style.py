"""SVG output: the same bytes each time, and several figures in one page."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from vasso.diagnostics.figures.palette import GRID, INK
from vasso.diagnostics.figures.style import canvas, inline, plain_log, save, styled

SVG = "{http://www.w3.org/2000/svg}"


@styled
def some(shift: float = 0.0) -> Figure:
    figure = canvas("narrow", 2.4, columns=2)
    for axes in figure.axes:
        axes.plot([1, 10, 100], [1 + shift, 2, 3], marker="o", label="SAM & co")
        axes.fill_between([1, 10], [0, 1], [1, 2], alpha=0.2)
        axes.set_xscale("log")
        plain_log(axes.xaxis)
        axes.set_xlabel("ρ < 1")
        axes.legend()
    return figure


def ids(element: str) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', element))


def test_the_same_figure_is_the_same_bytes_also_from_another_process(tmp_path: Path) -> None:
    here = save(some(), tmp_path / "here.svg").read_bytes()
    code = (
        "from tests.diagnostics.figures.test_style import some, save;"
        f"save(some(), r'{tmp_path / 'there.svg'}')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert here == (tmp_path / "there.svg").read_bytes()
    assert here != save(some(0.5), tmp_path / "other.svg").read_bytes()


def test_the_last_bits_of_coordinates_change_nothing(tmp_path: Path) -> None:
    """Processors differ in them, and matplotlib names what it draws by a hash of all bits."""
    drawn, moved = some(), some()
    moved.set_size_inches(4.8 + 1e-14, 2.4 + 1e-14)
    assert tuple(moved.get_size_inches()) != (4.8, 2.4)
    files = [save(f, tmp_path / f"{n}.svg").read_text() for n, f in enumerate((drawn, moved))]
    assert files[0] == files[1]
    assert inline(drawn, title="T") == inline(moved, title="T")
    assert len(ids(files[0])) > 2


def test_a_file_says_nothing_of_when_and_by_what_it_was_made(tmp_path: Path) -> None:
    text = save(some(), tmp_path / "some.svg").read_text()
    assert not re.search(r"metadata|matplotlib|date|20\d\d-", text.replace("http://www.w3.org", ""))


def test_text_stays_text(tmp_path: Path) -> None:
    root = ElementTree.fromstring(save(some(), tmp_path / "some.svg").read_text())
    result = [t.text for t in root.iter(f"{SVG}text")]
    assert result.count("ρ < 1") == result.count("SAM & co") == 2
    assert "10" in result


def test_in_a_page_no_size_colour_rule_or_font_is_fixed() -> None:
    element = inline(some(), title="T")
    root = ElementTree.fromstring(element)
    assert root.get("viewBox") == "0 0 345.6 172.8"
    assert not {"width", "height"} & set(root.attrib)
    assert "currentColor" in element
    assert "var(--figure-grid" in element
    assert INK not in element
    assert element.count(GRID) == element.count(f"var(--figure-grid, {GRID})")
    assert "<style" not in element
    assert set(re.findall(r"font-family:\s*([^;\"]+)", element)) == {"inherit"}


def test_nothing_hides_the_page_behind_a_figure() -> None:
    assert not re.search(r"fill: #f{6}\b|fill: white", inline(some(), title="T"))


def test_figures_in_one_page_share_no_id_and_refer_to_their_own() -> None:
    first, second = inline(some(), title="T"), inline(some(0.5), title="T")
    assert not ids(first) & ids(second)
    for element in (first, second):
        used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', element)
        assert used
        assert {a or b for a, b in used} <= ids(element)
        assert len(re.findall(r'\bid="', element)) == len(ids(element))


def test_the_same_figure_twice_is_told_apart_by_name() -> None:
    assert not ids(inline(some(), title="T", name="a")) & ids(inline(some(), title="T", name="b"))


def test_a_reader_who_does_not_see_it_is_told() -> None:
    root = ElementTree.fromstring(inline(some(), title="SNR < 1", description="It falls."))
    title, description = root[0], root[1]
    assert (title.tag, title.text) == (f"{SVG}title", "SNR < 1")
    assert (description.tag, description.text) == (f"{SVG}desc", "It falls.")
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"


def test_the_callers_settings_change_nothing_and_are_left_alone(tmp_path: Path) -> None:
    ours = save(some(), tmp_path / "ours.svg").read_bytes()
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path"}):
        theirs = save(some(), tmp_path / "theirs.svg").read_bytes()
        assert mpl.rcParams["font.size"] == 30
    assert ours == theirs


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"name the file some\.svg, got .*some\.png"):
        save(some(), tmp_path / "some.png")
    with pytest.raises(ValueError, match="title is empty"):
        inline(some(), title=" ")
    with pytest.raises(TypeError, match="must be a matplotlib Figure, got str"):
        inline("figure", title="T")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"width must be one of 'narrow', 'wide'.*'narrow'"):
        canvas("narow", 2)  # type: ignore[arg-type]
