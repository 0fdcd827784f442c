"""What tests share: tasks, loops, comparisons, processes; `THOROUGH` is set by `make test-slow`."""

import os

import pytest

THOROUGH = bool(os.environ.get("VASSO_THOROUGH"))
"""Whether tests marked `thorough` run all of their cases and not a selection."""


def need(there: object, remedy: str, variable: str) -> None:
    """Skips a test or a module whose means are not there; where `variable` is 1, it fails."""
    if there:
        return
    if os.environ.get(variable) == "1":
        pytest.fail(remedy)
    pytest.skip(remedy, allow_module_level=True)
