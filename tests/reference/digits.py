"""A small real problem on which ours and the twins are compared: 1,797 handwritten digits.

The weights of a twin are one flat vector; here is its loss and its gradient, and the same model as
a module.
"""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@cache
def digits() -> tuple[Tensor, Tensor]:
    """64 grey values in [0, 1] in float64, and the label."""
    data = load_digits()
    return torch.from_numpy(data.data / 16.0), torch.from_numpy(data.target).long()


def batch(t: int, size: int = 32) -> tuple[Tensor, Tensor]:
    """The batch of step t: each step has its own until the digits are through."""
    x, y = digits()
    rows = torch.arange(t * size, (t + 1) * size) % len(x)
    return x[rows], y[rows]


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
