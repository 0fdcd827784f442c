"""What the tests of SAMPa and Entropy-SGD train, and how they compare."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer

from tests.reference.digits import batch, flat, net
from vasso.standalone import EntropySGD, SAMPa
from vasso.standalone.stepper import Stepper

STEPS = 50
NEAR = 1e-12  # fifty steps of float64 on weights of order 1; measured: 2e-15


class Digits:
    """A model, its closures, and a source of batches that are not used yet."""

    def __init__(
        self, norm: bool = False, dropout: float = 0.0, model: nn.Module | None = None
    ) -> None:
        self.model = net(norm, dropout) if model is None else model
        self.t = 0

    def closure(self, t: int, before_backward: Callable[[], None] = lambda: None) -> Any:
        def run() -> Tensor:
            self.model.zero_grad()
            inputs, labels = batch(t)
            loss = cross_entropy(self.model(inputs), labels)
            before_backward()
            loss.backward()
            return loss

        return run

    def fresh(self) -> Any:
        self.t += 1
        return self.closure(self.t - 1)

    def full(self) -> Any:
        raise AssertionError("nobody asks for all of the data")


def sampa_on(task: Digits, settings: dict[str, Any] | None = None, **options: Any) -> SAMPa:
    base = SGD(task.model.parameters(), **{"lr": 0.1, "momentum": 0.9} | (settings or {}))
    return SAMPa(base, model=task.model, **options)


def entropy_on(task: Digits, base: Optimizer | None = None, **options: Any) -> EntropySGD:
    base = base or SGD(task.model.parameters(), lr=0.7, momentum=0.5)
    return EntropySGD(base, **{"model": task.model, "source": task, "L": 3} | options)


METHODS: dict[str, Callable[..., Stepper]] = {
    "SAMPa": sampa_on,
    "EntropySGD": partial(entropy_on, noise=1e-2),
}
each_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)


def train(task: Digits, opt: Any, steps: int = 6, scheduler: Any = None) -> Tensor:
    """The weights after each step, one row per step; batches go on where they were left."""
    path = []
    for _ in range(steps):
        opt.step(task.fresh())
        if scheduler is not None:
            scheduler.step()
        path.append(flat(task.model))
    return torch.stack(path)


def assert_near(ours: Tensor, theirs: Tensor, atol: float = NEAR) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def snapshot(task: Digits, opt: Stepper) -> dict[str, Any]:
    buffers = {f"buffer {name}": x.clone() for name, x in task.model.named_buffers()}
    state = {
        f"{i} {key}": value.clone()
        for i, entry in opt.state_dict()["state"].items()
        for key, value in entry.items()
        if isinstance(value, Tensor)
    }
    return {"weights": flat(task.model), **buffers, **state}


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=0, msg=name)
