"""Batches of images for training and evaluation; their order depends on seed and epoch alone."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vasso.lab.data import splitmix
from vasso.lab.data.augment import Augmentation, normalised
from vasso.lab.data.image_folder import (
    CentralCrop,
    DecodedFiles,
    ImageFolder,
    RandomWindow,
    ReducedSquare,
    decoded_batches,
)
from vasso.lab.data.images import Images


def order(n: int, seed: int, epoch: int) -> Tensor:
    """The order of n training images in one epoch, the same on every machine."""
    if n < 0:
        raise ValueError(f"n must be 0 or more images, got {n}")
    return splitmix.permutation(n, "order", seed, epoch)


def training_batches(
    data: Images | ImageFolder,
    indices: Tensor,
    size: int,
    *,
    augmentation: Augmentation,
    seed: int,
    epoch: int,
    workers: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Augmented and normalised batches, from memory or from files: images, labels and indices.

    `indices` are those of the training images, in order; the last batch may have fewer than `size`.
    For files, `resized_crop` cuts a window from the whole image; without it the central square is
    averaged to the size of the folder. Any number of `workers`, which decode files, gives the same
    batches.
    """
    _check(size)
    keys = {"seed": seed, "epoch": epoch}
    if isinstance(data, Images):
        raw: Iterator[tuple[Tensor, Tensor]] = (
            (data.train_x[index], index) for index in torch.split(indices, size)
        )
        labels = data.train_y
    else:
        side = augmentation.resized_crop
        view = RandomWindow(side, seed, epoch) if side else ReducedSquare(data.size)
        raw = decoded_batches(DecodedFiles(data.train.paths, view), indices, size, workers)
        labels = data.train.y
        augmentation = replace(augmentation, resized_crop=0)  # done where files are decoded
    for x, index in raw:
        yield augmentation(x, index, mean=data.mean, std=data.std, **keys), labels[index], index


def evaluation_batches(
    data: Images | ImageFolder, size: int, *, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised test images in their own order, with labels.

    Of image files the short side is resized to 8/7 of the folder's size, then the central square is
    cut out.
    """
    _check(size)
    pairs: Iterator[tuple[Tensor, Tensor]]
    if isinstance(data, Images):
        pairs = zip(torch.split(data.test_x, size), torch.split(data.test_y, size), strict=True)
    else:
        files = DecodedFiles(data.test.paths, CentralCrop(data.size))
        batches = decoded_batches(files, torch.arange(len(data.test.y)), size, workers)
        pairs = ((x, data.test.y[index]) for x, index in batches)
    for x, y in pairs:
        yield normalised(x, data.mean, data.std), y


def _check(size: int) -> None:
    if size < 1:
        raise ValueError(f"a batch must have 1 image or more, got size={size}")
