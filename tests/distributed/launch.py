"""Starts ranks and reads what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT = 240
"""Seconds after which ranks that wait for each other are taken for a deadlock."""


def torchrun(*arguments: str, ranks: int = 2, limit: int = LIMIT) -> str:
    """What a module prints on several ranks of this machine; raises if it fails or takes long."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "-m", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def results(suite: str, folder: Path) -> dict[str, Any]:
    """What the cases of a suite returned on rank 0."""
    out = folder / f"{suite}.json"
    torchrun("tests.distributed.worker", suite, str(out))
    found: dict[str, Any] = json.loads(out.read_text())
    return found
