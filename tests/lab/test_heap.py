"""Workers keep memory from step to step; where the C library cannot, nothing happens."""

import os
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

import pytest

from vasso.lab import heap, jobs

STEPS = """
import resource, sys
import torch
from vasso.lab.heap import keep_freed

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    assert keep_freed()
for step in range(12):
    before = faults() if step == 2 else 0 if step < 2 else before
    parts = [torch.ones(1_000_000) for _ in range(8)]  # 32 MB, and gone
    total = torch.stack(parts).sum()
    del parts
print(faults() - before, total.item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_memory_is_not_fetched_again() -> None:
    told = {}
    # a fixed threshold, or glibc raises it by itself and keeps some, how much is its own affair
    fixed = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
    for way in ("kept", "given back"):
        done = subprocess.run(
            [sys.executable, "-c", STEPS, way],
            capture_output=True,
            text=True,
            check=True,
            env=fixed,
        )
        faults, total = map(float, done.stdout.split())
        assert total == 8e6
        told[way] = faults
    assert told["given back"] > 1_000  # ten steps of 32 MB, in pages of 4 kB or in huge ones
    assert told["kept"] < told["given back"] / 5


def test_elsewhere_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.sys, "platform", "darwin")
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: pytest.fail("asked"))
    assert not heap.keep_freed()


def test_workers_keep_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    monkeypatch.setattr(heap, "keep_freed", lambda: asked.append(True))
    monkeypatch.setattr(jobs.signal, "signal", lambda *which: None)
    ours, theirs = Pipe()
    ours.close()  # nobody sends a run
    jobs.worker(theirs, tmp_path, {})
    assert asked == [True]
