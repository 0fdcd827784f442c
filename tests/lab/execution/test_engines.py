"""Engines: the same runs, bit for bit, wherever they are trained and whatever kills a process."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

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
from tests.lab.execution.slurm_server import free_port
from tests.lab.runs import FORKED
from vasso.lab.execution import placement
from vasso.lab.execution.engine import ATTEMPTS, RunTracker
from vasso.lab.execution.job import Job, train_run
from vasso.lab.execution.placement import Placement
from vasso.lab.execution.pool import VISIBLE, WorkerPool, gpus_of_workers
from vasso.lab.experiment.run import Run
from vasso.lab.schema import LabError
from vasso.lab.store.lock import holder_of
from vasso.lab.store.store import Store
from vasso.lab.training import host
from vasso.lab.training.options import RunOptions


def strike(root: Path, run: Run, number: signal.Signals, step: int = 25) -> threading.Thread:
    """Send a signal to the process that trains a run, once it has come to a step."""

    def send() -> None:
        path = root / run.id / "lock"
        found = until(lambda: (h := holder_of(path)) and h[0].step >= step and h)
        os.kill(found[0].process, number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_killed_worker_costs_one_run_the_steps_since_its_checkpoint(tmp_path: Path) -> None:
    runs = grid(2, **SLOW)
    whole = serial(tmp_path / "serial", runs)
    struck = strike(tmp_path / "here", runs[0], signal.SIGKILL)
    stopped = strike(tmp_path / "here", runs[1], signal.SIGTERM)
    outcome, shown = trained_on(Placement(), runs, tmp_path / "here")
    struck.join(), stopped.join()
    assert sorted(run.id for run in outcome.done) == sorted(run.id for run in runs)
    killed, ended = sorted(shown.of("lost"))[::-1]
    assert killed == ("its process ended with code -9 (killed? memory?); attempt 2 of 3 follows")
    assert "a checkpoint holds it (SIGTERM); goes on" in ended
    check_same(whole, Store(tmp_path / "here"), runs)
    starts = Store(tmp_path / "here").folder(runs[0].id).metrics("start")
    assert [start["step"] > 0 for start in starts] == [False, True]
    assert max(shown.steps[runs[0].id]) > 25


class Unlucky:
    """An engine in which some runs are always lost."""

    interval = patience = 0.0

    def __init__(self, fails: str) -> None:
        self.fails, self.jobs, self.attempts = fails, [], []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        self.attempts.append((job.run.id, job.attempt))

    def answers(self) -> list[Any]:
        found, self.jobs = self.jobs, []
        why = ("lost", f"out of luck {len(self.attempts)}")
        return [(j.run.id, why if j.run.id == self.fails else ("done", {})) for j in found]

    def stop(self) -> None:
        raise AssertionError

    def close(self) -> None:
        self.closed = True


def test_a_run_that_is_lost_three_times_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    runs, shown = grid(2), Recording()
    engine = Unlucky(runs[1].id)

    def job_of(run: Run, attempt: int) -> Job:
        return Job(run.as_table(), tmp_path, RunOptions(), attempt=attempt)

    outcome = RunTracker(engine, tmp_path, job_of, shown).train(runs)
    assert [run.id for run in outcome.done] == [runs[i].id for i in (0, 2, 3)]
    ((failed, why),) = outcome.failed
    assert failed == runs[1]
    assert why == f"3 attempts, the last: out of luck {len(engine.attempts)}"
    assert [n for run_id, n in engine.attempts if run_id == failed.id] == [1, 2, ATTEMPTS]
    assert len(shown.of("lost")) == ATTEMPTS - 1
    assert engine.closed


def test_a_worker_that_is_stopped_while_it_starts_has_not_failed(tmp_path: Path) -> None:
    pool, run = WorkerPool(1), grid(1)[0]
    pool.submit(Job(run.as_table(), tmp_path, RunOptions()))
    pool.interval = 0.0
    pool.answers()
    pool.stop()
    pool.interval = 60.0
    ((run_id, (kind, why)),) = pool.answers()
    pool.close()
    assert (run_id, kind) == (run.id, "stopped"), why


def test_an_error_that_may_pass_is_tried_again_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flaky.py").write_text(
        "from pathlib import Path\n"
        "import torch\n"
        "from torch.nn.functional import cross_entropy\n"
        "def loss(x, y):\n"
        "    seen = Path(__file__).with_name('seen')\n"
        "    seen.write_text(str(int(seen.read_text()) + 1) if seen.exists() else '1')\n"
        "    if seen.read_text() == '7':\n"
        "        raise RuntimeError('the network was away')\n"
        "    return cross_entropy(x, y, reduction='none')\n"
    )
    monkeypatch.chdir(tmp_path)
    run = grid(1, loss="flaky:loss", epochs=2)[0]
    outcome, shown = trained_on(Placement(), [run], tmp_path / "runs")
    assert outcome.done == [run]
    (why,) = shown.of("lost")
    assert why == "RuntimeError: the network was away; attempt 2 of 3 follows"
    (noted,) = Store(tmp_path / "runs").folder(run.id).metrics("failed")
    assert noted["why"] == "RuntimeError: the network was away"


FEW = {("train", signal.SIGTERM), ("study", signal.SIGHUP)}


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(*each, marks=[] if each in FEW else pytest.mark.slow)
        for each in product(("train", "study"), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    ],
)
def test_signals_of_schedulers_write_a_checkpoint_and_say_so(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    store = tmp_path / "runs"
    words = ["train", "--epochs", "1000", "--train-size", "200", "--method", "SGD"]
    if command == "study":
        words = ["study", "noisy-digits", "--only", "sgd", "--seeds", "0", "--set", "epochs=3000"]
    listening = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    listening += "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # as without nohup
    code = f"{listening}from vasso.lab.cli.main import main; main(sys.argv[1:])"
    more = ["--accelerator", "cpu", "--store", str(store)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words, *more], stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: any(h and h[0].step > 3 for h in map(holder_of, store.glob("*/lock"))))
        process.send_signal(number)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    assert "checkpoint" in said
    assert "run the same command again to continue" in said
    (folder,) = Store(store).folders()
    state = folder.load("checkpoint.pt")
    assert state is not None
    assert state["step"] > 3
    assert not (folder.path / "lock").exists()


# -- several processes of a run ----------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.ranks
def test_a_killed_process_of_a_run_costs_the_steps_since_its_checkpoint(tmp_path: Path) -> None:
    runs = grid(1, **SLOW, precision="64-true")
    one, _ = trained_on(Placement(), runs, tmp_path / "whole", devices=2)
    struck = strike(tmp_path / "struck", runs[0], signal.SIGKILL)
    outcome, shown = trained_on(Placement(), runs, tmp_path / "struck", devices=2)
    struck.join()
    assert len(one.done) == len(outcome.done) == 2, shown.told
    assert len(shown.of("lost")) == 1
    check_same(Store(tmp_path / "whole"), Store(tmp_path / "struck"), runs)
    assert not processes_of(tmp_path)


@pytest.mark.ranks
def test_a_run_on_two_machines_is_that_on_two_devices(tmp_path: Path) -> None:
    """Two launchers that meet at a port, as on two nodes of Slurm."""
    run = grid(1, epochs=2, precision="64-true")[1]
    trained_on(Placement(), [run], tmp_path / "one", devices=2)
    options = replace(OFTEN, devices=1, nodes=2)
    place = f"localhost:{free_port()}"
    job = Job(run.as_table(), Store(tmp_path / "two").root, options, meeting=place)
    with FORKED.Pool(2) as machines:
        answers = machines.map(train_run, [job, job], chunksize=1)
    assert [kind for kind, _ in answers] == ["done", "done"], answers
    check_same(Store(tmp_path / "one"), Store(tmp_path / "two"), [run])


# -- GPUs: what a worker and Fabric are given ---------------------------------------------------
def see_gpu(job: Job, stop: Any) -> tuple[str, Any]:
    return "done", {"gpu": os.environ.get(VISIBLE), "devices": job.options.devices}


def test_each_worker_sees_its_own_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv(VISIBLE, raising=False)
    assert gpus_of_workers(1, "auto") == [("0",), ("1",), ("2",), ("3",)]
    assert gpus_of_workers(2, "auto") == [("0", "1"), ("2", "3")]
    assert gpus_of_workers(0, "auto") == gpus_of_workers(1, "cpu") == [()]
    monkeypatch.setenv(VISIBLE, "4,5,6,7")
    assert gpus_of_workers(1, "auto") == [("4",), ("5",), ("6",), ("7",)]
    with pytest.raises(ValueError, match="gpus_per_run must be at most 4"):
        gpus_of_workers(5, "auto")
    pool = WorkerPool(8, 1, gpus_of_workers(1, "auto"))
    monkeypatch.setattr(pool.context.Process, "start", lambda self: None)
    started = [pool._start_worker() for _ in range(0)]
    for _ in range(8):
        started.append(pool._start_worker())
        pool.workers.append(started[-1])
    assert sorted(worker.gpus for worker in started) == sorted(2 * gpus_of_workers(1, "auto"))
    assert Placement().options_of_run(RunOptions()).devices == 1
    two = Placement(gpus_per_run=2).options_of_run(RunOptions())
    assert (two.devices, two.accelerator) == (2, "auto")
    assert Placement(gpus_per_run=0).options_of_run(RunOptions()).accelerator == "cpu"


def report_environment(connection: Any, gpus: tuple[str, ...]) -> None:
    from vasso.lab.execution import pool

    pool.train_until = see_gpu
    pool.work(connection, gpus)


def test_a_worker_is_given_its_gpu_before_it_trains(tmp_path: Path) -> None:
    pool = WorkerPool(2)
    seen = []
    for gpu in ("2", "5"):
        ours, theirs = pool.context.Pipe()
        process = pool.context.Process(target=report_environment, args=(theirs, (gpu,)))
        process.start()
        ours.send(Job(grid(1)[0].as_table(), tmp_path, RunOptions(devices=1)))
        seen.append(ours.recv()[1])
        ours.close()
        process.join(60)
    assert seen == [{"gpu": "2", "devices": 1}, {"gpu": "5", "devices": 1}]


def test_fabric_is_given_the_devices_and_machines_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[dict[str, Any]] = []

    class Noted:
        def __init__(self, **options: Any) -> None:
            given.append(options)

        def launch(self) -> None:
            given[-1]["launched"] = True

    monkeypatch.setattr(host, "Fabric", Noted)
    for devices, nodes in ((1, 1), (4, 1), (1, 2)):
        host.start_fabric(RunOptions(accelerator="cpu", devices=devices, nodes=nodes), "32-true")
    told = [(one["devices"], one["num_nodes"], "launched" in one) for one in given]
    assert told == [(1, 1, False), (4, 1, True), (1, 2, True)]


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        ({"gpus_per_run": -1}, {}, "gpus_per_run must be at least 0"),
        ({"cpus_per_run": 0}, {}, "cpus_per_run must be at least 1"),
        ({"gpus_per_run": 1}, {"accelerator": "cpu"}, "does not fit accelerator=cpu"),
        ({"gpus_per_run": 2}, {"devices": 3}, "devices=3 does not fit gpus_per_run=2"),
        ({"on": "ray"}, {"nodes": 2}, "needs --on slurm"),
    ],
)
def test_settings_that_do_not_fit_are_told(given: Any, options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Placement(**given).check(RunOptions(**options))


@pytest.mark.parametrize("devices", [1, 2])
def test_torchrun_starts_no_study(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a device for each run, every process of torchrun would be a study of its own."""
    monkeypatch.setenv(placement.LAUNCHED, "1")
    with pytest.raises(ValueError, match="without torchrun"):
        Placement().check(RunOptions(devices=devices))


# -- Ray ---------------------------------------------------------------------------------------
def cancel_once(root: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the task of a run on Ray cancelled, once it has come to a step."""
    from vasso.lab.execution.ray_cluster import RayCluster

    cancelled: list[Job] = []
    ask = RayCluster.answers

    def answers(self: RayCluster) -> Any:
        holder = holder_of(root / run.id / "lock")
        if not cancelled and holder and holder[0].step > 25:
            tasks = {job.run: task for task, job in self.jobs.items()}
            cancelled.append(self.jobs[tasks[run]])
            self.ray.cancel(tasks[run])
        return ask(self)

    monkeypatch.setattr(RayCluster, "answers", answers)


@pytest.fixture
def ignoring_ctrl_c() -> Iterator[None]:
    """As what a script has started in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.ranks
@pytest.mark.usefixtures("ignoring_ctrl_c")
def test_a_task_is_cancelled_also_where_ctrl_c_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_package("ray", "VASSO_REQUIRE_RAY")
    (run,) = grid(1, **SLOW)[1:]
    whole = serial(tmp_path / "serial", [run])
    cancel_once(tmp_path / "ray", run, monkeypatch)
    outcome, shown = trained_on(Placement(on="ray"), [run], tmp_path / "ray")
    assert outcome.done == [run]
    (told,) = shown.of("lost")
    assert "a checkpoint holds it (SIGINT); goes on" in told
    check_same(whole, Store(tmp_path / "ray"), [run])
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.slow
@pytest.mark.ranks
def test_runs_on_ray_are_the_serial_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight runs; a worker is killed, a task cancelled; nothing is left behind."""
    need_package("ray", "VASSO_REQUIRE_RAY")
    runs = grid(4, **SLOW, epochs=24)
    whole = serial(tmp_path / "serial", runs)
    struck = strike(tmp_path / "ray", runs[0], signal.SIGKILL)
    cancel_once(tmp_path / "ray", runs[1], monkeypatch)
    outcome, shown = trained_on(Placement(on="ray"), runs, tmp_path / "ray")
    struck.join()
    assert len(outcome.done) == len(runs), shown.told
    told = "\n".join(shown.of("lost"))
    assert len(shown.of("lost")) == 2, told
    assert "its worker is gone" in told
    assert "goes on" in told
    starts = [len(Store(tmp_path / "ray").folder(run.id).metrics("start")) for run in runs]
    assert starts == [2, 2, 1, 1, 1, 1, 1, 1]
    check_same(whole, Store(tmp_path / "ray"), runs)
    assert not processes_of(tmp_path)
    assert not [p for p in Path("/proc").glob("[0-9]*/stat") if is_child(p, "raylet")]


def is_child(stat: Path, name: str) -> bool:
    """Whether a process has this name and was started by this one."""
    try:
        words = stat.read_text().rpartition(")")
    except OSError:
        return False
    state, parent = words[2].split()[:2]
    return name in words[0] and int(parent) == os.getpid() and state != "Z"


def test_a_cluster_that_is_too_small_is_told() -> None:
    need_package("ray", "VASSO_REQUIRE_RAY")
    with pytest.raises(LabError, match=r"no machine of the Ray cluster has 99 CPUs and 0 GPUs"):
        Placement(on="ray", cpus_per_run=99).engine(RunOptions(), Path("runs"), 1)
