"""Real data where the environment has them: VASSO_DATA names the folder."""

import os
from pathlib import Path

import pytest

from vasso.lab.data import cifar, folders


def needing(*names: str) -> Path:
    """The folder of real data, if it holds all of these.

    Without them the test is skipped, or fails if VASSO_REQUIRE_DATA=1.
    """
    root = Path(os.environ.get("VASSO_DATA", "/nonexistent"))
    missing = [name for name in names if not (root / name).exists()]
    if missing:
        told = f"real data are needed: set VASSO_DATA to a folder that holds {missing[0]}"
        if os.environ.get("VASSO_REQUIRE_DATA") == "1":
            pytest.fail(told)
        pytest.skip(told)
    return root


@pytest.fixture
def real_cifar10() -> Path:
    """The folder that holds CIFAR-10."""
    return needing(cifar.FOLDER10)


@pytest.fixture
def real_cifar100() -> Path:
    """The folder that holds CIFAR-100."""
    return needing(cifar.FOLDER100)


@pytest.fixture
def real_human_labels() -> Path:
    """The folder that holds CIFAR-10 and CIFAR-10N."""
    return needing(cifar.FOLDER10, cifar.HUMAN)


@pytest.fixture
def real_tiny_imagenet() -> Path:
    """The folder that holds Tiny-ImageNet, or some of its classes."""
    return needing(folders.TINY)
