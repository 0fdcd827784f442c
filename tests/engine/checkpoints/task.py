"""Models, training and copies for the tests of checkpoints."""

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn, optim

from tests import faults
from tests.faults import METHODS, batches, net, take_step
from tests.support import problems
from vasso import SharpnessAware

FOREIGN: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": partial(optim.SGD, lr=0.05),
    "momentum": partial(optim.SGD, lr=0.05, momentum=0.9),
    "dampened momentum": partial(optim.SGD, lr=0.05, momentum=0.9, dampening=0.5),
    "Nesterov": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "Adam": partial(optim.Adam, lr=0.01),
    "AMSGrad": partial(optim.Adam, lr=0.01, amsgrad=True),
    "AdamW": partial(optim.AdamW, lr=0.01, weight_decay=0.1),
    "RMSprop": partial(optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": partial(optim.Adagrad, lr=0.01),
    "Adadelta": partial(optim.Adadelta, lr=1.0),
    "NAdam": partial(optim.NAdam, lr=0.01),
    "RAdam": partial(optim.RAdam, lr=0.01),
    "Adamax": partial(optim.Adamax, lr=0.01),
    "ASGD": partial(optim.ASGD, lr=0.01),
    "Rprop": partial(optim.Rprop, lr=0.01),
}


def built(method: str, base: str, **options: Any) -> tuple[nn.Module, SharpnessAware]:
    """A model and its optimizer, the same whenever they are asked for."""
    model = net(dtype=torch.float32)
    return model, METHODS[method](FOREIGN[base](model.parameters()), model=model, **options)


def loaded(saved: Any, method: str, base: str) -> tuple[nn.Module, SharpnessAware]:
    model, opt = built(method, base)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    return model, opt


def train(opt: Any, model: nn.Module, steps: range) -> None:
    data = batches(steps.stop, torch.float32)
    for t in steps:
        take_step(opt, model, data[t])


def all_of(model: nn.Module, opt: optim.Optimizer) -> Any:
    return copy.deepcopy({"model": model.state_dict(), "opt": opt.state_dict()})


def through_a_file(value: Any) -> Any:
    """What `torch.load(weights_only=True)` makes of what `torch.save` wrote."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def trip_in_the_second_pass(opt: SharpnessAware, model: nn.Module) -> None:
    """The very first step is skipped: there is a slope, and the base has no state yet."""
    (batch,) = batches(1, torch.float32)
    factor = {False: 1.0, True: float("inf")}
    problems.take_step(opt, lambda: faults.loss_of(model, batch) * factor[opt.perturbed])
    assert opt.skipped == 1
