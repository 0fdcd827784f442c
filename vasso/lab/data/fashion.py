"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): idx files, compressed or not."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vasso.lab.data.images import DataError, Images

FOLDER = "FashionMNIST/raw"
MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
MEAN, STD = (0.2860,), (0.3530,)


def read_fashion(root: Path) -> Images:
    """Fashion-MNIST from the folder `FashionMNIST/raw`.

    Args:
        root: where the folder is.

    Returns:
        60,000 training and 10,000 test images of 28x28 pixels in 10 classes.
    """
    x, y, test_x, test_y = (read_idx(root / FOLDER / name) for name in MD5)
    return Images(
        "fashion-mnist", x[:, None], y.long(), test_x[:, None], test_y.long(), 10, MEAN, STD
    )


def read_idx(path: Path) -> Tensor:
    """The array in an idx file of bytes.

    Args:
        path: the file as it is published, `.gz`; if it is not there, the same without `.gz`.

    Returns:
        A uint8 tensor.

    Raises:
        DataError: the file is missing or damaged.
    """
    content = _content(path)
    try:
        zero, kind, rank = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{rank}I", content, 4)
    except struct.error as error:
        raise DataError(f"{path} is damaged: {error}. Delete it and load again") from error
    start = 4 + 4 * rank
    if (zero, kind) != (0, 8) or len(content) != start + int(np.prod(shape)):
        raise DataError(
            f"{path} is damaged: {len(content)} bytes cannot hold an array of bytes of shape "
            f"{shape}. Delete it and load again"
        )
    array = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    return torch.from_numpy(array.copy())


def _content(path: Path) -> bytes:
    plain = path.with_suffix("")
    if not path.exists() and plain.exists():
        return plain.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: allow download=True, or put it there") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}. Delete it and load again") from error
