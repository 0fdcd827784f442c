"""Data sets: what there is (`DATASETS`), and loading one into memory or listing its image files.

Digits come with scikit-learn. ImageNet needs an account and is put into the data folder by
hand. All others are downloaded from their official addresses.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vasso import validation
from vasso.lab.data import cifar, fashion, image_folder
from vasso.lab.data.cache import Arrays, cached
from vasso.lab.data.download import (
    DataFile,
    Progress,
    Remote,
    ensure,
    ensure_all,
    progress_bars,
)
from vasso.lab.data.image_folder import ImageFolder
from vasso.lab.data.images import Images, area_average, validation_split


@dataclass(frozen=True)
class DatasetInfo:
    """A data set: its line in `vasso list data`, the files it needs and what reads them.

    `read` gives all images at once. A data set of image files has `list_files` instead.
    """

    images: str
    origin: str
    side: int
    read: Callable[[Path], Images] | None = None
    list_files: Callable[[Path], ImageFolder] | None = None
    files: tuple[DataFile, ...] = ()
    human_labels: str = ""


def _read_digits(_: Path) -> Images:
    """scikit-learn's 1,797 digits of 8x8 pixels; 500, always the same ones, are the test set."""
    # Takes two seconds to import, for the digits alone.
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    pixels, labels = load_digits(return_X_y=True)  # values of 0 to 16
    x = torch.from_numpy(np.round(pixels * 255 / 16).astype(np.uint8)).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels.astype(np.int64))
    train, test = validation_split(y, 500, seed=0)
    values = x[train].double() / 255
    mean, std = (values.mean().item(),), (values.std(correction=0).item(),)
    return Images("digits", x[train], y[train], x[test], y[test], 10, mean, std)


def _archive(url: str, folder: str, md5: str) -> tuple[DataFile, ...]:
    return (DataFile(folder, Remote(url, url.rpartition("/")[2], f"md5:{md5}")),)


_FASHION = tuple(
    DataFile(f"{fashion.FOLDER}/{name}", Remote(f"{fashion.ADDRESS}/{name}", name, f"md5:{md5}"))
    for name, md5 in fashion.MD5.items()
)
_TINY = _archive(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    image_folder.TINY,
    "90528d7ca1a48142e341f4ef8d21d0de",
)
_COMMIT = "49df7d8a69e355470c77c1c2f2424916325a394b"
_HUMAN_LABELS = DataFile(
    cifar.HUMAN,
    Remote(
        f"https://github.com/UCSC-REAL/cifar-10-100n/raw/{_COMMIT}/data/{cifar.HUMAN}",
        cifar.HUMAN,
        "sha256:873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310",
    ),
)
# fmt: off
DATASETS: dict[str, DatasetInfo] = {
    "digits": DatasetInfo("1,297 + 500, 1x8x8, 10 classes", "scikit-learn, embedded", 8,
        _read_digits),
    "fashion-mnist": DatasetInfo("60,000 + 10,000, 1x28x28, 10", "download", 28,
        fashion.read_fashion, files=_FASHION),
    "cifar10": DatasetInfo("50,000 + 10,000, 3x32x32, 10", "download", 32, cifar.read_cifar10,
        files=_archive("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", cifar.FOLDER10,
        "c58f30108f718f92721af3b95e74349a")),
    "cifar100": DatasetInfo("50,000 + 10,000, 3x32x32, 100", "download", 32, cifar.read_cifar100,
        files=_archive("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", cifar.FOLDER100,
        "eb9058c3a382ffc7106e4002c42a8d85")),
    "tiny-imagenet": DatasetInfo("100,000 + 10,000, 3x64x64, 200", "download", 64,
        list_files=image_folder.list_tiny, files=_TINY),
    "tiny-imagenet-20": DatasetInfo("10,000 + 1,000 of them, the first 20 classes by name",
        "download", 64, list_files=image_folder.list_tiny_20, files=_TINY),
    "imagenet": DatasetInfo("1,281,167 + 50,000, 1000; in memory only with size, else open_folder",
        "by hand", 224, list_files=image_folder.list_imagenet,
        files=(DataFile(image_folder.IMAGENET, None),)),
    **{
        f"cifar10n-{which}": DatasetInfo(images, "download", 32, human_labels=which)
        for which, images in (
            ("aggre", "the same: what most of the three say"),
            ("random1", "the same: the first label of each image"),
            ("random2", "the same: the second"), ("random3", "the same: the third"),
            ("worse", "cifar10 with labels of people: of three a wrong one, if any is"))
    },
}
# fmt: on


def load(
    name: str = "digits",
    *,
    root: Path | None = None,
    size: int | None = None,
    train_size: int | None = None,
    seed: int = 0,
    download: bool = True,
    progress: Progress | None = None,
) -> Images:
    """Loads a data set into memory; downloads it first if it is missing.

    Args:
        name: one of `DATASETS`.
        root: the data folder; None: the environment variable VASSO_DATA, or `~/.cache/vasso`.
        size: reduce images to this height and width by averaging over areas; cached on disk.
        train_size: keep only this many training images, with the same share of every class.
        seed: which training images are kept.
        download: download missing files; False: missing files are an error.
        progress: callback for downloads; None: progress bars, if stderr is a terminal.

    Example:
        >>> images = load("digits", train_size=100)
        >>> images.train_x.shape, images.train_y.bincount().tolist()
        (torch.Size([100, 1, 8, 8]), [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    if size is not None and not 1 <= size <= side_of(name):
        raise ValueError(
            f"size must be 1 to {side_of(name)} pixels, the side of images of {name}, got {size}: "
            "they are made smaller, not larger"
        )
    validation.one_of("name", name, *DATASETS)
    with progress_bars(progress) as report:
        images = _load(name, data_root(root), size, report if download else None)
    return images if train_size is None else images.subset(train_size, seed)


def open_folder(name: str, *, root: Path | None = None, download: bool = True) -> ImageFolder:
    """Lists a data set of image files (such as imagenet), to be decoded batch by batch.

    `root` and `download` are as in `load`; the result is for `training_batches` and
    `evaluation_batches`.
    """
    list_files = {key: d.list_files for key, d in DATASETS.items() if d.list_files is not None}
    validation.one_of("name", name, *list_files)
    folder = data_root(root)
    with progress_bars(None) as report:
        ensure_all(DATASETS[name].files, folder, report if download else None)
    return list_files[name](folder)


def side_of(name: str) -> int:
    """The height and width of a data set's images in pixels; for imagenet, after resizing."""
    validation.one_of("name", name, *DATASETS)
    return DATASETS[name].side


def data_root(root: Path | None = None) -> Path:
    """The data folder: the argument, else VASSO_DATA, else `~/.cache/vasso`."""
    chosen = root or os.environ.get("VASSO_DATA") or Path("~/.cache/vasso")
    return Path(chosen).expanduser()


def _load(name: str, root: Path, size: int | None, progress: Progress | None) -> Images:
    """All images of a data set, reduced to `size`; nothing is downloaded if progress is None."""
    info = DATASETS[name]
    if info.human_labels:
        return _with_human_labels(name, root, size, progress)
    ensure_all(info.files, root, progress)
    if info.list_files is not None:
        return _decoded(info.list_files(root), root, size)
    assert info.read is not None  # a data set is read or listed
    read = info.read
    if size is None:
        return read(root)
    return _cached_images(name, f"{name}-{size}", root, lambda: _reduced(read(root), size))


def _with_human_labels(
    name: str, root: Path, size: int | None, progress: Progress | None
) -> Images:
    images = _load("cifar10", root, size, progress)
    ensure(_HUMAN_LABELS, root, progress)
    labels = cifar.read_human_labels(root, DATASETS[name].human_labels, images.train_y)
    return replace(images, name=name, train_y=labels)


def _decoded(folder: ImageFolder, root: Path, size: int | None) -> Images:
    if size is None and folder.name == "imagenet":
        raise ValueError(
            "imagenet does not fit into memory: use open_folder('imagenet') and training_batches, "
            "or a reduced resolution such as size=64"
        )
    side = size or folder.size
    key = f"{folder.name}-{side}-{folder.digest}"
    return _cached_images(folder.name, key, root, lambda: folder.in_memory(side))


def _reduced(images: Images, size: int) -> Images:
    return replace(
        images,
        train_x=area_average(images.train_x, size),
        test_x=area_average(images.test_x, size),
    )


def _cached_images(name: str, key: str, root: Path, make: Callable[[], Images]) -> Images:
    def arrays() -> Arrays:
        images = make()
        fields = ("train_x", "train_y", "test_x", "test_y", "classes", "mean", "std")
        return {field: np.asarray(getattr(images, field)) for field in fields}

    found = cached(root / "reduced" / key, arrays)
    tensors = {
        field: torch.from_numpy(found[field]) for field in found if field[-2:] in ("_x", "_y")
    }
    return Images(
        name,
        **tensors,
        classes=int(found["classes"]),
        mean=tuple(found["mean"].tolist()),
        std=tuple(found["std"].tolist()),
    )
