"""Descents: the penalty on the gradient norm; corrections of gradients of any size."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.reference import trajectories as twins
from tests.support.problems import take_step
from tests.support.slopes import adamw, assert_near, momentum, ours, path_of, train
from vasso import (
    GSAM,
    PGN,
    SAM,
    WSAM,
    FisherSAM,
    LightSAM,
    LookbehindSAM,
    LookSAM,
    Samples,
    SharpnessAware,
    StableSAM,
)
from vasso.numerics.vectors import share_along
from vasso.parts.descents import WeightedSharpness
from vasso.parts.plans import Chunks


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize(("alpha", "theta"), [(0.8, 1.0), (1.4, 1.0), (0.3, 0.4)])
def test_pgn_mixes_the_gradients_below_and_above(unit: bool, alpha: float, theta: float) -> None:
    settings = {"rho": 0.1, "alpha": alpha, "unit": unit, "theta": theta}
    assert_near(ours(partial(PGN, **settings)), path_of(twins.pgn, **settings))


def test_pgn_goes_down_with_adamw() -> None:
    settings = {"rho": 0.1, "alpha": 0.8}
    assert_near(ours(partial(PGN, **settings), adamw), path_of(twins.pgn, adamw, **settings))


SIZES = [
    pytest.param(torch.float16, 600.0, id="float16, squares overflow"),
    pytest.param(torch.float16, 1e-4, id="float16, squares underflow"),
    pytest.param(torch.float32, 1e20, id="float32, squares overflow"),
    pytest.param(torch.float32, 1e-25, id="float32, squares underflow"),
    pytest.param(torch.float64, 1.0, id="float64"),
]
SHAPE_G = torch.tensor([1.0, 0.5, -0.25, 0.0], dtype=torch.float64)
SHAPE_H = torch.tensor([0.5, 1.0, 0.25, 0.125], dtype=torch.float64)


def stepped(
    make: Callable[..., SharpnessAware], dtype: torch.dtype, size: float, steps: int = 1
) -> tuple[SharpnessAware, Tensor]:
    """Steps with the gradients `SHAPE_G` at w and `SHAPE_H` above, times a size."""
    w = torch.zeros(4, dtype=dtype, requires_grad=True)
    opt = make(SGD([w], lr=0.0))
    for _ in range(steps):
        w.grad = (SHAPE_G * size).to(dtype)
        with opt.ascended() as up:
            if up:
                w.grad = (SHAPE_H * size).to(dtype)
        opt.step()
    return opt, w


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_the_step_of_gsam_has_the_slope_above_at_any_size(dtype: torch.dtype, size: float) -> None:
    """<u, h> = ||h||^2 as g_perp is orthogonal to h, and u = h - alpha g_perp."""
    _, w = stepped(lambda base: GSAM(base, rho=0.1, alpha=0.4), dtype, size)
    assert w.grad is not None
    u = w.grad.double() / size
    along = SHAPE_G - (SHAPE_G @ SHAPE_H / (SHAPE_H @ SHAPE_H)) * SHAPE_H
    rounding = 4 * torch.finfo(dtype).eps + (1e-3 if dtype == torch.float16 else 0)
    torch.testing.assert_close(u, SHAPE_H - 0.4 * along, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_what_looksam_keeps_is_orthogonal_to_the_gradient(dtype: torch.dtype, size: float) -> None:
    opt, w = stepped(lambda base: LookSAM(base, rho=0.1, k=2), dtype, size, steps=2)
    kept = opt.state[w]["vasso_g_v"].double() / size
    rounding = 4 * torch.finfo(dtype).eps + (1e-3 if dtype == torch.float16 else 0)
    assert abs(kept @ SHAPE_G) <= rounding
    assert kept.norm() > 0.5
    assert w.grad is not None
    assert w.grad.isfinite().all()


def test_a_large_gradient_in_half_precision_has_a_fisher_information() -> None:
    seen: list[Any] = []

    def make(base: SGD) -> SharpnessAware:
        opt = FisherSAM(base, rho=0.1)
        opt.observe(lambda record: seen.append([x.clone() for x in record.epsilon or []]))
        return opt

    stepped(make, torch.float16, 600.0)
    g = SHAPE_G * 600
    push = g / (1 + g**2)
    expected = 0.1 * push / (g @ push).sqrt()
    torch.testing.assert_close(seen[0][0].double(), expected, rtol=2e-3, atol=1e-6)


def test_the_share_along_nothing_is_nothing() -> None:
    v, nothing = [torch.ones(3)], [torch.zeros(3)]
    assert share_along(v, nothing) == 0
    assert share_along(nothing, v) == 0
    assert share_along([torch.zeros(0)], [torch.zeros(0)]) == 0


def test_gsam_where_no_climbed_tensor_has_a_gradient_above_goes_down_by_the_others() -> None:
    """The other group has no radius, so that nothing is left to decompose."""
    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    opt = GSAM(SGD([{"params": [x]}, {"params": [y], "rho": 0.0}], lr=0.5), rho=0.1)
    x.grad, y.grad = torch.ones(2), torch.ones(2)
    with opt.ascended():
        y.grad = torch.full((2,), 2.0)
    opt.step()
    assert x.tolist() == [1.0, 1.0]
    assert y.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("theta", [1.0, 0.4])
@pytest.mark.parametrize("normalised", [True, False])
def test_stablesam_goes_as_far_as_the_gradient_at_w_would(normalised: bool, theta: float) -> None:
    settings = {"rho": 0.1, "normalised": normalised, "theta": theta}
    assert_near(ours(partial(StableSAM, **settings)), path_of(twins.rescaled, **settings))


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_the_rescaled_gradient_has_the_norm_of_the_one_at_w(
    dtype: torch.dtype, size: float
) -> None:
    _, w = stepped(lambda base: StableSAM(base, rho=0.1), dtype, size)
    assert w.grad is not None
    expected = SHAPE_H * (SHAPE_G.norm() / SHAPE_H.norm())
    rounding = 4 * torch.finfo(dtype).eps + (1e-3 if dtype == torch.float16 else 0)
    torch.testing.assert_close(w.grad.double() / size, expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("base", [momentum, adamw])
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_wsam_weighs_the_sharpness(base: Any, decoupled: bool, theta: float) -> None:
    settings = {"rho": 0.05, "gamma": 0.7, "decoupled": decoupled, "theta": theta}
    assert_near(ours(partial(WSAM, **settings), base), path_of(twins.wsam, base, **settings))


def test_wsam_of_equal_weights_is_sam_and_of_no_weight_the_base() -> None:
    """(1 - 1) g + 1 h is h to the last bit in the coupled form."""
    half = partial(WSAM, rho=0.1, gamma=0.5, decoupled=False)
    assert torch.equal(train(half), train(partial(SAM, rho=0.1)))
    none = train(partial(WSAM, rho=0.1, gamma=0.0))
    assert torch.equal(none, train(partial(SAM, rho=0.0)))


def test_wsam_without_momentum_is_the_same_in_both_forms() -> None:
    ends = []
    for decoupled in (True, False):
        _, w = stepped(
            lambda base, d=decoupled: WSAM(
                SGD(base.param_groups[0]["params"], lr=0.5), decoupled=d
            ),
            torch.float64,
            1.0,
        )
        ends.append(w.detach())
    assert_near(ends[0], ends[1])
    assert ends[0].abs().max() > 0.5


@pytest.mark.parametrize("way", ["micro-batches", "chunks"])
def test_the_sharpness_of_micro_batches_adds_up_as_their_gradients_do(way: str) -> None:
    """With plain SGD both forms are equal; b has no gradient in one of the two micro-batches."""
    ends = []
    for decoupled in (True, False):
        a, b = (torch.tensor([v, 4.0], dtype=torch.float64, requires_grad=True) for v in (3.0, 1.0))
        plan = Chunks(1) if way == "chunks" else None
        descent = WeightedSharpness(0.7, decoupled)
        opt = SharpnessAware(SGD([a, b], lr=0.001), rho=0.1, descent=descent, plan=plan)

        def losses(x: Tensor, a: Tensor = a, b: Tensor = b) -> Tensor:
            both = x.item() > 1
            return ((a * b).sum() ** 2 if both else a.square().sum()).mul(x).reshape(1)

        for _ in range(2):
            if way == "chunks":
                opt.step(Samples(opt.zero_grad, losses, torch.tensor([1.0, 2.0])))
                continue
            opt.zero_grad()
            for x in (torch.tensor(1.0), torch.tensor(2.0)):
                losses(x).div(2).backward()
                with opt.ascended(accumulate=True):
                    losses(x).div(2).backward()
            opt.step()
        ends.append(torch.cat([a, b]).detach())
    assert_near(*ends)


@pytest.mark.parametrize("maximize", [True, False])
def test_the_sharpness_is_neither_clipped_nor_kept_for_another_step(maximize: bool) -> None:
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    base = SGD([w], lr=0.5, maximize=maximize)
    opt = WSAM(base, rho=0.1, gamma=0.5, clip_norm=0.1)
    w.grad = torch.tensor([1.0, 0.0], dtype=torch.float64)
    with opt.ascended():
        w.grad = torch.tensor([1.0, 4.0], dtype=torch.float64)
    opt.step()
    sign = 1 if maximize else -1
    torch.testing.assert_close(w.detach(), sign * torch.tensor([0.05, 2.0], dtype=torch.float64))
    assert not opt._vectors
    w.grad = torch.zeros_like(w)
    opt.step()  # a plain step
    torch.testing.assert_close(w.detach(), sign * torch.tensor([0.05, 2.0], dtype=torch.float64))


@pytest.mark.parametrize("base", [momentum, adamw])
@pytest.mark.parametrize(
    ("k", "alpha", "theta"), [(2, 0.5, 1.0), (3, 0.8, 0.4), (3, None, 1.0), (1, None, 0.4)]
)
def test_lookbehind_steps_by_every_point_and_goes_part_of_the_way(
    base: Any, k: int, alpha: float | None, theta: float
) -> None:
    settings = {"rho": 0.05, "k": k, "alpha": alpha, "theta": theta}
    twin = path_of(twins.lookbehind, base, **settings)
    assert_near(ours(partial(LookbehindSAM, **settings), base), twin)


def test_lookbehind_of_one_point_and_all_of_the_way_is_sam() -> None:
    one = partial(LookbehindSAM, rho=0.1, k=1, alpha=1.0)
    assert torch.equal(train(one), train(partial(SAM, rho=0.1)))


def test_lookbehind_keeps_nothing_between_steps_and_gives_gradients_back() -> None:
    w = torch.ones(2, requires_grad=True)
    opt = LookbehindSAM(SGD([w], lr=0.1), rho=0.1, k=3)
    take_step(opt, lambda: w.square().sum())
    assert not opt._vectors
    assert w.grad is not None
    assert opt.cost == 4


def test_a_step_that_was_given_up_moves_no_tensor_of_a_later_one() -> None:
    a, b = (torch.tensor([3.0, 4.0], requires_grad=True) for _ in range(2))
    opt = WSAM(SGD([a, b], lr=0.1), rho=0.1)
    for loss in (lambda: (a * b).sum(), lambda: a.square().sum()):
        loss().backward()
        with opt.ascended():
            loss().backward()
        if b.grad is not None:
            opt.zero_grad()  # and no step(), as for a batch that turns out to be damaged
    opt.step()
    assert b.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_lightsam_is_its_twin(theta: float) -> None:
    settings = {"rho": 0.3, "small": 0.1, "theta": theta}
    assert_near(ours(partial(LightSAM, **settings)), path_of(twins.light, **settings))


def test_lightsam_begins_with_the_whole_radius_and_a_step_of_the_learning_rate() -> None:
    w = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    opt = LightSAM(SGD([w], lr=0.1), rho=0.5)
    for _ in range(2):
        before = w.detach().clone()
        opt.zero_grad()
        (0.5 * w.square().sum()).backward()
        with opt.ascended():
            (0.5 * w.square().sum()).backward()
        opt.step()
        if opt.cost == 2:
            assert opt.metrics()["rho"] == pytest.approx(0.5)
            assert (w - before).norm().item() == pytest.approx(0.1)
    # the second time with the root of both squares: 4.9 / sqrt(5^2 + 4.9^2)
    assert opt.metrics()["rho"] == pytest.approx(0.5 * 4.9 / (25 + 4.9**2) ** 0.5)
