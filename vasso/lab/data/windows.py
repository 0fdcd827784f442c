"""Which window of an image is kept? Random areas and shapes, brought to one size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vasso.lab.data import chance


def boxes(
    height: int, width: int, seed: int, epoch: int, index: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random windows of 8 to 100 % of the area with sides of 3:4 to 4:3.

    Ten windows are tried for each image and the first that fits is taken; if none fits, the largest
    central window whose sides are in that range.

    Args:
        height: of the images.
        width: of the images.
        seed: the run's.
        epoch: from 0.
        index: which image of the training set each of them is.

    Returns:
        Top, left, height and width of the windows in whole pixels.
    """
    keys = (seed, epoch, index)
    attempt = torch.arange(10, device=index.device)[:, None]
    share = 0.08 + 0.92 * chance.uniform("area", attempt, *keys)
    logarithm = (2 * chance.uniform("ratio", attempt, *keys) - 1) * math.log(4 / 3)
    area, ratio = share * height * width, logarithm.exp()
    h, w = (area / ratio).sqrt().round().long(), (area * ratio).sqrt().round().long()
    fits = (h >= 1) & (h <= height) & (w >= 1) & (w <= width)
    first = fits.byte().argmax(0, keepdim=True)
    found = fits.gather(0, first)[0]
    tall, wide = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
    h = torch.where(found, h.gather(0, first)[0], tall)
    w = torch.where(found, w.gather(0, first)[0], wide)
    top = (chance.uniform("window y", *keys) * (height - h + 1)).long()
    left = (chance.uniform("window x", *keys) * (width - w + 1)).long()
    return (
        torch.where(found, top, (height - tall) // 2),
        torch.where(found, left, (width - wide) // 2),
        h,
        w,
    )


def resized(
    x: Tensor, top: Tensor, left: Tensor, h: Tensor, w: Tensor, size: int, flipped: Tensor | None
) -> Tensor:
    """Windows of images, enlarged by bilinear interpolation.

    Args:
        x: images, N x C x H x W.
        top: first row of each window.
        left: first column of each window.
        h: height of each window.
        w: width of each window.
        size: side of the result; at least that of the images, or fine detail would alias.
        flipped: which to mirror left and right.

    Returns:
        float32 images with values of 0 to 255.

    Raises:
        ValueError: the images are larger than the result.
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
    upper = _blend(_picked(x, low_y, low_x), _picked(x, low_y, high_x), t[:, None, None, :])
    lower = _blend(_picked(x, high_y, low_x), _picked(x, high_y, high_x), t[:, None, None, :])
    return _blend(upper, lower, y[:, None, :, None])


def _blend(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    """a + t (b - a), rounded after each operation whatever the place in memory; lerp is not."""
    return a + t * (b - a)


def _between(start: Tensor, length: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two pixels around each place of a window, and how far the place is between them."""
    # Pixel centres are at halves; places beyond the outermost centres take the outermost pixel.
    place = (at * length[:, None] - 0.5).clamp(min=0)
    place = torch.minimum(place, (length[:, None] - 1).to(place.dtype))
    low = place.floor()
    high = torch.minimum(low + 1, (length[:, None] - 1).to(place.dtype))
    start = start[:, None]
    return start + low.long(), start + high.long(), (place - low).float()


def _picked(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels at the crossings of rows and columns, as float32."""
    images = torch.arange(len(x), device=x.device)[:, None, None, None]
    planes = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return x[images, planes, rows[:, None, :, None], columns[:, None, None, :]].float()
