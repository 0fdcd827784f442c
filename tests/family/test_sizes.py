"""Gradients far from one, in every precision: corrections keep their equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from vasso import GSAM, FisherSAM, LookSAM, SharpnessAware
from vasso.vectors import share_along

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
def test_the_step_of_gsam_has_the_slope_above_whatever_its_size(
    dtype: torch.dtype, size: float
) -> None:
    """<u, h> = ||h||^2 as g_perp is orthogonal to h, and u = h - alpha g_perp."""
    _, w = stepped(lambda base: GSAM(base, rho=0.1, alpha=0.4), dtype, size)
    assert w.grad is not None
    u = w.grad.double() / size
    along = SHAPE_G - (SHAPE_G @ SHAPE_H / (SHAPE_H @ SHAPE_H)) * SHAPE_H
    rounding = 4 * torch.finfo(dtype).eps + (1e-3 if dtype == torch.float16 else 0)
    torch.testing.assert_close(u, SHAPE_H - 0.4 * along, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_what_looksam_remembers_is_orthogonal_to_the_gradient(
    dtype: torch.dtype, size: float
) -> None:
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
