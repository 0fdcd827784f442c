"""One thread, deterministic kernels, the same examples in every run; long tests first.

Tests marked `ranks` start several processes at once and take longest, so they come first.
"""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

from tests.support import THOROUGH
from tests.support.browser import launched

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
settings.register_profile(
    "same every time", derandomize=True, deadline=None, max_examples=100 if THOROUGH else 20
)
settings.load_profile("same every time")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.get_closest_marker("ranks"))


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Hides what imports and other files have left from the garbage collector.

    An optimizer without `model=` looks through all objects alive at its first step; a million of
    them come from libraries and would be most of the time of a test.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Tests that draw from torch's global generator (dropout) start from the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from launched()
