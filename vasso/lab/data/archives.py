"""What comes out of an archive? Only what stays inside the folder, and all of it or nothing."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from vasso.lab.data.images import DataError


def unpack(archive: Path, folder: Path, top: str) -> Path:
    """Unpacks an archive that holds one folder; an older folder of that name is replaced.

    Args:
        archive: a tar (compressed or not) or zip file.
        folder: where to.
        top: the folder that it holds.

    Returns:
        The folder that came out.

    Raises:
        DataError: it is damaged, a member would leave the folder, or `top` is not in it.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as name:
        beside = Path(name)
        try:
            _extract(archive, beside)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise DataError(f"{archive} cannot be unpacked: {error}") from error
        if not (beside / top).is_dir():
            raise DataError(f"{archive} holds no folder {top}: is it the right archive?")
        if (folder / top).exists():
            os.replace(folder / top, beside / ".old")
        os.replace(beside / top, folder / top)
    return folder / top


def _extract(archive: Path, into: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            _refuse_escapes(archive, file.namelist())
            file.extractall(into)
        return
    with tarfile.open(archive) as file:
        members = file.getmembers()
        _refuse_escapes(archive, (member.name for member in members))
        for member in members:
            if not (member.isfile() or member.isdir()):
                raise DataError(
                    f"{archive} is refused: its member {member.name} is a link or device"
                )
        for member in members:
            _write(file, member, into / member.name)


def _write(file: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    """Contents alone: owners, modes and times of the archive are not taken over."""
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    source = file.extractfile(member)
    assert source is not None  # a plain file
    with source, path.open("wb") as target:
        shutil.copyfileobj(source, target)


def _refuse_escapes(archive: Path, names: Iterable[str]) -> None:
    for name in names:
        pure = PurePosixPath(name.replace("\\", "/"))
        if pure.is_absolute() or ".." in pure.parts or ":" in name:
            raise DataError(f"{archive} is refused: its member {name!r} would leave the folder")
