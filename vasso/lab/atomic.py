"""How is a file written so that a crash at any instant leaves the old one or the new one?

A whole file: into a temporary one beside it, to the disk, then renamed over the old one. A line at
the end of a file: in one write, taken back if only a part of it went out.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFullError(OSError):
    """There is no room for what was to be written; what had been written before is whole."""


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Says what to do when the disk is full; other errors name the file, not a temporary one."""
    try:
        yield
    except OSError as trouble:
        if trouble.errno not in _FULL:
            raise OSError(trouble.errno, trouble.strerror, str(path)) from trouble
        raise DiskFullError(
            trouble.errno,
            f"no room left to write {path.name} ({os.strerror(trouble.errno)}): nothing written "
            "before is lost. Make room and give the same command again; it goes on from the last "
            "checkpoint",
            str(path),
        ) from trouble


def replace(path: Path, content: bytes) -> None:
    """Makes a file hold this content, or leaves it as it was.

    Args:
        path: the file.
        content: all of it.

    Raises:
        DiskFullError: there is no room; the old file is still there.
        OSError: it cannot be written for another reason.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with _writing(path):
            _write_new(temporary, content)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _to_disk(path.parent)


def append_line(path: Path, line: str) -> None:
    """Adds a line to a file, whole or not at all; a torn line before it is left to itself.

    Args:
        path: the file, made if it is not there.
        line: the text, without newline.

    Raises:
        DiskFullError: there is no room; the file is as before.
        OSError: it cannot be written for another reason.
    """
    content = line.encode() + b"\n"
    with _writing(path), open(path, "a+b", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        if before and _last_byte(file.fileno(), before) != b"\n":
            content = b"\n" + content
        try:
            _write_all(file.fileno(), content)
        except OSError:
            file.truncate(before)
            raise


def remove_leftovers(folder: Path) -> None:
    """Deletes the temporary files of a process that was killed; nobody else may be writing.

    Args:
        folder: where.
    """
    for leftover in folder.glob(f".*{TEMPORARY}"):
        leftover.unlink(missing_ok=True)


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    """A short write is how a disk that fills up announces itself; the next one says why."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _last_byte(descriptor: int, size: int) -> bytes:
    return os.pread(descriptor, 1, size - 1)


def _to_disk(folder: Path) -> None:
    """The renaming itself, without which the name may be lost when the power fails."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
