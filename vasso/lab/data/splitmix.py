"""Random numbers without state: SplitMix64 hashes of (purpose, seed, epoch, index).

    bits(k_1, ..., k_m) = mix(... mix(mix(k_1) + k_2) ... + k_m)

`mix` is the finaliser of SplitMix64 after one increment of its counter. A draw depends on its keys
alone: image 17 in epoch 3 gets the same numbers in any batch, order, process or version of torch.
"""

import zlib

import torch
from torch import Tensor

TURN = 0x9E3779B97F4A7C15 - 2**64  # the odd number nearest to 2^64 over the golden ratio
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def mix(x: Tensor) -> Tensor:
    """A bijection of int64 that scatters numbers over all 64 bits; sums and products wrap."""
    x = x + TURN
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Logical right shift; torch's own shift repeats the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def bits(purpose: str, *keys: int | Tensor) -> Tensor:
    """Random int64 numbers in the shape that the keys, numbers or int64 tensors, broadcast to."""
    x: int | Tensor = _mixed(zlib.crc32(purpose.encode()))
    for key in keys:
        x = x + (key if isinstance(key, Tensor) else _wrapped(key))
        x = mix(x) if isinstance(x, Tensor) else _mixed(x)
    return x if isinstance(x, Tensor) else torch.tensor(x)


def _mixed(x: int) -> int:
    """`mix` of one Python integer, which is much faster."""
    x = (x + TURN) % 2**64
    x = ((x ^ (x >> 30)) * FIRST) % 2**64
    x = ((x ^ (x >> 27)) * SECOND) % 2**64
    return _wrapped(x ^ (x >> 31))


def _wrapped(x: int) -> int:
    """A Python integer as int64 sees it."""
    return (x + 2**63) % 2**64 - 2**63


def uniform(purpose: str, *keys: int | Tensor) -> Tensor:
    """Random float64 numbers in [0, 1), multiples of 2^-53."""
    return _shifted(bits(purpose, *keys), 11).double() * 2.0**-53


def below(limit: int, purpose: str, *keys: int | Tensor) -> Tensor:
    """Random whole numbers from 0 to limit - 1, for a limit far below 2^53."""
    return (uniform(purpose, *keys) * limit).long()


def permutation(n: int, purpose: str, *keys: int) -> Tensor:
    """The numbers 0 to n - 1 in random order."""
    return torch.argsort(bits(purpose, *keys, torch.arange(n)), stable=True)
