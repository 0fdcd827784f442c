"""Date, commit, machine and packages of a measurement: the certificate in front of every result."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def certificate(what: str, packages: tuple[str, ...], settings: dict[str, Any]) -> dict[str, Any]:
    """When, where, with what and how.

    Args:
        what: is measured.
        packages: whose versions matter.
        settings: of the measurement.

    Returns:
        As JSON may hold it.
    """
    return {
        "what": what,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "package_changed_since": bool(git("status", "--porcelain", "--", "vasso")),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in packages},
        },
        "hardware": {**hardware(), "threads": torch.get_num_threads()},
        "settings": settings,
    }


def hardware() -> dict[str, Any]:
    """The processor, without names or paths of the machine."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = lines[0].split(":", 1)[1].strip() if lines else cpu
    return {"cpu": cpu, "cores": os.cpu_count(), "system": platform.system()}


def git(*words: str) -> str | None:
    """What git says about this checkout; None outside of one."""
    here = Path(__file__).parent.parent
    try:
        answer = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
