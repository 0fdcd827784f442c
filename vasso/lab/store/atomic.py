"""Atomic writes: a crash at any instant leaves the old file or the new one.

A whole file is written to a temporary file in the same directory, flushed to disk and renamed. A
line is appended in one write, and the file is truncated again if only a part of it was written.
What is not a regular file, such as a device or a pipe, is written to and never replaced.
"""

import errno
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFullError(OSError):
    """There is no room for what was to be written; earlier files are whole."""


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Names the remedy if the disk is full; other errors name the file, not the temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise DiskFullError(
            error.errno,
            f"no room left to write {path.name} ({os.strerror(error.errno)}): nothing written "
            "before is lost. Make room and give the same command again",
            str(path),
        ) from error


def replace(path: Path, content: bytes | memoryview) -> None:
    """Replaces the content of a file, or leaves the file as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with _writing(path):
            _write_new(temporary, content)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _to_disk(path.parent)


def check_output(path: Path) -> None:
    """Raises ValueError if no file can be written at a path that a user has named."""
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a directory: name a file in it")
    if not path.parent.is_dir():
        raise ValueError(
            f"there is no directory {str(path.parent)!r}: create it "
            f"(mkdir -p {shlex.quote(str(path.parent))}), or choose another path"
        )


def write_output(path: Path, content: bytes) -> None:
    """Writes to a path that a user has named: a file is replaced, what a link leads to written."""
    if path.exists() and not path.is_file():
        with _writing(path):
            path.write_bytes(content)
    else:
        replace(Path(os.path.realpath(path)), content)


def append_line(path: Path, line: str) -> None:
    """Appends a line, whole or not at all; a torn line before it is ended by a newline."""
    content = line.encode() + b"\n"
    with _writing(path), open(path, "a+b", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        if before and os.pread(file.fileno(), 1, before - 1) != b"\n":
            content = b"\n" + content
        try:
            _write_all(file.fileno(), content)
        except OSError:
            file.truncate(before)
            raise


def remove_leftovers(folder: Path) -> None:
    """Deletes the temporary files of a killed process; no other process may be writing."""
    for leftover in folder.glob(f".*{TEMPORARY}"):
        leftover.unlink(missing_ok=True)


def _write_new(path: Path, content: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    """Writes everything; a disk that fills up writes less, and the next write raises."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _to_disk(folder: Path) -> None:
    """Flushes the renaming, which may be lost otherwise when the power fails."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
