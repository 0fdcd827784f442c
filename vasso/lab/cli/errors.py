"""Usage errors: invalid arguments found before a run starts (exit code 2); other exit codes.

This module needs no extra, so that the command can report a missing one.
"""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from vasso.lab.schema import UnsupportedError, printable

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130
"""Exit codes; 0 is success. After a usage error nothing has been started."""

_NOT_A_DIRECTORY = "a file is where a directory should be: choose another path or move the file"
_DENIED = "permission denied: choose another path or change its permissions"
REMEDIES = {
    errno.ENOENT: "it does not exist and cannot be created: check the path or choose another path",
    errno.ENOTDIR: _NOT_A_DIRECTORY,
    errno.EEXIST: _NOT_A_DIRECTORY,
    errno.EISDIR: "a directory is where a file should be: choose another path",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: "the file system is read-only: choose another path",
}


class UsageError(Exception):
    """An argument is invalid; nothing has been started."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns errors about arguments into `UsageError`; put it around checks, before any work."""
    try:
        yield
    except (ValueError, UnsupportedError) as error:
        raise UsageError(str(error)) from error


def say(text: str) -> None:
    """Prints to standard error, apart from the output that a program may read."""
    print(printable(text), file=sys.stderr)


def describe_os_error(error: OSError) -> str:
    """The path and a remedy, if there is one; otherwise the system's own message."""
    remedy = REMEDIES.get(error.errno or 0, error.strerror)
    return f"{error.filename}: {remedy}" if remedy and error.filename else str(error)
