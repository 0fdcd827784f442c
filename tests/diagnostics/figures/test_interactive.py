"""Interactive spheres: complete without a network connection, and small as a fragment."""

import json
import re
from typing import Any

import pytest

from vasso.diagnostics.adversary.sphere import cloud
from vasso.diagnostics.figures.interactive import fragment, interactive_sphere, library
from vasso.diagnostics.figures.palette import look

CLOUDS = [cloud(0.1, theta) for theta in (1.0, 0.4)]


def drawn(text: str) -> Any:
    found = re.search(r"const figure = (\{.*\}); Plotly", text)
    assert found
    return json.loads(found[1])


def test_a_sphere_holds_every_adversary_in_its_colour() -> None:
    traces = drawn(fragment(interactive_sphere(CLOUDS, title="SNR 0.1")))["data"]
    points = {t["name"]: t for t in traces if t.get("mode") == "markers"}
    assert list(points) == ["SAM", "VaSSO θ=0.4"]
    assert {len(t["x"]) for t in points.values()} == {100}
    assert points["SAM"]["marker"]["color"] == look("SAM").colour
    assert points["SAM"]["x"] == pytest.approx(CLOUDS[0].points[:, 0], abs=1e-4)


def test_a_fragment_is_small_the_same_each_time_and_told_apart() -> None:
    one, again = (fragment(interactive_sphere(CLOUDS)) for _ in range(2))
    assert one == again
    assert len(one) < 30_000
    assert "plotly.js" not in one
    ids = [re.search(r'div id="([^"]+)"', fragment(interactive_sphere([c])))[1] for c in CLOUDS]  # type: ignore[index]
    assert len(set(ids)) == 2
    assert fragment(interactive_sphere(CLOUDS), name="mine").count('"mine"') == 2


def test_a_title_cannot_end_the_script() -> None:
    text = fragment(interactive_sphere(CLOUDS, title="</script><b>"))
    assert text.count("</script>") == 1
    assert drawn(text)["layout"]["title"]["text"] == "</script><b>"


def test_the_library_is_whole_and_asks_for_nothing() -> None:
    text = library()
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text[:200])
    assert 3e6 < len(text) < 7e6


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="one SNR and one gradient"):
        interactive_sphere([cloud(0.1), cloud(1.0)])
    with pytest.raises(ValueError, match="3 dimensions"):
        interactive_sphere([])
