"""How is an image changed before the network sees it? By its seed, epoch and index alone.

In order: crop (zero padding) or resized crop, flip, division by 255, normalisation, cutout (filled
with 0, the mean colour). All images of a batch go through one tensor expression, and image i of
epoch e comes out the same in any batch and any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vasso.lab.data import chance
from vasso.lab.data.windows import boxes, resized


@dataclass(frozen=True)
class Augmentation:
    """What is done to training images; with the defaults they are only normalised.

    Args:
        crop: pixels of zero padding around the image, of which a window of the old size is kept.
        flip: mirror left and right with probability 1/2.
        cutout: side of a square that is filled with 0 after normalisation, clipped at the borders;
            its centre is uniform over the image.
        cutout_probability: how often.
        resized_crop: side of the result of a random crop of 8 to 100 % of the area, sides 3:4 to
            4:3, resized by bilinear interpolation; instead of `crop`.

    Raises:
        ValueError: a setting is out of range, or there are two kinds of crop.

    Example:
        >>> x = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> half = (0.5, 0.5, 0.5)
        >>> paper = Augmentation(crop=4, flip=True, cutout=16, cutout_probability=0.5)
        >>> paper(x, torch.tensor([7, 8]), seed=0, epoch=0, mean=half, std=half).shape
        torch.Size([2, 3, 32, 32])
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0
    cutout_probability: float = 1.0
    resized_crop: int = 0

    def __post_init__(self) -> None:
        for name in ("crop", "cutout", "resized_crop"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more pixels, got {getattr(self, name)}")
        if not 0 <= self.cutout_probability <= 1:
            raise ValueError(
                f"cutout_probability must be between 0 and 1, got {self.cutout_probability}"
            )
        if self.crop and self.resized_crop:
            raise ValueError(
                f"crop={self.crop} and resized_crop={self.resized_crop} exclude each other: "
                "set one of them to 0"
            )

    def __call__(
        self,
        x: Tensor,
        index: Tensor,
        *,
        seed: int,
        epoch: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> Tensor:
        """Augments and normalises a batch.

        Args:
            x: images, uint8, N x C x H x W.
            index: which image of the training set each of them is.
            seed: the run's.
            epoch: from 0.
            mean: per channel, in units of 0 to 1.
            std: per channel, in units of 0 to 1.

        Returns:
            Images, float32.

        Raises:
            TypeError: x is not uint8.
            ValueError: shapes do not fit.
        """
        _check(x, index)
        keys = (seed, epoch, index.to(x.device))
        flipped = chance.uniform("flip", *keys) < 0.5 if self.flip else None
        if self.resized_crop:
            pixels = resized(
                x,
                *boxes(x.shape[2], x.shape[3], seed, epoch, index.to(x.device)),
                self.resized_crop,
                flipped,
            )
        else:
            pixels = self._cropped(x, flipped, *keys).float()
        result = normalised(pixels, mean, std)
        return result.mul_(self._kept(result, *keys)) if self.cutout else result

    def _cropped(self, x: Tensor, flipped: Tensor | None, *keys: int | Tensor) -> Tensor:
        """Windows of the padded images, perhaps mirrored, by gathering pixels."""
        if not self.crop and flipped is None:
            return x
        n, channels, height, width = x.shape
        rows = torch.arange(height, device=x.device).expand(n, -1)
        columns = torch.arange(width, device=x.device).expand(n, -1)
        if flipped is not None:
            columns = torch.where(flipped[:, None], columns.flip(1), columns)
        if self.crop:
            x = functional.pad(x, (self.crop,) * 4)
            rows = rows + chance.below(2 * self.crop + 1, "crop y", *keys)[:, None]
            columns = columns + chance.below(2 * self.crop + 1, "crop x", *keys)[:, None]
        pixels = (rows[:, :, None] * x.shape[3] + columns[:, None, :]).view(n, 1, -1)
        return (
            x.flatten(2).gather(2, pixels.expand(-1, channels, -1)).view(n, channels, height, width)
        )

    def _kept(self, x: Tensor, *keys: int | Tensor) -> Tensor:
        """Where the squares are not, N x 1 x H x W."""
        height, width = x.shape[2:]
        rows = self._side(height, "cutout y", *keys)
        columns = self._side(width, "cutout x", *keys)
        happens = chance.uniform("cutout", *keys) < self.cutout_probability
        rows = rows & happens[:, None]
        return ~(rows[:, None, :, None] & columns[:, None, None, :])

    def _side(self, length: int, purpose: str, *keys: int | Tensor) -> Tensor:
        """Which rows or columns of each image lie within the square's side."""
        start = chance.below(length, purpose, *keys)[:, None] - self.cutout // 2
        at = torch.arange(length, device=start.device)
        return (at >= start) & (at < start + self.cutout)


def normalised(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std, as all images enter a network.

    Args:
        x: images with values of 0 to 255, N x C x H x W.
        mean: per channel, in units of 0 to 1.
        std: per channel, in units of 0 to 1.

    Returns:
        Images, float32.

    Raises:
        ValueError: there are more or fewer means than channels.
    """
    if not len(mean) == len(std) == x.shape[1]:
        raise ValueError(
            f"images of {x.shape[1]} channels need as many means and deviations, got mean={mean}, "
            f"std={std}"
        )
    shift = torch.tensor(mean, dtype=torch.float32, device=x.device)[:, None, None]
    scale = torch.tensor(std, dtype=torch.float32, device=x.device)[:, None, None]
    return x.float().div(255).sub_(shift).div_(scale)


def _check(x: Tensor, index: Tensor) -> None:
    if x.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, as they are stored, got {x.dtype}")
    if x.ndim != 4 or index.shape != x.shape[:1]:
        raise ValueError(
            "images must be N x C x H x W with one index each, got shapes "
            f"{tuple(x.shape)} and {tuple(index.shape)}"
        )
