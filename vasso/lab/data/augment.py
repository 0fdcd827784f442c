"""Augmentation of training images as a function of seed, epoch and index alone.

The order is: crop (zero padding) or resized crop, flip, division by 255, normalisation, cutout
(filled with 0, the mean colour). All images of a batch go through one tensor expression. Image i of
epoch e comes out the same in any batch and any order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vasso.lab.data import splitmix


@dataclass(frozen=True)
class Augmentation:
    """Changes training images; with the defaults they are only normalised.

    Args:
        crop: pixels of zero padding around the image, of which a window of the old size is kept.
        flip: mirror left and right with probability 1/2.
        cutout: side of a square that is filled with 0 after normalisation, clipped at the borders;
            its centre is uniform over the image.
        cutout_probability: share of images with a cutout.
        resized_crop: side of the result of a random crop of 8 to 100 % of the area, sides 3:4 to
            4:3, resized by bilinear interpolation; instead of `crop`.

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
        """Augments and normalises a batch: images uint8, N x C x H x W, become float32.

        `index` is the position of each image in the training set. `mean` and `std` are per channel,
        in units of 0 to 1.
        """
        _check(x, index)
        keys = (seed, epoch, index.to(x.device))
        flipped = splitmix.uniform("flip", *keys) < 0.5 if self.flip else None
        if self.resized_crop:
            pixels = _crop_and_resize(
                x,
                *random_windows(x.shape[2], x.shape[3], seed, epoch, index.to(x.device)),
                self.resized_crop,
                flipped,
            )
        else:
            pixels = self._cropped(x, flipped, *keys).float()
        result = normalised(pixels, mean, std)
        return result.mul_(self._outside_cutout(result, *keys)) if self.cutout else result

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
            rows = rows + splitmix.below(2 * self.crop + 1, "crop y", *keys)[:, None]
            columns = columns + splitmix.below(2 * self.crop + 1, "crop x", *keys)[:, None]
        pixels = (rows[:, :, None] * x.shape[3] + columns[:, None, :]).view(n, 1, -1)
        return (
            x.flatten(2).gather(2, pixels.expand(-1, channels, -1)).view(n, channels, height, width)
        )

    def _outside_cutout(self, x: Tensor, *keys: int | Tensor) -> Tensor:
        height, width = x.shape[2:]
        rows = self._side(height, "cutout y", *keys)
        columns = self._side(width, "cutout x", *keys)
        happens = splitmix.uniform("cutout", *keys) < self.cutout_probability
        rows = rows & happens[:, None]
        return ~(rows[:, None, :, None] & columns[:, None, None, :])

    def _side(self, length: int, purpose: str, *keys: int | Tensor) -> Tensor:
        """The rows or columns of each image that lie within the square."""
        start = splitmix.below(length, purpose, *keys)[:, None] - self.cutout // 2
        at = torch.arange(length, device=start.device)
        return (at >= start) & (at < start + self.cutout)


def normalised(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std of images N x C x H x W, in float32; mean and std per channel."""
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


def random_windows(
    height: int, width: int, seed: int, epoch: int, index: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width of random windows: 8 to 100 % of the area, sides 3:4 to 4:3.

    Ten windows are tried for each image and the first that fits is taken. If none fits, it is the
    largest central window whose sides are in that range.
    """
    keys = (seed, epoch, index)
    attempt = torch.arange(10, device=index.device)[:, None]
    share = 0.08 + 0.92 * splitmix.uniform("area", attempt, *keys)
    logarithm = (2 * splitmix.uniform("ratio", attempt, *keys) - 1) * math.log(4 / 3)
    area, ratio = share * height * width, logarithm.exp()
    h, w = (area / ratio).sqrt().round().long(), (area * ratio).sqrt().round().long()
    fits = (h >= 1) & (h <= height) & (w >= 1) & (w <= width)
    first = fits.byte().argmax(0, keepdim=True)
    found = fits.gather(0, first)[0]
    tall, wide = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
    h = torch.where(found, h.gather(0, first)[0], tall)
    w = torch.where(found, w.gather(0, first)[0], wide)
    top = (splitmix.uniform("window y", *keys) * (height - h + 1)).long()
    left = (splitmix.uniform("window x", *keys) * (width - w + 1)).long()
    return (
        torch.where(found, top, (height - tall) // 2),
        torch.where(found, left, (width - wide) // 2),
        h,
        w,
    )


def _crop_and_resize(
    x: Tensor, top: Tensor, left: Tensor, h: Tensor, w: Tensor, size: int, flipped: Tensor | None
) -> Tensor:
    """Windows of images, enlarged by bilinear interpolation: float32 with values of 0 to 255.

    A result smaller than the images would alias fine detail and is refused.
    """
    height, width = x.shape[2:]
    if size < max(height, width):
        raise ValueError(
            f"resized_crop={size} is smaller than the images, {height}x{width}: load them with "
            f"size={size}, which averages over areas"
        )
    at = (torch.arange(size, device=x.device) + 0.5) / size
    across = at if flipped is None else torch.where(flipped[:, None], 1 - at, at)
    low_y, high_y, y = _between(top, h, at)
    low_x, high_x, t = _between(left, w, across)
    upper = _blend(_gather(x, low_y, low_x), _gather(x, low_y, high_x), t[:, None, None, :])
    lower = _blend(_gather(x, high_y, low_x), _gather(x, high_y, high_x), t[:, None, None, :])
    return _blend(upper, lower, y[:, None, :, None])


def _blend(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """a + t (b - a), the same wherever the values are in memory, which torch.lerp is not."""
    return a + t * (b - a)


def _between(start: Tensor, length: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two pixels around each position in a window, and the position between them, 0 to 1."""
    # Pixel centres are at halves; positions beyond the outermost centres take the outermost pixel.
    position = (at * length[:, None] - 0.5).clamp(min=0)
    position = torch.minimum(position, (length[:, None] - 1).to(position.dtype))
    low = position.floor()
    high = torch.minimum(low + 1, (length[:, None] - 1).to(position.dtype))
    start = start[:, None]
    return start + low.long(), start + high.long(), (position - low).float()


def _gather(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    images = torch.arange(len(x), device=x.device)[:, None, None, None]
    planes = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return x[images, planes, rows[:, None, :, None], columns[:, None, None, :]].float()
