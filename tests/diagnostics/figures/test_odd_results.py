"""Results that are empty, flat or not finite: drawn, or refused in a sentence."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vasso.diagnostics.figures.at_weights import friendliness, rises_nearby, slope_errors
from vasso.diagnostics.figures.landscapes import heights
from vasso.diagnostics.landscape import Surface
from vasso.lab.probe_pictures import draw
from vasso.lab.probing import Findings


def plane(*losses: float) -> Surface:
    sides = np.array([0.0, 1.0])
    return Surface(sides, sides, np.array(losses).reshape(2, 2), np.zeros((2, 2)), 1)


@pytest.mark.parametrize("figure", [friendliness, rises_nearby, slope_errors])
def test_nothing_is_not_drawn(figure: Callable[[list[Any]], Any]) -> None:
    with pytest.raises(ValueError, match="to draw: pass at least one"):
        figure([])


@pytest.mark.parametrize("loss", [0.0, -3.0, 1e6])
def test_levels_of_a_flat_surface_rise(loss: float) -> None:
    levels = heights({"SAM": plane(loss, loss, loss, loss)}, None)
    assert levels[0] == loss
    assert (np.diff(levels) > 0).all()


def test_levels_are_of_the_losses_that_are_finite() -> None:
    levels = heights({"SAM": plane(1.0, math.nan, math.inf, 5.0)}, None)
    assert (levels[0], levels[-1]) == (1.0, 5.0)


def test_what_cannot_be_drawn_is_noted_and_the_rest_is_drawn(tmp_path: Path) -> None:
    nans, flat = plane(*[math.nan] * 4), plane(1.0, 1.0, 1.0, 1.0)
    findings = Findings(results={"landscape": [nans]})
    assert draw(findings, tmp_path) == []
    assert findings.notes == [
        "landscape could not be drawn: no loss of the surfaces is finite: there is nothing to draw"
    ]
    assert draw(Findings(results={"landscape": [flat]}), tmp_path) == [tmp_path / "landscape.svg"]
