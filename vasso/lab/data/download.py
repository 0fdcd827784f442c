"""Downloads: fetch a file, verify its checksum, unpack it, and report progress.

A download grows in `NAME.part` and is renamed to `NAME` once its length and checksum are right. An
interrupted download is resumed (HTTP Range). An archive is unpacked as a whole or not at all, and
never to a path outside the folder.
"""

import hashlib
import http.client
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from vasso.lab.data.cache import locked
from vasso.lab.data.images import DataError

MOST_FILES, MOST_EXPANSION = 1_000_000, 200
"""Limits of an archive: its members, and the factor by which it may grow."""
UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(RuntimeError, NotImplementedError),  # encrypted, and of an unknown method
)
ATTEMPTS = 3
BLOCK = 1 << 18
TIMEOUT = 30.0

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes done and the total, None if that is unknown."""


class DownloadError(DataError):
    """A file could not be downloaded."""


class UnavailableError(DownloadError):
    """There is no network, or the file is not at its address; it can be put there by hand."""


class _TruncatedError(DownloadError):
    """The connection ended too early; what has arrived is kept and the rest can be requested."""


@dataclass(frozen=True)
class Remote:
    """A file at its official address; `checksum` is as published, "md5:..." or "sha256:...".

    Without one the SHA-256 of the first download is kept in `NAME.sha256`, and a later change is an
    error.
    """

    url: str
    name: str
    checksum: str | None = None


@dataclass(frozen=True)
class DataFile:
    """A file or folder that a data set needs under the data folder; of `x.gz`, `x` is enough.

    Without `remote` the user has to put it there.
    """

    path: str
    remote: Remote | None

    @property
    def is_archive(self) -> bool:
        """Whether the download is an archive of the folder, rather than the file itself."""
        return self.remote is not None and Path(self.path).name != self.remote.name

    def exists(self, root: Path) -> bool:
        return (root / self.path).exists() or (root / self.path.removesuffix(".gz")).exists()


def ensure_all(files: Iterable[DataFile], root: Path, progress: Progress | None) -> None:
    """Downloads and unpacks what is missing; an error names everything that is missing."""
    files = list(files)
    for file in files:
        try:
            ensure(file, root, progress)
        except UnavailableError as error:
            others = [x.path for x in files if x is not file and not x.exists(root)]
            more = f". Also missing in {root}: {', '.join(others)}" if others else ""
            raise UnavailableError(f"{error}{more}") from error


def ensure(file: DataFile, root: Path, progress: Progress | None) -> None:
    """Downloads and unpacks a file if it is missing.

    Without `progress` nothing may be downloaded; an archive that is already there is unpacked.
    """
    if file.exists(root):
        return
    if file.remote is None:
        raise DataError(
            f"{root / file.path} is missing and cannot be downloaded without an account: put the "
            "images into its folders train/CLASS and val/CLASS"
        )
    target = root if file.is_archive else (root / file.path).parent
    if progress is None and not is_sound(target / file.remote.name, file.remote):
        raise DataError(
            f"{_damage(target / file.remote.name, file.remote)}{root / file.path} is missing: "
            f"allow download=True, or put {file.remote.url} into {target}"
        )
    target.mkdir(parents=True, exist_ok=True)
    with locked(root / ".lock"):
        if not file.exists(root):  # another process may have been quicker
            path = fetch(file.remote, target, progress or silent)
            if file.is_archive:
                unpack(path, root, file.path)


def silent(name: str, done: int, total: int | None) -> None:
    """Reports nothing."""


@contextmanager
def progress_bars(progress: Progress | None) -> Iterator[Progress]:
    """The caller's callback; without one, progress bars if stderr is a terminal."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        yield silent
    else:
        with _bars() as bars:
            yield bars


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
    )
    tasks: dict[str, progress.TaskID] = {}
    with progress.Progress(*columns, console=Console(stderr=True)) as bars:

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield report


def fetch(remote: Remote, folder: Path, progress: Progress = silent) -> Path:
    """The path of a file, which is downloaded unless it is there with the right checksum."""
    path = folder / remote.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f"{remote.name}.lock"):
            if not is_sound(path, remote):
                _download(remote, path, progress)
    except UnavailableError as error:
        raise UnavailableError(
            f"{_damage(path, remote)}{error}: without a network, or if the file has moved, put "
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
    """Downloads, verifies, records the checksum if none is published, and renames."""
    part = path.with_name(f"{path.name}.part")
    if remote.checksum is None:
        part.unlink(missing_ok=True)  # no checksum would detect a mixture of two versions
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
    """Requests the rest again when a connection ends too early."""
    for attempt in range(ATTEMPTS):
        try:
            return _receive(remote, part, progress)
        except _TruncatedError:
            if attempt == ATTEMPTS - 1:
                raise


def _receive(remote: Remote, part: Path, progress: Progress) -> None:
    """One request, for the rest of the file if a part of it has arrived."""
    have = part.stat().st_size if part.exists() else 0
    with _opened(remote.url, have) as response:
        if response is None:  # the part is complete
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
    """The body; errors of the connection become `_TruncatedError`, unlike those of a full disk."""
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
    """The response to a request for what is missing; None if nothing is missing."""
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


def is_sound(path: Path, remote: Remote) -> bool:
    """Whether a file is there with its checksum; a file without any known checksum is sound."""
    return path.exists() and _is_right(path, remote)


def _damage(path: Path, remote: Remote) -> str:
    """A sentence about a damaged file with its remedy; "" if there is no file or a sound one."""
    if not path.exists() or _is_right(path, remote):
        return ""
    seen, expected = _digest(path, _algorithm(remote)), _expected(path, remote)
    return (
        f"{path} is damaged: its {_algorithm(remote)} is {seen}, expected is {expected}. Remove it "
        "and put a sound one there. "
    )


def _algorithm(remote: Remote) -> str:
    return "sha256" if remote.checksum is None else remote.checksum.partition(":")[0]


def _checksum_file(path: Path, remote: Remote) -> Path:
    return path.with_name(f"{remote.name}.sha256")


def _expected(path: Path, remote: Remote) -> str | None:
    """The checksum, published or of the first download; None if there is neither."""
    if remote.checksum is not None:
        return remote.checksum.partition(":")[2]
    side = _checksum_file(path, remote)
    return side.read_text().strip() if side.exists() else None


def _is_right(path: Path, remote: Remote) -> bool:
    expected = _expected(path, remote)
    return expected is None or _digest(path, _algorithm(remote)) == expected


def _remedy(path: Path, remote: Remote) -> str:
    if remote.checksum is not None:
        return ". It was deleted; try again later or from another network"
    return f", as first seen. To accept the new file, delete {_checksum_file(path, remote)}"


def _record(path: Path, remote: Remote) -> None:
    if remote.checksum is None:
        _checksum_file(path, remote).write_text(_digest(path, "sha256") + "\n")


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def unpack(archive: Path, folder: Path, top: str) -> Path:
    """Unpacks the one folder `top` of a tar or zip archive; an older folder `top` is replaced."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as name:
        temporary = Path(name)
        try:
            _extract(archive, temporary)
        except UNREADABLE as error:
            raise DataError(f"{archive} cannot be unpacked: {error}") from error
        if not (temporary / top).is_dir():
            raise DataError(f"{archive} holds no folder {top}: is it the right archive?")
        if (folder / top).exists():
            os.replace(folder / top, temporary / ".old")
        os.replace(temporary / top, folder / top)
    return folder / top


def _extract(archive: Path, into: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            _refuse_escapes(archive, file.namelist())
            _refuse_bombs(archive, [member.file_size for member in file.infolist()])
            file.extractall(into)
        return
    with tarfile.open(archive) as file:
        members = file.getmembers()
        _refuse_escapes(archive, (member.name for member in members))
        _refuse_bombs(archive, [member.size for member in members])
        for member in members:
            if not (member.isfile() or member.isdir()):
                raise DataError(
                    f"{archive} is refused: its member {member.name} is a link or device"
                )
        for member in members:
            _write(file, member, into / member.name)
        while file.fileobj and file.fileobj.read(BLOCK):
            pass  # to the end: gzip's checksum is compared there


def _write(file: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Writes contents alone, without the owners, modes and times of the archive."""
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = file.extractfile(member)
    assert source is not None  # a plain file
    with source, path.open("wb") as target:
        shutil.copyfileobj(source, target)


def _refuse_bombs(archive: Path, sizes: Sequence[int]) -> None:
    most = MOST_EXPANSION * archive.stat().st_size
    if len(sizes) > MOST_FILES or sum(sizes) > most:
        raise DataError(
            f"{archive} is refused: it holds {len(sizes):,} files of {sum(sizes):,} bytes, at most "
            f"{MOST_FILES:,} of {most:,} are unpacked"
        )


def _refuse_escapes(archive: Path, names: Iterable[str]) -> None:
    for name in names:
        pure = PurePosixPath(name.replace("\\", "/"))
        if pure.is_absolute() or ".." in pure.parts or ":" in name:
            raise DataError(f"{archive} is refused: its member {name!r} would leave the folder")
