"""What a step costs, which loss it returns, and the defaults of the authors."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.family.batches import (
    CASES,
    SHORT,
    SIZE,
    assert_near,
    batch,
    closure_of,
    each_loss,
    other_batch,
    rows_drawn_by,
    samples,
    simple,
    train,
)
from vasso.presets import AESAM, ASAM, ESAM, GSAM, SAM, SSSAM, FisherSAM, LookSAM, VaSSO

# -- costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gradients"),
    [
        ("SAM", 2.0),
        ("VaSSO+FisherSAM, average", 2.0),
        ("V+G", 2.0),
        ("SAM-db", 2.0),
        ("SAM-db-m/2", 1.5),
        ("RandomSAM", 1.0),
        ("ChunkedSAM", 2.0),
        ("ChunkedSAM + theta, ragged", 2.0),
        ("SubSampledSAM", 1 + 6 / SIZE),
        ("LookSAM", 1 + 1 / 4),
        ("ESAM", 1 + 1 / 3 + 13 / SIZE),  # 13 is 0.6 of 22
    ],
)
def test_a_step_costs_what_is_said_of_it(name: str, gradients: float) -> None:
    """In gradients of a batch; the sum of such numbers rounds."""
    case = CASES[name]
    ours = train(case.make, other=case.other)
    assert_near(ours.opt.cost, SHORT * gradients, 1e-14)


@pytest.mark.parametrize("name", ["SSSAM", "AESAM", "AELookSAM + theta"])
def test_a_step_that_does_not_climb_costs_one_gradient(name: str) -> None:
    ours = train(CASES[name].make)
    assert ours.opt.cost == SHORT + sum(ours.climbed)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("ChunkedSAM")])
def test_the_loss_of_a_step_is_that_at_w(name: str) -> None:
    """Of the ascent data if they are others; of the pass there is for RandomSAM."""
    case, (opt, net) = CASES[name], simple(CASES[name].make)
    x, y = other_batch(0, case.other) if case.other else batch(0)
    more = {"ascent_closure": samples(opt, net, x, y)} if case.other else {}
    rows = rows_drawn_by(opt.plan, 0) if name.startswith("Sub") else list(range(len(y)))
    expected = each_loss(net, x[rows], y[rows]).mean().item()
    found = opt.step((samples if case.whole else closure_of)(opt, net, *batch(0)), **more).item()
    assert (found == expected) == (name != "RandomSAM")


# -- defaults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        (SAM, {"rho": 0.05, "theta": 1.0}),
        (VaSSO, {"rho": 0.05, "theta": 0.4}),
        (ASAM, {"rho": 0.5, "eta": 0.01, "theta": 1.0}),
        (FisherSAM, {"rho": 0.1, "eta": 1.0, "source": "batch", "theta": 1.0}),
        (GSAM, {"rho": 0.1, "alpha": 0.4, "minimise": "perturbed", "theta": 1.0}),
        (LookSAM, {"rho": 0.05, "k": 5, "alpha": 0.7, "theta": 1.0}),
        (ESAM, {"rho": 0.05, "beta": 0.6, "gamma": 0.5, "level": "element", "theta": 1.0}),
        (SSSAM, {"rho": 0.05, "p": 0.5, "theta": 1.0}),
        (AESAM, {"rho": 0.05, "delta": 0.9, "lambda_1": -1.0, "lambda_2": 1.0, "theta": 1.0}),
    ],
)
def test_defaults_are_those_of_the_authors(preset: type, settings: dict[str, Any]) -> None:
    """ALGORITHMS, section 8b."""
    found = inspect.signature(preset).parameters
    assert {name: found[name].default for name in settings} == settings
