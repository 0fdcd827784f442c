"""Random numbers: save and restore generator states; seeds derived from several numbers.

With `same_rng=True` the second pass restores the generators of the first, so both draw the same
dropout masks. Noise, masks and random choices of the parts are functions of (seed, step), so they
have no state to save.
"""

import random
from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

RngState: TypeAlias = list[tuple[torch.device, Tensor]]
"""The states of the generators of one or more devices."""


def get_state(params: Iterable[Tensor]) -> RngState:
    """The states of the generators that a pass over these parameters may use; the CPU's always."""
    devices = {p.device for p in params if p.device.type not in ("cpu", "meta")}
    others = [(d, torch.get_device_module(d.type).get_rng_state(d)) for d in devices]
    return [(torch.device("cpu"), torch.get_rng_state()), *others]


def set_state(state: RngState) -> None:
    """Restores what `get_state` returned."""
    for device, value in state:
        if device.type == "cpu":
            torch.set_rng_state(value)
        else:
            torch.get_device_module(device.type).set_rng_state(value, device)


def mix_seed(*numbers: int) -> int:
    """A seed of 63 bits from several numbers, the same in every process."""
    return random.Random(repr(numbers)).getrandbits(63)
