"""Tasks on the digits, base optimizers and training loops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import pytest
import pytorch_optimizer
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, Optimizer, RMSprop

from tests.support.compare import digits, flat
from vasso import SharpnessAware

Way: TypeAlias = Literal["closure", "ascended", "ascended, body always run", "plain"]
Loss: TypeAlias = Callable[[], Tensor]

BASES: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, lr=0.1),
    "sgd that maximizes": partial(SGD, lr=0.01, maximize=True),
    "momentum": partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "nesterov": partial(SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adam": partial(Adam, lr=1e-2, weight_decay=1e-2),
    "adamw": partial(AdamW, lr=1e-2, weight_decay=1e-1),
    "rmsprop": partial(RMSprop, lr=1e-3, momentum=0.5),
    "adagrad": partial(Adagrad, lr=1e-2),
    "adadelta": partial(Adadelta, lr=1.0),  # has a rho of its own, so ours is vasso_rho
    "lion": partial(pytorch_optimizer.Lion, lr=1e-3),  # not of torch
}
"""Name -> factory of a base; keywords override its settings."""


# -- problems -------------------------------------------------------------------------------------


@dataclass
class Task:
    model: nn.Module  # with the same weights whenever the task is made
    batches: list[tuple[Tensor, Tensor]]  # inputs and labels

    def loss(self, t: int) -> Tensor:
        x, y = self.batches[t % len(self.batches)]
        return cross_entropy(self.model(x), y)

    def params(self) -> list[Tensor]:
        return list(self.model.parameters())


def on_digits(make: Callable[[], nn.Module], dtype: torch.dtype, *, batch: int = 16) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20230926)
        model = make().to(dtype)
    x, y = digits()
    cuts = [slice(i * batch, (i + 1) * batch) for i in range(4)]
    return Task(model, [(x[cut].to(dtype), y[cut]) for cut in cuts])


def mlp(dtype: torch.dtype = torch.float32) -> Task:
    return on_digits(lambda: nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)), dtype)


def conv_bn(dtype: torch.dtype = torch.float32) -> Task:
    return on_digits(
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 4, 3, stride=2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(36, 10),
        ),
        dtype,
    )


def dropout_net(dtype: torch.dtype = torch.float32) -> Task:
    """Two layers and dropout, which draws from torch's global generator."""
    return on_digits(
        lambda: nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.3), nn.Linear(8, 10)), dtype
    )


def quadratic(H: Tensor, x: Tensor) -> Loss:
    """f(x) = x'Hx / 2, whose gradient is Hx for a symmetric H."""
    return lambda: 0.5 * x @ H @ x


def parameter(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


# -- loops ----------------------------------------------------------------------------------------


def closure_of(opt: Optimizer, loss: Loss) -> Loss:
    def closure() -> Tensor:
        opt.zero_grad()
        value = loss()
        value.backward()
        return value

    return closure


def drive(opt: Any, one_pass: Loss, way: Way = "closure") -> Any:
    """One step, by a closure, by the caller's own passes, or as any torch optimizer does it.

    `one_pass` goes forward and backward; this gives back the loss of the first.
    """

    def closure() -> Tensor:
        opt.zero_grad()
        return one_pass()

    if way == "closure":
        return opt.step(closure)
    loss = closure()
    if way != "plain":
        with opt.ascended() as up:
            if up or way != "ascended":
                one_pass()
    opt.step()
    return loss


def take_step(opt: Any, loss: Loss, way: Way = "closure") -> Any:
    def one_pass() -> Tensor:
        value = loss()
        value.backward()
        return value

    return drive(opt, one_pass, way)


def train(
    task: Task, opt: Any, *, steps: int = 6, way: Way = "closure", scheduler: Any = None
) -> Tensor:
    """Trains and tells where it came by: the weights after each step, one row per step."""
    path = []
    for t in range(steps):
        take_step(opt, partial(task.loss, t), way)
        if scheduler is not None:
            scheduler.step()
        path.append(flat(task.params()))
    return torch.stack(path)


def by_hand(
    opt: SharpnessAware,
    first: Sequence[Tensor | None],
    second: Sequence[Tensor | None] | None = None,
) -> None:
    """One step whose passes leave these gradients; the second pass those of the first if None."""
    params = [p for group in opt.param_groups for p in group["params"]]
    passes = iter((first, first if second is None else second))

    def closure() -> Tensor:
        for p, gradient in zip(params, next(passes), strict=True):
            p.grad = None if gradient is None else gradient.to(p.dtype, copy=True)
        return torch.zeros(())

    opt.step(closure)


def known(bug: str) -> pytest.MarkDecorator:
    """A promise that is not kept yet; the test fails when it is, and this mark has to go."""
    return pytest.mark.xfail(strict=True, reason=bug)
