"""What was made once need not be made again: arrays in a file that proves itself.

The first line holds the SHA-256 of the rest: the names of the arrays in a line of JSON, then the
arrays in numpy's format. A file appears whole or not at all; a damaged one is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, NDArray[Any]]
MARK = b"vasso cache 2 "


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
    with path.open("rb") as file:
        if file.readline() != _first_line(file):
            return None
        names = json.loads(file.readline())
        return {name: np.lib.format.read_array(file, allow_pickle=False) for name in names}


def _write(path: Path, arrays: Arrays) -> None:
    """Writes beside the file and renames: a reader never sees a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w+b") as file:
            file.write(MARK + b"0" * 64 + b"\n" + json.dumps(list(arrays)).encode() + b"\n")
            for array in arrays.values():
                np.lib.format.write_array(file, array, allow_pickle=False)
            file.seek(len(MARK) + 65)
            line = _first_line(file)
            file.seek(0)
            file.write(line)
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def _first_line(file: IO[bytes]) -> bytes:
    """The line that the rest of a file demands; the file stays where it is."""
    place = file.tell()
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(place)
    return MARK + digest.encode() + b"\n"
