"""Closed forms: steps on quadratics, computed by hand, in float64.

The tolerance is a few units of rounding, 1e-15 relative, unless a test says otherwise: the numbers
are of size 1 and a step rounds some ten times.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from tests.support.compare import assert_near, assert_same, flat, records_of
from tests.support.problems import by_hand, parameter, quadratic, take_step
from vasso import L2, SAM, SharpnessAware, VaSSO

FEW_ULPS = 1e-15
H = torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64))


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def path(opt: SharpnessAware, x: Tensor, steps: int) -> Tensor:
    found = []
    for _ in range(steps):
        take_step(opt, quadratic(H, x))
        found.append(x.detach().clone())
    return torch.stack(found)


@pytest.mark.parametrize("seed", range(5))
def test_sam_on_any_quadratic_goes_down_by_its_closed_form(seed: int) -> None:
    """u = H(x + rho Hx / ||Hx||)."""
    generator = torch.Generator().manual_seed(seed)
    A, start = torch.randn(7, 6, dtype=torch.float64, generator=generator).split([6, 1])
    x = start[0].clone().requires_grad_()
    take_step(SAM(SGD([x], lr=0.0), rho=0.3), quadratic(A @ A.T, x))
    Hx = A @ A.T @ start[0]
    # the entries of the products of 6 x 6 matrices cancel: ten times the usual
    assert_near(x.grad, A @ A.T @ (start[0] + 0.3 * Hx / Hx.norm()), rtol=1e-13, atol=1e-13)


def test_sam_twice_by_hand() -> None:
    """From (1, 1): x <- x - 0.1 H(x + 0.5 Hx / ||Hx||), worked out with 40 digits."""
    x = parameter(1.0, 1.0)
    found = path(SAM(SGD([x], lr=0.1), rho=0.5), x, 2)
    expected = [[0.61, 0.44], [0.318886393421537979, 0.125362515425797335]]
    assert_near(found, expected, rtol=FEW_ULPS)


def test_vasso_three_times_by_hand() -> None:
    """Weights, slopes and adversaries of three steps, worked out with 40 digits."""
    x = parameter(1.0, 1.0)
    opt = VaSSO(SGD([x], lr=0.1), rho=0.5, theta=0.4)
    records = records_of(opt)
    weights = [
        [0.61, 0.44],
        [0.332185724306924410, 0.109021847419006513],
        [0.129702509773020900, -0.0801982818904980498],
    ]
    slopes = [[3.0, 4.0], [2.532, 3.104], [1.91782286916830929, 2.03683495587041042]]
    adversaries = [
        [0.3, 0.4],
        [0.316047585643585301, 0.387445381452483718],
        [0.342758324139420622, 0.364028475854754894],
    ]
    # the last number is a difference of numbers of size 1, a tenth of them
    assert_near(path(opt, x, 3), weights, rtol=FEW_ULPS, atol=FEW_ULPS)
    assert_near(torch.stack([record.d[0] for record in records]), slopes, rtol=FEW_ULPS)
    found = torch.stack([(record.epsilon or [])[0] for record in records])
    # epsilon is what the weights of size 1 have moved by: a rounding of 1e-16 of them
    assert_near(found, adversaries, rtol=FEW_ULPS, atol=2e-16)


def test_momentum_of_the_base_sees_the_gradients_of_the_adversary() -> None:
    """With epsilon = 0.5: u = 1.5, x = 0.85, u = 1.35, buffer 0.5 * 1.5 + 1.35 = 2.1."""
    x = parameter(1.0)
    opt = SAM(SGD([x], lr=0.1, momentum=0.5), rho=0.5)
    for _ in range(2):
        take_step(opt, quadratic(torch.eye(1, dtype=torch.float64), x))
    assert_near(x, [0.85 - 0.1 * 2.1], rtol=FEW_ULPS)


def test_weight_decay_of_the_base_acts_at_the_weights_and_not_at_the_adversary() -> None:
    """x = 1, epsilon = 0.5: x - 0.1 (1.5 + 0.2 * 1) = 0.83; at x + epsilon it would be 0.82."""
    x = parameter(1.0)
    opt = SAM(SGD([x], lr=0.1, weight_decay=0.2), rho=0.5)
    take_step(opt, quadratic(torch.eye(1, dtype=torch.float64), x))
    assert_near(x, [0.83], rtol=FEW_ULPS)


def test_what_goes_down_is_clipped_and_what_enters_the_slope_is_not() -> None:
    """g = (3, 4), h = (6, 8): the base sees (0.6, 0.8), the slope (3, 4)."""
    x = parameter(0.0, 0.0)
    opt = VaSSO(SGD([x], lr=1.0), rho=0.5, clip_norm=1.0)
    by_hand(opt, [vector(3, 4)], [vector(6, 8)])
    found = torch.stack((-x.detach(), opt.state[x]["vasso_d"]))
    # torch divides by the norm plus 1e-6
    assert_near(found, [[0.6, 0.8], [3.0, 4.0]], rtol=2e-7)


def climbed(gradients: list[Tensor], groups: list[dict[str, object]], **options: object) -> Tensor:
    """epsilon of one step of SAM from weights of 0, one tensor per group."""
    params = [torch.zeros_like(g, requires_grad=True) for g in gradients]
    base = SGD([{"params": [p], **group} for p, group in zip(params, groups, strict=True)], lr=0.0)
    opt = SharpnessAware(base, rho=0.5, **options)  # type: ignore[arg-type]
    records = records_of(opt)
    by_hand(opt, gradients)
    found = {id(p): e for p, e in zip(records[0].params, records[0].epsilon or [], strict=True)}
    return flat([found.get(id(p), torch.zeros_like(p)) for p in params])


@pytest.mark.parametrize(
    ("gradients", "groups", "options", "expected"),
    [
        ([[2, 3], [6]], [{}, {}], {}, [1 / 7, 1.5 / 7, 3 / 7]),  # length 7
        ([[2, 3], [6]], [{"rho": 0.7}, {"rho": 0.07}], {}, [0.2, 0.3, 0.06]),
        ([[3, 4], [1e3]], [{}, {"rho": 0.0}], {}, [0.3, 0.4, 0.0]),
        ([[3, 4], [1e3]], [{}, {"rho": lambda step, lr: 0.0}], {}, [0.3, 0.4, 0.0]),
        ([[0, 0], [0]], [{}, {}], {}, [0.0] * 3),
        ([[3, 4]], [{}], {"geometry": L2(eps=5.0)}, [0.15, 0.2]),
    ],
    ids=[
        "one ball for all groups",
        "each group its radius over the common length",
        "radius zero",
        "radius scheduled at zero",
        "slope of zero",
        "eps shortens as in the published codes",
    ],
)
def test_the_adversary_in_the_ball_of_all_groups(
    gradients: Any, groups: Any, options: Any, expected: list[float]
) -> None:
    found = climbed([vector(*g) for g in gradients], groups, **options)
    assert_near(found, expected, rtol=FEW_ULPS)


def test_a_group_with_radius_zero_goes_down_by_the_gradient_at_the_adversary() -> None:
    """f = x y at (2, 3) with only x climbed: x moves by rho, so y sees 2.5 and x sees 3."""
    x, y = parameter(2.0), parameter(3.0)
    opt = SAM(SGD([{"params": [x]}, {"params": [y], "rho": 0.0}], lr=1.0), rho=0.5)
    take_step(opt, lambda: (x * y).sum())
    assert_near(flat([x, y]), [-1.0, 0.5], rtol=FEW_ULPS)


def test_a_slope_that_cancels_to_zero_is_not_climbed() -> None:
    """d = (1 - 0.5) g - 0.5 g = 0 while g is not."""
    x = parameter(0.0, 0.0)
    opt = VaSSO(SGD([x], lr=0.0), rho=0.5, theta=0.5)
    records = records_of(opt)
    for sign in (1, -1):
        by_hand(opt, [sign * vector(3, 4)])
    assert_same((records[1].epsilon or [])[0], vector(0, 0))


def test_the_summary_of_a_step_by_hand() -> None:
    """f(1, 1) = 3.5; at (1.3, 1.4) it is 1.5 * 1.69 + 2 * 1.96 = 6.455, h = (3.9, 5.6)."""
    x = parameter(1.0, 1.0)
    opt = SAM(SGD([x], lr=0.1), rho=0.5)
    take_step(opt, quadratic(H, x))
    last = opt.last
    found = [last.loss, last.perturbed_loss, last.g_norm, last.d_norm, last.h_norm]
    assert_near(torch.stack(found), [3.5, 6.455, 5.0, 5.0, math.hypot(3.9, 5.6)], rtol=FEW_ULPS)
