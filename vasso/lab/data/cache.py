"""What was made once need not be made again: arrays in a file that proves itself.

The first line holds the SHA-256 of the rest, an uncompressed npz. A file appears whole or not at
all, and one that was damaged later is made again.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, NDArray[Any]]
MARK = b"vasso cache 1 "


def remembered(path: Path, make: Callable[[], Arrays]) -> Arrays:
    """The arrays in a file; if there is none, or a damaged one, they are made and written.

    Args:
        path: the file.
        make: makes the arrays.

    Returns:
        The arrays.
    """
    found = _read(path)
    if found is not None:
        return found
    arrays = make()
    try:
        _write(path, arrays)
    except OSError as error:
        warnings.warn(
            f"{path} cannot be written ({error}) and will be made again each time: free some "
            "space, or set VASSO_DATA to a folder that can be written",
            stacklevel=3,
        )
    return arrays


def _read(path: Path) -> Arrays | None:
    """The arrays, or None if there is no file or its content is not what was written."""
    if not path.exists():
        return None
    first, _, rest = path.read_bytes().partition(b"\n")
    if first != MARK + hashlib.sha256(rest).hexdigest().encode():
        return None
    with np.load(io.BytesIO(rest), allow_pickle=False) as content:
        return dict(content)


def _write(path: Path, arrays: Arrays) -> None:
    """Writes beside the file and renames: a reader never sees a half."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(MARK + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
