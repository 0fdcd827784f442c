"""Stochastic rounding: a perturbation that rounding to nearest would lose has the right mean."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from tests.support.compare import digits, flat
from tests.support.problems import take_step
from vasso import ASAM, SAM, MultiStepSAM, StepRecord, VaSSO
from vasso.numerics.rounding import rounded

RHO = 0.002  # so small that to nearest most of the climb is lost, as it is at 0.05 in larger nets
LOW = [torch.bfloat16, torch.float16]


def neighbours(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The numbers of a dtype below and above x, by going through the bits of the nearest."""
    near = x.to(dtype)
    bits = near.view(torch.int16)
    away = torch.where(near >= 0, bits + 1, bits - 1).view(dtype)
    towards = torch.where(near >= 0, bits - 1, bits + 1).view(dtype)
    low = torch.where(near.float() <= x, near, towards)
    high = torch.where(near.float() <= x, away, near)
    return low.float(), high.float()


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("size", [3e-6, 5e-5, 1e-3, 0.7, 300.0])
def test_entries_become_neighbours_of_the_right_mean(dtype: torch.dtype, size: float) -> None:
    random = torch.Generator().manual_seed(1)
    x = size * (0.5 + torch.rand(1000, generator=random))
    low, high = neighbours(x, dtype)
    draws = torch.stack([rounded(x, dtype, seed).float() for seed in range(400)])
    assert ((draws == low) | (draws == high)).all()
    # a mean of 400 coins has a deviation of at most (high - low) / 40; five of them allow for 1000
    assert ((draws.mean(0) - x).abs() <= 5 * (high - low) / 40).all()


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_what_a_dtype_can_hold_stays(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -2.5, 2.0**-20, math.inf, -math.inf]).to(dtype).float()
    assert torch.equal(rounded(x, dtype, 0).float(), x)
    assert rounded(torch.tensor([math.nan]), dtype, 0).isnan().all()


def conv_net(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(576, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    ).to(dtype)


def project(record: StepRecord, rho: float) -> float:
    """<epsilon, d> / (rho ||d||)."""
    d, epsilon = flat(record.d).double(), flat(record.epsilon or []).double()
    return (epsilon @ d / (rho * d.norm())).item()


@pytest.mark.parametrize("make", [SAM, VaSSO])
@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_a_real_network_of_low_precision_climbs_by_rho(make: type, dtype: torch.dtype) -> None:
    """The mean over ten steps on digits, since 169,000 coins still leave a few per cent."""
    model, (x, y) = conv_net(dtype), digits()
    opt = make(SGD(model.parameters(), lr=0.01, momentum=0.9), rho=RHO)
    found: list[float] = []
    opt.observe(lambda record: found.append(project(record, RHO)))
    for t in range(10):
        batch = slice(64 * t, 64 * t + 64)
        home = [p.detach().clone() for p in model.parameters()]
        cross_entropy(model(x[batch].to(dtype)).float(), y[batch]).backward()
        with opt.ascended():
            cross_entropy(model(x[batch].to(dtype)).float(), y[batch]).backward()
        assert all(map(torch.equal, model.parameters(), home))
        opt.step()
        opt.zero_grad()
    mean = sum(found) / len(found)
    assert mean == pytest.approx(1.0, abs=0.05)


def test_to_nearest_it_would_be_lost() -> None:
    """The same climb without luck: most entries of w + epsilon are w again."""
    model, (x, y) = conv_net(torch.bfloat16), digits()
    cross_entropy(model(x[:64].bfloat16()).float(), y[:64]).backward()
    w = [p.detach().float() for p in model.parameters()]
    g = [p.grad.float() for p in model.parameters()]
    length = torch.cat([v.flatten() for v in g]).norm()
    moved = [(a + RHO * b / length).bfloat16().float() - a for a, b in zip(w, g, strict=True)]
    along = sum((a * b).sum() for a, b in zip(moved, g, strict=True)) / length
    assert along < 0.6 * RHO


@pytest.mark.parametrize("make", [MultiStepSAM, ASAM])
def test_several_steps_up_and_other_balls_work_in_low_precision_too(make: type) -> None:
    model, (x, y) = conv_net(torch.bfloat16), digits()
    low = make(SGD(model.parameters(), lr=0.0), rho=0.3, model=model)
    epsilons: list[Tensor] = []
    low.observe(lambda r: epsilons.append(flat(r.epsilon).float()))
    take_step(low, lambda: cross_entropy(model(x[:64].bfloat16()).float(), y[:64]))
    exact = conv_net(torch.bfloat16).float()
    high = make(SGD(exact.parameters(), lr=0.0), rho=0.3, model=exact)
    high.observe(lambda r: epsilons.append(flat(r.epsilon)))
    take_step(high, lambda: cross_entropy(exact(x[:64].float()), y[:64]))
    along = epsilons[0] @ epsilons[1] / epsilons[1].square().sum()
    assert along.item() == pytest.approx(1.0, abs=0.1)  # the gradients are of eight bits too


def test_the_luck_is_a_function_of_the_step_and_leaves_torchs_alone() -> None:
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        w = torch.linspace(-1, 1, 1000).bfloat16().requires_grad_()
        opt = SAM(SGD([w], lr=0.0), rho=0.05)
        state = torch.get_rng_state()
        for _ in range(2):
            w.grad = torch.ones_like(w)
            with opt.ascended():
                found.append(w.detach().clone())
                w.grad = torch.ones_like(w)
            opt.step()
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found[0], found[2])  # another seed of torch's, the same luck
    assert not torch.equal(found[0], found[1])  # another step, other luck
