"""Where do the results of a probe go? Never over a probe that says more.

A probe is replaced by one of the same subject that has all of its measures, from as many batches.
Any other stays, with its pictures, and the new one gets a folder beside it: probe-2, probe-3, ...
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

FILE = "probe.json"


def free(folder: Path, probe: Mapping[str, Any]) -> Path:
    """The folder that a probe may be written to.

    Args:
        folder: the one that is wanted.
        probe: what is to be written.

    Returns:
        That, or the first beside it that holds nothing worth keeping.
    """
    home = folder if folder.name not in {"", ".."} else folder.resolve()
    beside = (home.with_name(f"{home.name}-{number}") for number in count(2))
    found = folder
    while worth_keeping(found, probe):
        found = next(beside)
    return found


def worth_keeping(folder: Path, probe: Mapping[str, Any]) -> str:
    """Why a probe that lies in a folder must not be replaced by another.

    Args:
        folder: where it lies.
        probe: the other.

    Returns:
        What it holds, in a few words; "" if there is none, or nothing in it that the other lacks.
    """
    try:
        old = json.loads((folder / FILE).read_text(encoding="utf-8"))
        lost = [name for name in old["results"] if name not in probe["results"]]
        subject, batches = str(old["subject"]), int(old["batches"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # there is none, or it is damaged
    if subject != probe["subject"]:
        return f"a probe of {subject}"
    if lost:
        return f"a probe with {', '.join(lost)}"
    return f"a probe from {batches} batches" if batches > probe["batches"] else ""
