"""Data sets: found, fetched, checked, made small, read."""

import errno
import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.lab.conftest import needing
from tests.lab.data.evil import Evil
from tests.lab.data.server import serving
from vasso.lab.data import (
    Augmentation,
    DataError,
    Images,
    cache,
    cifar,
    data_root,
    datasets,
    evaluation_batches,
    fashion,
    image_folder,
    load,
    normalised,
    open_folder,
    order,
    training_batches,
)
from vasso.lab.data.cifar import read_pickle, read_torch
from vasso.lab.data.download import DataFile, Remote
from vasso.lab.data.images import area_average, digest_of


def fake_cifar10(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six batches in the official form, with their checksums in place of the published ones."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name in cifar.CIFAR10:
        batch = {
            b"data": draw.integers(0, 256, (20, 3072), dtype=np.uint8),
            b"labels": draw.permutation(20).__mod__(10).tolist(),
        }
        content = pickle.dumps(batch, 2)
        (folder / name).write_bytes(content)
        monkeypatch.setitem(cifar.CIFAR10, name, hashlib.md5(content).hexdigest())
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_cifar10(tmp_path / cifar.FOLDER10, monkeypatch)
    return tmp_path


def test_pixels_and_labels_are_where_cifar_says(root: Path) -> None:
    images = load("cifar10", root=root, download=False)
    second = pickle.loads((root / cifar.FOLDER10 / "data_batch_2").read_bytes())
    assert images.train_x.shape == (100, 3, 32, 32)
    assert images.train_x[23, 1, 2, 3] == second[b"data"][3, 1024 + 2 * 32 + 3]
    assert images.train_y[20:40].tolist() == second[b"labels"]
    assert images.test_x.shape == (20, 3, 32, 32)
    assert images.mean == pytest.approx((0.4914, 0.4824, 0.4467), abs=1e-4)


def test_a_damaged_batch_is_refused_also_after_a_sound_one_was_read(root: Path) -> None:
    load("cifar10", root=root, download=False)
    path = root / cifar.FOLDER10 / "data_batch_3"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(bytes(content) + b".")
    with pytest.raises(DataError, match=r"data_batch_3 is damaged: its md5 is .*load again"):
        load("cifar10", root=root, download=False)


def test_checksums_are_taken_once_per_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("cifar10", root=root, download=False)
    monkeypatch.setattr("vasso.lab.data.images.hashlib.md5", lambda _: pytest.fail("taken again"))
    load("cifar10", root=root, download=False)


def test_a_missing_batch_is_told(root: Path) -> None:
    (root / cifar.FOLDER10 / "test_batch").unlink()
    with pytest.raises(DataError, match="test_batch is missing"):
        load("cifar10", root=root, download=False)


def test_human_labels_are_for_training_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = load("cifar10", root=root, download=False)
    worse = (clean.train_y + 1) % 10
    content = {"clean_label": clean.train_y.numpy(), "worse_label": worse.numpy()}
    torch.save(content, root / cifar.HUMAN)
    with pytest.raises(DataError, match=r"digest of its worse_label is .*, published"):
        load("cifar10n-worse", root=root, download=False)
    known = {"worse": ("worse_label", digest_of([worse])), "aggre": cifar.HUMAN_LABELS["aggre"]}
    monkeypatch.setattr(cifar, "HUMAN_LABELS", known)
    human = load("cifar10n-worse", root=root, download=False)
    assert human.name == "cifar10n-worse"
    assert torch.equal(human.train_y, worse)
    assert torch.equal(human.test_y, clean.test_y)
    assert torch.equal(human.train_x, clean.train_x)
    with pytest.raises(DataError, match="has no aggre_label"):
        load("cifar10n-aggre", root=root, download=False)


def test_human_labels_of_other_images_are_refused(root: Path) -> None:
    torch.save(
        {"clean_label": np.zeros(100, int), "worse_label": np.zeros(100, int)}, root / cifar.HUMAN
    )
    with pytest.raises(DataError, match="not those of CIFAR-10, in this order"):
        load("cifar10n-worse", root=root, download=False)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = fake_cifar10(tmp_path / "made" / cifar.FOLDER10, monkeypatch)
    archive = tmp_path / "cifar.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(made, cifar.FOLDER10)
    content = archive.read_bytes()
    with serving(content) as server:
        remote = Remote(server.url, "cifar.tar.gz", "md5:" + hashlib.md5(content).hexdigest())
        files = (DataFile(cifar.FOLDER10, remote),)
        info = replace(datasets.DATASETS["cifar10"], files=files)
        monkeypatch.setitem(datasets.DATASETS, "cifar10", info)
        yield server


def test_what_is_missing_is_downloaded_unpacked_and_read(served: Any, tmp_path: Path) -> None:
    root, recorded = tmp_path / "data", []
    for _ in range(2):
        images = load("cifar10", root=root, progress=lambda *step: recorded.append(step))
        assert images.train_x.shape == (100, 3, 32, 32)
    assert served.seen == [None]
    assert recorded[-1][1] == len(served.content)


def test_nothing_is_downloaded_unless_allowed_and_missing(served: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"allow download=True, or put {served.url}"):
        load("cifar10", root=tmp_path / "data", download=False)
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "cifar.tar.gz").write_bytes(served.content)
    load("cifar10", root=tmp_path / "data", download=False)
    assert served.seen == []


def test_the_root_is_argument_environment_or_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VASSO_DATA", "/there")
    assert data_root(Path("/here")) == Path("/here")
    assert data_root() == Path("/there")
    monkeypatch.delenv("VASSO_DATA")
    assert data_root() == Path.home() / ".cache" / "vasso"


def test_unknown_names_and_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        load("cifar-10", root=tmp_path)
    with pytest.raises(ValueError, match=r"size must be 1 to 8 pixels.* got 0"):
        load("digits", size=0, root=tmp_path)
    with pytest.raises(ValueError, match="cannot draw 5000 of 1297 images"):
        load("digits", train_size=5000)
    with pytest.raises(DataError, match="imagenet is missing and cannot be downloaded"):
        load("imagenet", root=tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'imagenet'"):
        open_folder("imagnet", root=tmp_path)


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    images = load("digits")
    assert images.train_x.shape == (1297, 1, 8, 8)
    assert images.test_x.shape == (500, 1, 8, 8)
    ours = torch.cat((images.train_x, images.test_x)).view(-1, 64).double() * 16 / 255
    theirs = torch.from_numpy(load_digits().data)
    assert sorted(ours.round().tolist()) == sorted(theirs.tolist())
    x = normalised(images.train_x, images.mean, images.std)
    assert x.mean().abs() < 1e-5
    assert (x.std() - 1).abs() < 1e-3


def test_a_sub_sample_is_stratified_and_seeded(root: Path) -> None:
    whole = load("cifar10", root=root, download=False)
    first, again, other = (
        load("cifar10", root=root, download=False, train_size=30, seed=seed) for seed in (0, 0, 1)
    )
    assert first.train_y.bincount(minlength=10).tolist() == [3] * 10
    assert torch.equal(first.train_x, again.train_x)
    assert not torch.equal(first.train_x, other.train_x)
    assert torch.equal(first.test_x, whole.test_x)
    rows = {
        bytes(x.flatten().tolist()): y for x, y in zip(whole.train_x, whole.train_y, strict=True)
    }
    for x, y in zip(first.train_x, first.train_y, strict=True):
        assert rows[bytes(x.flatten().tolist())] == y


def test_images_must_fit_their_labels() -> None:
    x, y = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 3])
    with pytest.raises(DataError, match="a train label is outside 0 to 2"):
        Images("x", x, y, x, y, 3, (0.5,), (0.5,))
    with pytest.raises(DataError, match="1 test images but 2 labels"):
        Images("x", x, y, x[:1], y, 4, (0.5,), (0.5,))
    with pytest.raises(DataError, match="must be uint8"):
        Images("x", x.float(), y, x, y, 4, (0.5,), (0.5,))


@pytest.mark.parametrize(("old", "new"), [((6, 6), 3), ((6, 6), 4), ((5, 7), 3), ((3, 3), 5)])
def test_area_averages_are_integrals_over_the_pixels(old: tuple[int, int], new: int) -> None:
    x = torch.randint(0, 256, (2, 3, *old), dtype=torch.uint8)
    fine = x.repeat_interleave(new, 2).repeat_interleave(new, 3).double()  # old * new pixels a side
    cells = fine.view(2, 3, new, old[0], new, old[1]).mean((3, 5))
    assert torch.equal(area_average(x, new), (cells + 0.5 + 1e-9).floor().to(torch.uint8))


def test_reduced_images_are_made_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("cifar10", root=root, download=False, size=16)
    monkeypatch.setattr(cifar, "_batch", lambda *_: pytest.fail("read again"))
    again = load("cifar10", root=root, download=False, size=16, train_size=50)
    assert len(again.train_x) == 50
    assert torch.equal(first.test_x, again.test_x)


def test_every_size_has_a_cache_of_its_own(root: Path) -> None:
    for size in (16, 8, 16):
        images = load("cifar10", root=root, download=False, size=size)
        assert images.train_x.shape == (100, 3, size, size)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "longer"])
def test_a_damaged_cache_is_made_again(root: Path, damage: str) -> None:
    first = load("cifar10", root=root, download=False, size=8)
    (path,) = (root / "reduced").glob("[!.]*")
    sound = path.read_bytes()
    middle = len(sound) // 2
    flipped = sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :]
    spoilt = {"flip": flipped, "cut": sound[:middle], "empty": b"", "longer": sound + b"x"}
    path.write_bytes(spoilt[damage])
    again = load("cifar10", root=root, download=False, size=8)
    assert torch.equal(first.train_x, again.train_x)
    assert path.read_bytes() == sound


def test_a_cut_cache_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(cache.os, "replace", fail)
    with pytest.warns(UserWarning, match="cannot be written .*No space left"):
        made = cache.cached(tmp_path / "x", lambda: {"a": np.arange(3)})
    assert made["a"].tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == [".x.lock"]


def test_of_many_that_need_an_array_one_makes_it(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> dict[str, np.ndarray]:
        made.append(1)
        time.sleep(0.2)
        return {"a": np.arange(3)}

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: cache.cached(tmp_path / "folder" / "x", make), range(8)))
    assert [one["a"].tolist() for one in found] == [[0, 1, 2]] * 8
    assert made == [1]


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert cache.cached(tmp_path / "x", lambda: {"a": np.arange(3)})["a"].tolist() == [0, 1, 2]


def test_a_cache_never_holds_objects(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        cache.cached(tmp_path / "x", lambda: {"a": np.array([Evil(tmp_path)])})
    content = json.dumps(["a"]).encode() + b"\n"
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([Evil(tmp_path / "pwned")]), allow_pickle=True)
    content += buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest().encode()
    (tmp_path / "y").write_bytes(cache.MARK + digest + b"\n" + content)
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        cache.cached(tmp_path / "y", dict)
    assert not (tmp_path / "pwned").exists()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def test_fashion_is_read_from_idx_files_with_the_published_md5_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / fashion.FOLDER
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    arrays = [
        draw.integers(0, 256, (9, 28, 28), dtype=np.uint8),
        np.arange(9, dtype=np.uint8),
        draw.integers(0, 256, (4, 28, 28), dtype=np.uint8),
        np.arange(4, dtype=np.uint8),
    ]
    for name, array in zip(fashion.MD5, arrays, strict=True):
        (folder / name).write_bytes(gzip.compress(idx(array)))
        (folder / name.removesuffix(".gz")).write_bytes(idx(array))
    with pytest.raises(DataError, match=r"-ubyte\.gz is damaged: its md5 is .*, published is"):
        load("fashion-mnist", root=tmp_path, download=False)
    real = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in fashion.MD5}
    monkeypatch.setattr(fashion, "MD5", real)
    images = load("fashion-mnist", root=tmp_path, download=False)
    assert np.array_equal(images.train_x[:, 0].numpy(), arrays[0])
    assert np.array_equal(images.test_x[:, 0].numpy(), arrays[2])
    assert images.train_y.tolist() == list(range(9))
    (folder / next(iter(real))).unlink()  # the unpacked file has no published md5
    with pytest.raises(DataError, match=r"-ubyte\.gz is missing: put it there, or delete"):
        load("fashion-mnist", root=tmp_path, download=False)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        idx(np.zeros((3, 4), np.uint8))[:-1],
        idx(np.zeros((3, 4), np.uint8)) + b"x",
        b"\0\0\x0d" + idx(np.zeros(4, np.uint8))[3:],
    ],
    ids=["empty", "short", "truncated", "long", "floats"],
)
def test_damaged_idx_files_are_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gz"
    whole = gzip.compress(content)
    for packed in (whole, whole[:-5]):
        path.write_bytes(packed)
        with pytest.raises(DataError, match=r"x\.gz is damaged"):
            fashion.read_idx(path, hashlib.md5(packed).hexdigest())


def test_batches_from_memory_are_augmented_images_in_order() -> None:
    images = load("digits", train_size=50)
    how = Augmentation(crop=1)
    settings = {"seed": 3, "epoch": 2}
    indices = order(50, 3, 2)
    batches = list(training_batches(images, indices, 16, augmentation=how, **settings))
    assert [len(y) for _, y, _ in batches] == [16, 16, 16, 2]
    x = torch.cat([x for x, _, _ in batches])
    rules = {**settings, "mean": images.mean, "std": images.std}
    assert torch.equal(x, how(images.train_x[indices], indices, **rules))
    assert torch.equal(torch.cat([y for _, y, _ in batches]), images.train_y[indices])
    tests = list(evaluation_batches(images, 200))
    assert torch.equal(torch.cat([y for _, y in tests]), images.test_y)
    assert torch.equal(tests[0][0], normalised(images.test_x[:200], images.mean, images.std))
    with pytest.raises(ValueError, match="1 image or more, got size=0"):
        list(training_batches(images, indices, 0, augmentation=how, **settings))


def test_real_cifar10() -> None:
    images = load("cifar10", root=needing(cifar.FOLDER10), download=False)
    assert images.train_x.shape == (50_000, 3, 32, 32)
    assert images.train_y.bincount().tolist() == [5000] * 10
    assert images.test_y.bincount().tolist() == [1000] * 10
    assert images.train_y[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    mean = images.train_x.double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(mean, torch.tensor(images.mean, dtype=mean.dtype), atol=2e-4, rtol=0)


def test_real_cifar100() -> None:
    images = load("cifar100", root=needing(cifar.FOLDER100), download=False)
    assert images.train_y.bincount().tolist() == [500] * 100
    assert images.test_y.bincount().tolist() == [100] * 100
    assert images.train_y[:3].tolist() == [19, 29, 0]  # cattle, dinosaur, apple


def test_real_human_labels_are_as_wrong_as_published() -> None:
    root = needing(cifar.FOLDER10, cifar.HUMAN)
    clean = load("cifar10", root=root, download=False).train_y
    published = {  # per cent
        "aggre": 9.01,  # the table of the paper has 9.03
        "random1": 17.23,
        "random2": 18.12,
        "random3": 17.64,
        "worse": 40.21,
    }
    for which, percent in published.items():
        human = load(f"cifar10n-{which}", root=root, download=False)
        wrong = (human.train_y != clean).double().mean().item() * 100
        assert wrong == pytest.approx(percent, abs=0.005)


def test_real_tiny_imagenet() -> None:
    folder = open_folder("tiny-imagenet", root=needing(image_folder.TINY), download=False)
    assert folder.train.y.bincount().tolist() == [500] * folder.classes
    assert folder.test.y.bincount().tolist() == [50] * folder.classes
    how = Augmentation(resized_crop=64, flip=True)
    indices = order(len(folder.train.y), 0, 0)[:100]
    ((x, _, _),) = training_batches(folder, indices, 100, augmentation=how, seed=0, epoch=0)
    assert x.shape == (100, 3, 64, 64)
    assert x.mean().abs() < 0.3  # normalised by the means of all 200 classes
    assert (x.std() - 1).abs() < 0.3


@pytest.mark.parametrize("protocol", [0, 2, 3, 4])
def test_pickles_of_arrays_are_read(protocol: int) -> None:
    content = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2], "t": b"x"}
    read = read_pickle(io.BytesIO(pickle.dumps(content, protocol)), "batch")
    assert read.keys() == content.keys()
    assert np.array_equal(read[b"data"], content[b"data"])
    assert read[b"labels"] == [1, 2]


def test_a_pickle_that_would_run_something_does_not(tmp_path: Path) -> None:
    for evil in (Evil(tmp_path / "pwned"), {b"data": Evil(tmp_path / "pwned")}):
        with pytest.raises(DataError, match="is not read further"):
            read_pickle(io.BytesIO(pickle.dumps(evil)), "batch")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "name", ["os system", "builtins eval", "numpy load", "numpy.core.multiarray scalar"]
)
def test_only_what_arrays_need_may_be_named(name: str) -> None:
    module, attribute = name.split()
    program = f"c{module}\n{attribute}\n.".encode()
    with pytest.raises(DataError, match=f"it asks for {module}.{attribute}"):
        read_pickle(io.BytesIO(program), "batch")


@pytest.mark.parametrize("cut", [0, 1, 10, 60])
def test_truncated_pickles_are_told(cut: int) -> None:
    whole = pickle.dumps({b"data": np.arange(10)})
    with pytest.raises(DataError, match="batch is not a pickle of arrays"):
        read_pickle(io.BytesIO(whole[:cut]), "batch")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("number", [np.uint8, np.int64])
def test_files_of_torch_with_arrays_are_read(tmp_path: Path, zipped: bool, number: Any) -> None:
    content = {"clean_label": np.arange(5, dtype=number)}
    torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    assert read_torch(tmp_path / "x.pt")["clean_label"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_file_of_torch_that_would_run_something_does_not(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "x.pt"
    evil = {"clean_label": Evil(tmp_path / "pwned")}
    torch.save(evil, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(DataError, match="is not read further"):
        read_torch(path)
    assert not (tmp_path / "pwned").exists()
