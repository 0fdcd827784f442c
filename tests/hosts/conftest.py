"""Hosts keep their state in singletons; each test starts with none."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _fresh_accelerator() -> Iterator[None]:
    state = pytest.importorskip("accelerate.state")
    _forget(state)
    yield
    _forget(state)


def _forget(state: object) -> None:
    state.AcceleratorState._reset_state(reset_partial_state=True)  # type: ignore[attr-defined]
    state.GradientState._reset_state()  # type: ignore[attr-defined]
