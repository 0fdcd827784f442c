"""Stochastic rounding of bfloat16 and float16 weights.

With rounding to nearest, w + epsilon rounds back to w where epsilon is smaller than half the
distance to the next number, and the perturbation is lost. Here x becomes one of its two neighbours
at random,

    P(up) = (x - down) / (up - down),   so that   E[rounded x] = x,

and the perturbation is right on average over the entries. The random numbers are a function of
seed, step and tensor: there is no state, and all replicas round alike.
"""

import torch
from torch import Tensor

DROPPED = {torch.bfloat16: 16, torch.float16: 13}
"""How many of the 23 fraction bits of a float32 a dtype drops."""

SMALLEST_NORMAL, SPACING_BELOW = 2.0**-14, 2.0**-24
"""Of float16: below the first, neighbouring numbers differ by the second."""


def is_low(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype are rounded at random: bfloat16 and float16."""
    return dtype in DROPPED


def rounded(x: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """A float32 tensor in bfloat16 or float16, each entry rounded up or down at random.

    The mean is x. Entries that are not finite stay as they are.

    Example:
        >>> x = torch.full((100_000,), 1.001)  # neighbours in bfloat16: 1 and 1.0078125
        >>> rounded(x, torch.bfloat16, seed=0).float().mean()
        tensor(1.0010)
        >>> x.bfloat16().float().mean()
        tensor(1.)
    """
    generator = torch.Generator(x.device).manual_seed(seed)
    span = 1 << DROPPED[dtype]
    noise = torch.randint(span, x.shape, generator=generator, device=x.device, dtype=torch.int32)
    low = ((x.view(torch.int32) + noise) & -span).view(torch.float32)
    if dtype == torch.float16:
        steps = torch.floor(x / SPACING_BELOW + noise / span)
        low = torch.where(x.abs() < SMALLEST_NORMAL, steps * SPACING_BELOW, low)
    return torch.where(x.isfinite(), low, x).to(dtype)
