"""Every diagnostic restores the model and all random generators, also after an interrupt."""

from typing import Any

import pytest
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import batches, check_nothing_touched, net
from vasso.diagnostics.adversary.friendliness import friendliness
from vasso.diagnostics.adversary.radius import rise_along, rise_curve
from vasso.diagnostics.adversary.slope_error import slope_errors
from vasso.diagnostics.adversary.snr import snr
from vasso.diagnostics.landscape import interpolation, slice_1d, slice_2d
from vasso.diagnostics.passes import gradient_of
from vasso.diagnostics.sharpness import average_sharpness, sharpness

SOME, AT = batches(6), [-1.0, 1.0]
G = gradient_of(net(), cross_entropy, SOME[:1])
FULL, END = gradient_of(net(), cross_entropy, SOME[:2]), net().state_dict()
BATCH: dict[str, Any] = {"batchnorm": "batch"}


def worst(search: Any) -> Any:
    return lambda m, loss: sharpness(m, loss, SOME[:2], 0.1, search=search, steps=4, **BATCH)


DIAGNOSTICS: dict[str, tuple[Any, int]] = {
    "slice": (lambda m, loss: slice_1d(m, loss, SOME[:2], at=AT), 3),
    "plane": (lambda m, loss: slice_2d(m, loss, SOME[:2], across=AT, along=AT), 3),
    "line": (lambda m, loss: interpolation(m, m.state_dict(), END, loss, SOME[:2], at=AT), 3),
    "curve": (lambda m, loss: rise_curve(m, loss, SOME[:3], SOME[3:], [0.1, 0.2], theta=0.9), 5),
    "friendliness": (lambda m, loss: friendliness(m, loss, SOME[:3], SOME[3:], rho=0.1), 5),
    "along": (lambda m, loss: rise_along(m, loss, [(G, SOME[0])], SOME[3:], [0.1]), 5),
    "slope errors": (lambda m, loss: slope_errors(m, loss, SOME[:4], FULL, [1.0]), 3),
    "snr": (lambda m, loss: snr(m, loss, SOME[:4]), 3),
    "average": (lambda m, loss: average_sharpness(m, loss, SOME[:2], 0.1, draws=3, **BATCH), 3),
    **{search: (worst(search), 3) for search in ("one-step", "ascent", "apgd")},
}


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_nothing_is_touched(name: str) -> None:
    diagnose, passes = DIAGNOSTICS[name]
    check_nothing_touched(diagnose, passes)
