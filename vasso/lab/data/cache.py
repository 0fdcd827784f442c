"""Cache of arrays in files with a checksum, and the lock of files that many processes make.

The first line holds the SHA-256 of the rest: the names of the arrays in a line of JSON, then the
arrays in numpy's format. A file is written as a whole or not at all; a damaged one is made again.
Of processes that need it at the same time one makes it, and the others wait and read it.
"""

import errno
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, NDArray[Any]]
MARK = b"vasso cache 2 "
NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


def cached(path: Path, make: Callable[[], Arrays]) -> Arrays:
    """The arrays in a file; if it is missing or damaged, they are made and written."""
    found = _read(path)
    if found is not None:
        return found
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path.with_name(f".{path.name}.lock")))
        except OSError as error:
            _warn(path, error)
            return make()
        if (found := _read(path)) is not None:  # another process was quicker
            return found
        arrays = make()
        try:
            _write(path, arrays)
        except OSError as error:
            _warn(path, error)
        return arrays


def _warn(path: Path, error: OSError) -> None:
    warnings.warn(
        f"{path} cannot be written ({error}) and will be made again each time: free some "
        "space, or set VASSO_DATA to a folder that can be written",
        stacklevel=4,
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for an exclusive lock on a file; the lock of a process that dies is released.

    On a file system without locks all go on at once: checksums find what they spoil.
    """
    try:
        import fcntl  # not on Windows
    except ModuleNotFoundError:  # pragma: no cover
        yield
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield


def _read(path: Path) -> Arrays | None:
    """The arrays, or None if the file is missing or its checksum is wrong."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        if file.readline() != _first_line(file):
            return None
        names = json.loads(file.readline())
        return {name: np.lib.format.read_array(file, allow_pickle=False) for name in names}


def _write(path: Path, arrays: Arrays) -> None:
    """Writes a temporary file and renames it, so that a reader never sees half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w+b") as file:
            file.write(MARK + b"0" * 64 + b"\n" + json.dumps(list(arrays)).encode() + b"\n")
            for array in arrays.values():
                np.lib.format.write_array(file, array, allow_pickle=False)
            file.seek(len(MARK) + 65)
            line = _first_line(file)
            file.seek(0)
            file.write(line)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _first_line(file: IO[bytes]) -> bytes:
    """The first line for the rest of an open file, whose position stays."""
    position = file.tell()
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    file.seek(position)
    return MARK + digest.encode() + b"\n"
