"""The command `vasso`, and real data where the environment has them in the folder VASSO_DATA."""

import os
from pathlib import Path

import pytest

from tests.lab.calls import Command, calling
from tests.support import need


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return calling(capsys)


def needing(*names: str) -> Path:
    """The folder of real data, if it holds all of these."""
    root = Path(os.environ.get("VASSO_DATA", "/nonexistent"))
    for name in names:
        remedy = f"real data are needed: set VASSO_DATA to a folder that holds {name}"
        need((root / name).exists(), remedy, "VASSO_REQUIRE_DATA")
    return root
