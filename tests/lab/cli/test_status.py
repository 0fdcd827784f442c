"""`vasso status`: of each run what it is, by its files alone."""

import os
import socket
import time
from pathlib import Path

import pytest

from tests.lab.calls import Command
from tests.lab.runs import on_digits, train_to
from tests.lab.stores import as_store, trained
from vasso.lab.cli.errors import FAILED, USAGE_ERROR
from vasso.lab.cli.status import RunState, rest
from vasso.lab.store.lock import TAKEOVER, RunLock
from vasso.lab.store.store import Store


def test_each_run_is_told_by_its_state(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [on_digits({"name": "SGD"}, seed) for seed in range(5)]
    store = as_store(tmp_path, [trained(runs[0])])
    as_store(tmp_path / "begun", [trained(run, finished=False) for run in runs[1:4]])
    for run in runs[1:4]:
        (tmp_path / "begun" / run.id).rename(tmp_path / run.id)
    train_to(runs[4], store, 3)
    store.folder(runs[2].id).note_failure("RuntimeError: it broke\nand more")
    monkeypatch.setattr(socket, "gethostname", lambda: "far")
    with RunLock(tmp_path / runs[1].id / "lock", "a") as lock:
        lock.note(10, 100)
        lock.note(60, 100)
        lock._write(lock._descriptor)
        monkeypatch.undo()
        said = command(f"status {tmp_path}", code=FAILED)
    lines = {line.split()[1]: line for line in said.out.splitlines()}
    assert set(lines) == {run.id for run in runs[1:]}
    assert f"process {os.getpid()} on far, step 60 of 100, 0 s left" in lines[runs[1].id]
    assert lines[runs[2].id].endswith("RuntimeError: it broke")
    assert lines[runs[3].id].endswith("no checkpoint")
    assert lines[runs[4].id].endswith("a checkpoint holds it")
    kinds = [lines[run.id].split()[0] for run in runs[1:]]
    assert kinds == ["running", "failed", "stopped", "stopped"]
    assert "1 done, 1 running, 2 stopped, 1 failed" in said.err


def test_a_holder_that_is_silent_for_long_is_gone(tmp_path: Path, command: Command) -> None:
    run = on_digits({"name": "SGD"})
    store = as_store(tmp_path, [trained(run, finished=False)])
    path = store.folder(run.id).path / "lock"
    with pytest.MonkeyPatch.context() as patch, RunLock(path, "a") as lock:
        patch.setattr(lock, "holder", type(lock.holder)(host="far", process=7, step=9))
        lock._end.set()
        lock._thread.join()
        lock._write(lock._descriptor)
        long_ago = time.time() - TAKEOVER - 1
        os.utime(path, (long_ago, long_ago))
        said = command(f"status {tmp_path}").out
    assert "process 7 on far ended without a word at step 9; no checkpoint" in said


def test_runs_of_a_study_that_are_not_begun_are_counted(tmp_path: Path, command: Command) -> None:
    Store(tmp_path)
    assert "0 done, 30 not begun" in command(f"status {tmp_path} --study noisy-digits").err
    assert "is not there" in command("status nowhere", code=USAGE_ERROR).err


def test_the_rest_is_what_is_left_over_the_runs_that_train() -> None:
    states = [RunState("a", "done", seconds=100.0), RunState("b", "running", seconds=40.0)]
    assert rest(states, missing=0) == 40.0
    assert rest(states, missing=3) == 340.0
    assert rest([*states, RunState("c", "running", seconds=60.0)], missing=3) == 200.0
    assert rest(states[1:], missing=1) is None
    assert rest(states[:1], missing=1) is None
