"""Which image files are there? ImageNet and Tiny-ImageNet, listed and not yet decoded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vasso.lab.data.decoding import Averaged, Decoded, decoded
from vasso.lab.data.images import DataError, Images

IMAGENET, TINY = "imagenet", "tiny-imagenet-200"
KINDS = {".jpeg", ".jpg", ".png"}


@dataclass(frozen=True, eq=False)
class Files:
    """Image files and their labels."""

    paths: tuple[Path, ...]
    y: Tensor

    def in_memory(self, size: int, workers: int) -> Tensor:
        """All of them, their central squares reduced to one size.

        Args:
            size: the new height and width.
            workers: processes that decode.

        Returns:
            uint8, N x 3 x size x size.
        """
        x = torch.empty(len(self.paths), 3, size, size, dtype=torch.uint8)
        files = Decoded(self.paths, Averaged(size))
        for batch, index in decoded(files, torch.arange(len(self.paths)), 256, workers):
            x[index] = batch
        return x


@dataclass(frozen=True, eq=False)
class Folder:
    """A data set too large for memory; `batches` decodes it as it goes.

    Attributes:
        name: as given to `load`.
        train: files to train on.
        test: files to test on.
        names: of the classes, in the order of the labels.
        mean: per channel, in units of 0 to 1.
        std: per channel, in units of 0 to 1.
        size: height and width that images are brought to.
    """

    name: str
    train: Files
    test: Files
    names: tuple[str, ...]
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    size: int = 224

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.names)

    @property
    def fingerprint(self) -> str:
        """Tells listings apart: a few letters from the names and sizes of all files."""
        digest = hashlib.sha256()
        for path in (*self.train.paths, *self.test.paths):
            digest.update(f"{'/'.join(path.parts[-4:])} {path.stat().st_size}\n".encode())
        return digest.hexdigest()[:12]

    def in_memory(self, size: int) -> Images:
        """The data set with all images decoded and reduced to one size.

        Args:
            size: the new height and width.

        Returns:
            Images in memory.
        """
        workers = 0 if len(self.train.paths) < 20_000 else os.cpu_count() or 1
        x, test_x = (files.in_memory(size, workers) for files in (self.train, self.test))
        return Images(
            self.name, x, self.train.y, test_x, self.test.y, self.classes, self.mean, self.std
        )


def list_imagenet(root: Path) -> Folder:
    """ImageNet in the layout `imagenet/train/CLASS/*` and `imagenet/val/CLASS/*`.

    Args:
        root: where the folder is.

    Returns:
        The files; labels follow the sorted names of the classes.

    Raises:
        DataError: there are no classes.
    """
    folder = root / IMAGENET
    if not (folder / "train").is_dir():
        raise DataError(f"{folder / 'train'} is missing: it has to hold a folder for each class")
    names = tuple(sorted(path.name for path in (folder / "train").iterdir() if path.is_dir()))
    train, test = (
        _files(folder / part, [_images(folder / part / name) for name in names])
        for part in ("train", "val")
    )
    return Folder("imagenet", train, test, names)


def list_tiny(root: Path) -> Folder:
    """Tiny-ImageNet in its official layout, with the classes that `wnids.txt` names.

    Args:
        root: where the folder `tiny-imagenet-200` is.

    Returns:
        The files; labels are the positions in `wnids.txt`.
    """
    return _tiny("tiny-imagenet", root, _tiny_names(root))


def list_tiny_20(root: Path) -> Folder:
    """The twenty classes of Tiny-ImageNet whose names come first in the alphabet.

    Args:
        root: where the folder `tiny-imagenet-200` is.

    Returns:
        The files; labels follow the sorted names.

    Raises:
        DataError: there are fewer classes.
    """
    names = sorted(_tiny_names(root))[:20]
    if len(names) < 20:
        raise DataError(f"{root / TINY / 'wnids.txt'} names {len(names)} classes, not twenty")
    return _tiny("tiny-imagenet-20", root, tuple(names))


def _tiny_names(root: Path) -> tuple[str, ...]:
    folder = root / TINY
    for needed in (folder / "wnids.txt", folder / "val" / "val_annotations.txt"):
        if not needed.is_file():
            raise DataError(f"{needed} is missing: delete {folder} and load again to download it")
    return tuple((folder / "wnids.txt").read_text().split())


def _tiny(called: str, root: Path, names: tuple[str, ...]) -> Folder:
    folder = root / TINY
    tests: dict[str, list[Path]] = {name: [] for name in names}
    for line in (folder / "val" / "val_annotations.txt").read_text().splitlines():
        file, name = line.split("\t")[:2]
        if name in tests:
            tests[name].append(folder / "val" / "images" / file)
    return Folder(
        called,
        _files(folder / "train", [_images(folder / "train" / name / "images") for name in names]),
        _files(folder / "val", list(tests.values())),
        names,
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        size=64,
    )


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} is missing: every class needs its folder")
    paths = (path for path in folder.iterdir() if path.suffix.lower() in KINDS)
    return sorted(paths, key=lambda path: (len(path.name), path.name))  # 2 before 10


def _files(folder: Path, by_class: Sequence[Sequence[Path]]) -> Files:
    """Files with the position of their class as label."""
    paths = tuple(path for group in by_class for path in group)
    if not paths:
        raise DataError(f"{folder} holds no images")
    labels = [label for label, group in enumerate(by_class) for _ in group]
    return Files(paths, torch.tensor(labels))
