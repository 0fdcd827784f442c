"""Figures that can be turned: whole without a network, small as a fragment."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.figures.results import plane
from vasso.diagnostics.figures.palette import look
from vasso.diagnostics.figures.turnable import fragment, page, turnable_sphere, turnable_surface
from vasso.diagnostics.sphere import cloud

CLOUDS = [cloud(0.1, theta) for theta in (1.0, 0.4)]


def drawn(text: str) -> Any:
    found = re.search(r"const figure = (\{.*\}); Plotly", text)
    assert found
    return json.loads(found[1])


def test_a_sphere_holds_every_adversary_in_its_colour() -> None:
    traces = drawn(fragment(turnable_sphere(CLOUDS, title="SNR 0.1")))["data"]
    points = {t["name"]: t for t in traces if t.get("mode") == "markers"}
    assert list(points) == ["SAM", "VaSSO θ=0.4"]
    assert {len(t["x"]) for t in points.values()} == {100}
    assert points["SAM"]["marker"]["color"] == look("SAM").colour
    assert points["SAM"]["x"] == pytest.approx(CLOUDS[0].points[:, 0], abs=1e-4)


def test_a_surface_is_cut_off_where_asked() -> None:
    (trace,) = drawn(fragment(turnable_surface(plane(2.0), highest=1.0)))["data"]
    heights = [z for row in trace["z"] for z in row]
    assert max(heights) == 1.0
    assert min(heights) == pytest.approx(plane(2.0).losses.min(), abs=1e-4)
    assert trace["z"][0][24] == pytest.approx(min(plane(2.0).losses[24, 0], 1.0), abs=1e-4)


def test_a_fragment_is_small_the_same_each_time_and_told_apart() -> None:
    one, again = (fragment(turnable_sphere(CLOUDS)) for _ in range(2))
    assert one == again
    assert len(one) < 30_000
    assert "plotly.js" not in one
    ids = [re.search(r'div id="([^"]+)"', fragment(turnable_sphere([c])))[1] for c in CLOUDS]  # type: ignore[index]
    assert len(set(ids)) == 2
    assert fragment(turnable_sphere(CLOUDS), name="mine").count('"mine"') == 2


def test_a_title_cannot_end_the_script() -> None:
    text = fragment(turnable_sphere(CLOUDS, title="</script><b>"))
    assert text.count("</script>") == 1
    assert drawn(text)["layout"]["title"]["text"] == "</script><b>"


def test_a_page_is_whole_and_asks_for_nothing(tmp_path: Path) -> None:
    figures = [turnable_sphere(CLOUDS), turnable_surface(plane(1.0))]
    text = page(figures, tmp_path / "new" / "page.html", title="A & B").read_text()
    assert "<h1>A &amp; B</h1>" in text
    assert text.count("Plotly.newPlot(") >= 2
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    assert 3e6 < len(text) < 7e6


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one SNR and one gradient"):
        turnable_sphere([cloud(0.1), cloud(1.0)])
    with pytest.raises(ValueError, match="3 dimensions"):
        turnable_sphere([])
    with pytest.raises(ValueError, match="no figures"):
        page([], tmp_path / "page.html", title="T")
