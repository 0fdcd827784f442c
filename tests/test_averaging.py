"""Torch's own weight averaging goes with ours: after a step the weights are at home.

SWA: Izmailov et al., 2018; `torch.optim.swa_utils` does it, nothing of ours is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.reference.digits import batch, flat, net
from vasso import SAM, VaSSO
from vasso.steppers import EntropySGD, SAMPa

RHO = 2.0  # far enough that an average of adversaries could not be mistaken for one of weights


def closure_of(opt: Optimizer, model: nn.Module, t: int) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        opt.zero_grad()
        x, y = batch(t)
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


def entropy(base: Optimizer, model: nn.Module) -> EntropySGD:
    opt = EntropySGD(base, model=model, L=3, inner_lr=1.0, source=lambda: closure_of(opt, model, 9))
    return opt


METHODS: dict[str, Callable[..., Any]] = {
    "SAM": lambda base, model: SAM(base, rho=RHO, model=model),
    "VaSSO": lambda base, model: VaSSO(base, rho=RHO, model=model),
    "SAMPa": lambda base, model: SAMPa(base, rho=RHO, model=model),
    "EntropySGD": entropy,
}
each_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)


def trained(make: Callable[..., Any], average: Any, steps: int = 5) -> tuple[Any, Tensor]:
    """What a model averaged to, and its weights after each step."""
    model = net(norm=True)
    opt = make(SGD(model.parameters(), lr=0.5), model)
    averaged, homes, seen = average(model), [flat(model)], []
    handle = model.register_forward_hook(lambda *_: seen.append(flat(model)))
    for t in range(steps):
        opt.step(closure_of(opt, model, t))
        averaged.update_parameters(model)
        homes.append(flat(model))
    handle.remove()
    assert max(min((x - home).norm() for home in homes) for x in seen) > 0.1, "never away"
    return averaged, torch.stack(homes[1:])


@each_method
def test_an_average_after_each_step_is_one_of_weights_at_home(make: Callable[..., Any]) -> None:
    averaged, path = trained(make, AveragedModel)
    torch.testing.assert_close(flat(averaged), path.mean(0), rtol=0, atol=1e-14)


@each_method
def test_so_is_an_exponential_one(make: Callable[..., Any]) -> None:
    rule = get_ema_multi_avg_fn(0.8)
    averaged, path = trained(make, lambda model: AveragedModel(model, multi_avg_fn=rule))
    expected = path[0]
    for weights in path[1:]:
        expected = 0.8 * expected + 0.2 * weights
    torch.testing.assert_close(flat(averaged), expected, rtol=0, atol=1e-14)


@each_method
def test_batchnorm_of_the_average_can_be_made_anew(make: Callable[..., Any]) -> None:
    averaged, _ = trained(make, AveragedModel)
    loader = [batch(t)[0] for t in range(6)]
    update_bn(loader, averaged)
    with torch.no_grad():
        inner = [averaged.module[0](x) for x in loader]
    mean = torch.stack([z.mean(0) for z in inner]).mean(0)
    variance = torch.stack([z.var(0) for z in inner]).mean(0)
    norm = averaged.module[1]
    torch.testing.assert_close(norm.running_mean, mean, rtol=0, atol=1e-14)
    torch.testing.assert_close(norm.running_var, variance, rtol=0, atol=1e-14)


@each_method
def test_the_schedule_of_swa_drives_the_base(make: Callable[..., Any]) -> None:
    model = net()
    opt = make(SGD(model.parameters(), lr=0.5), model)
    scheduler = SWALR(opt, swa_lr=0.1, anneal_epochs=2, anneal_strategy="linear")
    rates = []
    for t in range(3):
        opt.step(closure_of(opt, model, t))
        scheduler.step()
        rates.append(opt.base.param_groups[0]["lr"])
    assert rates == pytest.approx([0.3, 0.1, 0.1])
