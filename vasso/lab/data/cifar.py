"""CIFAR-10, CIFAR-100 (Krizhevsky, 2009) and the human labels of CIFAR-10N (Wei et al., 2022).

Every batch file is checked against its published md5 before it is read, once per process, and
every set of human labels against its digest. The files are pickles. A pickle is a program, and one
that was tampered with must not run: only the callables that arrays and bytes are made of may be
named in it.
"""

import _codecs
import io
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from vasso.lab.data.images import DataError, Images, check_md5, digest_of

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
    "aggre": ("aggre_label", "8c8a093e065e52d0"),
    "random1": ("random_label1", "7ec1121fd030304f"),
    "random2": ("random_label2", "2b939186109bda69"),
    "random3": ("random_label3", "5e6df479d3002da5"),
    "worse": ("worse_label", "21a1e6e4b15b57a6"),
}
"""Name and digest of each set, as in the authors' repository."""
# The paper's constants, for both data sets.
MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)


def read_cifar10(root: Path) -> Images:
    folder = root / FOLDER10
    train = [_batch(folder / name, CIFAR10[name], "labels") for name in list(CIFAR10)[:5]]
    x, y = torch.cat([x for x, _ in train]), torch.cat([y for _, y in train])
    test_x, test_y = _batch(folder / "test_batch", CIFAR10["test_batch"], "labels")
    return Images("cifar10", x, y, test_x, test_y, 10, MEAN, STD)


def read_cifar100(root: Path) -> Images:
    folder = root / FOLDER100
    x, y = _batch(folder / "train", CIFAR100["train"], "fine_labels")
    test_x, test_y = _batch(folder / "test", CIFAR100["test"], "fine_labels")
    return Images("cifar100", x, y, test_x, test_y, 100, MEAN, STD)


def read_human_labels(root: Path, which: str, clean: Tensor) -> Tensor:
    """The labels that people gave to CIFAR-10's training images; `clean` proves their order."""
    path = root / HUMAN
    content = read_torch(path)
    name, digest = HUMAN_LABELS[which]
    missing = {"clean_label", name} - content.keys()
    if missing:
        raise DataError(f"{path} has no {' and no '.join(sorted(missing))}: is it CIFAR-10N's?")
    true, labels = (
        torch.from_numpy(np.asarray(content[key]).astype(np.int64)) for key in ("clean_label", name)
    )
    if not torch.equal(true, clean):
        raise DataError(f"the clean labels in {path} are not those of CIFAR-10, in this order")
    if (seen := digest_of([labels])) != digest:
        raise DataError(
            f"{path} is damaged: the digest of its {name} is {seen}, published is {digest}. Delete "
            "it and load again"
        )
    return labels


def _batch(path: Path, md5: str, labels: str) -> tuple[Tensor, Tensor]:
    if not path.exists():
        raise DataError(f"{path} is missing: delete {path.parent} and load again to download it")
    content = path.read_bytes()
    check_md5(path, content, md5, f"Delete {path.parent} and load again to download it anew")
    batch = read_pickle(io.BytesIO(content), str(path))
    x = torch.from_numpy(np.asarray(batch[b"data"], dtype=np.uint8)).view(-1, 3, 32, 32)
    return x, torch.tensor(batch[labels.encode()], dtype=torch.int64)


RECONSTRUCT = np.empty(0).__reduce__()[0]  # its module depends on the version of numpy
ALLOWED: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": RECONSTRUCT,  # before numpy 2
    "numpy._core.multiarray._reconstruct": RECONSTRUCT,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "_codecs.encode": _codecs.encode,
}
NUMBERS = (np.uint8, np.int32, np.int64)


class _Arrays(pickle.Unpickler):
    """Refuses whatever is not in `ALLOWED`, before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[f"{module}.{name}"]


def read_pickle(file: BinaryIO, name: str) -> Any:
    """The content of a pickle of arrays; byte strings of Python 2 stay bytes."""
    try:
        return _Arrays(file, encoding="bytes").load()
    except Exception as error:  # damaged pickles raise any exception
        raise DataError(
            f"{name} is not a pickle of arrays and is not read further ({error}): delete it and "
            "load again to download it anew"
        ) from error


def read_torch(path: Path) -> dict[str, Any]:
    """The content of a file of `torch.save` with a dict of arrays."""
    kinds = [type(np.dtype(number)) for number in NUMBERS]
    named = [(value, name) for name, value in ALLOWED.items()]
    try:
        with torch.serialization.safe_globals([*named, *kinds]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises several kinds, none of its own
        raise DataError(
            f"{path} is not a file of arrays and is not read further ({error}): delete it and load "
            "again to download it anew"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not a dict of labels")
    return content
