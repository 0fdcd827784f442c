"""The training that one process does on whole batches, and two ranks on a half of each."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from tests.support import THOROUGH, problems
from tests.support.compare import digits
from vasso import ASAM, GSAM, SAM, LookSAM, SharpnessAware, VaSSO

STEPS, BATCH = 50 if THOROUGH else 8, 32
METHODS: dict[str, Callable[..., SharpnessAware]] = {
    "SAM": partial(SAM, rho=0.1),
    "VaSSO": partial(VaSSO, rho=0.1, theta=0.4),
    "ASAM": partial(ASAM, rho=0.5),
    "GSAM": partial(GSAM, rho=0.1, alpha=0.4),
    "V+G": partial(GSAM, rho=0.1, alpha=0.4, theta=0.4),
    "LookSAM": partial(LookSAM, rho=0.1, k=3),
}
BASES: dict[str, Callable[..., Optimizer]] = {
    "momentum": partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": partial(AdamW, lr=1e-2, weight_decay=1e-2),
}


def network() -> nn.Sequential:
    """With 5 and 3 rows, which two ranks cannot halve, and 1, of which one rank has nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20230926)
        return nn.Sequential(
            nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 1), nn.Tanh(), nn.Linear(1, 10)
        ).double()


def sharded(model: nn.Sequential, **options: Any) -> nn.Module:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


KINDS: dict[str, Callable[..., nn.Module]] = {
    "ddp": DistributedDataParallel,
    "fsdp": sharded,
    "whole": lambda model: model,
}


def batch(t: int, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
    x, y = digits()
    first, size = (t * BATCH) % 1600, BATCH // world
    cut = slice(first + rank * size, first + (rank + 1) * size)
    return x[cut], y[cut]


def closure_of(
    opt: Any, model: nn.Module, data: tuple[Tensor, Tensor], factor: Callable[[], float]
) -> Callable[[], Tensor]:
    return problems.closure_of(opt, lambda: cross_entropy(model(data[0]), data[1]) * factor())


def train(
    opt: Any,
    model: nn.Module,
    *,
    steps: int = STEPS,
    rank: int = 0,
    world: int = 1,
    way: str = "closure",
    spoilt: Callable[[int, int], bool] = lambda t, number: False,
) -> None:
    """Steps on the digits; `spoilt(t, number)` says which passes have an infinite loss."""
    for t in range(steps):
        calls = iter(range(100))

        def factor(t: int = t, calls: Any = calls) -> float:
            return float("inf") if spoilt(t, next(calls)) else 1.0

        closure = closure_of(opt, model, batch(t, rank, world), factor)
        if way == "closure":
            opt.step(closure)
        else:
            closure()
            with opt.ascended() as up:
                if up:
                    closure()
            opt.step()
            opt.zero_grad()


def flat(tensors: Any) -> Tensor:
    whole = [x.full_tensor() if hasattr(x, "full_tensor") else x for x in tensors]
    return torch.cat([x.detach().flatten() for x in whole])
