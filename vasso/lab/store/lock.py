"""Lock of a run: which process on which host trains it, how far it is, when it last said so.

The file `lock` names the holder. While the holder lives it writes the file again every second, with
its step: a sign of life that every host sees on a shared file system. `flock`, where the file
system has it, tells at once that a process of the same host has ended, however it ended.

A lock is taken over from a process of the same host that has ended, and from a process of another
host that has been silent for two minutes (`TAKEOVER`). A holder that finds the name of another in
its lock stops and writes nothing more. Where `flock` is missing or does not reach other hosts, two
processes may find a lock free in the same instant: each writes its name, waits, and looks whose
name is there.
"""

import errno
import fcntl
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from vasso.lab.schema import LabError
from vasso.lab.store.json import as_json, table_of

BEAT = 1.0
"""Seconds between two signs of life."""
TAKEOVER = 120.0
"""Seconds of silence after which a holder on another host counts as gone."""
SETTLE = 2.0
"""Seconds that a name has to stand in a lock that `flock` does not guard."""
_LENGTH = 512
"""Bytes of the file, always the same: it is written in place, and in one write."""
_HELD = {errno.EWOULDBLOCK, errno.EACCES}
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


class StoreError(LabError):
    """A store cannot be used as it is; the message names the remedy."""


class BusyError(StoreError):
    """Another process works on this run."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock since when (seconds of the epoch), and how far the run is.

    `first` is the step from which this process went on.
    """

    host: str = field(default_factory=lambda: socket.gethostname()[:100])
    process: int = field(default_factory=os.getpid)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    since: float = field(default_factory=time.time)
    first: int = 0
    step: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"


def holder_of(path: Path) -> tuple[Holder, float] | None:
    """The last holder of a lock and the time of its last sign of life; None if there is none."""
    try:
        with path.open("rb") as file:
            return _read(file.fileno())
    except OSError:
        return None


def _read(descriptor: int) -> tuple[Holder, float] | None:
    table = table_of(os.pread(descriptor, 2 * _LENGTH, 0))
    try:
        return (Holder(**table), os.fstat(descriptor).st_mtime) if table else None
    except TypeError:  # of another version
        return None


class RunLock:
    """A context in which this process holds the lock at a path; `what` is the id of the run.

    A lock that is held is waited for, so many seconds.
    """

    def __init__(self, path: Path, what: str, patience: float = 0.0) -> None:
        self.path, self.what, self.patience = path, what, patience
        self.holder = Holder()
        self._end, self._taken_by = threading.Event(), ""
        self._descriptor = -1

    def __enter__(self) -> Self:
        deadline = time.monotonic() + self.patience
        while (problem := self._try()) is not None:
            if time.monotonic() >= deadline:
                raise BusyError(problem)
            time.sleep(min(BEAT, max(deadline - time.monotonic(), 0.01)))
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
        if self._is_ours():
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def note(self, step: int, total: int) -> None:
        """Tells how far the run is; raises `BusyError` if another process has taken it over."""
        first = self.holder.first if self.holder.total else step
        self.holder = replace(self.holder, first=first, step=step, total=total)
        if self._taken_by:
            raise BusyError(self._taken_by)

    def check(self) -> None:
        """Raises `BusyError` if another process has taken the run over: look before writing."""
        if not self._is_ours():
            found = holder_of(self.path)
            taker = f"by {found[0]}" if found else "or its lock was removed"
            self._taken_by = (
                f"{self.what} was taken over {taker}, since {self.holder} had given no sign of "
                f"life for {TAKEOVER:.0f} s: this process writes nothing more"
            )
            raise BusyError(self._taken_by)

    def _try(self) -> str | None:
        """Takes the lock, or says why not."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        taken = False
        try:
            locked = _flock(descriptor)
            if not self._is_at_path(descriptor):  # its holder has just removed it
                return self._try()
            found = _read(descriptor)
            if problem := self._held_by(found, locked):
                return problem
            other_host = found is not None and found[0].host != self.holder.host
            if locked is False:
                descriptor = self._replaced(descriptor)
            self._write(descriptor)
            if locked is not True or other_host:
                time.sleep(SETTLE)
            self._descriptor = descriptor
            taken = self._is_ours()
            return None if taken else f"another process works on {self.what} already"
        finally:
            if not taken:
                os.close(descriptor)

    def _held_by(self, found: tuple[Holder, float] | None, locked: bool | None) -> str | None:
        """Why a lock cannot be taken: its holder lives, or may live."""
        if found is None:
            return f"a process works on {self.what} already" if locked is False else None
        holder, last = found
        silent = max(self._now() - last, 0.0)
        told = f"{holder} works on {self.what} already"
        if holder.host == self.holder.host:
            lives = locked is False or (
                locked is None and silent <= TAKEOVER and is_alive(holder.process)
            )
            return told if lives else None
        if silent > TAKEOVER:
            return None
        return (
            f"{told}: its last sign of life is {silent:.0f} s old. After {TAKEOVER:.0f} s of "
            "silence the run can be taken over"
        )

    def _now(self) -> float:
        """The time by the clock of the file system, which all hosts share."""
        probe = self.path.with_name(f".{self.path.name}.{self.holder.token}.tmp")
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, b"now")
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
            probe.unlink(missing_ok=True)

    def _replaced(self, descriptor: int) -> int:
        """A new file at the path: the host that has locked the old one is gone."""
        new = self.path.with_name(f".{self.path.name}.{self.holder.token}.tmp")
        fresh = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        _flock(fresh)
        os.replace(new, self.path)
        os.close(descriptor)
        return fresh

    def _write(self, descriptor: int) -> None:
        os.pwrite(descriptor, as_json(asdict(self.holder)).ljust(_LENGTH), 0)

    def _is_ours(self) -> bool:
        """Whether the file at the path is the one we have opened, and names us."""
        found = holder_of(self.path)
        named = found is not None and found[0].token == self.holder.token
        return named and self._is_at_path(self._descriptor)

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _beat(self) -> None:
        while not self._end.wait(BEAT):
            with suppress(BusyError, OSError):  # `note` raises it; a file system may be away
                self.check()
                self._write(self._descriptor)


def _flock(descriptor: int) -> bool | None:
    """Whether the file could be locked; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True


def is_alive(process: int) -> bool:
    """Whether there is a process of this number on this host."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
