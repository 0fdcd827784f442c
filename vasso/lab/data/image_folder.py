"""Data sets of image files: listing ImageNet and Tiny-ImageNet, and decoding files with Pillow.

Every random choice depends on the seed, the epoch and the index of an image alone. The batches are
therefore the same for any number of workers.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vasso.optional import needs_extra

with needs_extra("lab"):
    import numpy as np
    from PIL import Image

from vasso.lab.data.augment import random_windows
from vasso.lab.data.images import DataError, Images, area_average

BILINEAR = Image.Resampling.BILINEAR
IMAGENET, TINY = "imagenet", "tiny-imagenet-200"
KINDS = {".jpeg", ".jpg", ".png"}


def open_image(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} cannot be decoded ({error}): replace or remove it") from error


def _pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@dataclass(frozen=True)
class ReducedSquare:
    """The central square of an image, reduced to a size by averaging over areas."""

    size: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        x = _pixels(image)
        height, width = x.shape[1:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        return area_average(x[None, :, top : top + side, left : left + side], self.size)[0]


@dataclass(frozen=True)
class CentralCrop:
    """ImageNet's test images: short side resized to 8/7 of the size, then the central square."""

    size: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        short = round(self.size * 256 / 224)
        scale = short / min(image.size)
        width, height = (max(short, round(side * scale)) for side in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        resized = image.resize((width, height), BILINEAR)
        return _pixels(resized.crop((left, top, left + self.size, top + self.size)))


@dataclass(frozen=True)
class RandomWindow:
    """ImageNet's training images: a random window, resized."""

    size: int
    seed: int
    epoch: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        at = torch.tensor([index])
        window = random_windows(image.height, image.width, self.seed, self.epoch, at)
        top, left, h, w = (int(side) for side in window)
        box = (left, top, left + w, top + h)
        # Not resize(box=...), whose filter reads pixels beyond the window.
        return _pixels(image.crop(box).resize((self.size, self.size), BILINEAR))


class DecodedFiles(Dataset[tuple[Tensor, int]]):
    """Image files as (pixels, index), decoded on access; `view` crops and resizes an image."""

    def __init__(self, paths: Sequence[Path], view: Callable[[Image.Image, int], Tensor]) -> None:
        self.paths, self.view = paths, view

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.view(open_image(self.paths[index]), index), index

    def __len__(self) -> int:
        return len(self.paths)


def decoded_batches(
    data: DecodedFiles, order: Tensor, batch: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of decoded images and their indices, in the given order for any number of workers."""
    batches = [part.tolist() for part in torch.split(order, batch)]
    loader = DataLoader(
        data,
        batch_sampler=batches,
        num_workers=workers,
        generator=torch.Generator(),  # or it would draw from torch's global generator
    )
    yield from loader


@dataclass(frozen=True, eq=False)
class Files:
    """Image files and their labels."""

    paths: tuple[Path, ...]
    y: Tensor

    def in_memory(self, size: int, workers: int) -> Tensor:
        """All images, their central squares reduced to one size: uint8, N x 3 x size x size."""
        x = torch.empty(len(self.paths), 3, size, size, dtype=torch.uint8)
        files = DecodedFiles(self.paths, ReducedSquare(size))
        for batch, index in decoded_batches(files, torch.arange(len(self.paths)), 256, workers):
            x[index] = batch
        return x


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """A data set of image files, which may be too large for memory.

    `names` are those of the classes, in the order of the labels; `mean` and `std` are per channel,
    in units of 0 to 1; `size` is the height and width of the images after resizing.
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
        """The number of classes."""
        return len(self.names)

    @cached_property
    def digest(self) -> str:
        """A short hash of the names and sizes of all files."""
        digest = hashlib.sha256()
        for path in (*self.train.paths, *self.test.paths):
            digest.update(f"{'/'.join(path.parts[-4:])} {path.stat().st_size}\n".encode())
        return digest.hexdigest()[:12]

    def in_memory(self, size: int) -> Images:
        """The data set with all images decoded and reduced to one size."""
        workers = 0 if len(self.train.paths) < 20_000 else os.cpu_count() or 1
        x, test_x = (files.in_memory(size, workers) for files in (self.train, self.test))
        return Images(
            self.name, x, self.train.y, test_x, self.test.y, self.classes, self.mean, self.std
        )


def list_imagenet(root: Path) -> ImageFolder:
    """ImageNet in the layout `imagenet/train/CLASS/*` and `imagenet/val/CLASS/*`."""
    folder = root / IMAGENET
    if not (folder / "train").is_dir():
        raise DataError(f"{folder / 'train'} is missing: it has to hold a folder for each class")
    names = tuple(sorted(path.name for path in (folder / "train").iterdir() if path.is_dir()))
    train, test = (
        _files(folder / part, [_images(folder / part / name) for name in names])
        for part in ("train", "val")
    )
    return ImageFolder("imagenet", train, test, names)


def list_tiny(root: Path) -> ImageFolder:
    """Tiny-ImageNet in its official layout, with the classes that `wnids.txt` names."""
    return _list_tiny("tiny-imagenet", root, _tiny_names(root))


def list_tiny_20(root: Path) -> ImageFolder:
    """The twenty classes of Tiny-ImageNet whose names come first in the alphabet."""
    names = sorted(_tiny_names(root))[:20]
    if len(names) < 20:
        raise DataError(f"{root / TINY / 'wnids.txt'} names {len(names)} classes, not twenty")
    return _list_tiny("tiny-imagenet-20", root, tuple(names))


def _tiny_names(root: Path) -> tuple[str, ...]:
    folder = root / TINY
    for needed in (folder / "wnids.txt", folder / "val" / "val_annotations.txt"):
        if not needed.is_file():
            raise DataError(f"{needed} is missing: delete {folder} and load again to download it")
    return tuple((folder / "wnids.txt").read_text().split())


def _list_tiny(name: str, root: Path, names: tuple[str, ...]) -> ImageFolder:
    folder = root / TINY
    tests: dict[str, list[Path]] = {label: [] for label in names}
    for line in (folder / "val" / "val_annotations.txt").read_text().splitlines():
        file, label = line.split("\t")[:2]
        if label in tests:
            tests[label].append(folder / "val" / "images" / file)
    return ImageFolder(
        name,
        _files(folder / "train", [_images(folder / "train" / label / "images") for label in names]),
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
    """Files whose label is the position of their class."""
    paths = tuple(path for group in by_class for path in group)
    if not paths:
        raise DataError(f"{folder} holds no images")
    labels = [label for label, group in enumerate(by_class) for _ in group]
    return Files(paths, torch.tensor(labels))
