"""The page in a real browser: large and small, light and dark, with the mouse and without."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.stores import as_lines, flattened, noisy, probe_of, runs_of, trained, translator
from vasso.lab.report.findings import Findings, findings
from vasso.lab.report.page import write_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SIZES = {"desktop": (1280, 900), "phone": (360, 740), "wide-phone": (390, 844)}
PATIENCE = 180_000
"""Milliseconds; drawing three dimensions without a graphics card takes its time."""

WATCH = """() => document.getElementById("sphere-turns").on(
  "plotly_relayout", (change) => { window.turned = change; })"""
CUT_OFF = """() => {
  const inside = (e) => e.closest(".scroll, pre, .wide, .skip, .turnable, svg, [hidden]");
  return [...document.body.querySelectorAll("*")]
    .filter((e) => !inside(e) && e.getClientRects().length)
    .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1
                   || e.getBoundingClientRect().left < -1)
    .map((e) => e.outerHTML.slice(0, 90));
}"""

OUTSIDE = """() => [...document.querySelectorAll("svg.figure text")]
  .filter((t) => t.getClientRects().length)
  .filter((t) => {
    const [a, b] = [t.getBoundingClientRect(), t.closest("svg").getBoundingClientRect()];
    return a.left < b.left - 1 || a.right > b.right + 1
      || a.top < b.top - 1 || a.bottom > b.bottom + 1;
  })
  .map((t) => t.textContent)"""
"""Words in charts that are not all there to read."""
RECORDS = Path(__file__).parents[3] / "records"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    runs = [trained(run) for run in runs_of("label-noise", seeds=3, wrong=(0.75,))]
    root = as_lines(tmp_path_factory.mktemp("store"), [*runs, trained(runs_of("cifar10")[0])])
    damaged = root / "a-run-with-a-very-long-name-that-cannot-be-read-because-it-is-damaged"
    damaged.mkdir()
    (damaged / "run.json").touch()
    return findings(root)


@pytest.fixture(scope="module")
def file(found: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(found, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of all runs that the project keeps."""
    return write_page(findings(RECORDS), tmp_path_factory.mktemp("real") / "report.html")


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Any]:
    """Opens the page, and at the end says whether anything was fetched or went wrong."""
    contexts: list[Any] = []
    troubles: list[str] = []

    def begin(size: str = "desktop", scheme: str = "light", path: Path = file) -> Any:
        width, height = SIZES[size]
        view = {"width": width, "height": height}
        contexts.append(
            browser.new_context(viewport=view, color_scheme=scheme, reduced_motion="reduce")
        )
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda m: m.type == "error" and troubles.append(m.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request",
            lambda r: r.url.startswith(("file:", "data:", "blob:")) or troubles.append(r.url),
        )
        page.goto(path.as_uri())
        return page

    yield begin
    for context in contexts:
        context.close()
    assert troubles == []


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("which", ["file", "real"])
def test_nothing_is_cut_off_and_charts_are_seen(
    opened: Any, which: str, size: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    page = opened(size, scheme, request.getfixturevalue(which))
    root = "document.documentElement"
    for folded in (True, False):
        assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate(OUTSIDE) == []
        if folded:
            page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    charts = page.locator("svg.figure")
    assert charts.count() >= 6
    for i in range(charts.count()):
        box = charts.nth(i).bounding_box()
        assert box["width"] > 250
        assert box["height"] > 80
    dark = sum(map(int, background(page)[4:-1].split(","))) < 3 * 128
    assert dark == (scheme == "dark")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of what is measured besides accuracy: spectra, noise, translations, probes."""
    flat = [flattened(run) for run in runs_of("hessian")]
    flat[3:5] = [replace(one, probe=probe_of(one.run)) for one in flat[3:5]]
    rest = [*map(translator, runs_of("translation")), *map(noisy, runs_of("snr"))]
    root = as_lines(tmp_path_factory.mktemp("measured"), [*flat, *rest])
    found = findings(root, ["hessian", "snr", "translation"])
    return write_page(found, root / "report.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_measurements_and_probes_fit(opened: Any, measured: Path, size: str, scheme: str) -> None:
    page = opened(size, scheme, measured)
    probes = page.locator("[id*='-probe-'] > summary")
    assert probes.count() == 2
    assert not page.locator("#hessian-cpu-probe-1 svg.figure").first.is_visible()  # folded
    for i in range(2):
        probes.nth(i).click()
    assert page.evaluate(CUT_OFF) == []
    charts = page.locator("svg.figure")
    boxes = [charts.nth(i).bounding_box() for i in range(charts.count())]
    assert len(boxes) >= 5 + 2 * 7
    assert min(box["width"] for box in boxes) > 250
    labels = page.locator("#translation-cpu .chart svg text")
    frame = "(e) => e.closest('.chart').getBoundingClientRect()"
    for i in range(labels.count()):  # long names in legends and beside axes
        box, around = labels.nth(i).bounding_box(), labels.nth(i).evaluate(frame)
        assert box["x"] >= around["x"] - 1, labels.nth(i).inner_text()
        assert box["x"] + box["width"] <= around["x"] + around["width"] + 1


def test_the_toggle_turns_the_colours_and_remembers(opened: Any) -> None:
    page = opened()
    light = background(page)
    page.get_by_role("button", name="Use dark colours").click()
    dark = background(page)
    assert dark != light
    page.reload()
    assert background(page) == dark
    page.get_by_role("button", name="Use light colours").press("Enter")
    assert background(page) == light


def test_points_tell_their_values(opened: Any, found: Findings) -> None:
    page = opened()
    (noise,) = (a.section for a in found.results if a.section.study.name == "label-noise")
    cell = next(c for c in noise.cells if c.n and c.variant == "SAM")
    name = f"SAM, ρ={cell.rho:g}: {cell.estimate('last').value:.2f}"
    point = page.locator(f'.point[data-tip^="{name}"]').first
    point.scroll_into_view_if_needed()
    page.wait_for_timeout(500)  # scrolling hides what is told
    point.hover(force=True)
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert "SAM, ρ=" in tip.inner_text()
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_on_a_phone_the_difference_is_seen_and_a_wide_table_fades(opened: Any) -> None:
    page = opened("wide-phone")
    table = page.locator("#label-noise-cpu-comparisons")
    difference = table.locator("tbody tr").first.locator("td").first
    assert difference.locator("data").count() == 1
    box = difference.bounding_box()
    assert 0 <= box["x"] < box["x"] + box["width"] <= 390
    region = page.locator(".scroll", has=table)
    region.scroll_into_view_if_needed()
    assert "more" in region.get_attribute("class").split()
    region.evaluate("(e) => { e.scrollLeft = e.scrollWidth; }")
    page.wait_for_function("(e) => !e.classList.contains('more')", arg=region.element_handle())


def test_a_chart_fills_its_frame(opened: Any) -> None:
    frames = opened().locator(".charts .chart")
    widths = [frames.nth(i).bounding_box()["width"] for i in range(frames.count())]
    drawn = [frames.nth(i).locator("svg").bounding_box()["width"] for i in range(frames.count())]
    assert all(inner > 0.9 * outer for inner, outer in zip(drawn, widths, strict=True) if outer)


def test_arrow_keys_go_from_point_to_point(opened: Any) -> None:
    page = opened()
    chart = page.locator("svg.figure:has(.point)").first
    points, tip = chart.locator(".point"), page.locator("#tip")
    assert chart.locator('.point[tabindex="0"]').count() == 1  # one stop for Tab in each chart
    points.first.focus()
    assert tip.inner_text().startswith(points.first.get_attribute("aria-label"))
    page.keyboard.press("ArrowRight")
    output = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert output == points.nth(1).get_attribute("aria-label")
    assert output in tip.inner_text()
    page.keyboard.press("End")
    assert points.last.evaluate("(e) => e === document.activeElement")
    page.keyboard.press("Tab")  # leaves the chart
    assert not chart.evaluate("(e) => e.contains(document.activeElement)")


def test_without_a_mouse(opened: Any) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.url.endswith("#content")
    regions = page.locator(".scroll")
    assert all(regions.nth(i).get_attribute("tabindex") == "0" for i in range(regions.count()))


def test_on_paper_everything_is_unfolded_and_the_contents_are_gone(opened: Any) -> None:
    page = opened(scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


def test_the_sphere_turns(opened: Any, found: Findings, tmp_path: Path) -> None:
    page = opened(path=write_page(found, tmp_path / "turns.html", sphere=True))
    assert page.content().count("plotly.js v") == 1
    sphere = page.locator("#sphere-turns")
    sphere.scroll_into_view_if_needed()
    page.evaluate(WATCH)
    box = sphere.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 80, y + 30, steps=4)
    page.mouse.up()
    page.wait_for_function("window.turned !== undefined")
    assert page.evaluate("'scene.camera' in window.turned")
