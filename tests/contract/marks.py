"""The marks of the tests of the contract: each preset, each with a memory, each way to step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.contract.presets import PRESETS
from vasso import SharpnessAware

MEMORABLE = [name for name, preset in PRESETS.items() if preset.remembers]
RHO = 0.5  # large enough to be seen in the eight bits of a bfloat16
each_preset = pytest.mark.parametrize("preset", PRESETS)
each_memorable = pytest.mark.parametrize("preset", MEMORABLE)
each_way = pytest.mark.parametrize("way", ["closure", "ascended"])


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slope(opt: SharpnessAware, p: Tensor) -> Tensor:
    return opt.state[p]["vasso_d"].clone()
