"""Where do data sets come from? Official addresses and checksums, and what reads the files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from vasso.lab.data import cifar, fashion, folders
from vasso.lab.data.archives import unpack
from vasso.lab.data.digits import read_digits
from vasso.lab.data.download import Remote, UnavailableError, damage, fetch, is_sound, locked
from vasso.lab.data.folders import Folder
from vasso.lab.data.images import DataError, Images
from vasso.lab.data.progress import Progress, silent


@dataclass(frozen=True)
class Item:
    """Something to have under the root.

    Attributes:
        holds: the file or folder; for a file that ends in `.gz` the same without will do.
        remote: what to download; None if only the user can.
    """

    holds: str
    remote: Remote | None

    @property
    def is_archive(self) -> bool:
        """Whether the download holds the folder rather than being the file."""
        return self.remote is not None and Path(self.holds).name != self.remote.name

    def is_there(self, root: Path) -> bool:
        """Whether there is nothing to do.

        Args:
            root: the data folder.

        Returns:
            True if the file or folder exists.
        """
        return (root / self.holds).exists() or (root / self.holds.removesuffix(".gz")).exists()


@dataclass(frozen=True)
class Source:
    """A data set: what it needs, the side of its images, what reads it, whole or as a list."""

    items: tuple[Item, ...]
    side: int
    read: Callable[[Path], Images] | None = None
    listing: Callable[[Path], Folder] | None = None


def _archive(url: str, holds: str, md5: str) -> tuple[Item, ...]:
    return (Item(holds, Remote(url, url.rpartition("/")[2], f"md5:{md5}")),)


_TINY = _archive(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    folders.TINY,
    "90528d7ca1a48142e341f4ef8d21d0de",
)
SOURCES = {
    "digits": Source((), 8, read=read_digits),
    "fashion-mnist": Source(
        tuple(
            Item(
                f"{fashion.FOLDER}/{name}",
                Remote(
                    f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}",
                    name,
                    f"md5:{md5}",
                ),
            )
            for name, md5 in fashion.MD5.items()
        ),
        28,
        read=fashion.read_fashion,
    ),
    "cifar10": Source(
        _archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            cifar.FOLDER10,
            "c58f30108f718f92721af3b95e74349a",
        ),
        32,
        read=cifar.read_cifar10,
    ),
    "cifar100": Source(
        _archive(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            cifar.FOLDER100,
            "eb9058c3a382ffc7106e4002c42a8d85",
        ),
        32,
        read=cifar.read_cifar100,
    ),
    "tiny-imagenet": Source(_TINY, 64, listing=folders.list_tiny),
    "tiny-imagenet-20": Source(_TINY, 64, listing=folders.list_tiny_20),
    "imagenet": Source((Item(folders.IMAGENET, None),), 224, listing=folders.list_imagenet),
}
HUMAN_LABELS = Item(
    cifar.HUMAN,
    Remote(
        "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/CIFAR-10_human.pt",
        cifar.HUMAN,  # no published checksum
    ),
)


def ensure_all(items: Iterable[Item], root: Path, tell: Progress | None) -> None:
    """Downloads and unpacks what is not there of all that a data set needs.

    Args:
        items: what to have.
        root: the data folder.
        tell: as in `ensure`.

    Raises:
        UnavailableError: something cannot be downloaded from here; it names all that is missing.
    """
    items = list(items)
    for item in items:
        try:
            ensure(item, root, tell)
        except UnavailableError as error:
            others = [x.holds for x in items if x is not item and not x.is_there(root)]
            more = f". Missing in {root} besides: {', '.join(others)}" if others else ""
            raise UnavailableError(f"{error}{more}") from error


def ensure(item: Item, root: Path, tell: Progress | None) -> None:
    """Downloads and unpacks what is not there.

    Args:
        item: what to have.
        root: the data folder.
        tell: is told of progress; None: nothing may be downloaded, but an archive that is there
            already is unpacked.

    Raises:
        DataError: it is missing and cannot or may not be downloaded.
    """
    if item.is_there(root):
        return
    if item.remote is None:
        raise DataError(
            f"{root / item.holds} is missing and cannot be downloaded without an account: put the "
            "images into its folders train/CLASS and val/CLASS"
        )
    target = root if item.is_archive else (root / item.holds).parent
    if tell is None and not is_sound(target / item.remote.name, item.remote):
        raise DataError(
            f"{damage(target / item.remote.name, item.remote)}{root / item.holds} is missing: "
            f"allow download=True, or put {item.remote.url} into {target}"
        )
    target.mkdir(parents=True, exist_ok=True)
    with locked(root / ".lock"):
        if not item.is_there(root):  # another process may have been quicker
            path = fetch(item.remote, target, tell or silent)
            if item.is_archive:
                unpack(path, root, item.holds)
