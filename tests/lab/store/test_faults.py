"""Fault injection: whatever happens to a file of a store, no command gives a wrong result.

One file is changed, cut, gone, unreadable, or a directory. Then a command ends with the right
result, or with a sentence and another exit code than 0, and touches nothing else in the store.
"""

import errno
import io
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lab.calls import called
from tests.lab.runs import train_to
from tests.support import THOROUGH
from vasso.lab.cli.errors import FAILED
from vasso.lab.execution import pool
from vasso.lab.execution.job import Answer, Job, train_run
from vasso.lab.store.index import INDEX
from vasso.lab.store.json import table_in
from vasso.lab.store.run_directory import RunDirectory, StoreError
from vasso.lab.store.store import CHANGES, LINES, Store
from vasso.lab.studies import study as studies
from vasso.lab.studies.measurement_settings import Spread
from vasso.lab.studies.measurements import measure_spread
from vasso.lab.training.loop import train
from vasso.lab.training.options import RunOptions

STUDY = """
question = "Which is it?"
measure = "Hessian spectrum"
[cpu]
task = { train_size = 60, batch = 20, epochs = 2, width = 0.02, test_size = 20 }
measurement = { eigenvalues = 1, images = 20 }
[[cpu.grid]]
methods = [{ name = "SGD" }, { name = "VaSSO", rho = 0.1 }, { name = "SAM", rho = 0.1 }]
"""
CPU = RunOptions(accelerator="cpu", checkpoint_seconds=1e9)
SPREAD = Spread([1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0], [1.0], adversaries=3)
PROBE = "--only snr --batches 4 --batch-size 5 --accelerator cpu"
TIMES = ("seconds", "images_per_second", "time", "begun", "ended", "peak_memory", "store")


class PoolInThisProcess:
    """The code of the workers, without their processes."""

    interval = patience = 0.0

    def __init__(self, *given: Any) -> None:
        self.waiting: list[Job] = []

    def submit(self, job: Job) -> None:
        self.waiting.append(job)

    def answers(self) -> list[tuple[str, Answer]]:
        job = self.waiting.pop(0)
        return [(job.run.id, train_run(job))]

    def stop(self) -> None:
        self.waiting.clear()

    def close(self) -> None:
        assert not self.waiting


# -- the store, and what commands make of it -----------------------------------------------------
@dataclass(frozen=True)
class World:
    """A whole store, and a folder for copies of it."""

    store: Path
    place: Path

    @property
    def study(self) -> str:
        return str(self.place / "mine.toml")

    def copied(self) -> Path:
        """A copy to do harm to."""
        shutil.rmtree(self.place / "out", ignore_errors=True)
        (self.place / "out").mkdir()
        shutil.rmtree(self.place / "copy", ignore_errors=True)
        return Path(shutil.copytree(self.store, self.place / "copy"))

    def words(self, command: str) -> list[str]:
        store, out = str(self.place / "copy"), str(self.place / "out")
        probed = next(self.store.glob("*vasso*")).name
        page = ["-o", f"{out}/page.html"] if THOROUGH else []
        only = [] if THOROUGH else ["--study", self.study]
        return {
            "report": ["report", store, *only, "--json", f"{out}/all.json", *page],
            "export": ["export", store, out, *only],
            "list": ["study", self.study, "--dry-run", "--store", store],
            "study": ["study", self.study, "--store", store, "--accelerator", "cpu"],
            "probe": ["probe", probed, "--store", store, "--out", out, *PROBE.split()],
        }[command]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two finished runs, measured and probed, and one that was stopped, with two checkpoints."""
    place = tmp_path_factory.mktemp("faults")
    found = World(place / "store", place)
    (place / "mine.toml").write_text(STUDY)
    plain, vasso, sam = studies.load(found.study).at("cpu").runs
    store = Store(found.store)
    for run in (plain, vasso):
        train(run, store, CPU)
    train_to(sam, store, 2, 4, options=CPU)
    measure_spread(SPREAD, store)
    shutil.copytree(found.store, place / "copy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "WorkerPool", PoolInThisProcess)
        assert outcome_of(found, "study").code == 0  # for the measurements
        for run in (plain, vasso):
            shutil.copy(place / "copy" / run.id / "spectrum.json", found.store / run.id)
        found.copied()
        assert outcome_of(found, "probe").code == 0
        shutil.copytree(place / "out", found.store / vasso.id / "probe")
        yield found


@dataclass(frozen=True)
class Ended:
    """How a command has ended: exit code, what it said, and what it has made."""

    code: int
    said: str
    made: Any


def outcome_of(world: World, command: str) -> Ended:
    """Calls a command on the copy."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged checkpoint is told by a warning
        code = called(*world.words(command))
    return Ended(code, err.getvalue(), MADE[command](world, out.getvalue()) if code == 0 else None)


def _report(world: World, out: str) -> Any:
    return without_times(json.loads((world.place / "out" / "all.json").read_text()))


def _export(world: World, out: str) -> Any:
    files = sorted(world.place.glob("out/*/*"))
    return without_times([json.loads(x) for path in files for x in path.read_text().splitlines()])


def _study(world: World, out: str) -> Any:
    """Weights, results and measurements of all runs."""
    store, found = Store(world.place / "copy"), {}
    for run in studies.load(world.study).at("cpu").runs:
        folder = store.folder(run.id)
        found[run.id] = folder.result and without_times(folder.result), _weights(folder)
    return found


def _weights(folder: RunDirectory) -> Any:
    """The weights, if there are any that can be used."""
    try:
        kept = folder.load("weights.pt")
    except (StoreError, OSError):
        return None
    return kept and {name: value.tolist() for name, value in kept["model"].items()}


def _probe(world: World, out: str) -> Any:
    return without_times(table_in(world.place / "out" / "probe.json"))


MADE: dict[str, Callable[[World, str], Any]] = {
    "report": _report,
    "export": _export,
    "list": lambda world, out: out,
    "study": _study,
    "probe": _probe,
}
COMMANDS = tuple(MADE)


def without_times(value: Any) -> Any:
    """A table without what differs from one training to the next."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def content(store: Path) -> dict[str, bytes]:
    """Every file of a store, and every directory as no bytes."""
    there = sorted(store.rglob("*"))
    return {str(p.relative_to(store)): p.read_bytes() if p.is_file() else b"" for p in there}


# -- faults ----------------------------------------------------------------------------------------
@contextmanager
def unreadable(path: Path, code: int) -> Iterator[None]:
    """No program can open a file, as with a wrong owner or on a broken disk."""

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(name: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(name, int) and os.fspath(name) == str(path):
                raise OSError(code, os.strerror(code), str(path))
            return function(name, *arguments, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", guarded(io.open))
        patch.setattr(os, "open", guarded(os.open))
        yield


UNREADABLE = {"denied": errno.EACCES, "broken disk": errno.EIO}
KINDS = ("flipped", "cut", "gone", "directory", "link", *UNREADABLE)


def harm(kind: str, path: Path, where: float, mask: int) -> None:
    """Does what stays in the file system."""
    whole = path.read_bytes()
    at = min(int(where * len(whole)), len(whole) - 1)
    if kind not in UNREADABLE:
        path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "cut":
        path.write_bytes(whole[:at])
    elif kind == "flipped":
        path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])


def files_of(world: World) -> list[str]:
    return sorted(name for name, held in content(world.store).items() if held)


@pytest.fixture(scope="module")
def known(world: World) -> Callable[[str, str], list[Any]]:
    """What a command makes of the whole store, and of one without a file."""
    cache: dict[tuple[str, str], Ended] = {}

    def made_without(command: str, name: str) -> Ended:
        if (command, name) not in cache:
            copy = world.copied()
            if name:
                (copy / name).unlink()
            cache[command, name] = outcome_of(world, command)
        return cache[command, name]

    def right(command: str, name: str) -> list[Any]:
        ends = [made_without(command, ""), made_without(command, name)]
        assert ends[0].code == 0, ends[0].said
        return [end.made for end in ends if end.code == 0]

    return right


def check(world: World, known: Any, command: str, name: str, kind: str, at: float, by: int) -> None:
    """The promise of this module for one fault."""
    right = known(command, name)
    copy = world.copied()
    harm(kind, copy / name, at, by)
    before = content(copy)
    with unreadable(copy / name, UNREADABLE[kind]) if kind in UNREADABLE else nullcontext():
        end = outcome_of(world, command)
    after = content(copy)
    assert end.code in (0, 1, 2)
    assert "Traceback" not in end.said, end.said
    assert "not foreseen" not in end.said, end.said
    if end.code == 0:
        assert end.made in right
    else:
        assert "vasso: " in end.said or "could not be read: " in end.said or "left" in end.said
    changed = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
    trained = {Path(name).parts[0], next(copy.glob("*sam*")).name, INDEX}
    trained = trained if command == "study" else set()
    assert {n for n in changed if Path(n).parts[0] not in trained} <= set()


def is_read(command: str, name: str) -> bool:
    """Whether a fault in a file can matter to a command."""
    if command == "probe":
        return "vasso" in name or name == "store.json"
    return command == "study" or not name.endswith(".pt")


@pytest.mark.parametrize("at", [0.3, 0.5, 0.7])
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("study", "*sam*/checkpoint.pt"),
        ("probe", "*vasso*/weights.pt"),
        ("report", "*/result.json"),
    ],
)
def test_a_changed_byte_of_what_counts_is_never_used(
    world: World, known: Any, command: str, name: str, at: float
) -> None:
    found = next(world.store.glob(name)).relative_to(world.store)
    check(world, known, command, str(found), "flipped", at, 64)


@settings(
    max_examples=500 if THOROUGH else 100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_a_fault_in_any_file_never_gives_a_wrong_result(
    world: World, known: Any, data: st.DataObject
) -> None:
    pairs = [(c, n) for c in COMMANDS for n in files_of(world) if THOROUGH or is_read(c, n)]
    command, name = data.draw(st.sampled_from(pairs), "command and file")
    kind = data.draw(st.sampled_from(KINDS), "fault")
    at = data.draw(st.floats(0, 1), "at") if kind in ("cut", "flipped") else 0.0
    by = data.draw(st.integers(1, 255), "xor") if kind == "flipped" else 0
    check(world, known, command, name, kind, at, by)


@pytest.mark.parametrize("command", ["report", "export", "list", "probe"])
def test_what_only_reads_a_store_does_not_write_its_format(
    world: World, known: Any, command: str
) -> None:
    check(world, known, command, "store.json", "gone", 0.0, 0)


@pytest.mark.parametrize("name", ["store.json", CHANGES, LINES])
@pytest.mark.parametrize("kind", ["flipped", "directory", *UNREADABLE])
def test_a_damaged_file_of_the_whole_store_hides_no_run(
    world: World, known: Any, name: str, kind: str
) -> None:
    whole = known("report", "")[0]
    path = world.copied() / name
    if not path.exists():
        path.write_bytes(b"{}\n")
    harm(kind, path, 0.5, 64)
    with unreadable(path, UNREADABLE[kind]) if kind in UNREADABLE else nullcontext():
        end = outcome_of(world, "report")
    assert end.code == FAILED
    assert f"could not be read: {name}" in end.said
    shown = _report(world, "")
    assert shown["runs"] == whole["runs"]
    assert shown["studies"] == whole["studies"]


def test_a_damaged_measurement_is_told_and_the_exit_code_says_so(world: World) -> None:
    harm("cut", next(world.copied().glob("*vasso*/spectrum.json")), 0.5, 0)
    end = outcome_of(world, "study")
    assert end.code == 1
    assert "vasso: not measured: " in end.said
