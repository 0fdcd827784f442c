"""Downloads and archives against a server that hangs up, lies and forgets."""

import errno
import hashlib
import io
import os
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.lab.data.server import Server, serving
from vasso.lab.data import download
from vasso.lab.data.download import (
    DataFile,
    DownloadError,
    Remote,
    UnavailableError,
    ensure,
    ensure_all,
    fetch,
    silent,
    unpack,
)
from vasso.lab.data.images import DataError

CONTENT = bytes(range(256)) * 5000  # five blocks
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(CONTENT) as running:
        yield running


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


@pytest.mark.parametrize("checksum", [MD5, SHA256])
def test_a_file_arrives_whole_and_only_once(server: Server, tmp_path: Path, checksum: str) -> None:
    remote = Remote(server.url, "file", checksum)
    for _ in range(2):
        assert fetch(remote, tmp_path / "new").read_bytes() == CONTENT
    assert server.seen == [None]
    assert files(tmp_path / "new") == {"file"}


def test_progress_is_told_block_by_block(server: Server, tmp_path: Path) -> None:
    recorded: list[tuple[str, int, int | None]] = []
    fetch(Remote(server.url, "file", MD5), tmp_path, lambda *step: recorded.append(step))
    assert len(recorded) >= 5
    assert [done for _, done, _ in recorded] == sorted({done for _, done, _ in recorded})
    assert recorded[-1] == ("file", len(CONTENT), len(CONTENT))


@pytest.mark.parametrize(
    ("ranges", "cut", "asked"),
    [(True, [1000, 2000], ["bytes=1000-", "bytes=3000-"]), (False, [1000], ["bytes=1000-"])],
    ids=["taken up where it broke", "started over without ranges"],
)
def test_a_broken_connection(
    ranges: bool, cut: list[int], asked: list[str], server: Server, tmp_path: Path
) -> None:
    server.ranges, server.cut = ranges, list(cut)
    assert fetch(Remote(server.url, "file", MD5), tmp_path).read_bytes() == CONTENT
    assert server.seen == [None, *asked]


def test_after_three_broken_connections_a_call_resumes(server: Server, tmp_path: Path) -> None:
    server.cut = [10, 10, 10]
    remote = Remote(server.url, "file", MD5)
    with pytest.raises(DownloadError, match="run again to resume"):
        fetch(remote, tmp_path)
    assert files(tmp_path) == {"file.part"}
    assert fetch(remote, tmp_path).read_bytes() == CONTENT
    assert server.seen[-1] == "bytes=30-"
    assert files(tmp_path) == {"file"}


@pytest.mark.parametrize(
    ("name", "there"),
    [
        *(("file.part", part) for part in (CONTENT, b"x" * 1000, CONTENT + b"more")),
        ("file.part", b"y" * len(CONTENT)),
        *(("file", damaged) for damaged in (b"", CONTENT[:-1], CONTENT[:-1] + b"?")),
    ],
)
def test_bad_files_are_replaced(name: str, there: bytes, server: Server, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(there)
    assert fetch(Remote(server.url, "file", MD5), tmp_path).read_bytes() == CONTENT
    assert files(tmp_path) == {"file"}


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"content": CONTENT[:-1] + b"?"}, f"expected {MD5[4:]}"),
        ({"told_length": False, "cut": [1000]}, "is not what it should be"),
        ({"status": 404}, "{url} answers 404 Not Found"),
    ],
    ids=["tampered with", "cut, its length not told", "missing"],
)
def test_a_spoilt_answer_is_told_and_leaves_nothing(
    spoilt: dict[str, Any], message: str, server: Server, tmp_path: Path
) -> None:
    vars(server).update(deepcopy(spoilt))
    with pytest.raises(DownloadError, match=message.format(url=server.url)):
        fetch(Remote(server.url, "file", MD5), tmp_path)
    assert files(tmp_path) == set()
    server.content, server.status = CONTENT, 0
    assert fetch(Remote(server.url, "file", MD5), tmp_path).read_bytes() == CONTENT


def test_without_a_network_the_remedy_is_told(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file"
        message = rf"cannot be reached .*put file into {tmp_path} by hand; .*VASSO_DATA"
        with pytest.raises(UnavailableError, match=message) as plain:
            fetch(Remote(url, "file", MD5), tmp_path)
        assert "damaged" not in str(plain.value)
        items = [DataFile(f"in/{name}", Remote(url, name, MD5)) for name in ("one", "two", "three")]
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "two").write_bytes(CONTENT)
        message = rf"put one into {tmp_path}/in by hand.* Also missing in {tmp_path}: in/three$"
        with pytest.raises(UnavailableError, match=message):
            ensure_all(items, tmp_path, silent)


def test_a_damaged_file_that_cannot_be_replaced_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT[:-1])
    server.status = 404
    seen = hashlib.md5(CONTENT[:-1]).hexdigest()
    message = rf"{tmp_path}/file is damaged: its md5 is {seen}, expected is {MD5[4:]}. Remove it"
    with pytest.raises(UnavailableError, match=rf"{message}.*answers 404"):
        fetch(Remote(server.url, "file", MD5), tmp_path)
    with pytest.raises(DataError, match=rf"{message}.* is missing: allow download=True"):
        ensure(DataFile("folder", Remote(server.url, "file", MD5)), tmp_path, None)
    assert (tmp_path / "file").read_bytes() == CONTENT[:-1]


def test_a_full_disk_is_told_and_the_download_goes_on_later(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def full(self: Path, mode: str = "r", *more: Any) -> Any:
        file = opened(self, mode, *more)
        if self.suffix != ".part" or mode == "rb":
            return file
        return Full(file)

    remote = Remote(server.url, "file", MD5)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(DownloadError, match=r"cannot be written .*No space left.*free some"):
            fetch(remote, tmp_path)
    kept = (tmp_path / "file.part").stat().st_size
    assert 0 < kept < len(CONTENT)
    assert fetch(remote, tmp_path).read_bytes() == CONTENT
    assert server.seen[-1] == f"bytes={kept}-"


class Full:
    def __init__(self, file: Any) -> None:
        self.file, self.left = file, 2

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, block: bytes) -> None:
        if not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= 1
        self.file.write(block)


def test_a_folder_that_cannot_be_made_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(DownloadError, match="VASSO_DATA"):
        fetch(Remote(server.url, "file", MD5), tmp_path / "taken")


def test_without_a_checksum_a_later_change_is_noticed(server: Server, tmp_path: Path) -> None:
    remote = Remote(server.url, "file")
    path = fetch(remote, tmp_path)
    assert (tmp_path / "file.sha256").read_text().strip() == SHA256[7:]
    path.unlink()
    server.content = CONTENT[::-1]
    with pytest.raises(DownloadError, match=r"as first seen.*delete .*file\.sha256"):
        fetch(remote, tmp_path)
    assert not path.exists()
    (tmp_path / "file.sha256").unlink()
    assert fetch(remote, tmp_path).read_bytes() == CONTENT[::-1]


def test_without_published_checksum_nothing_is_resumed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"of another version")
    assert fetch(Remote(server.url, "file"), tmp_path).read_bytes() == CONTENT
    assert server.seen == [None]


def test_two_at_once_download_once(server: Server, tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=fetch, args=(Remote(server.url, "file", MD5), tmp_path))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.seen == [None]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_that_falls_silent_is_not_waited_for_for_ever(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    server.cut, server.silence = [1000, 1000, 1000], 1.0
    with pytest.raises(DownloadError, match=r"broke .*timed out"):
        fetch(Remote(server.url, "file", MD5), tmp_path)


def test_nothing_is_shown_when_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with download.progress_bars(None) as tell:
        tell("file", 1, 2)
    assert capfd.readouterr() == ("", "")


def test_bars_are_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with download.progress_bars(None) as tell:
        tell("cifar-10-python.tar.gz", 50, None)
        tell("cifar-10-python.tar.gz", 100, 100)
    assert "cifar-10-python.tar.gz" in screen.getvalue()
    assert "100/100 bytes" in screen.getvalue()


def tar(path: Path, *members: tuple[str, bytes | str]) -> Path:
    """Members with bytes are files, with a text links to it."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def deflated(path: Path, size: int = 5000) -> bytearray:
    """A zip archive of one compressed file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("top/one", os.urandom(size // 2) + b"again" * (size // 10))
    return bytearray(path.read_bytes())


@pytest.mark.parametrize(
    ("offsets", "value", "why"),
    [((6, 8), 1, "encrypted"), ((8, 10), 99, "method"), ((100,), 255, "")],
    ids=["encrypted", "unknown method", "damaged deflate"],
)
def test_an_archive_that_cannot_be_read_is_told_in_a_sentence(
    tmp_path: Path, offsets: tuple[int, ...], value: int, why: str
) -> None:
    """Offsets in the local header, and in that of the directory at the end."""
    whole = deflated(tmp_path / "a.zip")
    for start, offset in zip((0, whole.index(b"PK\x01\x02")), offsets, strict=False):
        whole[start + offset] ^= value
    (tmp_path / "a.zip").write_bytes(whole)
    with pytest.raises(DataError, match=rf"a\.zip cannot be unpacked: .*{why}"):
        unpack(tmp_path / "a.zip", tmp_path, "top")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_changed_byte_of_what_gzip_could_not_compress_is_noticed(tmp_path: Path) -> None:
    """It becomes another byte of a file; the checksum at the end of the archive tells."""
    whole = bytearray(tar(tmp_path / "a", ("top/x", os.urandom(9000))).read_bytes())
    whole[5000] ^= 1
    (tmp_path / "a").write_bytes(whole)
    with pytest.raises(DataError, match="a cannot be unpacked: CRC"):
        unpack(tmp_path / "a", tmp_path, "top")
    assert files(tmp_path) == {"a"}


def test_an_archive_that_would_fill_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("top/zeros", bytes(10**7))
    with tarfile.open(tmp_path / "bomb.tgz", "w:gz") as file:
        member = tarfile.TarInfo("top/zeros")
        member.size = 10**7
        file.addfile(member, io.BytesIO(bytes(10**7)))
    for name in ("bomb.zip", "bomb.tgz"):
        with pytest.raises(DataError, match=r"holds 1 files of 10,000,000 bytes, at most"):
            unpack(tmp_path / name, tmp_path, "top")
    deflated(tmp_path / "a.zip")
    monkeypatch.setattr(download, "MOST_FILES", 0)
    with pytest.raises(DataError, match="is refused: it holds 1 files"):
        unpack(tmp_path / "a.zip", tmp_path, "top")
    assert len(list(tmp_path.iterdir())) == 3


def zipped(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("pack", [tar, zipped])
def test_an_archive_becomes_its_folder(pack: Any, tmp_path: Path) -> None:
    archive = pack(tmp_path / "a", ("top/x", b"1"), ("top/deep/y", b"2"))
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "old").write_text("of a half-finished attempt")
    top = unpack(archive, tmp_path, "top")
    assert top == tmp_path / "top"
    found = {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}
    assert found == {"x": b"1", os.path.join("deep", "y"): b"2"}
    assert files(tmp_path) == {"a", "top"}


@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize("name", ["../evil", "/evil", "top/../../evil", "..\\evil", "C:evil"])
def test_members_outside_of_the_folder_are_refused(pack: Any, name: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    archive = pack(tmp_path / "a", ("top/x", b"1"), (name, b"evil"))
    with pytest.raises(DataError, match="would leave the folder"):
        unpack(archive, inner, "top")
    assert files(inner) == set()
    assert files(tmp_path) == {"a", "inner"}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ((("top/x", b"1"), ("top/link", "/etc")), "top/link is a link"),
        ((("other/x", b"1"),), "holds no folder top"),
    ],
)
def test_links_and_other_folders_are_refused(members: Any, message: str, tmp_path: Path) -> None:
    archive = tar(tmp_path / "a", *members)
    with pytest.raises(DataError, match=message):
        unpack(archive, tmp_path, "top")
    assert files(tmp_path) == {"a"}


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_truncated_archive_leaves_nothing(pack: Any, tmp_path: Path) -> None:
    archive = pack(tmp_path / "a", ("top/x", os.urandom(50_000)), ("top/y", os.urandom(50_000)))
    archive.write_bytes(archive.read_bytes()[:60_000])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, tmp_path, "top")
    assert files(tmp_path) == {"a"}
