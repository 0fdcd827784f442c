"""How does a file get here? Whole and checked, or not at all.

A download grows in `NAME.part` and is renamed to `NAME` once its length and checksum are right; an
interrupted one is resumed (HTTP Range).
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from vasso.lab.data.images import DataError
from vasso.lab.data.progress import Progress, silent

ATTEMPTS = 3
BLOCK = 1 << 18
TIMEOUT = 30.0


class DownloadError(DataError):
    """A file could not be downloaded."""


class UnavailableError(DownloadError):
    """There is no network, or the file is not at its address; it can be put there by hand."""


class _TruncatedError(DownloadError):
    """The connection ended too early; what came is kept and the rest can be asked for."""


@dataclass(frozen=True)
class Remote:
    """A file at its official address.

    Attributes:
        url: the address.
        name: of the file here.
        checksum: as published, "md5:..." or "sha256:...". None: no published checksum; the SHA-256
            seen at the first download is kept in `NAME.sha256`, and a later change is an error.
    """

    url: str
    name: str
    checksum: str | None = None


def fetch(remote: Remote, folder: Path, progress: Progress = silent) -> Path:
    """The file, downloaded unless it is there already and sound.

    Args:
        remote: which file.
        folder: where to.
        progress: is told of every block.

    Returns:
        Where it is.

    Raises:
        DownloadError: it cannot be had, or is not what was published.
        UnavailableError: it is not to be had from here.
    """
    path = folder / remote.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f"{remote.name}.lock"):
            if not is_sound(path, remote):
                _download(remote, path, progress)
    except UnavailableError as error:
        raise UnavailableError(
            f"{damage(path, remote)}{error}: without a network, or if the file has moved, put "
            f"{remote.name} into {folder} by hand; --data-root or VASSO_DATA names another data "
            "folder"
        ) from error
    except OSError as error:
        raise DownloadError(
            f"{path} cannot be written ({error}): free some space, or choose another folder by "
            "VASSO_DATA; what has arrived is kept and the download goes on from there"
        ) from error
    return path


def _download(remote: Remote, path: Path, progress: Progress) -> None:
    """Downloads in as many attempts as there are, then checks, records and renames."""
    part = path.with_name(f"{path.name}.part")
    if remote.checksum is None:
        part.unlink(missing_ok=True)  # nothing would tell a mixture of two versions
    resumed = part.exists()
    _receive_all(remote, part, progress)
    if resumed and not _is_right(part, remote):  # the old beginning was bad: once more, from 0
        part.unlink()
        _receive_all(remote, part, progress)
    if not _is_right(part, remote):
        seen, expected = _digest(part, _algorithm(remote)), _expected(part, remote)
        part.unlink()
        raise DownloadError(
            f"{remote.url} is not what it should be: {_algorithm(remote)} {seen}, expected "
            f"{expected}{_remedy(part, remote)}"
        )
    _record(part, remote)
    os.replace(part, path)


def _receive_all(remote: Remote, part: Path, progress: Progress) -> None:
    """Asks again for the rest when a connection ends too early."""
    for attempt in range(ATTEMPTS):
        try:
            return _receive(remote, part, progress)
        except _TruncatedError:
            if attempt == ATTEMPTS - 1:
                raise


def _receive(remote: Remote, part: Path, progress: Progress) -> None:
    """One request, for the rest of the file if there is a beginning."""
    have = part.stat().st_size if part.exists() else 0
    with _opened(remote.url, have) as response:
        if response is None:  # there is nothing beyond what we have
            return
        start = have if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        with part.open("ab" if start else "wb") as file:
            done = start
            for block in _blocks(response, remote.url):
                file.write(block)
                done += len(block)
                progress(remote.name, done, total)
    if total is not None and done < total:
        raise _TruncatedError(
            f"{remote.url} ended after {done} of {total} bytes: run again to resume"
        )


def _blocks(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """The body, with the errors of a broken connection told from those of a full disk."""
    while True:
        try:
            block = response.read(BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _TruncatedError(
                f"the connection to {url} broke ({error}): run again to resume"
            ) from error
        if not block:
            return
        yield block


@contextmanager
def _opened(url: str, have: int) -> Iterator[http.client.HTTPResponse | None]:
    """The answer to a request for what is missing; None if nothing is."""
    request = urllib.request.Request(url, headers={"User-Agent": "vasso"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            yield None
            return
        raise UnavailableError(f"{url} answers {error.code} {error.reason}") from error
    except OSError as error:
        raise UnavailableError(f"{url} cannot be reached ({error})") from error
    with response:
        yield response


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lets one process at a time pass; a process that dies lets go.

    Args:
        path: a file that stands for what is guarded; it stays.

    Yields:
        When it is our turn.
    """
    try:
        import fcntl  # not on Windows
    except ModuleNotFoundError:  # pragma: no cover
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- checksums ------------------------------------------------------------------------------------


def is_sound(path: Path, remote: Remote) -> bool:
    """Whether a file is there and has its checksum.

    Args:
        path: the file.
        remote: what it should be.

    Returns:
        True too if there is no published checksum and none was recorded, as for a file put there
        by hand.
    """
    return path.exists() and _is_right(path, remote)


def damage(path: Path, remote: Remote) -> str:
    """What is wrong with a file that is there.

    Args:
        path: the file.
        remote: what it should be.

    Returns:
        A sentence with a remedy and a blank after it; "" if there is no file, or a sound one.
    """
    if not path.exists() or _is_right(path, remote):
        return ""
    seen, expected = _digest(path, _algorithm(remote)), _expected(path, remote)
    return (
        f"{path} is damaged: its {_algorithm(remote)} is {seen}, expected is {expected}. Remove it "
        "and put a sound one there. "
    )


def _algorithm(remote: Remote) -> str:
    return "sha256" if remote.checksum is None else remote.checksum.partition(":")[0]


def _side(path: Path, remote: Remote) -> Path:
    return path.with_name(f"{remote.name}.sha256")


def _expected(path: Path, remote: Remote) -> str | None:
    """The checksum, published or seen first; None if the file was never seen."""
    if remote.checksum is not None:
        return remote.checksum.partition(":")[2]
    side = _side(path, remote)
    return side.read_text().strip() if side.exists() else None


def _is_right(path: Path, remote: Remote) -> bool:
    expected = _expected(path, remote)
    return expected is None or _digest(path, _algorithm(remote)) == expected


def _remedy(path: Path, remote: Remote) -> str:
    if remote.checksum is not None:
        return ". It was deleted; try again later or from another network"
    return f", as first seen. To accept the new file, delete {_side(path, remote)}"


def _record(path: Path, remote: Remote) -> None:
    if remote.checksum is None:
        _side(path, remote).write_text(_digest(path, "sha256") + "\n")


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return _hashed(file, algorithm)


def _hashed(file: IO[bytes], algorithm: str) -> str:
    return hashlib.file_digest(file, algorithm).hexdigest()  # type: ignore[arg-type]
