"""The index of a store: finished runs are not read again, and the folders are always right."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.calls import called
from tests.lab.stores import as_store, rewritten, runs_of, trained
from vasso.lab.store.index import INDEX
from vasso.lab.store.run_directory import RunDirectory
from vasso.lab.store.store import RunStatus, Store, run_status

RUNS = runs_of("noisy-digits", seeds=2)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """All runs but the last are finished, and the index knows them."""
    made = as_store(tmp_path / "runs", map(trained, RUNS[:-1]))
    look_up(made)
    return made


def look_up(store: Store) -> RunStatus:
    return run_status(RUNS, store, results=False)


def test_finished_runs_are_not_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    result_of = RunDirectory.result_of

    def noted(self: RunDirectory, run: dict[str, object]) -> object:
        read.append(self.id)
        return result_of(self, run)

    monkeypatch.setattr(RunDirectory, "result_of", noted)
    found = look_up(store)
    assert (list(found.done), found.missing) == (RUNS[:-1], RUNS[-1:])
    assert read == [RUNS[-1].id]
    assert list(run_status(RUNS, store).done.values()) == [
        store.folder(run.id).result for run in RUNS[:-1]
    ]


def remove(folder: Path) -> None:
    (folder / "result.json").unlink()


def damage(folder: Path) -> None:
    path = folder / "result.json"
    path.write_bytes(path.read_bytes().replace(b"cost", b"tsoc"))


def change(folder: Path) -> None:
    other = RUNS[0].changed({"epochs": 3})
    rewritten(folder / "run.json", run=other.in_full())


@pytest.mark.parametrize(
    ("touch", "status"), [(remove, "missing"), (damage, "unread"), (change, "unread")]
)
def test_the_folders_are_right(store: Store, touch: Callable[[Path], None], status: str) -> None:
    touch(store.root / RUNS[0].id)
    assert look_up(store).status_of(RUNS[0]) == status
    assert look_up(store).status_of(RUNS[1]) == "done"


@pytest.mark.parametrize("content", [None, b"", b"{}", b"{", b'{"vasso": "0", "runs": 3}'])
def test_an_index_that_is_gone_or_damaged_is_made_again(
    store: Store, content: bytes | None
) -> None:
    path = store.root / INDEX
    before = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert list(look_up(store).done) == RUNS[:-1]
    assert path.read_bytes() == before


def test_an_index_of_another_version_is_not_used(store: Store) -> None:
    path = store.root / INDEX
    rewritten(path, vasso="0.0.1")
    (store.root / RUNS[0].id / "result.json").unlink()
    assert look_up(store).status_of(RUNS[0]) == "missing"
    assert json.loads(path.read_bytes())["vasso"] != "0.0.1"


def test_the_status_of_a_store_reads_no_finished_run(
    store: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunDirectory, "result", property(lambda self: pytest.fail(self.id)))
    assert called("status", str(store.root)) == 0
    assert f"{len(RUNS) - 1} done" in capfd.readouterr().err


def test_what_is_only_read_gets_no_index(tmp_path: Path) -> None:
    made = as_store(tmp_path / "runs", [trained(RUNS[0])])
    look_up(Store(made.root, writes=False))
    assert not (made.root / INDEX).exists()
