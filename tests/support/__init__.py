"""What tests share: tasks, loops, comparisons, processes; `THOROUGH` is set by `make test-slow`."""

import os

THOROUGH = bool(os.environ.get("VASSO_THOROUGH"))
"""Whether tests marked `thorough` run all of their cases and not a selection."""
