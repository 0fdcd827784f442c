"""Invariants of every adversary and every descent, whatever the data."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.reference.single_steps import inner, length, plus, times
from tests.support import batches
from tests.support.compare import assert_same, flat, records_of
from vasso import ASAM, GSAM, ChunkedSAM, FisherSAM, LookSAM, StepRecord
from vasso.parts.context import StepContext


def at(record: StepRecord, model: Callable[[], nn.Module]) -> StepContext:
    names = [name for name, _ in batches.made(model).named_parameters()]
    return StepContext(record.step, record.params, record.params, record.g, list(names))


BALLS = [
    "SAM",
    "VaSSO",
    "ASAM",
    "ASAM, eta 0",
    "VaSSO+ASAM",
    "FisherSAM, large eta",
    "VaSSO+FisherSAM",
    "V+G",
    "NoisySAM + theta",
    "RandomSAM",
    "ChunkedSAM + theta, ragged",
    "SubSampledSAM",
    "LookSAM + theta",
    "SSSAM",
    "AELookSAM",
]

each_ball = pytest.mark.parametrize("name", BALLS)
each_model = pytest.mark.parametrize("model", [batches.mlp, batches.conv])


@each_model
@each_ball
def test_the_adversary_is_on_the_surface_of_the_ball(name: str, model: Any) -> None:
    """epsilon is read off as (w + epsilon) - w: roundings of 1e-16 against a radius of 0.1."""
    case = batches.CASES[name]
    opt, records, _ = batches.observed(case.make, model=model, whole=case.whole, steps=8)
    lengths = [opt.geometry.length(r.epsilon, at(r, model)) for r in records if r.epsilon]
    rho = torch.full((len(lengths),), opt.param_groups[0]["rho"], dtype=torch.float64)
    batches.assert_near(torch.stack(lengths), rho, 1e-12)


@each_model
@each_ball
def test_no_point_of_the_ball_is_higher_on_the_slope(name: str, model: Any) -> None:
    """<d, v> / length(v) is stationary at epsilon, and with a norm there is no other top.

    Rounding: epsilon is read off as (w + epsilon) - w, so small entries of it have few digits.
    """
    case = batches.CASES[name]
    opt, records, _ = batches.observed(case.make, model=model, whole=case.whole, steps=8)
    record = next(r for r in reversed(records) if r.epsilon)
    v = [x.requires_grad_() for x in record.epsilon]
    height = sum((x * y).sum() for x, y in zip(record.d, v, strict=True))
    assert height > 0
    ratio = height / opt.geometry.length(v, at(record, model))
    tilt = flat(torch.autograd.grad(ratio, v)) * opt.param_groups[0]["rho"]
    batches.assert_near(tilt / flat(record.d).abs().max(), torch.zeros_like(tilt), 1e-11)


@pytest.mark.parametrize("source", ["ema", "direction"])
def test_a_ball_that_is_known_only_in_its_step_says_so(source: str) -> None:
    opt, records, _ = batches.observed(partial(FisherSAM, source=source), steps=1)
    with pytest.raises(ValueError, match=rf"the ball of Fisher\(.*{source}.*\) is not known"):
        opt.geometry.length(records[0].epsilon, at(records[0], batches.mlp))


@pytest.mark.parametrize("theta", [0.4, 1.0])
def test_gsam_takes_from_the_gradient_above_what_is_orthogonal_to_it(theta: float) -> None:
    """<g_perp, h> = 0 and <u, h> = ||h||^2, up to roundings of ||g|| ||h||."""
    _, records, down = batches.observed(partial(GSAM, rho=0.1, alpha=0.3, theta=theta))
    for record, u in zip(records, down, strict=True):
        g_perp = times(1 / 0.3, plus(record.h, times(-1.0, u)))
        size = length(record.g) * length(record.h)
        batches.assert_near(inner(g_perp, record.h) / size, 0.0, 1e-13)
        batches.assert_near(inner(u, record.h), inner(record.h, record.h), 1e-13)
        along = inner(record.g, record.h) / inner(record.h, record.h)
        batches.assert_near(flat(g_perp), flat(plus(record.g, times(-along, record.h))), 1e-13)


@pytest.mark.parametrize("theta", [0.4, 1.0])
def test_gsam_of_the_loss_at_w_keeps_its_descent(theta: float) -> None:
    """<u, g> = ||g||^2."""
    _, records, down = batches.observed(
        partial(GSAM, rho=0.1, alpha=0.3, minimise="clean", theta=theta)
    )
    for record, u in zip(records, down, strict=True):
        batches.assert_near(inner(u, record.g), inner(record.g, record.g), 1e-13)


@pytest.mark.parametrize("theta", [0.4, 1.0])
def test_looksam_keeps_what_is_orthogonal_to_the_gradient(theta: float) -> None:
    """<g_v, g> = 0 after a climb; afterwards alpha ||g|| of it comes on top of g."""
    opt, records, down = batches.observed(partial(LookSAM, rho=0.1, k=6, alpha=0.3, theta=theta))
    g_v = [entry["vasso_g_v"] for entry in opt.state.values()]
    climb = records[0]
    batches.assert_near(inner(g_v, climb.g) / (length(g_v) * length(climb.g)), 0.0, 1e-13)
    batches.assert_near(flat(down[0]), flat(climb.h), 0.0)
    for record, u in zip(records[1:], down[1:], strict=True):
        added = plus(u, times(-1.0, record.g))
        batches.assert_near(length(added), 0.3 * length(record.g), 1e-13)
        batches.assert_near(inner(added, g_v), length(added) * length(g_v), 1e-13)


def loss_above(make: batches.Make, a: float) -> float:
    """The loss at the adversary of a network without biases, rescaled where it does not notice."""
    net = batches.made(batches.without_bias)
    with torch.no_grad():
        net[0].weight.mul_(a)
        net[2].weight.div_(a)
    opt = make(SGD(net.parameters(), lr=0.0), model=net)
    opt.step(batches.closure_of(opt, net, *batches.batch(0)))
    return opt.last.perturbed_loss.item()


@pytest.mark.parametrize(("a", "rounding"), [(0.25, 0.0), (4.0, 0.0), (0.3, 1e-13), (7.0, 1e-13)])
def test_asam_does_not_see_a_rescaling(a: float, rounding: float) -> None:
    """Bit for bit by a power of two, else up to the rescaling's own rounding; SAM sees it well."""
    asam = partial(ASAM, rho=0.5, eta=0.0)
    batches.assert_near(loss_above(asam, a), loss_above(asam, 1.0), rounding)
    assert abs(loss_above(batches.sam, a) - loss_above(batches.sam, 1.0)) > 1e-3


def adversaries(make: batches.Make, scale: float) -> Tensor:
    """Of three batches at weights that stay, for a loss times some number."""
    net = batches.made(batches.mlp)
    opt = make(SGD(net.parameters(), lr=0.0), model=net)
    records = records_of(opt, weights=True)
    for t in range(3):
        opt.step(batches.closure_of(opt, net, *batches.batch(t), scale=scale))
    return torch.stack([flat(record.epsilon) for record in records])


@pytest.mark.parametrize("name", ["SAM", "VaSSO", "ASAM", "VaSSO+ASAM", "NoisySAM, kappa", "V+G"])
def test_the_adversary_does_not_see_the_scale_of_the_loss(name: str) -> None:
    """8 is a power of two, so that every rounding is the same."""
    make = batches.CASES[name].make
    assert_same(adversaries(make, 8.0), adversaries(make, 1.0))


@pytest.mark.parametrize("name", ["FisherSAM", "NoisySAM, sigma"])
def test_the_adversary_of_others_does_see_the_scale_of_the_loss(name: str) -> None:
    make = batches.CASES[name].make
    assert (adversaries(make, 8.0) - adversaries(make, 1.0)).abs().max() > 1e-6


def test_radius_gap_and_memory_may_differ_by_group() -> None:
    """epsilon = rho d / ||d|| with one norm over all; u = h - alpha g_perp with one projection."""
    net, settings = (
        batches.made(batches.mlp),
        ({"rho": 0.1, "alpha": 0.2}, {"rho": 0.3, "alpha": 0.5}),
    )
    halves = ({"params": list(net[i].parameters())} for i in (0, 2))
    base = SGD([half | own for half, own in zip(halves, settings, strict=True)], lr=0.05)
    base.param_groups[1]["theta"] = 0.5
    opt = GSAM(base, model=net)
    records = records_of(opt, weights=True)
    for t in range(3):
        opt.step(batches.closure_of(opt, net, *batches.batch(t)))
    for before, r in pairwise(records):
        mixed_slope = times(0.5, plus(before.d[2:], r.g[2:]))
        batches.assert_near(flat(r.d), flat([*r.g[:2], *mixed_slope]), 1e-15)
        along = inner(r.g, r.h) / inner(r.h, r.h)
        g_perp = plus(r.g, times(-along, r.h))
        for i in range(4):
            rho, alpha = settings[i // 2]["rho"], settings[i // 2]["alpha"]
            batches.assert_near(r.epsilon[i], rho / length(r.d) * r.d[i], 1e-15)
            u = r.h[i] - alpha * g_perp[i]
            if r is records[-1]:
                batches.assert_near(list(net.parameters())[i].grad, u, 1e-15)


def test_a_chunk_that_is_not_finite_skips_the_whole_step() -> None:
    """Weights, slope and counter are as before, though an earlier chunk was fine."""
    net = batches.made(batches.mlp)
    opt = ChunkedSAM(SGD(net.parameters(), lr=0.1), m=8, theta=0.4, model=net)
    opt.step(batches.samples(opt, net, *batches.batch(0)))

    def now() -> Tensor:
        slope = [entry["vasso_d"] for entry in opt.state.values()]
        return flat([*net.parameters(), *slope])

    before = now()
    x, y = batches.batch(1)
    opt.step(batches.samples(opt, net, x.index_fill(0, torch.tensor([12]), math.nan), y))
    assert_same(now(), before)
    assert (opt.skipped, opt.last.skipped) == (1, True)
