"""Real data where the environment has them: VASSO_DATA names the folder."""

import os
from pathlib import Path

import pytest

from vasso.lab.data import cifar


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data; without it the test is skipped, or fails if VASSO_REQUIRE_DATA=1."""
    root = Path(os.environ.get("VASSO_DATA", "/nonexistent"))
    if not (root / cifar.FOLDER10).is_dir():
        told = "real CIFAR is needed: set VASSO_DATA to a folder that holds cifar-10-batches-py"
        if os.environ.get("VASSO_REQUIRE_DATA") == "1":
            pytest.fail(told)
        pytest.skip(told)
    return root
