"""The command `vasso`, and real data where the environment has them in the folder VASSO_DATA."""

import os
from pathlib import Path

import pytest

from tests.lab.calls import Command, calling


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return calling(capsys)


def needing(*names: str) -> Path:
    """The folder of real data, if it holds all of these.

    Without them the test is skipped, or fails if VASSO_REQUIRE_DATA=1.
    """
    root = Path(os.environ.get("VASSO_DATA", "/nonexistent"))
    missing = [name for name in names if not (root / name).exists()]
    if missing:
        message = f"real data are needed: set VASSO_DATA to a folder that holds {missing[0]}"
        if os.environ.get("VASSO_REQUIRE_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return root
