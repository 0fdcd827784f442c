"""How does an image file become pixels? By pillow, in workers if there are many.

Every random choice hangs on the seed, the epoch and the index of an image, so that the number of
workers does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vasso.extras import brought_by

with brought_by("lab"):
    import numpy as np
    from PIL import Image

from vasso.lab.data.images import DataError, area_average
from vasso.lab.data.windows import boxes

BILINEAR = Image.Resampling.BILINEAR


def opened(path: Path) -> Image.Image:
    """The image in a file, in red, green and blue.

    Args:
        path: the file.

    Returns:
        The decoded image.

    Raises:
        DataError: it cannot be decoded.
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} cannot be decoded ({error}): replace or remove it") from error


def pixels(image: Image.Image) -> Tensor:
    """An image as a tensor.

    Args:
        image: in red, green and blue.

    Returns:
        uint8, 3 x H x W.
    """
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@dataclass(frozen=True)
class Averaged:
    """The central square of an image, reduced to a size by averaging over areas."""

    size: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        """The pixels.

        Args:
            image: any size.
            index: is not used.

        Returns:
            uint8, 3 x size x size.
        """
        x = pixels(image)
        height, width = x.shape[1:]
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        return area_average(x[None, :, top : top + side, left : left + side], self.size)[0]


@dataclass(frozen=True)
class Central:
    """ImageNet's way to test: the short side to 8/7 of the size, then the central square."""

    size: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        """The pixels.

        Args:
            image: any size.
            index: is not used.

        Returns:
            uint8, 3 x size x size.
        """
        short = round(self.size * 256 / 224)
        scale = short / min(image.size)
        width, height = (max(short, round(side * scale)) for side in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        resized = image.resize((width, height), BILINEAR)
        return pixels(resized.crop((left, top, left + self.size, top + self.size)))


@dataclass(frozen=True)
class RandomWindow:
    """ImageNet's way to train: a random window of `boxes`, brought to the size."""

    size: int
    seed: int
    epoch: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        """The pixels.

        Args:
            image: any size.
            index: which image of the training set it is.

        Returns:
            uint8, 3 x size x size.
        """
        at = torch.tensor([index])
        window = boxes(image.height, image.width, self.seed, self.epoch, at)
        top, left, h, w = (int(side) for side in window)
        box = (left, top, left + w, top + h)
        # Not resize(box=...), whose filter looks beyond the window's edges.
        return pixels(image.crop(box).resize((self.size, self.size), BILINEAR))


class Decoded(Dataset[tuple[Tensor, int]]):
    """Files as pixels and their index, decoded when asked for.

    Args:
        paths: of the files.
        view: what is kept of an image.
    """

    def __init__(self, paths: Sequence[Path], view: Callable[[Image.Image, int], Tensor]) -> None:
        self.paths, self.view = paths, view

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.view(opened(self.paths[index]), index), index

    def __len__(self) -> int:
        return len(self.paths)


def decoded(
    data: Decoded, order: Tensor, batch: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of decoded images, in the order given, whatever the number of workers.

    Args:
        data: the files.
        order: their indices.
        batch: images in a batch; the last may have fewer.
        workers: processes that decode; 0 for this one.

    Yields:
        Images, uint8, and their indices.
    """
    batches = [part.tolist() for part in torch.split(order, batch)]
    loader = DataLoader(
        data,
        batch_sampler=batches,
        num_workers=workers,
        generator=torch.Generator(),  # or it would draw from torch's own
    )
    yield from loader
