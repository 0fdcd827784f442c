"""Data sets of image files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vasso.lab.data import (
    Augmentation,
    DataError,
    evaluation_batches,
    load,
    normalised,
    open_folder,
    order,
    training_batches,
)
from vasso.lab.data.augment import random_windows
from vasso.lab.data.image_folder import CentralCrop, RandomWindow, open_image
from vasso.lab.data.images import area_average

HOW = Augmentation(resized_crop=24, flip=True, cutout=6, cutout_probability=0.5)


def picture(path: Path, width: int, height: int, seed: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(array).convert(mode).save(path)


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    for c, name in enumerate(("n02", "n01", "n03")):
        for i in range(5):
            seed = 10 * c + i
            picture(tmp_path / "imagenet" / "train" / name / f"{i}.png", 40 + i, 50 - c, seed)
            picture(tmp_path / "imagenet" / "val" / name / f"{i}.JPEG", 60, 45 + i, seed + 100)
    return tmp_path


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    top = tmp_path / "tiny-imagenet-200"
    for name in ("n05", "n02", "n09"):
        for i in range(4):
            mode = "L" if i == 0 else "RGB"
            picture(top / "train" / name / "images" / f"{name}_{i}.png", 64, 64, i, mode)
    for i in range(6):
        picture(top / "val" / "images" / f"val_{i}.png", 64, 64, i + 50)
    labels = ("n09", "n05", "n02", "n05", "n09", "n05")
    lines = [f"val_{i}.png\t{name}\t0\t0\t63\t63\n" for i, name in enumerate(labels)]
    (top / "val" / "val_annotations.txt").write_text("".join(lines))
    (top / "wnids.txt").write_text("n05\nn02\n")
    return tmp_path


def test_batches_are_the_same_whatever_the_number_of_workers(imagenet: Path) -> None:
    folder = open_folder("imagenet", root=imagenet)
    indices, before = order(15, 0, 3), torch.get_rng_state()
    runs = [
        list(training_batches(folder, indices, 4, augmentation=HOW, seed=1, epoch=3, workers=w))
        for w in (0, 1, 2)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert [len(y) for _, y, _ in runs[0]] == [4, 4, 4, 3]
    assert torch.equal(torch.cat([index for _, _, index in runs[0]]), indices)
    assert torch.equal(torch.cat([y for _, y, _ in runs[0]]), folder.train.y[indices])
    for run in runs[1:]:
        for (x, y, i), (x2, y2, i2) in zip(runs[0], run, strict=True):
            assert torch.equal(x, x2)
            assert torch.equal(y, y2)
            assert torch.equal(i, i2)


def test_an_image_of_a_folder_depends_on_seed_epoch_and_index_alone(imagenet: Path) -> None:
    folder = open_folder("imagenet", root=imagenet)

    def one(index: int, **keys: int) -> torch.Tensor:
        chosen = torch.tensor([index])
        ((x, _, _),) = training_batches(folder, chosen, 1, augmentation=HOW, **keys)
        return x[0]

    ((x, _, _),) = training_batches(folder, order(15, 0, 0), 15, augmentation=HOW, seed=1, epoch=0)
    assert torch.equal(x[4], one(int(order(15, 0, 0)[4]), seed=1, epoch=0))
    assert not torch.equal(one(3, seed=1, epoch=0), one(3, seed=1, epoch=1))
    assert not torch.equal(one(3, seed=1, epoch=0), one(3, seed=2, epoch=0))


def test_a_random_window_is_pillows_resize_of_the_box(imagenet: Path) -> None:
    folder = open_folder("imagenet", root=imagenet)
    image = open_image(folder.train.paths[7])
    top, left, h, w = (
        int(v) for v in random_windows(image.height, image.width, 4, 5, torch.tensor([7]))
    )
    window = Image.fromarray(np.array(image)[top : top + h, left : left + w])
    expected = np.array(window.resize((24, 24), Image.Resampling.BILINEAR))
    ours = RandomWindow(24, seed=4, epoch=5)(image, 7).permute(1, 2, 0).numpy()
    assert np.array_equal(ours, expected)


def test_windows_are_cut_once_then_mirrored_normalised_and_cut_out(imagenet: Path) -> None:
    folder = open_folder("imagenet", root=imagenet)
    indices, keys = torch.tensor([7, 2, 11, 4]), {"seed": 4, "epoch": 5}
    ((x, _, _),) = training_batches(folder, indices, 4, augmentation=HOW, **keys)
    view = RandomWindow(24, **keys)
    raw = torch.stack([view(open_image(folder.train.paths[i]), i) for i in indices.tolist()])
    rest = Augmentation(flip=True, cutout=6, cutout_probability=0.5)
    assert torch.equal(x, rest(raw, indices, mean=folder.mean, std=folder.std, **keys))


def test_without_a_random_window_the_central_square_is_averaged(imagenet: Path) -> None:
    folder = replace(open_folder("imagenet", root=imagenet), size=8)
    images = load("imagenet", root=imagenet, size=8)
    indices, rules = torch.arange(15), {"augmentation": Augmentation(), "seed": 0, "epoch": 0}
    ((x, _, _),) = training_batches(folder, indices, 15, **rules)
    ((same, _, _),) = training_batches(images, indices, 15, **rules)
    assert torch.equal(x, same)


def test_labels_follow_the_sorted_names(imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: sorted(listed(path), reverse=True))
    folder = open_folder("imagenet", root=imagenet)
    assert [path.name for path in folder.train.paths[:5]] == [f"{i}.png" for i in range(5)]
    assert folder.names == ("n01", "n02", "n03")
    assert folder.classes == 3
    for files in (folder.train, folder.test):
        for path, y in zip(files.paths, files.y, strict=True):
            assert folder.names[y] == path.parent.name


def test_test_images_are_resized_and_cut_from_the_middle(imagenet: Path) -> None:
    folder = open_folder("imagenet", root=imagenet)
    image = open_image(folder.test.paths[0])  # 60 x 45
    x = CentralCrop(28)(image, 0)
    resized = np.array(image.resize((43, 32), Image.Resampling.BILINEAR))
    assert np.array_equal(x.permute(1, 2, 0).numpy(), resized[2:30, 7:35])
    batches = list(evaluation_batches(folder, 8))
    assert [len(y) for _, y in batches] == [8, 7]
    assert batches[0][0].shape == (8, 3, 224, 224)
    expected = normalised(CentralCrop(224)(image, 0)[None], folder.mean, folder.std)
    assert torch.equal(batches[0][0][:1], expected)


def test_imagenet_in_memory_needs_a_size(imagenet: Path) -> None:
    with pytest.raises(ValueError, match="does not fit into memory: use open_folder"):
        load("imagenet", root=imagenet)
    images = load("imagenet", root=imagenet, size=8, train_size=6)
    assert images.train_x.shape == (6, 3, 8, 8)
    assert images.train_y.tolist() == [0, 0, 1, 1, 2, 2]
    image = torch.from_numpy(
        np.array(open_image(open_folder("imagenet", root=imagenet).test.paths[0]))
    )
    square = image.permute(2, 0, 1)[None, :, :, 7:52]
    assert torch.equal(images.test_x[:1], area_average(square, 8))


def test_a_changed_folder_is_decoded_anew(imagenet: Path) -> None:
    load("imagenet", root=imagenet, size=8)
    picture(imagenet / "imagenet" / "train" / "n01" / "new.png", 20, 20, 7)
    assert len(load("imagenet", root=imagenet, size=8).train_x) == 16


def test_a_file_that_is_no_image_is_named(imagenet: Path) -> None:
    path = imagenet / "imagenet" / "train" / "n01" / "0.png"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match=r"0\.png cannot be decoded"):
        load("imagenet", root=imagenet, size=8)


def test_folders_that_are_missing_or_empty_are_named(tmp_path: Path) -> None:
    (tmp_path / "imagenet").mkdir()
    with pytest.raises(DataError, match="train is missing"):
        open_folder("imagenet", root=tmp_path)
    (tmp_path / "imagenet" / "train" / "n01").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no images"):
        open_folder("imagenet", root=tmp_path)
    picture(tmp_path / "imagenet" / "train" / "n01" / "0.png", 8, 8, 0)
    with pytest.raises(DataError, match="n01 is missing: every class needs its folder"):
        open_folder("imagenet", root=tmp_path)


def test_tiny_imagenet_has_the_classes_that_wnids_names(tiny: Path) -> None:
    images = load("tiny-imagenet", root=tiny, download=False)
    assert images.classes == 2
    assert images.train_x.shape == (8, 3, 64, 64)
    assert images.train_y.tolist() == [0] * 4 + [1] * 4
    assert images.test_y.tolist() == [0, 0, 0, 1]
    grey = images.train_x[0]
    assert torch.equal(grey[0], grey[1])
    stored = np.array(Image.open(tiny / "tiny-imagenet-200" / "val" / "images" / "val_1.png"))
    assert np.array_equal(images.test_x[0].permute(1, 2, 0).numpy(), stored)
    (tiny / "tiny-imagenet-200" / "wnids.txt").unlink()
    with pytest.raises(DataError, match=r"wnids\.txt is missing"):
        load("tiny-imagenet", root=tiny, download=False)


def test_twenty_classes_of_tiny_imagenet_are_the_first_by_name(tmp_path: Path) -> None:
    top = tmp_path / "tiny-imagenet-200"
    names = [f"n{i:02d}" for i in reversed(range(22))]
    for name in names:
        for number in (10, 2):
            path = top / "train" / name / "images" / f"{name}_{number}.png"
            picture(path, 4, 4, int(name[1:]) + number)
        picture(top / "val" / "images" / f"{name}.png", 4, 4, 99)
    lines = "".join(f"{name}.png\t{name}\t0\t0\t3\t3\n" for name in names)
    (top / "val" / "val_annotations.txt").write_text(lines)
    (top / "wnids.txt").write_text("\n".join(names))
    folder = open_folder("tiny-imagenet-20", root=tmp_path, download=False)
    assert folder.names == tuple(sorted(names)[:20])
    assert [path.name for path in folder.train.paths[:3]] == [
        "n00_2.png",
        "n00_10.png",
        "n01_2.png",
    ]
    assert [path.name for path in folder.test.paths] == [f"{name}.png" for name in folder.names]
    (top / "wnids.txt").write_text("n00\nn01\n")
    with pytest.raises(DataError, match="names 2 classes, not twenty"):
        open_folder("tiny-imagenet-20", root=tmp_path, download=False)
