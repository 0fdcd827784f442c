"""A network with everything that a diagnostic could disturb, and a check that it did not."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.support.compare import digits


class Counting(nn.Module):
    """Replaces a buffer in every pass, as some layers do instead of writing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + len(x)
        return x


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Convolution, BatchNorm, dropout; one layer in evaluation mode and one frozen weight."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 4, 3, stride=2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            Counting(),
            nn.Linear(36, 12),
            nn.BatchNorm1d(12).eval(),
            nn.Linear(12, 10),
        ).to(dtype)
    model[9].bias.requires_grad_(False)
    return model


def batches(count: int, size: int = 16, dtype: torch.dtype = torch.float32) -> list[Any]:
    x, y = digits()
    cuts = [slice(i * size, (i + 1) * size) for i in range(count)]
    return [(x[cut].to(dtype), y[cut]) for cut in cuts]


def everything(model: nn.Module) -> list[Any]:
    """All that a diagnostic has to leave alone, as bytes and identities."""
    tensors = [*model.parameters(), *model.buffers()]
    gradients = [p.grad for p in model.parameters()]
    return [
        *(x.detach().reshape(-1).view(torch.uint8).tolist() for x in tensors),
        *(x.data_ptr() for x in tensors),
        *(id(x) for x in tensors),
        *(None if g is None else (id(g), g.tolist()) for g in gradients),
        *(m.training for m in model.modules()),
        *(p.requires_grad for p in model.parameters()),
        torch.get_rng_state().tolist(),
        random.getstate(),
        [x.tolist() if hasattr(x, "tolist") else x for x in np.random.get_state()],
    ]


@contextmanager
def nothing_touched(model: nn.Module) -> Iterator[None]:
    """Fails if anything of the model or any random generator is not what it was."""
    for p in model.parameters():
        if p.requires_grad and p.dim() > 1:
            p.grad = torch.full_like(p, 0.5)
    before = everything(model)
    with torch.no_grad():  # as inside a step
        yield
    assert everything(model) == before


class CtrlC(KeyboardInterrupt):
    """Ctrl-C, of ours."""


def interrupted(after: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross-entropy that is interrupted in one of its passes, when all has been stirred."""
    calls = iter(range(after))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        random.random(), np.random.random(), torch.rand(1)
        if next(calls, None) is None:
            raise CtrlC
        return cross_entropy(out, y)

    return loss


def check_nothing_touched(diagnose: Callable[[nn.Module, Any], object], passes: int = 3) -> None:
    """Runs a diagnostic to its end, and again until it is interrupted."""
    model = net()
    with nothing_touched(model):
        diagnose(model, interrupted(10**6))
    with nothing_touched(model):
        try:
            diagnose(model, interrupted(passes))
        except CtrlC:
            return
    raise AssertionError("the diagnostic made too few passes to be interrupted")
