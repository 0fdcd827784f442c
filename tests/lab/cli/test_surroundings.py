"""What surrounds the command: streams, encodings, paths, full disks, processes that are killed.

It ends with a sentence; a traceback is for errors that nobody has foreseen, and says so.
"""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.lab.calls import Command, called
from tests.lab.runs import on_digits
from tests.lab.store.test_store import limited_files
from tests.lab.stores import as_store, trained
from vasso.lab.cli import main
from vasso.lab.cli.errors import FAILED, USAGE_ERROR
from vasso.lab.cli.study import report_outcome
from vasso.lab.execution import pool
from vasso.lab.execution.engine import Outcome
from vasso.lab.execution.job import Job
from vasso.lab.execution.pool import WorkerPool
from vasso.lab.schema import UNEXPECTED, LabError
from vasso.lab.store.store import Store
from vasso.lab.training.options import RunOptions


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one run of three seeds."""
    return as_store(
        tmp_path / "runs", (trained(on_digits({"name": "SGD"}, s)) for s in range(3))
    ).root


# -- streams ---------------------------------------------------------------------------------------
def in_a_shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a line of bash does, in which VASSO is the command."""
    words = f"{sys.executable} -m vasso.lab"
    return subprocess.run(
        ["bash", "-c", line.replace("VASSO", words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_a_standard_output_that_is_closed_or_full_is_told_in_a_sentence() -> None:
    closed = in_a_shell("VASSO list >&-")
    assert (closed.returncode, closed.stderr) == (
        USAGE_ERROR,
        "vasso: standard output is closed: send it to a file, or to /dev/null\n",
    )
    full = in_a_shell("VASSO list > /dev/full")
    assert (full.returncode, full.stderr.count("\n")) == (FAILED, 1)
    assert "No space left on device" in full.stderr
    assert in_a_shell("VASSO list studys >&- 2>&-").returncode == USAGE_ERROR


def test_a_terminal_that_knows_ascii_alone_gets_escapes(store: Path) -> None:
    done = in_a_shell(f"VASSO report {store} --table", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u03c1" in done.stdout


@pytest.mark.parametrize("module", ["vasso.lab", "vasso.lab.cli.main"])
def test_every_module_that_looks_like_the_command_is_the_command(module: str) -> None:
    done = in_a_shell(f"{sys.executable} -m {module} trian")
    assert done.returncode == USAGE_ERROR
    assert "Did you mean 'train'?" in done.stderr


def test_a_path_that_is_not_utf8_is_read_and_told(store: Path, command: Command) -> None:
    odd = store.rename(store.parent / "r\udcffns")
    page = command("report", odd, "-o", store.parent / "p\udcff.html")
    assert "r\\udcffns" in (store.parent / "p\udcff.html").read_text()
    assert "Traceback" not in page.err
    said = command("report", "/nowhere\udcff", code=FAILED).err
    assert said.startswith("vasso: /nowhere\\udcff is not there")


# -- outputs ---------------------------------------------------------------------------------------
def test_what_is_no_file_is_written_to_and_not_replaced(store: Path, command: Command) -> None:
    pipe, link, page = (store.parent / name for name in ("pipe", "link.html", "page.html"))
    os.mkfifo(pipe)
    link.symlink_to(page)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    command("report", store, "-o", pipe)
    reader.join()
    assert pipe.is_fifo()
    command("report", store, "-o", link)
    assert link.is_symlink()
    assert read[0].startswith("<!DOCTYPE html>")
    assert page.read_text()[:1000] == read[0][:1000]
    command("report", store, "-o", "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_a_report_makes_no_folders(store: Path, command: Command) -> None:
    for flag in ("-o", "--json"):
        said = command("report", store, flag, store / "new" / "x", code=USAGE_ERROR).err
        assert f"create it (mkdir -p {store}/new)" in said
        assert "name a file in it" in command("report", store, flag, store, code=USAGE_ERROR).err
    assert not (store / "new").exists()


@pytest.mark.parametrize(
    "name", ["store.json", "*/result.json", "*/probe/x.json", "runs.jsonl", "index.json"]
)
def test_a_report_replaces_no_file_of_a_store(name: str, store: Path, command: Command) -> None:
    for made in ("runs.jsonl", "index.json"):
        (store / made).touch()
    for run in store.glob("*-s0-*"):
        (run / "probe").mkdir()
        (run / "probe" / "x.json").touch()
    path = next(store.glob(name))
    before = path.read_bytes()
    for flag in ("-o", "--json"):
        said = command("report", store, flag, path, code=USAGE_ERROR).err
        assert "is a place for files of a store" in said
    assert path.read_bytes() == before
    command("report", store, "-o", store / "page.html")


def test_a_page_and_its_numbers_are_two_files(store: Path, command: Command) -> None:
    page = store.parent / "page.html"
    said = command("report", store, "-o", page, "--json", page, code=USAGE_ERROR).err
    assert "name two files" in said
    assert not page.exists()


def test_a_disk_that_fills_up_during_a_report_has_no_checkpoints(
    store: Path, command: Command
) -> None:
    with limited_files(1000):
        said = command("report", store, "-o", store.parent / "page.html", code=FAILED).err
    assert "no room left to write page.html" in said
    assert "checkpoint" not in said
    assert not list(store.parent.glob("*page*"))


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """A file system that cannot be written, for root too, as far as we can tell."""

    def guarded(function: Any, writes: Any) -> Any:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            inside = not isinstance(path, int) and Path(os.fsdecode(path)).is_relative_to(root)
            if inside and writes(*arguments):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fsdecode(path))
            return function(path, *arguments, **options)

        return call

    access = os.access
    with pytest.MonkeyPatch.context() as patch:
        changing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        patch.setattr(os, "open", guarded(os.open, lambda flags, *_: flags & changing))
        for name in ("mkdir", "unlink", "rename", "replace"):
            patch.setattr(os, name, guarded(getattr(os, name), lambda *_: True))
        patch.setattr(os, "access", lambda p, mode: not mode & os.W_OK and access(p, mode))
        yield


def test_a_store_that_cannot_be_written_is_reported_and_probed(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command("train --train-size 100 --batch 20 --epochs 1 --width 0.02 --accelerator cpu")
    (folder,) = Store(tmp_path / "runs").folders()
    (tmp_path / "runs" / "store.json").unlink()
    probe = f"probe {folder.id} --only snr --batches 4 --batch-size 5 --accelerator cpu"
    with read_only(tmp_path / "runs"):
        command("report runs -o page.html")
        said = command(probe)
    assert "cannot be written: the probe is not put there" in said.err
    assert (tmp_path / "probes" / folder.id / "probe.json").is_file()


def test_slopes_that_cannot_warm_up_are_told_before_anything_is_measured(
    tmp_path: Path, command: Command
) -> None:
    words = "train --train-size 100 --batch 20 --epochs 1 --width 0.02 --accelerator cpu --store"
    command(words, tmp_path)
    (folder,) = Store(tmp_path).folders()
    for thetas, output in (
        ("0.1", "theta 0.1 is left out: its slope needs more than 36 batches, there are 32: give"),
        ("1e-320", "theta 1e-320 is too small"),
    ):
        probe = f"probe {folder.path} --thetas {thetas} --quick --batch-size 5 --accelerator cpu"
        assert output in command(probe, code=USAGE_ERROR).err
    assert not (folder.path / "probe").exists()


# -- processes, and errors that nobody has foreseen -----------------------------------------------
def test_a_worker_that_is_killed_while_it_starts_costs_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = WorkerPool._start_worker

    def killed(self: WorkerPool) -> pool.Worker:
        worker = start(self)
        worker.process.kill()
        worker.process.join()
        return worker

    monkeypatch.setattr(WorkerPool, "_start_worker", killed)
    words = ("noisy-digits", "--only", "sgd", "--seeds", "0", "1", "--accelerator", "cpu")
    assert called("study", *words, "--store", str(tmp_path)) == FAILED
    said = capsys.readouterr().err
    assert said.count("its process ended with code -9 (killed? memory?); attempt 2 of 3") == 2
    assert said.count("failed: 3 attempts, the last: its process ended with code -9") == 2
    assert "2 of 2 runs are left" in said
    assert "Traceback" not in said


def test_processes_that_cannot_be_started_are_told(tmp_path: Path) -> None:
    def refuse() -> None:
        raise EOFError("unexpected EOF")

    workers = WorkerPool(1)
    workers.context.Process.start = lambda self: refuse()
    workers.submit(Job(on_digits({"name": "SGD"}).as_table(), tmp_path, RunOptions()))
    try:
        with pytest.raises(LabError, match=r"could not be started .*Give the same command again"):
            workers.answers()
    finally:
        del workers.context.Process.start


@pytest.mark.parametrize("how", ["busy", "stopped", "failed"])
def test_the_exit_code_says_what_the_sentence_says(how: str) -> None:
    """Of two commands on one store, one leaves the runs that the other trains."""
    run = on_digits({"name": "SGD"})
    left: Any = {"busy": [run], "failed": [(run, "why")], "stopped": True}[how]
    assert report_outcome(Outcome(**{how: left}), 1) != 0
    assert report_outcome(Outcome(done=[run]), 1) == 0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("lost"), f"vasso: {UNEXPECTED}\n"),
        (MemoryError(), "vasso: not enough memory (): choose a smaller model or batch"),
        (torch.OutOfMemoryError("CUDA out of memory"), "vasso: not enough memory (CUDA out of"),
    ],
)
def test_a_traceback_is_for_what_nobody_has_foreseen(
    error: Exception,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(main, "run_command", fail)
    assert called("list") == FAILED
    said = capsys.readouterr().err
    assert message in said
    assert ("Traceback" in said) == isinstance(error, KeyError)
