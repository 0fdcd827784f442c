"""Hosts keep their state in singletons; each test starts with none."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _fresh_accelerator() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _forget() -> None:
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
