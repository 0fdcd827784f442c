"""The store: whole after every crash, closed to everything outside of it."""

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.lab.data.evil import Evil
from vasso.lab.report.read import PackedEpochs
from vasso.lab.store import atomic
from vasso.lab.store.atomic import DiskFullError
from vasso.lab.store.json import as_json
from vasso.lab.store.run_directory import FORMAT, DamagedError, RunDirectory, StoreError
from vasso.lab.store.store import Store


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Files may not grow beyond a size, as on a disk that fills up."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    place = Store(tmp_path / "store").folder("digits-mlp-sgd-s0-0123456789")
    place.path.mkdir()
    return place


def test_a_file_that_cannot_be_written_whole_is_the_old_file(folder: RunDirectory) -> None:
    path = folder.path / "run.json"
    atomic.replace(path, b"old")
    with limited_files(8), pytest.raises(DiskFullError, match=r"no room left to write run\.json"):
        atomic.replace(path, b"much longer than eight bytes")
    assert path.read_bytes() == b"old"
    assert [p.name for p in folder.path.iterdir()] == ["run.json"]


def test_a_path_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    for path, kind in [(tmp_path, IsADirectoryError), (Path("/proc/x.html"), FileNotFoundError)]:
        with pytest.raises(kind) as result:
            atomic.replace(path, b"new")
        assert result.value.filename == str(path)
    with pytest.raises(IsADirectoryError) as result:
        atomic.append_line(tmp_path, "new")
    assert result.value.filename == str(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_line_that_does_not_fit_leaves_the_lines_before_it(folder: RunDirectory) -> None:
    folder.append({"kind": "epoch", "step": 1})
    size = (folder.path / "metrics.jsonl").stat().st_size
    with limited_files(size + 5), pytest.raises(DiskFullError, match="nothing written before"):
        folder.append({"kind": "epoch", "step": 2})
    assert (folder.path / "metrics.jsonl").stat().st_size == size
    folder.append({"kind": "epoch", "step": 2})
    assert [line["step"] for line in folder.metrics()] == [1, 2]


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(folder: RunDirectory) -> None:
    folder.save("checkpoint.pt", {"step": 1, "w": torch.ones(3)})
    with limited_files(1000), pytest.raises(DiskFullError):
        folder.save("checkpoint.pt", {"step": 2, "w": torch.ones(30000)})
    state = folder.load("checkpoint.pt")
    assert state is not None
    assert state["step"] == 1


def test_a_torn_line_is_passed_over_and_what_follows_is_kept(folder: RunDirectory) -> None:
    folder.append({"kind": "epoch", "step": 1})
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "epoch", "st')
    assert [line["step"] for line in folder.metrics()] == [1]
    folder.append({"kind": "epoch", "step": 2})
    assert [line["step"] for line in folder.metrics()] == [1, 2]


def test_a_line_written_again_after_a_crash_counts_once(folder: RunDirectory) -> None:
    for seconds in (1.0, 2.0):
        folder.append({"kind": "start", "step": 0})
        folder.append({"kind": "epoch", "step": 5, "seconds": seconds})
    assert [line["seconds"] for line in folder.metrics("epoch")] == [2.0]
    assert len(folder.metrics("start")) == 2


def test_numbers_that_json_does_not_have_are_null(folder: RunDirectory) -> None:
    folder.append({"kind": "epoch", "step": 1, "loss": float("nan"), "all": [float("inf"), 1.0]})
    assert folder.metrics() == [{"kind": "epoch", "step": 1, "loss": None, "all": [None, 1.0]}]


def test_leftovers_of_a_killed_process_are_swept_up(folder: RunDirectory) -> None:
    leftover = folder.path / ".checkpoint.pt.123.tmp"
    leftover.write_bytes(b"half a checkpoint")
    with folder.locked():
        assert not leftover.exists()


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    Store(tmp_path)
    newer = as_json({"format": FORMAT + 1})
    (tmp_path / "store.json").write_bytes(newer)
    with pytest.raises(StoreError, match="update vasso, or name another store"):
        Store(tmp_path)
    assert (tmp_path / "store.json").read_bytes() == newer


def test_stores_may_lie_within_a_store(tmp_path: Path) -> None:
    """As that of `vasso demo`; beside it, other things still are a reason to keep away."""
    Store(tmp_path / "demo")
    (tmp_path / "thesis.tex").write_text("precious")
    message = r"holds other things \(thesis\.tex, .* or a new directory by --store"
    with pytest.raises(StoreError, match=message):
        Store(tmp_path)
    with pytest.raises(StoreError, match="is a file"):
        Store(tmp_path / "thesis.tex")
    (tmp_path / "thesis.tex").unlink()
    assert Store(tmp_path).folders() == []
    assert (tmp_path / "store.json").is_file()


@pytest.mark.parametrize("name", ["../outside", "/etc", "", ".", "..", "a/b", "<script>", "a\n"])
def test_an_id_cannot_lead_out_of_the_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="is not the id of a run"):
        Store(tmp_path).folder(name)


def test_links_cannot_lead_out_of_the_store(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "run.json").write_text("{}")
    store = Store(tmp_path / "store")
    (store.root / "link").symlink_to(outside)
    with pytest.raises(StoreError, match="leads out of the store"):
        store.folder("link")
    assert store.folders() == []
    inner = store.folder("inner")
    inner.path.mkdir()
    (inner.path / "metrics.jsonl").symlink_to(outside / "run.json")
    with pytest.raises(StoreError, match="is a link"):
        inner.append({"kind": "epoch"})
    assert (outside / "run.json").read_text() == "{}"


def test_a_checkpoint_is_data_and_is_never_run(folder: RunDirectory, tmp_path: Path) -> None:
    folder.save("checkpoint.pt", {"step": Evil(tmp_path / "pwned")})
    with pytest.raises(StoreError, match="holds more than tensors"):
        folder.load("checkpoint.pt")
    assert not (tmp_path / "pwned").exists()


def test_a_truncated_checkpoint_is_an_error_that_says_what_to_do(folder: RunDirectory) -> None:
    folder.save("checkpoint.pt", {"w": torch.ones(100)})
    whole = (folder.path / "checkpoint.pt").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:50] + b"\xff" + whole[51:]):
        (folder.path / "checkpoint.pt").write_bytes(damaged)
        with pytest.raises(DamagedError, match=f"Remove the folder {folder.path} to begin the run"):
            folder.load("checkpoint.pt")


def test_settings_are_written_once_and_not_for_another_run(folder: RunDirectory) -> None:
    folder.write_settings({"run": {"seed": 0}, "begun": "then"})
    folder.write_settings({"run": {"seed": 0}, "begun": "now"})
    assert folder.settings["begun"] == "then"
    with pytest.raises(StoreError, match="holds other settings"):
        folder.write_settings({"run": {"seed": 1}})


def test_a_run_that_an_earlier_version_has_begun_goes_on(folder: RunDirectory) -> None:
    folder.write_settings({"run": {"task": {"epochs": 3}, "seed": 1}})
    folder.write_settings({"run": {"task": {"epochs": 3, "new": 0}, "seed": 1, "also": None}})
    for other in ({"epochs": 4, "new": 0}, {"new": 0}):
        with pytest.raises(StoreError, match="holds other settings"):
            folder.write_settings({"run": {"task": other, "seed": 1}})


@pytest.fixture
def usual_recursion_limit() -> Iterator[None]:
    """Other tests of the same process may have raised it."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("usual_recursion_limit")
def test_a_result_that_tells_too_little_ends_no_run(folder: RunDirectory) -> None:
    assert folder.result is None
    for text, why in [
        (b"{", "damaged: not JSON"),
        (b"[]", "damaged: not a table"),
        (b"{}", "damaged: its digest is not that of its content"),
        (b"[" * 3000, "damaged: nested too deeply"),
        (b'{"cost": Infinity}', "damaged: Infinity is not a number"),
        (b'{"cost": 1e999}', "damaged: 1e999 is not a number"),
        (b'{"cost": ' + b"9" * 400 + b"}", "damaged: a number of 400 digits"),
        (as_json({}), "it lacks the last epoch"),
        (as_json({"last": {}, "seconds": 1}), "it lacks cost"),
    ]:
        (folder.path / "result.json").write_bytes(text)
        with pytest.raises(StoreError, match=f"{why}. Remove the folder {folder.path} to begin"):
            _ = folder.result
        assert (folder.path / "result.json").read_bytes() == text


def test_a_run_has_ended_if_its_settings_can_be_read_too(folder: RunDirectory) -> None:
    run, path = {"seed": 0}, folder.path / "run.json"
    assert folder.result_of(run) is None
    folder.write_result({"last": {}, "cost": 1.0, "seconds": 1.0})
    with pytest.raises(StoreError, match=r"run\.json is not there\. Remove the folder"):
        folder.result_of(run)
    folder.write_settings({"format": FORMAT, "run": run})
    assert folder.result_of(run) == folder.result
    with pytest.raises(StoreError, match="holds other settings"):
        folder.result_of({"seed": 1})
    for text, why in [(b"{", "not JSON"), (as_json({"format": 99}), "format 99, of a newer")]:
        path.write_bytes(text)
        with pytest.raises(StoreError, match=why):
            folder.result_of(run)
        assert path.read_bytes() == text


def test_lost_weights_are_told_with_a_remedy_that_works(folder: RunDirectory) -> None:
    with pytest.raises(StoreError, match="is not finished: train it first"):
        folder.weights()
    folder.write_result({"last": {}, "cost": 1.0, "seconds": 1.0})
    with pytest.raises(StoreError, match=r"has no weights\.pt\. Remove the folder"):
        folder.weights()


def test_a_torn_line_is_explained_by_the_start_after_it(folder: RunDirectory) -> None:
    path = folder.path / "metrics.jsonl"
    assert folder.damaged_lines() == []
    epoch, start = as_json({"kind": "epoch"}), as_json({"kind": "start"})
    path.write_bytes(epoch + b'\n{"kind": "ep\n' + start + b"\n")
    assert folder.damaged_lines() == []
    path.write_bytes(b'{"ki\n' + epoch + b"\n\xff\n")
    assert folder.damaged_lines() == [1, 3]


def test_rows_of_a_measurement_are_numbers(folder: RunDirectory) -> None:
    row = {"run": "a", "method": "SAM", "lambda1": 2.0, "residual1": None}
    folder.write_measurement("spectrum", {"settings": {}, "rows": [row]})
    assert folder.measurement("spectrum", {}) == [row]
    for rows in ("text", ["text"], [{**row, "lambda1": [2.0]}], [{**row, "lambda1": "two"}]):
        folder.write_measurement("spectrum", {"settings": {}, "rows": rows})
        with pytest.raises(StoreError, match="it has no rows"):
            folder.measurement("spectrum", {})


def test_a_damaged_store_says_what_to_remove(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "store.json").write_text("[")
    with pytest.raises(StoreError, match=r"not JSON\. Remove it: the runs stay"):
        Store(tmp_path)
    (tmp_path / "store.json").unlink()
    assert Store(tmp_path).root == store.root


def test_epochs_are_the_same_once_packed() -> None:
    rows = [{"epoch": 1, "loss": 0.1}, {"epoch": 2, "loss": None, "adversary": {"others": [3.0]}}]
    packed = PackedEpochs(rows)
    assert [*packed] == rows
    assert packed == PackedEpochs(rows)
    assert packed != PackedEpochs(rows[:1])
    assert (packed[:1], packed[-1], len(packed)) == ((rows[0],), rows[1], 2)
