"""Slurm: a real one of one node; and submitit's local processes where there is none."""

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.execution.grid import (
    OFTEN,
    SLOW,
    Recording,
    check_same,
    grid,
    need_package,
    processes_of,
    serial,
    trained_on,
    until,
)
from tests.lab.execution.slurm_server import output, slurm
from vasso.lab.execution.engine import RunTracker
from vasso.lab.execution.job import Job
from vasso.lab.execution.placement import Placement
from vasso.lab.execution.slurm import SlurmCluster, SlurmRequest, job_name
from vasso.lab.experiment.run import Run
from vasso.lab.schema import LabError
from vasso.lab.store.lock import holder_of
from vasso.lab.store.store import Store

need_package("submitit", "VASSO_REQUIRE_SLURM")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with slurm(tmp_path_factory.mktemp("slurm")):
        yield


def once_in_training(root: Path, run: Run, *command: str) -> threading.Thread:
    """Give a command of Slurm for the job of a run, once it has come to some step."""

    def give() -> None:
        path = root / run.id / "lock"
        until(lambda: (found := holder_of(path)) and found[0].step > 25)
        queue = output("squeue", "--noheader", "--array", "--states=R", "--format=%i").split()
        (name,) = (one for one in queue if one.endswith(f"_{INDEX[run.id]}"))
        subprocess.run([*command, name], check=False, capture_output=True)

    thread = threading.Thread(target=give)
    thread.start()
    return thread


INDEX: dict[str, int] = {}
"""The number of a run in the array."""


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.timeout(900)
def test_an_array_of_runs_is_the_serial_ones(cluster: None, tmp_path: Path) -> None:
    """One job is requeued in mid-run, one gets the signal before its time limit, one is killed."""
    runs = grid(2, **SLOW)
    INDEX.update({run.id: number for number, run in enumerate(runs)})
    whole, root = serial(tmp_path / "serial", runs), tmp_path / "runs"
    struck = [
        once_in_training(root, runs[0], "scontrol", "requeue"),
        once_in_training(root, runs[1], "scancel", "--signal=USR2"),
        once_in_training(root, runs[2], "scancel", "--signal=KILL"),
    ]
    outcome, shown = trained_on(Placement(on="slurm", time="30"), runs, root)
    for thread in struck:
        thread.join()
    assert len(outcome.done) == len(runs), shown.told
    (lost,) = shown.of("lost")
    assert re.match(r"its job \d+_2 left the queue without an answer", lost)
    check_same(whole, Store(root), runs)
    starts = [Store(root).folder(run.id).metrics("start") for run in runs]
    assert [len(each) for each in starts] == [2, 2, 2, 1]
    assert all(each[1]["step"] > 0 for each in starts[:3])
    until(lambda: not output("squeue", "--noheader"))
    assert not processes_of(tmp_path)


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.timeout(900)
def test_a_run_longer_than_its_time_limit_comes_back_until_it_is_done(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of one minute, of which Slurm warns 25 seconds before."""
    monkeypatch.setattr("vasso.lab.execution.slurm.WARNING", 25)
    run = grid(1, **SLOW, epochs=200)[0]
    whole = serial(tmp_path / "serial", [run])
    outcome, shown = trained_on(Placement(on="slurm", time="1"), [run], tmp_path / "runs")
    assert outcome.done == [run], shown.told
    check_same(whole, Store(tmp_path / "runs"), [run])
    starts = Store(tmp_path / "runs").folder(run.id).metrics("start")
    assert len(starts) > 1


def test_runs_in_local_processes_of_submitit_are_the_serial_ones(tmp_path: Path) -> None:
    runs, shown = grid(1), Recording()
    root = Store(tmp_path / "local").root
    engine = SlurmCluster(root, SlurmRequest(), local=True)

    def job_of(run: Run, attempt: int) -> Job:
        return Job(run.as_table(), root, OFTEN, attempt=attempt)

    outcome = RunTracker(engine, root, job_of, shown).train(runs)
    assert len(outcome.done) == len(runs), shown.told
    check_same(serial(tmp_path / "serial", runs), Store(root), runs)


def test_a_study_that_is_stopped_before_it_has_asked_for_jobs_asks_for_none(
    tmp_path: Path,
) -> None:
    engine = SlurmCluster(tmp_path, SlurmRequest(), local=True)
    runs = grid(1)
    for run in runs:
        engine.submit(Job(run.as_table(), tmp_path, OFTEN))
    engine.stop()
    assert engine.answers() == [(run.id, ("stopped", "not begun")) for run in runs]
    assert not list(tmp_path.glob("*.pkl")) + list((tmp_path / ".slurm").glob("*"))


def test_a_job_is_named_with_and_without_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert job_name() == "8"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    assert job_name() == "7_0"


def test_what_is_asked_of_slurm() -> None:
    asked = SlurmRequest("gpu", "mine", "12:00:00", cpus=8, gpus=4, nodes=2).parameters()
    wanted = {"partition": "gpu", "account": "mine", "time": "12:00:00", "nodes": 2}
    wanted |= {"gpus_per_node": 4, "cpus_per_task": 8, "ntasks_per_node": 1}
    assert asked.items() >= wanted.items()
    assert asked["additional_parameters"] == {"requeue": True}
    assert "export OMP_NUM_THREADS=8" in asked["setup"]
    assert SlurmRequest().parameters()["time"] is None
    assert "gpus_per_node" not in SlurmRequest().parameters()


def test_without_slurm_the_error_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="no sbatch on this machine"):
        SlurmCluster(tmp_path, SlurmRequest())
