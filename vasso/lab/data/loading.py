"""Which data sets are there, and how does one get into memory?

| name | training, test images | from |
|---|---|---|
| digits | 1,297 + 500, 1x8x8, 10 classes | scikit-learn, embedded |
| fashion-mnist | 60,000 + 10,000, 1x28x28, 10 | download |
| cifar10, cifar100 | 50,000 + 10,000, 3x32x32, 10 or 100 | download |
| cifar10n-worse, -aggre, -random1, -random2, -random3 | human labels for training | download |
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vasso import checks
from vasso.lab.data import cifar
from vasso.lab.data.archives import unpack
from vasso.lab.data.cache import Arrays, remembered
from vasso.lab.data.cifar import read_cifar10, read_cifar100, read_human_labels
from vasso.lab.data.digits import read_digits
from vasso.lab.data.download import Remote, fetch
from vasso.lab.data.images import DataError, Images, area_average
from vasso.lab.data.progress import Progress, shown

TORONTO = "https://www.cs.toronto.edu/~kriz"
HUMAN = Remote(
    "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/CIFAR-10_human.pt", cifar.HUMAN
)


@dataclass(frozen=True)
class Source:
    """Where a data set comes from.

    Attributes:
        read: reads its official files under the root.
        holds: the folder that they are in; None if the data need no files.
        remotes: what to download, archives that hold that folder.
    """

    read: Callable[[Path], Images]
    holds: str | None = None
    remotes: tuple[Remote, ...] = ()


SOURCES = {
    "digits": Source(read_digits),
    "cifar10": Source(
        read_cifar10,
        cifar.FOLDER10,
        (
            Remote(
                f"{TORONTO}/cifar-10-python.tar.gz",
                "cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",
            ),
        ),
    ),
    "cifar100": Source(
        read_cifar100,
        cifar.FOLDER100,
        (
            Remote(
                f"{TORONTO}/cifar-100-python.tar.gz",
                "cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
            ),
        ),
    ),
}
NAMES = (*SOURCES, *(f"cifar10n-{which}" for which in cifar.HUMAN_LABELS))


def load(
    name: str = "digits",
    *,
    root: Path | None = None,
    size: int | None = None,
    train_size: int | None = None,
    seed: int = 0,
    download: bool = True,
    progress: Progress | None = None,
) -> Images:
    """Loads a data set into memory, and downloads it first if it is not there.

    Args:
        name: which, see above.
        root: where files are; None: the environment variable VASSO_DATA, or `~/.cache/vasso`.
        size: reduce images to this height and width by averaging over areas; made once and kept.
        train_size: keep only so many training images, every class with its share.
        seed: which of them.
        download: fetch what is missing; otherwise an error says what is.
        progress: is told of downloads; None: bars, if the error output is a terminal.

    Returns:
        The data set.

    Example:
        >>> images = load("digits", train_size=100)
        >>> images.train_x.shape, images.train_y.bincount().tolist()
        (torch.Size([100, 1, 8, 8]), [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    checks.one_of("name", name, *NAMES)
    place = data_root(root)
    with shown(progress) as tell:
        images = _whole(name, place, size, tell if download else None)
    return images if train_size is None else images.subset(train_size, seed)


def data_root(root: Path | None = None) -> Path:
    """Where files are.

    Args:
        root: the caller's choice.

    Returns:
        That; else VASSO_DATA; else `~/.cache/vasso`.
    """
    chosen = root or os.environ.get("VASSO_DATA") or Path("~/.cache/vasso")
    return Path(chosen).expanduser()


def _whole(name: str, root: Path, size: int | None, tell: Progress | None) -> Images:
    """All images of a data set, at the size asked for."""
    if name.startswith("cifar10n-"):
        images = _whole("cifar10", root, size, tell)
        _ensure(root, cifar.HUMAN, (HUMAN,), tell)
        labels = read_human_labels(root, name.removeprefix("cifar10n-"), images.train_y)
        return replace(images, name=name, train_y=labels)
    source = SOURCES[name]
    if source.holds is not None:
        _ensure(root, source.holds, source.remotes, tell)
    return source.read(root) if size is None else _reduced(name, source, root, size)


def _ensure(root: Path, holds: str, remotes: tuple[Remote, ...], tell: Progress | None) -> None:
    """Downloads and unpacks what is not there."""
    if (root / holds).exists():
        return
    if tell is None:
        told = ", ".join(remote.url for remote in remotes)
        raise DataError(f"{root / holds} is missing: allow download=True, or put {told} there")
    for remote in remotes:
        path = fetch(remote, root, tell)
        if remote.name != holds:
            unpack(path, root, holds)


def _reduced(name: str, source: Source, root: Path, size: int) -> Images:
    """Smaller images, from the cache if they were made before."""
    if size < 1:
        raise ValueError(f"size must be 1 pixel or more, got {size}")

    def make() -> Arrays:
        full = source.read(root)
        small = {part: area_average(getattr(full, part), size) for part in ("train_x", "test_x")}
        rest: dict[str, Tensor] = {
            "train_y": full.train_y,
            "test_y": full.test_y,
            "classes": torch.tensor(full.classes),
            "mean": torch.tensor(full.mean, dtype=torch.float64),
            "std": torch.tensor(full.std, dtype=torch.float64),
        }
        return {key: value.numpy() for key, value in (small | rest).items()}

    found = remembered(root / "reduced" / f"{name}-{size}", make)
    tensors = {key: torch.from_numpy(found[key]) for key in found if key[-2:] in ("_x", "_y")}
    return Images(
        name,
        **tensors,
        classes=int(found["classes"]),
        mean=tuple(found["mean"].tolist()),
        std=tuple(found["std"].tolist()),
    )
