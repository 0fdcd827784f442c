"""The preconditioned ball: its maximum, the metrics of the bases, and the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.optim import SGD, Adafactor, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from tests.support import problems
from tests.support.compare import flat
from vasso import SAM, Preconditioned, PreconditionedSAM
from vasso.parts.context import StepContext
from vasso.parts.geometries import second_moment
from vasso.parts.memory import PartState

BASES: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": lambda p: AdamW(p, lr=0.01, betas=(0.8, 0.9)),
    "AdamW, amsgrad": lambda p: AdamW(p, lr=0.01, amsgrad=True),
    "Adam": lambda p: Adam(p, lr=0.01),
    "NAdam": lambda p: NAdam(p, lr=0.01),
    "RAdam": lambda p: RAdam(p, lr=0.01),
    "RMSprop": lambda p: RMSprop(p, lr=0.01, alpha=0.9),
    "Adafactor": lambda p: Adafactor(p, lr=0.01),
    "transformers' Adafactor": lambda p: transformers.Adafactor(
        p, lr=0.01, relative_step=False, scale_parameter=False
    ),
}
each_base = pytest.mark.parametrize("name", BASES)


def weights() -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = (3, 4), (5,)
    draws = (torch.randn(x, generator=random, dtype=torch.float64) for x in shapes)
    return [x.requires_grad_() for x in draws]


def gradients(t: int, scale: float = 1.0) -> list[Tensor]:
    random = torch.Generator().manual_seed(t + 1)
    return [
        scale * size * torch.randn(w.shape, generator=random, dtype=torch.float64)
        for w, size in zip(weights(), (1.0, 0.01), strict=True)
    ]


def walked(base: Optimizer, params: list[Tensor], steps: int, scale: float = 1.0) -> None:
    for t in range(steps):
        for p, g in zip(params, gradients(t, scale), strict=True):
            p.grad = g.clone()
        base.step()


def context_of(base: Optimizer, params: list[Tensor]) -> StepContext:
    groups = {p: group for group in base.param_groups for p in group["params"]}
    return StepContext(
        3,
        params,
        params,
        settings={"rho": [0.3] * len(params)},
        base_state=lambda p: base.state.get(p, {}),
        base_groups=lambda: groups,
    )


def epsilon_of(
    geometry: Preconditioned, base: Optimizer, params: list[Tensor], d: list[Tensor]
) -> list[Tensor]:
    push, length = geometry(d, PartState({}), context_of(base, params))
    return [0.3 * x / length for x in push]


def mean_square(name: str, shape: int, steps: int, scale: float = 1.0) -> Tensor:
    """What each base averages, by its definition, without the bias towards 0 where it corrects."""
    squares = [gradients(t, scale)[shape].square() for t in range(steps)]
    total = torch.zeros_like(squares[0])
    b = {"AdamW": 0.9, "RMSprop": 0.9}.get(name, 0.999)
    for x in squares:
        total = b * total + (1 - b) * x
    return total if name == "RMSprop" else total / (1 - b**steps)


@pytest.mark.parametrize("name", ["AdamW", "Adam", "NAdam", "RAdam", "RMSprop"])
@pytest.mark.parametrize("steps", [1, 7])
def test_the_second_moment_is_the_average_of_squares(name: str, steps: int) -> None:
    params = weights()
    base = BASES[name](params)
    walked(base, params, steps)
    for i, p in enumerate(params):
        found = second_moment(base.state[p], base.param_groups[0])
        torch.testing.assert_close(found, mean_square(name, i, steps), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["Adafactor", "transformers' Adafactor"])
def test_that_of_adafactor_is_what_it_divides_by(name: str) -> None:
    """For squares of rank one after one step: g^2 itself, rows times columns over the mean."""
    params = weights()
    base = BASES[name](params)
    row, column = torch.rand(3, 1, dtype=torch.float64) + 1, torch.rand(1, 4, dtype=torch.float64)
    signs = gradients(0)[0].sign()
    params[0].grad, params[1].grad = row * column * signs, gradients(0)[1]
    base.step()
    for p in params:
        found = second_moment(base.state[p], base.param_groups[0])
        torch.testing.assert_close(found, p.grad.square(), rtol=1e-6, atol=1e-25)


@each_base
def test_epsilon_is_the_maximum_over_the_ball(name: str) -> None:
    """<d, epsilon> = rho sqrt(d.(q d)); nothing else on the ball comes higher."""
    params, geometry = weights(), Preconditioned()
    base = BASES[name](params)
    walked(base, params, 5)
    context, d = context_of(base, params), gradients(99)
    epsilon = epsilon_of(geometry, base, params, d)
    assert geometry.length(epsilon, context).item() == pytest.approx(0.3, rel=1e-12)
    highest = flat(d) @ flat(epsilon)
    for t in range(50):
        other = gradients(1000 + t, 1.0 if t % 2 else -1.0)
        length = geometry.length(other, context)
        assert flat(d) @ flat([0.3 * x / length for x in other]) < highest
    two = epsilon_of(Preconditioned(damping=1e6), base, params, d)  # M is a multiple of 1
    expected = 0.3 * flat(d) / flat(d).norm() / 1e3
    torch.testing.assert_close(flat(two), expected, rtol=1e-4, atol=0)


def test_a_direction_in_which_the_base_takes_small_steps_moves_less() -> None:
    """By hand: v = (4, 1), rms(sqrt(v)) = sqrt(2.5), no damping to speak of."""
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    base = Adam([w], lr=0.1)
    w.grad = torch.tensor([2.0, -1.0], dtype=torch.float64)
    base.step()
    (epsilon,) = epsilon_of(Preconditioned(1e-9), base, [w], [torch.ones_like(w)])
    M = torch.tensor([2.0, 1.0], dtype=torch.float64) / 2.5**0.5
    expected = 0.3 / M / (1 / M).sum().sqrt()
    torch.testing.assert_close(epsilon, expected, rtol=1e-8, atol=0)


@each_base
def test_the_scale_of_the_loss_does_not_matter(name: str) -> None:
    found = []
    for scale in (1.0, 1024.0):
        params = weights()
        base = BASES[name](params)
        walked(base, params, 5, scale)
        found.append(flat(epsilon_of(Preconditioned(), base, params, gradients(9, scale))))
    torch.testing.assert_close(*found, rtol=1e-4, atol=0)  # Adafactor adds a constant to squares


def closure_of(opt: Any, params: list[Tensor], t: int) -> Callable[[], Tensor]:
    pairs = list(zip(params, gradients(t), strict=True))
    return problems.closure_of(
        opt, lambda: torch.stack([(w - g).pow(4).sum() for w, g in pairs]).sum()
    )


@each_base
def test_before_the_first_step_of_the_base_the_ball_is_sams(name: str) -> None:
    steps = []
    for preset in (SAM, PreconditionedSAM):
        params = weights()
        opt = preset(BASES[name](params), rho=0.1)
        path = []
        for t in range(2):
            opt.step(closure_of(opt, params, t))
            path.append(flat(params))
        steps.append(path)
    torch.testing.assert_close(steps[0][0], steps[1][0], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(steps[0][1], steps[1][1], rtol=1e-6, atol=0)


def test_a_weight_whose_first_gradient_comes_late_does_not_take_the_ball() -> None:
    """A word that has not been seen: its share of epsilon is bounded by the damping."""
    params = weights()
    base = AdamW(params, lr=0.01)
    for t in range(5):
        params[0].grad, params[1].grad = gradients(t)[0], torch.zeros(5, dtype=torch.float64)
        base.step()
    d = [gradients(9)[0], torch.full((5,), 1e-3, dtype=torch.float64)]
    free, damped = (
        epsilon_of(Preconditioned(x), base, params, d)[1].norm().item() for x in (1e-12, 0.01)
    )
    assert free > 100 * damped
    assert damped < 0.3


def test_a_tensor_that_joins_later_counts_as_the_average() -> None:
    params = weights()
    base = AdamW(params[:1], lr=0.01)
    for t in range(3):
        params[0].grad = gradients(t)[0]
        base.step()
    base.add_param_group({"params": params[1:]})
    d = gradients(4)
    context = context_of(base, params)
    push, _ = Preconditioned()(d, PartState({}), context)
    torch.testing.assert_close(push[1], d[1], rtol=0, atol=0)
    assert not torch.equal(push[0], d[0])


def test_a_base_without_second_moment_is_refused() -> None:
    with pytest.raises(TypeError, match=r"SGD keeps no average of squared gradients.*use AdamW"):
        PreconditionedSAM(SGD(weights(), lr=0.1))
    params = weights()
    opt = PreconditionedSAM(Adamax(params, lr=0.1))
    opt.step(closure_of(opt, params, 0))
    with pytest.raises(TypeError, match=r"the base keeps step, exp_avg, exp_inf and no average"):
        opt.step(closure_of(opt, params, 1))
    with pytest.raises(ValueError, match="damping must be above 0, got 0"):
        Preconditioned(0.0)


def test_the_metric_is_read_and_never_written() -> None:
    params = weights()
    opt = PreconditionedSAM(AdamW(params, lr=0.0), rho=0.1, restore="recompute")
    for t in range(3):
        opt.step(closure_of(opt, params, t))
    before = {k: v.clone() for k, v in opt.base.state[params[0]].items()}
    start = flat(params)
    (loss := closure_of(opt, params, 3))()
    with opt.ascended():
        assert not torch.equal(flat(params), start)
        loss()
    after = opt.base.state[params[0]]
    assert all(torch.equal(after[key], value) for key, value in before.items())
    torch.testing.assert_close(flat(params), start, rtol=0, atol=1e-15)
