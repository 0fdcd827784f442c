"""How does a small climb survive in weights of few bits? By rounding up or down at random.

To nearest, almost every entry of w + epsilon rounds back to w when epsilon is smaller than half the
distance to the next number, and the climb is lost. Here x becomes one of its two neighbours,

    P(up) = (x - down) / (up - down),   so that   E[rounded x] = x,

and the climb is right on average over the entries. The luck is a function of seed, step and tensor:
nothing has to be kept, and replicas round alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

DROPPED = {torch.bfloat16: 16, torch.float16: 13}
"""How many of the 23 bits of a float32's fraction a dtype drops."""

SMALLEST_NORMAL, SPACING_BELOW = 2.0**-14, 2.0**-24
"""Of float16: below the first, its numbers are as far apart as the second."""


def is_low(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype are rounded at random.

    Args:
        dtype: of a parameter.

    Returns:
        True for bfloat16 and float16.
    """
    return dtype in DROPPED


def rounded(x: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """x in a lower precision, each entry up or down at random, on average where it was.

    Args:
        x: in float32.
        dtype: bfloat16 or float16.
        seed: of the luck.

    Returns:
        A new tensor. What is not finite stays as it is.

    Example:
        >>> x = torch.full((100_000,), 1.001)  # neighbours in bfloat16: 1 and 1.0078125
        >>> rounded(x, torch.bfloat16, seed=0).float().mean()
        tensor(1.0010)
        >>> x.bfloat16().float().mean()
        tensor(1.)
    """
    luck = torch.Generator(x.device).manual_seed(seed)
    span = 1 << DROPPED[dtype]
    noise = torch.randint(span, x.shape, generator=luck, device=x.device, dtype=torch.int32)
    low = ((x.view(torch.int32) + noise) & -span).view(torch.float32)
    if dtype == torch.float16:
        steps = torch.floor(x / SPACING_BELOW + noise / span)
        low = torch.where(x.abs() < SMALLEST_NORMAL, steps * SPACING_BELOW, low)
    return torch.where(x.isfinite(), low, x).to(dtype)
