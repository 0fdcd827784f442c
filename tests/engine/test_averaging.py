"""Torch's own weight averaging goes with ours: after a step the weights are at home.

SWA: Izmailov et al., 2018; `torch.optim.swa_utils` does it, nothing of ours is needed.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.reference.digits import closure_on_batch, flat, net
from vasso import SAM, VaSSO
from vasso.standalone import EntropySGD, SAMPa

RHO = 2.0  # far enough that an average of adversaries could not be mistaken for one of weights


def entropy(base: Optimizer, model: nn.Module) -> EntropySGD:
    opt = EntropySGD(
        base, model=model, L=3, inner_lr=1.0, source=lambda: closure_on_batch(opt, model, 9)
    )
    return opt


METHODS: dict[str, Callable[..., Any]] = {
    "SAM": lambda base, model: SAM(base, rho=RHO, model=model),
    "VaSSO": lambda base, model: VaSSO(base, rho=RHO, model=model),
    "SAMPa": lambda base, model: SAMPa(base, rho=RHO, model=model),
    "EntropySGD": entropy,
}
each_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)


def trained(make: Callable[..., Any], average: Any, steps: int = 5) -> tuple[Any, Tensor]:
    model = net(norm=True)
    opt = make(SGD(model.parameters(), lr=0.5), model)
    averaged, homes, seen = average(model), [flat(model)], []
    handle = model.register_forward_hook(lambda *_: seen.append(flat(model)))
    for t in range(steps):
        opt.step(closure_on_batch(opt, model, t))
        averaged.update_parameters(model)
        homes.append(flat(model))
    handle.remove()
    assert max(min((x - home).norm() for home in homes) for x in seen) > 0.1, "never away"
    return averaged, torch.stack(homes[1:])


@pytest.mark.parametrize("decay", [None, 0.8], ids=["mean", "exponential"])
@each_method
def test_averages_are_of_weights_at_home(make: Callable[..., Any], decay: float | None) -> None:
    rule = None if decay is None else get_ema_multi_avg_fn(decay)
    averaged, path = trained(make, lambda model: AveragedModel(model, multi_avg_fn=rule))
    expected = path[0]
    for t, weights in enumerate(path[1:], start=1):
        kept = t / (t + 1) if decay is None else decay
        expected = kept * expected + (1 - kept) * weights
    torch.testing.assert_close(flat(averaged), expected, rtol=0, atol=1e-14)
