"""Which numbers come up? A hash of whole numbers, so that a draw depends on its keys alone.

    bits(k_1, ..., k_m) = mix(... mix(mix(k_1) + k_2) ... + k_m)

`mix` is the finaliser of SplitMix64 after one turn of its counter. There is no state: image 17 in
epoch 3 gets the same numbers in any batch, order, process or version of torch.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

TURN = 0x9E3779B97F4A7C15 - 2**64  # the odd number nearest to 2^64 over the golden ratio
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def mix(x: Tensor) -> Tensor:
    """Scatters whole numbers over all 64 bits; different numbers stay different.

    Args:
        x: int64 numbers; sums and products wrap around.

    Returns:
        As many int64 numbers.

    Example:
        >>> f"{mix(torch.tensor(0)).item() % 2**64:x}"  # the first number of SplitMix64, seed 0
        'e220a8397b1dcdaf'
    """
    x = x + TURN
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Moves bits right and fills with zeros; torch's own shift repeats the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def bits(purpose: str, *keys: int | Tensor) -> Tensor:
    """Random bits that depend on the purpose and the keys alone.

    Args:
        purpose: a word, so that draws for different ends have nothing to do with each other.
        *keys: whole numbers or int64 tensors that broadcast.

    Returns:
        int64 numbers, in the shape that the keys broadcast to.
    """
    x: int | Tensor = _mixed(zlib.crc32(purpose.encode()))
    for key in keys:
        x = x + (key if isinstance(key, Tensor) else _wrapped(key))
        x = mix(x) if isinstance(x, Tensor) else _mixed(x)
    return x if isinstance(x, Tensor) else torch.tensor(x)


def _mixed(x: int) -> int:
    """The same as `mix` for one Python integer, and much quicker."""
    x = (x + TURN) % 2**64
    x = ((x ^ (x >> 30)) * FIRST) % 2**64
    x = ((x ^ (x >> 27)) * SECOND) % 2**64
    return _wrapped(x ^ (x >> 31))


def _wrapped(x: int) -> int:
    """A Python integer as int64 sees it."""
    return (x + 2**63) % 2**64 - 2**63


def uniform(purpose: str, *keys: int | Tensor) -> Tensor:
    """Random numbers from 0 up to, not including, 1.

    Args:
        purpose: as in `bits`.
        *keys: as in `bits`.

    Returns:
        float64 numbers, multiples of 2^-53.

    Example:
        >>> u = uniform("test", 0, torch.arange(100_000))
        >>> round(u.mean().item(), 2), round(u.var().item() * 12, 2)
        (0.5, 1.0)
    """
    return _shifted(bits(purpose, *keys), 11).double() * 2.0**-53


def below(limit: int, purpose: str, *keys: int | Tensor) -> Tensor:
    """Random whole numbers from 0 to limit - 1.

    Args:
        limit: at least 1, far below 2^53.
        purpose: as in `bits`.
        *keys: as in `bits`.

    Returns:
        int64 numbers.
    """
    return (uniform(purpose, *keys) * limit).long()


def permutation(n: int, purpose: str, *keys: int) -> Tensor:
    """The numbers 0 to n - 1 in random order.

    Args:
        n: how many.
        purpose: as in `bits`.
        *keys: as in `bits`.

    Returns:
        int64 numbers.

    Example:
        >>> permutation(5, "test", 0).sort().values.tolist()
        [0, 1, 2, 3, 4]
    """
    return torch.argsort(bits(purpose, *keys, torch.arange(n)), stable=True)
