"""The queue of runs that the records lack, which `make evidence` trains."""

from pathlib import Path

import pytest

from records import train_missing as queue
from vasso.lab.store.store import Store


def test_the_queue_trains_what_the_records_lack_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = queue.Part("noisy-digits", "cpu", {"name": ["SGD"]}, range(1))
    monkeypatch.setattr(queue, "QUEUE", (part, part))
    monkeypatch.setattr(queue, "kept", set)
    store, (run,) = Store(tmp_path / "runs"), part.runs()
    assert queue.main(store.root) == 0
    assert store.folder(run.id).result is not None
    assert [runs for _, runs in queue.missing(set(), store)] == [[], []]


def test_runs_of_the_records_are_not_trained_again(tmp_path: Path) -> None:
    names = {part.study for part in queue.QUEUE}
    assert names >= {"cifar10", "label-noise", "hessian"}
    part = next(part for part in queue.QUEUE if part.study == "hessian")
    kept = queue.kept() & {run.id for run in part.runs()}
    assert kept
    left = next(runs for p, runs in queue.missing(kept, Store(tmp_path)) if p is part)
    assert kept.isdisjoint(run.id for run in left)
