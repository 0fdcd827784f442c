"""Locks of runs on shared file systems: two hosts are two processes with different host names.

On one machine `flock` reaches all processes. So it is made to reach none, or to be missing, as on
file systems of several hosts.
"""

import errno
import fcntl
import multiprocessing
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.execution.grid import until
from vasso.lab.store import lock
from vasso.lab.store.lock import BusyError, Holder, RunLock, holder_of

FORKED = multiprocessing.get_context("forkserver")


def local(descriptor: int, operation: int) -> None:
    """Locks that no other host sees."""


def missing(descriptor: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


FLOCKS: dict[str, Callable[[int, int], None]] = {
    "whole": fcntl.flock,
    "local": local,
    "missing": missing,
}


def set_up(host: str, flock: str) -> None:
    socket.gethostname = lambda: host
    fcntl.flock = FLOCKS[flock]
    lock.BEAT, lock.TAKEOVER, lock.SETTLE = 0.1, 2.0, 0.3


def hold(path: Path, host: str, flock: str, line: Any) -> None:
    """Holds a lock as a host until told to end; tells of what goes wrong."""
    set_up(host, flock)
    try:
        with RunLock(path, "the-run") as held:
            held.note(7, 10)
            line.send("held")
            held.note(8, 10)
            while line.poll(0.05) is False:
                held.note(8, 10)
    except BusyError as error:
        line.send(str(error))


class Host:
    """A process that holds a lock."""

    def __init__(self, path: Path, name: str, flock: str) -> None:
        self.line, theirs = FORKED.Pipe()
        self.process = FORKED.Process(target=hold, args=(path, name, flock, theirs))
        self.process.start()
        theirs.close()

    def said(self) -> str:
        assert self.line.poll(60), "it says nothing"
        return str(self.line.recv())

    def end(self) -> None:
        self.line.send("end")
        self.process.join(60)
        assert self.process.exitcode == 0


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """This process as a host."""
    for module, name in ((socket, "gethostname"), (fcntl, "flock")):
        monkeypatch.setattr(module, name, getattr(module, name))
    for name in ("BEAT", "TAKEOVER", "SETTLE"):
        monkeypatch.setattr(lock, name, getattr(lock, name))
    return set_up


def who_holds(path: Path) -> Holder:
    found = holder_of(path)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("flock", FLOCKS)
def test_no_host_gets_what_another_holds_and_a_clean_end_frees_it_at_once(
    tmp_path: Path, here: Callable[[str, str], None], flock: str
) -> None:
    here("b", flock)
    other = Host(tmp_path / "lock", "a", flock)
    assert other.said() == "held"
    told = f"process {other.process.pid} on a works on the-run already: its last sign of life is"
    with pytest.raises(BusyError, match=told):
        RunLock(tmp_path / "lock", "the-run").__enter__()
    found = until(lambda: (f := holder_of(tmp_path / "lock")) and f[0].total and f[0])
    assert (found.host, found.first, found.step, found.total) == ("a", 7, 8, 10)
    other.end()
    assert not (tmp_path / "lock").exists()
    with RunLock(tmp_path / "lock", "the-run"):
        assert who_holds(tmp_path / "lock").host == "b"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flock", FLOCKS)
def test_a_lock_that_outlives_its_host_is_taken_over_and_its_holder_writes_nothing_more(
    tmp_path: Path, here: Callable[[str, str], None], flock: str
) -> None:
    here("b", flock)
    other = Host(tmp_path / "lock", "a", flock)
    assert other.said() == "held"
    assert other.process.pid is not None
    os.kill(other.process.pid, signal.SIGSTOP)  # as a host that has lost its network
    with RunLock(tmp_path / "lock", "the-run", patience=30) as mine:
        mine.check()
        os.kill(other.process.pid, signal.SIGCONT)
        said = other.said()
        assert re.match(rf"the-run was taken over by process {os.getpid()} on b, since", said)
        other.process.join(60)
        mine.check()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flock", ["whole", "missing"])
def test_a_process_of_this_host_that_was_killed_frees_its_run_at_once(
    tmp_path: Path, here: Callable[[str, str], None], flock: str
) -> None:
    here("a", flock)
    other = Host(tmp_path / "lock", "a", flock)
    assert other.said() == "held"
    told = f"process {other.process.pid} on a works on the-run already$"
    with pytest.raises(BusyError, match=told):
        RunLock(tmp_path / "lock", "the-run").__enter__()
    other.process.kill()
    other.process.join()
    with RunLock(tmp_path / "lock", "the-run"):
        assert who_holds(tmp_path / "lock").process == os.getpid()


@pytest.mark.parametrize("flock", ["local", "missing"])
def test_of_two_hosts_that_find_a_lock_free_one_gets_it(tmp_path: Path, flock: str) -> None:
    hosts = [Host(tmp_path / "lock", name, flock) for name in ("a", "b")]
    said = [host.said() for host in hosts]
    for host, word in zip(hosts, said, strict=True):
        if word == "held" and host.line.poll(1.0):  # it has found the other's name since
            said[hosts.index(host)] = host.said()
    assert said.count("held") == 1, said
    hosts[said.index("held")].end()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_holder_is_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of(path) is None
    for content in (b"", b"process 3 on host", b'{"host": "a"}'):
        path.write_bytes(content)
        assert holder_of(path) is None
    with RunLock(path, "the-run") as held:
        assert who_holds(path) == held.holder
    assert str(Holder("h", 3)) == "process 3 on h"
