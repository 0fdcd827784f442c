"""Which data sets are there, and how does one get into memory?

| name | training, test images | from |
|---|---|---|
| digits | 1,297 + 500, 1x8x8, 10 classes | scikit-learn, embedded |
| fashion-mnist | 60,000 + 10,000, 1x28x28, 10 | download |
| cifar10 | 50,000 + 10,000, 3x32x32, 10 | download |
| cifar100 | 50,000 + 10,000, 3x32x32, 100 | download |
| cifar10n-worse | cifar10 with labels of people: of three a wrong one, if any is | download |
| cifar10n-aggre | the same: what most of the three say | download |
| cifar10n-random1 | the same: the first label of each image | download |
| cifar10n-random2 | the same: the second | download |
| cifar10n-random3 | the same: the third | download |
| tiny-imagenet | 100,000 + 10,000, 3x64x64, 200 | download |
| tiny-imagenet-20 | 10,000 + 1,000 of them, the first 20 classes by name | download |
| imagenet | 1,281,167 + 50,000, 1000; in memory only with `size`, else `open_folder` | by hand |
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vasso import checks
from vasso.lab.data import cifar
from vasso.lab.data.cache import Arrays, remembered
from vasso.lab.data.download import is_sound
from vasso.lab.data.folders import Folder
from vasso.lab.data.images import DataError, Images, area_average
from vasso.lab.data.progress import Progress, shown
from vasso.lab.data.sources import HUMAN_LABELS, SOURCES, ensure, ensure_all

NAMES = (*SOURCES, *(f"cifar10n-{which}" for which in cifar.HUMAN_LABELS))


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
    """Loads a data set into memory, and downloads it first if it is not there.

    Args:
        name: which, see above.
        root: where files are; None: the environment variable VASSO_DATA, or `~/.cache/vasso`.
        size: reduce images to this height and width by averaging over areas; made once and kept.
        train_size: keep only so many training images, every class with its share.
        seed: which of them.
        download: fetch what is missing; otherwise an error says what is.
        progress: is told of downloads; None: bars, if the error output is a terminal.

    Returns:
        The data set.

    Raises:
        ValueError: the name is unknown, or a number is out of range.

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
    checks.one_of("name", name, *NAMES)
    with shown(progress) as tell:
        images = _whole(name, data_root(root), size, tell if download else None)
    return images if train_size is None else images.subset(train_size, seed)


def open_folder(name: str, *, root: Path | None = None, download: bool = True) -> Folder:
    """Lists a data set of image files, to be decoded batch by batch.

    Args:
        name: "imagenet", "tiny-imagenet" or "tiny-imagenet-20".
        root: as in `load`.
        download: as in `load`.

    Returns:
        The files, for `training_batches` and `evaluation_batches`.
    """
    listings = {key: s.listing for key, s in SOURCES.items() if s.listing is not None}
    checks.one_of("name", name, *listings)
    place = data_root(root)
    with shown(None) as tell:
        ensure_all(SOURCES[name].items, place, tell if download else None)
    return listings[name](place)


def side_of(name: str) -> int:
    """The largest side that images of a data set come in.

    Args:
        name: which.

    Returns:
        Pixels; of imagenet, whose images differ, those they are brought to.
    """
    checks.one_of("name", name, *NAMES)
    return SOURCES["cifar10" if name.startswith("cifar10n-") else name].side


def data_root(root: Path | None = None) -> Path:
    """Where files are.

    Args:
        root: the caller's choice.

    Returns:
        That; else VASSO_DATA; else `~/.cache/vasso`.
    """
    chosen = root or os.environ.get("VASSO_DATA") or Path("~/.cache/vasso")
    return Path(chosen).expanduser()


def _whole(name: str, root: Path, size: int | None, tell: Progress | None) -> Images:
    """All images of a data set, at the size asked for."""
    if name.startswith("cifar10n-"):
        return _human(name, root, size, tell)
    source = SOURCES[name]
    ensure_all(source.items, root, tell)
    if source.listing is not None:
        return _decoded(source.listing(root), root, size)
    assert source.read is not None  # a source is read or listed
    read = source.read
    if size is None:
        return read(root)
    return _kept(name, f"{name}-{size}", root, lambda: _reduced(read(root), size))


def _human(name: str, root: Path, size: int | None, tell: Progress | None) -> Images:
    """CIFAR-10 with the labels that people gave."""
    images = _whole("cifar10", root, size, tell)
    ensure(HUMAN_LABELS, root, tell)
    path = root / HUMAN_LABELS.holds
    if HUMAN_LABELS.remote is not None and not is_sound(path, HUMAN_LABELS.remote):
        raise DataError(
            f"{path} has changed since it was downloaded: delete it and load again, or delete "
            f"{path.name}.sha256 beside it to accept it"
        )
    labels = cifar.read_human_labels(root, name.removeprefix("cifar10n-"), images.train_y)
    return replace(images, name=name, train_y=labels)


def _decoded(folder: Folder, root: Path, size: int | None) -> Images:
    """A data set of image files in memory; decoded once and kept."""
    if size is None and folder.name == "imagenet":
        raise ValueError(
            "imagenet does not fit into memory: use open_folder('imagenet') and training_batches, "
            "or a reduced resolution such as size=64"
        )
    side = size or folder.size
    key = f"{folder.name}-{side}-{folder.fingerprint}"
    return _kept(folder.name, key, root, lambda: folder.in_memory(side))


def _reduced(images: Images, size: int) -> Images:
    return replace(
        images,
        train_x=area_average(images.train_x, size),
        test_x=area_average(images.test_x, size),
    )


def _kept(name: str, key: str, root: Path, make: Callable[[], Images]) -> Images:
    """Images from the cache if they were made before."""

    def arrays() -> Arrays:
        images = make()
        fields = ("train_x", "train_y", "test_x", "test_y", "classes", "mean", "std")
        return {field: np.asarray(getattr(images, field)) for field in fields}

    found = remembered(root / "reduced" / key, arrays)
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
