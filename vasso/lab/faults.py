"""What can be done about an error of the file system? A sentence instead of a number."""

from __future__ import annotations

import errno

_FILE = "there is a file where a directory should be: name another path, or move it away"
_RIGHT = "it may not be read or written by you: name another path, or get the right to"
REMEDIES = {
    errno.ENOENT: "it is not there and cannot be made there: check the path, or name another",
    errno.ENOTDIR: _FILE,
    errno.EEXIST: _FILE,
    errno.EISDIR: "there is a directory where a file should be: name another path",
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.EROFS: _RIGHT,
}


def told(trouble: OSError) -> str:
    """The path and what to do, where we know it; else what the system says.

    Args:
        trouble: what went wrong.

    Returns:
        A sentence.

    Example:
        >>> told(IsADirectoryError(errno.EISDIR, "Is a directory", "notes"))
        'notes: there is a directory where a file should be: name another path'
    """
    remedy = REMEDIES.get(trouble.errno or 0)
    return (
        str(trouble) if remedy is None or not trouble.filename else f"{trouble.filename}: {remedy}"
    )
