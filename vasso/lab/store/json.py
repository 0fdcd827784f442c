"""Reading and writing JSON: a digest in every table, numbers that a report can show.

A table is written with the digest of its content, so that a flipped bit is found when it is read.
NaN and infinity are written as null. Files of others may hold anything: numbers that are not finite
or have more than 64 bits, and nesting that Python cannot follow, are errors.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DIGEST = "digest"
LARGEST = 2**63
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_MANY_DIGITS = re.compile(r"[\s:,\[-]\d{19}")
_LARGE_EXPONENT = re.compile(r"[eE]\+?\d{3,}[\s,\]}]")
"""A table holds one of them if any number in it is infinite or has more than 64 bits."""


def as_json(value: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A table as JSON with its digest, in one line unless `indent` is given."""
    table = json.loads(json.dumps(finite(value), allow_nan=False))
    return json.dumps({**table, DIGEST: _digest(table)}, indent=indent).encode()


def _digest(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(_CANONICAL.encode(table).encode()).hexdigest()[:16]


def finite(value: Any) -> Any:
    """The value with None for infinity and NaN, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def parsed(content: str | bytes) -> Any:
    """The value that JSON stands for; a ValueError if it is damaged or out of bounds."""
    try:
        text = content if isinstance(content, str) else content.decode()
        suspicious = _MANY_DIGITS.search(text) or _LARGE_EXPONENT.search(text)
        return (_CHECKED if suspicious else _FAST).decode(text)
    except json.JSONDecodeError:
        raise ValueError("damaged: not JSON") from None
    except UnicodeDecodeError:
        raise ValueError("damaged: not UTF-8") from None
    except RecursionError:
        raise ValueError("damaged: nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"damaged: {name} is not a number")


def _finite_number(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text[:20])


def _whole_number(text: str) -> int:
    if len(text) > len(str(-LARGEST)) or abs(int(text)) >= LARGEST:
        raise ValueError(f"damaged: a number of {len(text)} digits")
    return int(text)


_FAST = json.JSONDecoder(parse_constant=_refuse)
_CHECKED = json.JSONDecoder(
    parse_constant=_refuse, parse_float=_finite_number, parse_int=_whole_number
)
"""Calls a function for every number, which takes twice the time."""


def unsealed(content: str | bytes) -> dict[str, Any]:
    """The table in some JSON, without its digest; a ValueError says what is wrong with it."""
    table = parsed(content)
    if not isinstance(table, dict):
        raise ValueError("damaged: not a table")
    if table.pop(DIGEST, None) != _digest(table):
        raise ValueError("damaged: its digest is not that of its content")
    return table


def table_in(path: Path) -> dict[str, Any]:
    """The table in a file; a ValueError says what is wrong with the file."""
    if not path.is_file():
        raise ValueError("not a regular file")
    try:
        return unsealed(path.read_bytes())
    except OSError as error:
        raise ValueError(f"not readable ({error.strerror})") from None


def table_of(line: bytes) -> dict[str, Any] | None:
    """The table in a line; None if the line is torn or damaged."""
    try:
        return unsealed(line)
    except ValueError:
        return None
