"""How much memory does a step need at its peak? Asked of torch's CPU allocator itself.

The profiler notes every allocation and release with the total after it, temporaries inside an
operation included, which nothing that looks at Python's tensors could see. What is to be counted
has to be made while it looks on.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else two lines on stderr for every profile


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes of tensors alive at any moment of `run`, beyond those alive before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    events = sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: float(e["ts"]))
    notes = [event["args"] for event in events]
    before: int = notes[0]["Total Allocated"] - notes[0]["Bytes"]
    peak: int = max(note["Total Allocated"] for note in notes)
    return peak - before
