"""How are plain values written as JSON, and what is told of text that is none?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def as_json(value: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A table as text.

    Args:
        value: numbers, texts, and tables and lists of them.
        indent: blanks for each level; None for one line.

    Returns:
        The text.

    Example:
        >>> as_json({"loss": float("nan"), "steps": [1, 2]})
        b'{"loss": null, "steps": [1, 2]}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False).encode()


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: null stands for both."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def table_in(path: Path) -> dict[str, Any]:
    """The table that a file holds.

    Args:
        path: the file.

    Returns:
        The table.

    Raises:
        ValueError: it holds something else; the message says what is wrong with it.
    """
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        raise ValueError("damaged: not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("damaged: not a table")
    return value


def table_of(line: bytes) -> dict[str, Any] | None:
    """The table that a line holds.

    Args:
        line: text.

    Returns:
        The table; None if it is torn.

    Example:
        >>> table_of(b'{"step": 1}'), table_of(b'{"st')
        ({'step': 1}, None)
    """
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
