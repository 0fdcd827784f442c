"""In which order do images come, and in what form? A function of the seed and the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from vasso.lab.data import chance
from vasso.lab.data.augment import Augmentation, normalised
from vasso.lab.data.decoding import Averaged, Central, Decoded, RandomWindow, decoded
from vasso.lab.data.folders import Folder
from vasso.lab.data.images import Images


def order(n: int, seed: int, epoch: int) -> Tensor:
    """The order of the training images in one epoch.

    Args:
        n: how many images.
        seed: the run's.
        epoch: from 0.

    Returns:
        The indices 0 to n - 1, shuffled, the same on every machine.

    Raises:
        ValueError: n is negative.

    Example:
        >>> first, again, next_one = order(9, 0, 0), order(9, 0, 0), order(9, 0, 1)
        >>> bool((first == again).all()), bool((first == next_one).all())
        (True, False)
    """
    if n < 0:
        raise ValueError(f"n must be 0 or more images, got {n}")
    return chance.permutation(n, "order", seed, epoch)


def training_batches(
    data: Images | Folder,
    indices: Tensor,
    size: int,
    *,
    augmentation: Augmentation,
    seed: int,
    epoch: int,
    workers: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches as the network sees them, from memory or from files.

    Args:
        data: the data set.
        indices: of the training images, in the order in which they come.
        size: images in a batch; the last may have fewer.
        augmentation: what is done to them. Files: `resized_crop` cuts a window from the whole
            image; without it the central square is averaged to the size of the folder.
        seed: the run's.
        epoch: from 0.
        workers: processes that decode files; any number gives the same batches.

    Yields:
        Images, float32; their labels; their indices.
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
        view = RandomWindow(side, seed, epoch) if side else Averaged(data.size)
        raw = decoded(Decoded(data.train.paths, view), indices, size, workers)
        labels = data.train.y
        augmentation = replace(augmentation, resized_crop=0)  # done where files are decoded
    for x, index in raw:
        yield augmentation(x, index, mean=data.mean, std=data.std, **keys), labels[index], index


def evaluation_batches(
    data: Images | Folder, size: int, *, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Test images in their own order, normalised.

    Args:
        data: the data set. Files: the short side is brought to 8/7 of the folder's size, then the
            central square is cut out.
        size: images in a batch; the last may have fewer.
        workers: processes that decode files.

    Yields:
        Images, float32, and their labels.
    """
    _check(size)
    pairs: Iterator[tuple[Tensor, Tensor]]
    if isinstance(data, Images):
        pairs = zip(torch.split(data.test_x, size), torch.split(data.test_y, size), strict=True)
    else:
        files = Decoded(data.test.paths, Central(data.size))
        batches = decoded(files, torch.arange(len(data.test.y)), size, workers)
        pairs = ((x, data.test.y[index]) for x, index in batches)
    for x, y in pairs:
        yield normalised(x, data.mean, data.std), y


def _check(size: int) -> None:
    if size < 1:
        raise ValueError(f"a batch must have 1 image or more, got size={size}")
