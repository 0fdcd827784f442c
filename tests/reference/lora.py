"""Bi-LoRA and Flat-LoRA written out: merged weights, `autograd.grad`, one plain loop each."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Loss = Callable[[list[Tensor], int], Tensor]
"""The loss as a function of all merged weights and the step."""


def bi_lora(
    loss: Loss,
    frozen: list[Tensor],
    pairs: list[list[Tensor]],
    *,
    s: float,
    lr: float,
    rho: float,
    steps: int,
    adam: dict[str, Any] | None = None,
) -> list[Tensor]:
    """The first factors after every step; `pairs` are [A1, B1, A2, B2] of each layer.

    The base is SGD, or AdamW twice: one that descends, one that ascends without weight decay.
    """
    pairs = [[p.detach().clone().requires_grad_() for p in pair] for pair in pairs]
    down = [p for pair in pairs for p in pair[:2]]
    up = [p for pair in pairs for p in pair[2:]]
    if adam is None:
        bases = [torch.optim.SGD(down, lr=lr), torch.optim.SGD(up, lr=lr, maximize=True)]
    else:
        free = {**adam, "weight_decay": 0.0, "maximize": True}
        bases = [torch.optim.AdamW(down, lr=lr, **adam), torch.optim.AdamW(up, lr=lr, **free)]
    path = []
    for t in range(steps):
        rows = zip(frozen, pairs, strict=True)
        merged = [W + s * (B1 @ A1) + s * (B2 @ A2) for W, (A1, B1, A2, B2) in rows]
        gradients = torch.autograd.grad(loss(merged, t), [*down, *up])
        for p, g in zip([*down, *up], gradients, strict=True):
            p.grad = g
        for base in bases:
            base.step()
        with torch.no_grad():
            c = math.sqrt(sum(float((B2 @ A2).square().sum()) for _, _, A2, B2 in pairs))
            for p in up if c > rho else []:
                p.mul_(math.sqrt(rho / c))
        path.append(torch.cat([p.detach().flatten() for p in down]))
    return path


def flat_lora(
    loss: Loss,
    frozen: list[Tensor],
    pairs: list[list[Tensor]],
    *,
    s: float,
    lr: float,
    rho: float,
    total: int,
    seed: int,
) -> list[Tensor]:
    """The factors after every step of SGD; rho rises over `total` steps, all of them taken."""
    pairs = [[p.detach().clone().requires_grad_() for p in pair] for pair in pairs]
    factors, path = [p for pair in pairs for p in pair], []
    for t in range(total):
        rho_t = rho * (1 - math.cos(math.pi * t / total)) / 2
        moved = []
        for number, (W, (A, B)) in enumerate(zip(frozen, pairs, strict=True)):
            merged = W + s * (B @ A)
            drawn = torch.Generator().manual_seed(mixed(seed, t, number))
            N = torch.empty_like(W).normal_(generator=drawn)
            sigma = [rho_t * row.norm().item() / math.sqrt(W.shape[1]) for row in merged.detach()]
            moved.append(merged + torch.diag(torch.tensor(sigma, dtype=W.dtype)) @ N)
        gradients = torch.autograd.grad(loss(moved, t), factors)
        with torch.no_grad():
            for p, g in zip(factors, gradients, strict=True):
                p.sub_(lr * g)
        path.append(torch.cat([p.detach().flatten() for p in factors]))
    return path


def mixed(*numbers: int) -> int:
    """The seed of some noise."""
    return random.Random(repr(numbers)).getrandbits(63)
