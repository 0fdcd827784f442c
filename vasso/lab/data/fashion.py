"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): compressed idx files with published md5."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vasso.lab.data.images import DataError, Images, check_md5

ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FOLDER = "FashionMNIST/raw"
MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
MEAN, STD = (0.2860,), (0.3530,)


def read_fashion(root: Path) -> Images:
    """Fashion-MNIST from the folder `FashionMNIST/raw`."""
    x, y, test_x, test_y = (read_idx(root / FOLDER / name, md5) for name, md5 in MD5.items())
    return Images(
        "fashion-mnist", x[:, None], y.long(), test_x[:, None], test_y.long(), 10, MEAN, STD
    )


def read_idx(path: Path, md5: str) -> Tensor:
    """The uint8 array of a compressed idx file with this md5."""
    content = _content(path, md5)
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


def _content(path: Path, md5: str) -> bytes:
    if not path.is_file():
        raise DataError(
            f"{path} is missing: put it there, or delete {path.with_suffix('')}, if that is there, "
            "and load again to download it"
        )
    try:
        packed = path.read_bytes()
        check_md5(path, packed, md5, "Delete it and load again")
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}. Delete it and load again") from error
