"""The loop: what it does step by step, and that no crash changes how it ends."""

import os
import random
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import vasso
from tests.lab.runs import (
    CPU,
    FORKED,
    assert_same,
    check_kills,
    stops_after,
    train_to,
    training_of,
    weights,
)
from tests.support import THOROUGH
from vasso.lab.data import load, normalised, order, validation_split, wrong_labels
from vasso.lab.experiment.method import trainable
from vasso.lab.experiment.run import Run
from vasso.lab.experiment.task import Task
from vasso.lab.models import build
from vasso.lab.store.run_directory import BusyError, StoreError
from vasso.lab.store.store import Store
from vasso.lab.training.image_batches import ImageBatches, PixelsInMemory
from vasso.lab.training.loop import SetupError, Stopped, train
from vasso.lab.training.options import RunOptions
from vasso.lab.training.setup import build_image_model, load_split

EVERY = RunOptions(accelerator="cpu", checkpoint_steps=1)
SLOWLY = pytest.mark.timeout(1200)
SMALL: dict[str, Any] = {"train_size": 200, "validation": 100, "batch": 50, "epochs": 2}


def a_run(method: dict[str, Any] | None = None, seed: int = 0, **task: Any) -> Run:
    return Run.of({"task": {**SMALL, **task}, "method": method or {"name": "SGD"}, "seed": seed})


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
        base.param_groups[0]["lr"] = Run.of({}).method.learning_rate(8, 4)(step)
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
    prepared = load_split(run.task, run.seed)
    data = prepared.data
    model = build_image_model(run.task, data, run.seed)
    model.load_state_dict(weights(Store(tmp_path), run))
    x = normalised(data.train_x[prepared.train], data.mean, data.std)
    right = model.eval()(x).argmax(dim=1) == prepared.y
    wrong = prepared.y != data.train_y[prepared.train]
    assert last["training_accuracy"] == pytest.approx(100 * right.double().mean().item())
    assert last["wrong_accuracy"] == pytest.approx(100 * right[wrong].double().mean().item())
    assert last["wrong_accuracy"] > 50  # a small data set, learnt by heart


def test_validation_images_are_taken_before_labels_are_made_wrong() -> None:
    task = Task.of({**SMALL, "wrong": 1.0})
    prepared = load_split(task, 3)
    assert prepared.validation is not None
    assert not set(prepared.validation.tolist()) & set(prepared.train.tolist())
    assert bool((prepared.y != prepared.data.train_y[prepared.train]).all())
    assert prepared.wrong_share == 1.0
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


ENTRIES = {name: vasso.methods()[name] for name in reversed(trainable())}
KINDS = {(entry.kind, entry.needs): name for name, entry in ENTRIES.items()}
"""The first method of each kind and each need: what differs in the loop."""


@pytest.mark.parametrize("name", sorted(KINDS.values()))
def test_every_kind_of_method_trains_and_resumes(tmp_path: Path, name: str) -> None:
    """Stopped in the middle of an epoch and resumed: the end is the same, bit for bit.

    The catalogue's contract has every method resume.
    """
    settings = {k: v for k, v in vasso.methods()[name].example.items() if k != "total"}
    if name == "Entropy-SGD":
        settings["L"] = 3
    run = a_run({"name": name, **settings, "lr": 0.02}, epochs=2)
    whole, parts = Store(tmp_path / "whole"), Store(tmp_path / "parts")
    result = train(run, whole, CPU)
    train_to(run, parts, 3, 6)
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


OWN = {"data": f"{__name__}:digits", "model": f"{__name__}:dropping", "loss": f"{__name__}:squared"}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
@pytest.mark.filterwarnings("ignore:this processor has no bfloat16")
def test_dropout_statistics_and_averages_resume_bit_for_bit(tmp_path: Path, precision: str) -> None:
    method = {"name": "VaSSO", "rho": 0.1, "average_from": 0.5, "batchnorm": "both"}
    task = {**OWN, "precision": precision, "flip": True, "crop": 1, "epochs": 3, "reestimate": 64}
    run = a_run(method, **task)
    whole, parts = Store(tmp_path / "whole"), Store(tmp_path / "parts")
    result = train(run, whole, CPU)
    train_to(run, parts, 1, 4, 7, 10, options=EVERY)
    assert train(run, parts, CPU)["last"] == result["last"]
    assert_same(weights(whole, run), weights(parts, run))


def test_dropout_draws_by_seed(tmp_path: Path) -> None:
    one, other = a_run(seed=1, **OWN), a_run(seed=2, **OWN)
    for run in (one, other):
        train(run, Store(tmp_path), CPU)
    pairs = (weights(Store(tmp_path), run).values() for run in (one, other))
    assert not all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


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
        train_to(run, store, stop)
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
    prepared = load_split(Task(train_size=200), 0)
    images = prepared.data
    pixels = PixelsInMemory(
        images.train_x, prepared.train, Task().augmentation, images.mean, images.std
    )
    batches = ImageBatches(pixels, prepared.y, size=64, seed=0)
    for step in range(2 * batches.per_epoch):
        (_, _, mine), (_, _, other) = batches.at(step), batches.other(step, 0.5)
        assert len(other) == 32
        assert not set(mine.tolist()) & set(other.tolist())
    with pytest.raises(ValueError, match="does not fit into 200 training images together"):
        replace(batches, size=128).other(0, 1.0)


def test_the_losses_of_a_batch_are_not_computed_again(tmp_path: Path) -> None:
    """ESAM selects samples by the losses of the first pass: a step costs at most two passes."""
    run = a_run({"name": "ESAM", "rho": 0.05})
    assert train(run, Store(tmp_path), CPU)["cost"] <= 2 * 8


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=[pytest.mark.slow, SLOWLY])])
def test_a_run_that_is_killed_ends_the_same(kills: int, tmp_path: Path) -> None:
    run = a_run({"name": "VaSSO", "rho": 0.1}, **OWN, epochs=5, crop=1)
    check_kills(run, tmp_path, kills, seed=kills, options=EVERY)


def test_a_full_disk_loses_nothing_and_the_run_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vasso.lab.store import atomic

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


def test_the_certificate_has_the_digest_of_the_data_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the run goes on with these data alone."""
    run, digits = a_run(), load("digits")
    other = replace(digits, train_x=digits.train_x.flip(0))
    assert digits.digest != other.digest
    for data in (digits, other):
        store = Store(tmp_path / data.digest)
        monkeypatch.setattr("vasso.lab.training.setup.cached_images", lambda *_, data=data: data)
        train_to(run, store, 1, 2)
        read = [line["certificate"]["data"] for line in store.folder(run.id).metrics("start")]
        assert read == 2 * [{"name": "digits", "digest": data.digest}]
    changed = f"data digits have changed .*was {digits.digest} and is {other.digest}"
    with pytest.raises(StoreError, match=changed):
        train(run, Store(tmp_path / digits.digest), CPU)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run, other, store = a_run(), a_run(seed=1), Store(tmp_path)
    train_to(run, store, 2)
    folder = store.folder(other.id)
    folder.path.mkdir()
    (store.folder(run.id).path / "checkpoint.pt").rename(folder.path / "checkpoint.pt")
    with pytest.raises(StoreError, match=f"does not fit the run .*the checkpoint is of {run.id}"):
        train(other, store, CPU)


def test_a_checkpoint_of_a_step_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    run, store = a_run(), Store(tmp_path)
    train_to(run, store, 2)
    folder = store.folder(run.id)
    for step in (10**9, 0, -1, "2"):
        folder.save("checkpoint.pt", {**(next(folder.checkpoints())[1]), "step": step})
        with pytest.raises(StoreError, match=r"does not fit the run .*Remove the folder"):
            train(run, store, CPU)
    assert folder.result is None


def test_a_checkpoint_that_does_not_fit_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    run, whole = a_run(), Store(tmp_path / "whole")
    train(run, whole, CPU)
    unfit = [{"step": 10**9}, {"step": True}, {"step": 2.5}, {"step": 8}, {"last": [1]}]
    for number, changes in enumerate([*unfit, {"best": [1]}, {"sums": {"new": 1}}]):
        store = Store(tmp_path / str(number))
        train_to(run, store, 2, 3)
        folder = store.folder(run.id)
        folder.save("checkpoint.pt", {**next(folder.checkpoints())[1], **changes})
        with pytest.warns(match=r"does not fit the run .*: checkpoint-earlier\.pt is used"):
            train(run, store, CPU)
        assert_same(weights(whole, run), weights(store, run))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_a_flipped_bit_in_a_checkpoint_never_changes_the_result(tmp_path: Path) -> None:
    """The checkpoint before it is used, or the run begins anew, and a warning says so."""
    run, store, draw = a_run(), Store(tmp_path / "whole"), random.Random(5)
    train(run, store, CPU)
    begun = Store(tmp_path / "begun")
    train_to(run, begun, 2, 3)
    files = {p.name: p.read_bytes() for p in begun.folder(run.id).path.iterdir()}
    for number in range(200 if THOROUGH else 6):
        place = Store(tmp_path / str(number)).folder(run.id)
        place.path.mkdir()
        names = [("checkpoint.pt",), ("checkpoint.pt", "checkpoint-earlier.pt")][number % 2]
        changed = {name: with_a_bit_flipped(files[name], draw) for name in names}
        for name, content in (files | changed).items():
            (place.path / name).write_bytes(content)
        with pytest.warns(UserWarning, match="is damaged and is not used"):
            train(run, Store(place.path.parent), CPU)
        assert_same(weights(store, run), weights(Store(place.path.parent), run))
        assert place.metrics("start")[-1]["step"] == (2, 0)[number % 2]


def with_a_bit_flipped(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def one_of_two(
    rank: int, port: int, store: Path, stop: int, strategy: str, seeds: tuple[int, int] = (0, 0)
) -> None:
    """What torchrun sets for a process, then the same call as in one."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    names |= {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ["TORCHELASTIC_RUN_ID"] = "test"
    torch.set_num_threads(1)
    options = RunOptions(accelerator="cpu", devices=2, strategy=strategy)
    code = 0
    try:
        run = shared_run(strategy).changed({"seed": seeds[rank]})
        train(run, Store(store), options, stops_after(stop))
    except Stopped:
        code = 3
    except SetupError as error:
        code = 4 if "were started for different ones" in str(error) else 1
    except BusyError:
        code = 5
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


def in_two_processes(
    store: Path, stop: int, strategy: str, seeds: tuple[int, int] = (0, 0)
) -> list[int | None]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    both = [
        FORKED.Process(target=one_of_two, args=(rank, port, store, stop, strategy, seeds))
        for rank in range(2)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        process.kill()
    return [process.exitcode for process in both]


@pytest.mark.ranks
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


@pytest.mark.ranks
def test_processes_of_different_runs_and_of_a_busy_run_store_nothing(tmp_path: Path) -> None:
    store, run = Store(tmp_path), shared_run("ddp")
    assert in_two_processes(store.root, 10**9, "ddp", (0, 1)) == [4, 4]
    with store.folder(run.id).locked():
        assert in_two_processes(store.root, 10**9, "ddp") == [5, 5]
    assert [path.name for path in tmp_path.rglob("*")] == ["store.json", run.id]


@pytest.mark.parametrize("first", ["one process", "shards"])
def test_a_run_goes_on_in_shards_and_out_of_them(tmp_path: Path, first: str) -> None:
    run = shared_run("fsdp2")
    alone, moved = Store(tmp_path / "alone"), Store(tmp_path / "moved")
    train(run, alone, CPU)
    if first == "shards":
        assert in_two_processes(moved.root, 3, "fsdp2") == [3, 3]
        train(run, moved, CPU)
    else:
        train_to(run, moved, 3)
        assert in_two_processes(moved.root, 10**9, "fsdp2") == [0, 0]
    for name, w in weights(alone, run).items():
        assert torch.allclose(w, weights(moved, run)[name], rtol=0, atol=1e-6), name


AUTO = {"name": "Half-SAM", "rho": "auto(kappa=1.5, held_out=40, start=0.2)"}


def test_images_that_set_rho_keep_their_wrong_labels_and_are_not_trained_on() -> None:
    plain = training_of(a_run({"name": "SGD"}, wrong=0.5)).workload
    training = training_of(a_run(AUTO, wrong=0.5))
    workload, split = training.workload, training.workload.split
    _, y = next(iter(workload.held_out.chunks()))
    assert len(y) == 40
    assert len(split.y) == 200 - 40
    label = dict(zip(plain.split.train.tolist(), plain.split.y.tolist(), strict=True))
    assert [label[row] for row in split.train.tolist()] == split.y.tolist()
    out = sorted(label.keys() - set(split.train.tolist()))
    assert [label[row] for row in out] == y.tolist()
    clean = split.data.train_y[split.train]
    assert split.wrong.tolist() == (split.y != clean).nonzero().flatten().tolist()
    assert 5 < sum(label[row] != int(split.data.train_y[row]) for row in out) < 35


def test_a_radius_that_sets_itself_is_counted_and_resumes(tmp_path: Path) -> None:
    run = a_run(AUTO, wrong=0.5)
    training = training_of(run)
    while training.step < training.total:
        training.take_step()
    assert training.total == 6  # of 160 images
    # two passes over half of 50, and after each step the forward pass over 40
    assert training.cost == pytest.approx(6 * (1 + 40 / 50 / 3))
    assert training.optimizer.last.radius.keys() == {"rho", "R", "G"}
    assert training.optimizer.last.radius["rho"] != 0.2
    stopped, whole = Store(tmp_path / "stopped"), Store(tmp_path / "whole")
    train_to(run, stopped, 4)
    train(run, stopped, CPU)
    train(run, whole, CPU)
    assert_same(weights(stopped, run), weights(whole, run))


@pytest.mark.parametrize(
    ("rho", "message"),
    [
        ("auto(kapa=1)", "has no setting 'kapa'. Did you mean 'kappa'"),
        ("auto(0.7)", "name its settings"),
        ("auto(held_out=0)", "held_out must be a whole number"),
        ("auto(kappa=-1)", "kappa must be above 0"),
    ],
)
def test_settings_of_a_radius_that_sets_itself_are_checked(rho: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        a_run({"name": "SAM", "rho": rho})


def test_more_images_than_there_are_cannot_be_held_out() -> None:
    with pytest.raises(ValueError, match="cannot be held out of 200"):
        training_of(a_run({"name": "SAM", "rho": "auto(held_out=200)"}))


@pytest.mark.parametrize("name", ["VaSSO", "ESAM", "FisherSAM", "GSAM"])
@pytest.mark.parametrize("micro", [7, 20])
def test_micro_batches_give_the_trajectory_of_the_whole_batch(
    tmp_path: Path, name: str, micro: int
) -> None:
    """In float64, without BatchNorm; batches of 50 end with a part of one or ten samples."""
    settings = {k: v for k, v in vasso.methods()[name].example.items() if k != "total"}
    model = f"{__name__}:linear"
    run = a_run({"name": name, **settings}, precision="64-true", model=model)
    whole, parts = Store(tmp_path / "whole"), Store(tmp_path / "parts")
    results = train(run, whole, CPU), train(run, parts, replace(CPU, micro_batch=micro))
    for key, w in weights(whole, run).items():
        assert torch.allclose(w, weights(parts, run)[key], rtol=0, atol=1e-12), key
    losses = [result["last"]["train_loss"] for result in results]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)  # summed up in float32


def linear(classes: int, channels: int, size: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes))
