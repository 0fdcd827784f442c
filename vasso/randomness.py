"""Where does luck come from? From the generators that a pass uses, or from a seed and the step.

With `same_rng=True` the second pass replays the first: both draw the same dropout masks. Coins,
noise and masks of our own are functions of a seed and the step, so there is no state to keep.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

State: TypeAlias = list[tuple[torch.device, Tensor]]
"""The state of the generators of one or more devices."""


def current(params: Iterable[Tensor]) -> State:
    """The state of the generators that a pass over these parameters may use.

    Args:
        params: the parameters; their devices say which generators count, the CPU's always does.

    Returns:
        What `replay` takes.

    Example:
        >>> state = current([torch.zeros(1)])
        >>> first = torch.rand(3)
        >>> replay(state)
        >>> torch.equal(first, torch.rand(3))
        True
    """
    devices = {p.device for p in params if p.device.type not in ("cpu", "meta")}
    others = [(d, torch.get_device_module(d.type).get_rng_state(d)) for d in devices]
    return [(torch.device("cpu"), torch.get_rng_state()), *others]


def replay(state: State) -> None:
    """Puts the generators back to where they were.

    Args:
        state: what `current` gave.
    """
    for device, value in state:
        if device.type == "cpu":
            torch.set_rng_state(value)
        else:
            torch.get_device_module(device.type).set_rng_state(value, device)


def mixed(*numbers: int) -> int:
    """A seed from several numbers, the same in every process.

    Args:
        *numbers: what it depends on.

    Returns:
        63 bits.
    """
    return random.Random(repr(numbers)).getrandbits(63)
