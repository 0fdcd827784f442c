"""Where does freed memory go? A worker keeps it for the next step.

glibc gives what a step has freed back to the system, and the next step gets it again as pages of
zeros: thousands of page faults in each pass of the small transformer. Told to keep it, it has none
(`benchmarks/heap.py`). Nothing is computed otherwise.
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Their numbers in glibc's malloc.h."""
KEPT = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 256 << 20}
"""Bytes: what is smaller comes from the heap, which shrinks from 2 GiB on and grows by 256 MiB."""


def keep_freed() -> bool:
    """Asks the C library of this process to keep memory that is freed.

    Returns:
        Whether it does: False where the library is not glibc.

    Example:
        >>> keep_freed() or sys.platform != "linux"
        True
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all([mallopt(which, size) for which, size in KEPT.items()])
