"""Marks of the contract's tests: without a memory of slopes and with one, each way to step.

The promises that every method keeps are in `test_catalogue.py`.
"""

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from vasso import SAM, SharpnessAware, VaSSO

Preset: TypeAlias = Callable[..., SharpnessAware]
RHO = 0.5  # large enough to be seen in the eight bits of a bfloat16
each_preset = pytest.mark.parametrize("preset", [SAM, VaSSO])
each_way = pytest.mark.parametrize("way", ["closure", "ascended"])


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slope(opt: SharpnessAware, p: Tensor) -> Tensor:
    return opt.state[p]["vasso_d"].clone()
