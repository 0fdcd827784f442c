"""The loop: what it does step by step, and that no crash changes how it ends."""

import multiprocessing
import os
import random
import signal
import socket
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import vasso
from vasso.lab.batches import Batches
from vasso.lab.data import load, normalised, order, validation_split, wrong_labels
from vasso.lab.folder import BusyError
from vasso.lab.how import How
from vasso.lab.models import build
from vasso.lab.pixels import InMemory
from vasso.lab.runs import Run
from vasso.lab.store import Store
from vasso.lab.tasks import Task
from vasso.lab.train import Stopped, train

EVERY = How(accelerator="cpu", checkpoint_steps=1)
CPU = How(accelerator="cpu", checkpoint_seconds=1e9)
SMALL: dict[str, Any] = {"train_size": 200, "validation": 100, "batch": 50, "epochs": 2}


def a_run(method: dict[str, Any] | None = None, seed: int = 0, **task: Any) -> Run:
    return Run.of({"task": {**SMALL, **task}, "method": method or {"name": "SGD"}, "seed": seed})


def weights(store: Store, run: Run) -> dict[str, torch.Tensor]:
    state = store.folder(run.id).load("weights.pt")
    assert state is not None
    return state["model"]


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def stops_after(steps: int) -> Any:
    return lambda step, total: step < steps


# -- what it does ---------------------------------------------------------------------------------


def test_the_loop_is_a_plain_loop(tmp_path: Path) -> None:
    """Bit for bit, written out by hand: data, wrong labels, order, VaSSO, cosine."""
    run = a_run({"name": "VaSSO", "rho": 0.1, "theta": 0.4, "weight_decay": 1e-3}, 5, wrong=0.5)
    train(run, Store(tmp_path), CPU)
    images = load("digits", train_size=300, seed=5)
    train_at, _ = validation_split(images.train_y, 100, 5)
    x, clean = images.train_x[train_at], images.train_y[train_at]
    y, _ = wrong_labels(clean, 0.5, 10, seed=5)
    model = build("mlp", classes=10, channels=1, size=8, seed=5)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    opt = vasso.VaSSO(base, rho=0.1, theta=0.4, model=model)
    for step in range(8):
        base.param_groups[0]["lr"] = Run.of({}).method.rate(8, 4)(step)
        index = order(200, 5, step // 4)[step % 4 * 50 :][:50]

        def closure(index: torch.Tensor = index) -> torch.Tensor:
            opt.zero_grad()
            logits = model(normalised(x[index], images.mean, images.std))
            loss = cross_entropy(logits, y[index], reduction="none").mean()
            loss.backward()
            return loss

        opt.step(closure)
    assert_same(weights(Store(tmp_path), run), model.state_dict())


def test_what_a_run_writes_down(tmp_path: Path) -> None:
    run = a_run({"name": "SAM", "rho": 0.05}, wrong=0.25)
    result = train(run, Store(tmp_path), CPU)
    folder = Store(tmp_path).folder(run.id)
    settings = folder.settings
    assert Run.of(settings["run"]) == run
    noted = settings["certificate"]
    assert {"packages", "commit", "processor", "cores"} <= noted.keys()
    assert noted["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert noted["threads"] == torch.get_num_threads()
    lines = folder.metrics("epoch")
    assert [line["epoch"] for line in lines] == [1, 2]
    assert lines[-1]["cost"] == result["cost"] == 16.0
    assert result["last"]["test_accuracy"] == lines[-1]["test_accuracy"]
    assert result["best"]["validation_accuracy"] == max(x["validation_accuracy"] for x in lines)
    assert result["wrong_labels"] == 0.25
    assert result["peak_memory"] > 1e7
    assert result["images_per_second"] > 0
    assert not (folder.path / "checkpoint.pt").exists()
    assert train(run, Store(tmp_path), CPU) == result


def test_what_was_learnt_by_heart_is_written_down(tmp_path: Path) -> None:
    """Counted by hand with the final weights: training labels, and the wrong ones among them."""
    run = a_run({"name": "SGD", "lr": 0.1}, wrong=0.5, epochs=12)
    last = train(run, Store(tmp_path), CPU)["last"]
    prepared = run.task.prepare(run.seed)
    data = prepared.data
    model = run.task.build_model(data, run.seed)
    model.load_state_dict(weights(Store(tmp_path), run))
    x = normalised(data.train_x[prepared.train], data.mean, data.std)
    right = model.eval()(x).argmax(dim=1) == prepared.y
    wrong = prepared.y != data.train_y[prepared.train]
    assert last["training_accuracy"] == pytest.approx(100 * right.double().mean().item())
    assert last["wrong_accuracy"] == pytest.approx(100 * right[wrong].double().mean().item())
    assert last["wrong_accuracy"] > 50  # a small data set, learnt by heart


def test_validation_images_are_taken_before_labels_are_made_wrong() -> None:
    task = Task.of({**SMALL, "wrong": 1.0})
    prepared = task.prepare(3)
    assert prepared.validation is not None
    assert not set(prepared.validation.tolist()) & set(prepared.train.tolist())
    assert bool((prepared.y != prepared.data.train_y[prepared.train]).all())
    assert prepared.realised == 1.0
    assert (len(prepared.train), len(prepared.validation)) == (200, 100)


def test_the_best_epoch_is_tested_whenever_it_comes(tmp_path: Path) -> None:
    run = a_run(epochs=4, test_every=4)
    result = train(run, Store(tmp_path), CPU)
    lines = Store(tmp_path).folder(run.id).metrics("epoch")
    best = -1.0
    for line in lines:
        better = line["validation_accuracy"] > best
        best = max(best, line["validation_accuracy"])
        assert ("test_accuracy" in line) == (better or line["epoch"] == 4)
    assert result["best"]["test_accuracy"] is not None


@pytest.mark.parametrize("name", vasso.methods())
def test_every_method_trains_and_resumes(tmp_path: Path, name: str) -> None:
    """Stopped in the middle of an epoch, taken up anew: the end is the same, bit for bit."""
    settings = {k: v for k, v in vasso.methods()[name].example.items() if k != "total"}
    if name == "Entropy-SGD":
        settings["L"] = 3
    run = a_run({"name": name, **settings, "lr": 0.02}, epochs=2)
    whole, parts = Store(tmp_path / "whole"), Store(tmp_path / "parts")
    result = train(run, whole, CPU)
    for stop in (3, 6):
        with pytest.raises(Stopped):
            train(run, parts, CPU, stops_after(stop))
    again = train(run, parts, CPU)
    assert_same(weights(whole, run), weights(parts, run))
    assert again["last"] == result["last"]
    assert again["cost"] == result["cost"] > 0
    assert result["last"]["train_loss"] < 10


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten()
        )
        self.head = nn.Linear(8 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(x))


def dropping(*, classes: int, channels: int, size: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Dropping()


def squared(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (output.softmax(1) - nn.functional.one_hot(y, 10)).square().sum(1)


def digits(*, seed: int) -> Any:
    return load("digits", seed=seed)


OWN = {
    "data": f"{__name__}:digits",
    "model": f"{__name__}:dropping",
    "loss": f"{__name__}:squared",
}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
@pytest.mark.filterwarnings("ignore:this processor has no bfloat16")
def test_dropout_statistics_and_averages_resume_bit_for_bit(tmp_path: Path, precision: str) -> None:
    method = {"name": "VaSSO", "rho": 0.1, "average_from": 0.5, "batchnorm": "both"}
    task = {**OWN, "precision": precision, "flip": True, "crop": 1, "epochs": 3, "reestimate": 64}
    run = a_run(method, **task)
    whole, parts = Store(tmp_path / "whole"), Store(tmp_path / "parts")
    result = train(run, whole, CPU)
    for stop in (1, 4, 7, 10):
        with pytest.raises(Stopped):
            train(run, parts, EVERY, stops_after(stop))
    assert train(run, parts, CPU)["last"] == result["last"]
    assert_same(weights(whole, run), weights(parts, run))


def test_dropout_draws_anew_at_every_step_and_by_seed(tmp_path: Path) -> None:
    one, other = a_run(seed=1, **OWN), a_run(seed=2, **OWN)
    for run in (one, other):
        train(run, Store(tmp_path), CPU)
    differ = [
        not torch.equal(a, b)
        for a, b in zip(
            weights(Store(tmp_path), one).values(),
            weights(Store(tmp_path), other).values(),
            strict=True,
        )
    ]
    assert any(differ)


def test_statistics_estimated_for_a_test_do_not_enter_the_training(tmp_path: Path) -> None:
    plain = a_run(**OWN)
    anew = replace(plain, task=replace(plain.task, reestimate=100))
    store = Store(tmp_path)
    results = [train(run, store, CPU) for run in (plain, anew)]
    assert_same(weights(store, plain), weights(store, anew))
    assert results[0]["last"]["test_loss"] != results[1]["last"]["test_loss"]


def test_weights_are_averaged_from_the_share_of_the_run_that_is_asked_for(tmp_path: Path) -> None:
    run = a_run({"name": "SGD", "average_from": 0.5}, epochs=4)
    store = Store(tmp_path)
    seen: list[dict[str, torch.Tensor]] = []
    for stop in (8, 12):
        with pytest.raises(Stopped):
            train(run, store, CPU, stops_after(stop))
        state = store.folder(run.id).load("checkpoint.pt")
        assert state is not None
        seen.append(state["model"])
    train(run, store, CPU)
    state = store.folder(run.id).load("weights.pt")
    assert state is not None
    parameters = [name for name in state["model"] if name.endswith(("weight", "bias"))]
    for name in parameters:
        average = state["average"][name]
        mean = (seen[0][name] + seen[1][name] + state["model"][name]) / 3
        assert torch.allclose(average, mean, atol=1e-6), name


def test_another_batch_shares_no_image_with_the_batch() -> None:
    prepared = Task(train_size=200).prepare(0)
    images = prepared.data
    pixels = InMemory(images.train_x, prepared.train, Task().augmentation, images.mean, images.std)
    batches = Batches(pixels, prepared.y, size=64, seed=0)
    for step in range(2 * batches.per_epoch):
        (_, _, mine), (_, _, other) = batches.at(step), batches.other(step, 0.5)
        assert len(other) == 32
        assert not set(mine.tolist()) & set(other.tolist())
    with pytest.raises(ValueError, match="does not fit into 200 training images beside"):
        replace(batches, size=128).other(0, 1.0)


def test_a_batch_larger_than_the_data_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a batch of 500 does not fit into 200 training images"):
        train(a_run(batch=500), Store(tmp_path), CPU)


# -- crashes --------------------------------------------------------------------------------------

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.lab.test_train"])


def train_and_tell(store: Path, line: Connection) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    train(killed_run(), Store(store), EVERY, lambda step, total: line.send(step) or True)


def killed_run() -> Run:
    return a_run({"name": "VaSSO", "rho": 0.1}, **OWN, epochs=5, crop=1)


def killed_at(store: Path, step: int, wait: float) -> int | None:
    """Trains in a process that gets SIGKILL some time after it has told of a step."""
    ours, theirs = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=train_and_tell, args=(store, theirs))
    process.start()
    theirs.close()
    while ours.recv() < step:
        pass
    process.join(wait)
    process.kill()
    process.join()
    return process.exitcode


def check_kills(tmp_path: Path, kills: int, seed: int) -> None:
    """Kills come anywhere: in a step, in a checkpoint, in a test."""
    run, whole = killed_run(), Store(tmp_path / "whole")
    result = train(run, whole, CPU)
    draw = random.Random(seed)
    landed = 0
    for number in range(kills):
        place = tmp_path / f"killed-{number}"
        landed += killed_at(place, draw.randrange(1, 19), draw.uniform(0, 0.03)) == -signal.SIGKILL
        again = train(run, Store(place), CPU)
        assert again["last"] == result["last"]
        assert_same(weights(whole, run), weights(Store(place), run))
        lines = Store(place).folder(run.id).metrics("epoch")
        assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5]
    assert landed > kills / 2


def test_a_run_that_is_killed_ends_the_same(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=3, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_runs_that_are_killed_end_the_same(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=50, seed=1)


def test_a_full_disk_loses_nothing_and_the_run_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vasso.lab import atomic

    run = a_run({"name": "VaSSO"})
    whole, filled = Store(tmp_path / "whole"), Store(tmp_path / "filled")
    train(run, whole, CPU)
    real, room = os.write, [0]

    def write(descriptor: int, content: Any) -> int:
        part = bytes(content)[: max(room[0], 0)]
        room[0] -= len(content)
        if not part:
            raise OSError(28, "No space left on device")
        return real(descriptor, part)

    for size in (1_500_000, 4_000_000, 9_000_000):
        room[0] = size
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(atomic.DiskFullError, match="Make room"):
            train(run, filled, EVERY)
        monkeypatch.undo()
        folder = filled.folder(run.id)
        assert not list(folder.path.glob("*.tmp"))
        state = folder.load("checkpoint.pt")
        assert state is None or state["step"] > 0
    train(run, filled, CPU)
    assert_same(weights(whole, run), weights(filled, run))


def test_one_run_is_not_trained_twice_at_a_time(tmp_path: Path) -> None:
    run, store = a_run(), Store(tmp_path)
    with store.folder(run.id).locked(), pytest.raises(BusyError, match="works on"):
        train(run, store, CPU)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run, other, store = a_run(), a_run(seed=1), Store(tmp_path)
    with pytest.raises(Stopped):
        train(run, store, CPU, stops_after(2))
    folder = store.folder(other.id)
    folder.path.mkdir()
    (store.folder(run.id).path / "checkpoint.pt").rename(folder.path / "checkpoint.pt")
    with pytest.raises(ValueError, match=f"the checkpoint is of {run.id}"):
        train(other, store, CPU)


# -- several processes ----------------------------------------------------------------------------


def one_of_two(rank: int, port: int, store: Path, stop: int, strategy: str) -> None:
    """What torchrun sets for a process, then the same call as in one."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    names |= {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ["TORCHELASTIC_RUN_ID"] = "test"
    torch.set_num_threads(1)
    how = How(accelerator="cpu", devices=2, strategy=strategy)
    code = 0
    try:
        train(shared_run(strategy), Store(store), how, stops_after(stop))
    except Stopped:
        code = 3
    torch.distributed.destroy_process_group()
    os._exit(code)


def smooth(*, classes: int, channels: int, size: int, seed: int) -> nn.Module:
    """No BatchNorm, whose statistics are those of a process."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def shared_run(strategy: str) -> Run:
    """In double precision, where Fabric lets us."""
    method = {"name": "VaSSO", "rho": 0.1, "theta": 0.4}
    precision = "64-true" if strategy == "ddp" else "32-true"
    return a_run(method, model=f"{__name__}:smooth", precision=precision)


def in_two_processes(store: Path, stop: int, strategy: str) -> list[int | None]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [
        FORKED.Process(target=one_of_two, args=(rank, port, store, stop, strategy))
        for rank in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        process.kill()
    return [process.exitcode for process in both]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_do_what_one_does_stopped_or_not(tmp_path: Path, strategy: str) -> None:
    """Over gloo: the adversary is that of the whole batch, so the weights are the same."""
    run, gap = shared_run(strategy), 1e-12 if strategy == "ddp" else 1e-6
    one, two, parts = (Store(tmp_path / name) for name in ("one", "two", "parts"))
    result = train(run, one, CPU)
    assert in_two_processes(two.root, 10**9, strategy) == [0, 0]
    for name, w in weights(one, run).items():
        assert torch.allclose(w, weights(two, run)[name], rtol=0, atol=gap), name
    other = two.folder(run.id).result
    assert other is not None
    assert other["last"]["test_accuracy"] == result["last"]["test_accuracy"]
    assert two.folder(run.id).metrics("start")[0]["processes"] == 2
    assert in_two_processes(parts.root, 3, strategy) == [3, 3]
    assert parts.folder(run.id).result is None
    assert in_two_processes(parts.root, 10**9, strategy) == [0, 0]
    assert_same(weights(two, run), weights(parts, run))


@pytest.mark.parametrize("first", ["one process", "shards"])
def test_a_run_goes_on_in_shards_and_out_of_them(tmp_path: Path, first: str) -> None:
    run = shared_run("fsdp2")
    alone, moved = Store(tmp_path / "alone"), Store(tmp_path / "moved")
    train(run, alone, CPU)
    if first == "shards":
        assert in_two_processes(moved.root, 3, "fsdp2") == [3, 3]
        train(run, moved, CPU)
    else:
        with pytest.raises(Stopped):
            train(run, moved, CPU, stops_after(3))
        assert in_two_processes(moved.root, 10**9, "fsdp2") == [0, 0]
    for name, w in weights(alone, run).items():
        assert torch.allclose(w, weights(moved, run)[name], rtol=0, atol=1e-6), name
