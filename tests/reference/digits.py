"""A small real problem on which ours and the twins are compared: 1,797 handwritten digits.

The weights of a twin are one flat vector; here is its loss and its gradient, and the same model as
a module.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from tests.support.compare import digits


def batch(t: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """The batch of step t: each step has its own until the digits are through."""
    x, y = digits()
    rows = torch.arange(t * size, (t + 1) * size) % len(x)
    return x[rows], y[rows]


def closure_on_batch(
    opt: Optimizer, model: Callable[[Tensor], Tensor], t: int
) -> Callable[[], Tensor]:
    """The closure of torch.optim on the batch of step t."""

    def closure() -> Tensor:
        opt.zero_grad()
        inputs, labels = batch(t)
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    return closure


def net(norm: bool = False, dropout: float = 0.0) -> nn.Sequential:
    """Two layers of float64, the same whenever they are asked for."""
    middle: list[nn.Module] = [nn.BatchNorm1d(8)] if norm else []
    middle += [nn.Dropout(dropout)] if dropout else []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20241014)
        layers = [nn.Linear(64, 8), *middle, nn.Tanh(), nn.Linear(8, 10)]
        return nn.Sequential(*layers).to(torch.float64)


def flat(model: nn.Module) -> Tensor:
    """A copy of all weights, one after the other."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def output(x: Tensor, inputs: Tensor) -> Tensor:
    """What `net()` says with flat weights x, written out."""
    W1, b1, W2, b2 = x.split([512, 8, 80, 10])
    return (inputs @ W1.view(8, 64).T + b1).tanh() @ W2.view(10, 8).T + b2


def gradient(x: Tensor, t: int) -> Tensor:
    """Of the cross-entropy on the batch of step t, at flat weights x."""
    x = x.detach().requires_grad_()
    inputs, labels = batch(t)
    (g,) = torch.autograd.grad(cross_entropy(output(x, inputs), labels), x)
    return g
