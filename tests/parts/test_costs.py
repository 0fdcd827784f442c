"""Costs: every gradient is counted; the loss that a step returns; the defaults of the authors."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import vasso
from tests.support import batches, slopes


@pytest.mark.parametrize(
    "name", [name for name in batches.CASES if not name.startswith("ChunkedSAM")]
)
def test_the_loss_of_a_step_is_that_at_w(name: str) -> None:
    """Of the ascent data if they are others; of the pass there is for RandomSAM."""
    case, (opt, net) = batches.CASES[name], batches.simple(batches.CASES[name].make)
    x, y = batches.other_batch(0, case.other) if case.other else batches.batch(0)
    more = {"ascent_closure": batches.samples(opt, net, x, y)} if case.other else {}
    rows = (
        batches.rows_drawn_by(opt.plan, 0)
        if name.startswith(("Sub", "Half"))
        else list(range(len(y)))
    )
    expected = batches.each_loss(net, x[rows], y[rows]).mean().item()
    found = opt.step(
        (batches.samples if case.whole else batches.closure_of)(opt, net, *batches.batch(0)), **more
    ).item()
    assert (found == expected) == (name != "RandomSAM")


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        (vasso.SAM, {"rho": 0.05, "theta": 1.0}),
        (vasso.VaSSO, {"rho": 0.05, "theta": 0.4}),
        (vasso.ASAM, {"rho": 0.5, "eta": 0.01, "theta": 1.0}),
        (vasso.FisherSAM, {"rho": 0.1, "eta": 1.0, "source": "batch", "theta": 1.0}),
        (vasso.GSAM, {"rho": 0.1, "alpha": 0.4, "minimise": "perturbed", "theta": 1.0}),
        (vasso.LookSAM, {"rho": 0.05, "k": 5, "alpha": 0.7, "theta": 1.0}),
        (vasso.ESAM, {"rho": 0.05, "beta": 0.6, "gamma": 0.5, "level": "element", "theta": 1.0}),
        (vasso.SSSAM, {"rho": 0.05, "p": 0.5, "theta": 1.0}),
        (vasso.AESAM, {"rho": 0.05, "delta": 0.9, "lambda_1": -1.0, "lambda_2": 1.0, "theta": 1.0}),
    ],
)
def test_defaults_are_those_of_the_authors(preset: type, settings: dict[str, Any]) -> None:
    found = inspect.signature(preset).parameters
    assert {name: found[name].default for name in settings} == settings


PRICES: dict[str, tuple[slopes.Make, float]] = {
    "late, every third": (partial(vasso.LateSAM, start=5, then=vasso.EveryK(3)), 8 + 1),
    "fewer samples": (
        partial(vasso.SharpnessAware, geometry=vasso.FisherMask(every=3, samples=4)),
        16 + 3 * 4 / slopes.BATCH,
    ),
}
"""What no method of the catalogue has; of those `tests/contract` counts the gradients."""


@pytest.mark.parametrize("name", PRICES)
def test_every_gradient_is_counted_and_none_is_wasted(name: str) -> None:
    make, price = PRICES[name]
    task = slopes.Task(torch.float32)
    opt = make(slopes.momentum(task.params()), model=task.model)
    for t in range(8):
        opt.step(task.samples(opt, t))
    assert (opt.cost, task.evaluations) == (price, price)


def test_a_full_gradient_by_a_plain_closure_may_tell_its_price() -> None:
    task = slopes.Task(torch.float32)
    base = slopes.momentum(task.params())

    class Told:
        cost = 12.5

        def __call__(self) -> Tensor:
            return task.samples(base, None)()

    class Source(slopes.Everything):
        def full(self) -> Any:
            return Told()

    opt = vasso.SVRGSAM(base, data=Source(task, base), every=100, model=task.model)
    opt.step(task.samples(opt, 0))
    assert opt.cost == 2 + 12.5
