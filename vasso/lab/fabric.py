"""Lightning Fabric, without what it asks for and does not need.

To learn the version of torchmetrics, Fabric imports all of it where it is installed, and that
imports transformers and scipy.signal where those are: half of the time in which a command starts.
Here it does not find torchmetrics; whoever imports it later does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from vasso.extras import brought_by


@contextmanager
def not_found(package: str) -> Iterator[None]:
    """Inside, a package that nobody has imported yet cannot be imported.

    Args:
        package: its name.

    Yields:
        Nothing.

    Example:
        >>> with not_found("some_package"):
        ...     import some_package
        Traceback (most recent call last):
        ModuleNotFoundError: import of some_package halted; None in sys.modules
    """
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # what Python takes for "is not there"
    try:
        yield
    finally:
        del sys.modules[package]


with not_found("torchmetrics"), brought_by("lab"):
    from lightning_fabric import Fabric
    from lightning_fabric.accelerators import ACCELERATOR_REGISTRY
    from lightning_fabric.strategies import STRATEGY_REGISTRY
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

__all__ = [
    "ACCELERATOR_REGISTRY",
    "STRATEGY_REGISTRY",
    "Fabric",
    "ModelParallelStrategy",
    "not_found",
]
