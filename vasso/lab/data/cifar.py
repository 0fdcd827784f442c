"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), and the human labels of CIFAR-10N (Wei et al., 2022).

Every batch file is checked against its published md5 before it is read, once per process.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vasso.lab.data.images import DataError, Images
from vasso.lab.data.pickles import read_pickle, read_torch

CIFAR10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR100 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
FOLDER10, FOLDER100 = "cifar-10-batches-py", "cifar-100-python"
HUMAN = "CIFAR-10_human.pt"
HUMAN_LABELS = {
    "aggre": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worse": "worse_label",
}
# The paper's constants, for both data sets.
MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
_verified: set[tuple[Path, int, int]] = set()


def read_cifar10(root: Path) -> Images:
    """CIFAR-10 from the folder `cifar-10-batches-py`.

    Args:
        root: where the folder is.

    Returns:
        50,000 training and 10,000 test images of 32x32 pixels in 10 classes.
    """
    folder = root / FOLDER10
    train = [_batch(folder / name, CIFAR10[name], "labels") for name in list(CIFAR10)[:5]]
    x, y = torch.cat([x for x, _ in train]), torch.cat([y for _, y in train])
    test_x, test_y = _batch(folder / "test_batch", CIFAR10["test_batch"], "labels")
    return Images("cifar10", x, y, test_x, test_y, 10, MEAN, STD)


def read_cifar100(root: Path) -> Images:
    """CIFAR-100 with its fine labels from the folder `cifar-100-python`.

    Args:
        root: where the folder is.

    Returns:
        50,000 training and 10,000 test images of 32x32 pixels in 100 classes.
    """
    folder = root / FOLDER100
    x, y = _batch(folder / "train", CIFAR100["train"], "fine_labels")
    test_x, test_y = _batch(folder / "test", CIFAR100["test"], "fine_labels")
    return Images("cifar100", x, y, test_x, test_y, 100, MEAN, STD)


def read_human_labels(root: Path, which: str, clean: Tensor) -> Tensor:
    """The labels that people gave to CIFAR-10's training images.

    Args:
        root: where `CIFAR-10_human.pt` is.
        which: "aggre", "random1", "random2", "random3" or "worse".
        clean: the true labels, to check that the images are in the same order.

    Returns:
        50,000 labels.

    Raises:
        DataError: the file is not CIFAR-10N's.
    """
    path = root / HUMAN
    content = read_torch(path)
    missing = {"clean_label", HUMAN_LABELS[which]} - content.keys()
    if missing:
        raise DataError(f"{path} has no {' and no '.join(sorted(missing))}: is it CIFAR-10N's?")
    true, labels = (
        torch.from_numpy(np.asarray(content[key]).astype(np.int64))
        for key in ("clean_label", HUMAN_LABELS[which])
    )
    if not torch.equal(true, clean):
        raise DataError(f"the clean labels in {path} are not those of CIFAR-10, in this order")
    return labels


def _batch(path: Path, md5: str, labels: str) -> tuple[Tensor, Tensor]:
    """Images and labels of a batch file."""
    if not path.exists():
        raise DataError(f"{path} is missing: delete {path.parent} and load again to download it")
    content = path.read_bytes()
    _verify(path, content, md5)
    batch = read_pickle(io.BytesIO(content), str(path))
    x = torch.from_numpy(np.asarray(batch[b"data"], dtype=np.uint8)).view(-1, 3, 32, 32)
    return x, torch.tensor(batch[labels.encode()], dtype=torch.int64)


def _verify(path: Path, content: bytes, md5: str) -> None:
    """Raises unless the content has its published md5; looks once at each state of a file."""
    state = (path, len(content), path.stat().st_mtime_ns)
    if state in _verified:
        return
    seen = hashlib.md5(content).hexdigest()
    if seen != md5:
        raise DataError(
            f"{path} is damaged: its md5 is {seen}, published is {md5}. Delete {path.parent} and "
            "load again to download it anew"
        )
    _verified.add(state)
