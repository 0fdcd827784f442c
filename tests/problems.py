"""Small deterministic problems, base optimizers and loops that the tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeAlias

import pytest
import pytorch_optimizer
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, Optimizer, RMSprop

from vasso import SharpnessAware, StepRecord

Way: TypeAlias = Literal["closure", "ascended", "plain"]
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
    """A model and the batches it learns from.

    Attributes:
        model: with the same weights whenever the task is made.
        batches: inputs and labels.
    """

    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]

    def loss(self, t: int) -> Tensor:
        """Cross-entropy on the batch of step t."""
        x, y = self.batches[t % len(self.batches)]
        return cross_entropy(self.model(x), y)

    def params(self) -> list[Tensor]:
        """The parameters, each once."""
        return list(self.model.parameters())


@cache
def digits() -> tuple[Tensor, Tensor]:
    """The 1,797 handwritten digits of scikit-learn: 64 grey values in [0, 1], and the label."""
    data = load_digits()
    return torch.from_numpy(data.data / 16.0), torch.from_numpy(data.target).long()


def on_digits(make: Callable[[], nn.Module], dtype: torch.dtype, *, batch: int = 16) -> Task:
    """A task of four batches of digits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20230926)
        model = make().to(dtype)
    x, y = digits()
    cuts = [slice(i * batch, (i + 1) * batch) for i in range(4)]
    return Task(model, [(x[cut].to(dtype), y[cut]) for cut in cuts])


def logistic(dtype: torch.dtype = torch.float32) -> Task:
    """Logistic regression."""
    return on_digits(lambda: nn.Linear(64, 10), dtype)


def mlp(dtype: torch.dtype = torch.float32) -> Task:
    """Two layers."""
    return on_digits(lambda: nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)), dtype)


def conv_bn(dtype: torch.dtype = torch.float32) -> Task:
    """A convolution with BatchNorm; hand its model to the optimizer."""
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
    """A vector to optimize."""
    return torch.tensor(values, dtype=dtype, requires_grad=True)


# -- loops ----------------------------------------------------------------------------------------


def closure_of(opt: Optimizer, loss: Loss) -> Loss:
    """The closure of torch.optim: zero, forward, backward, loss."""

    def closure() -> Tensor:
        opt.zero_grad()
        value = loss()
        value.backward()
        return value

    return closure


def take_step(opt: Any, loss: Loss, way: Way = "closure") -> None:
    """One step, by a closure, by the caller's own passes, or as any torch optimizer does it."""
    closure = closure_of(opt, loss)
    if way == "closure":
        opt.step(closure)
        return
    closure()
    if way == "ascended":
        with opt.ascended() as up:
            if up:
                loss().backward()
    opt.step()


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of all entries, one after the other."""
    return torch.cat([x.detach().flatten() for x in tensors])


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


def records_of(opt: SharpnessAware) -> list[StepRecord]:
    """A list that grows by a copy of each step's record."""
    kept: list[StepRecord] = []

    def copy(vectors: Any) -> Any:
        return vectors and [None if x is None else x.detach().clone() for x in vectors]

    def keep(record: StepRecord) -> None:
        vectors = (copy(v) for v in (record.g, record.d, record.epsilon, record.h))
        kept.append(StepRecord(record.step, list(record.params), *vectors, record.summary))

    opt.observe(keep)
    return kept


def known(bug: str) -> pytest.MarkDecorator:
    """A promise that is not kept yet; the test fails when it is, and this mark has to go."""
    return pytest.mark.xfail(strict=True, reason=bug)


# -- saying that two things are the same ----------------------------------------------------------


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Equal bit for bit."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def assert_near(ours: Tensor, theirs: Any, rtol: float, atol: float = 0.0) -> None:
    """Equal up to a tolerance that the test justifies."""
    theirs = torch.as_tensor(theirs, dtype=ours.dtype)
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
