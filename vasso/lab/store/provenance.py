"""Provenance of a run: versions, commit and hardware, recorded when it starts.

The order in which processor instructions and threads add changes how sums are rounded. Both are
recorded, because a run with others differs a little, and after many steps visibly.
"""

import os
import platform
import resource
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import vasso

PACKAGES = ("torch", "numpy", "lightning-fabric")


@cache
def certificate() -> dict[str, Any]:
    """Versions, commit and hardware of this process, as plain values."""
    return {
        "vasso": vasso.__version__,
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "commit": commit(Path(vasso.__file__).parent),
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit(folder: Path) -> str | None:
    """The commit of a working copy, marked if files have changed; None without git."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        return head + ("-changed" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def reset_peak_memory() -> None:
    """Resets the peak memory, where the system can (Linux, CUDA)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    control = Path("/proc/self/clear_refs")
    if os.access(control, os.W_OK):
        control.write_text("5")


def peak_memory() -> int:
    """The peak memory in bytes, of the GPU if there is one, else of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
