"""What is in a pickle? Read only if it is made of arrays, dicts, lists, texts and numbers.

A pickle is a program. CIFAR and CIFAR-10N are published as pickles; one that was tampered with must
not run. Only the four callables that arrays and bytes are made of may be named in it.
"""

from __future__ import annotations

import _codecs
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from vasso.lab.data.images import DataError

RECONSTRUCT = np.empty(0).__reduce__()[0]  # numpy's maker of empty arrays, wherever it lives now
ALLOWED: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": RECONSTRUCT,  # before numpy 2
    "numpy._core.multiarray._reconstruct": RECONSTRUCT,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "_codecs.encode": _codecs.encode,
}
NUMBERS = (np.uint8, np.int32, np.int64)


class _Arrays(pickle.Unpickler):
    """Refuses whatever is not on the list, before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[f"{module}.{name}"]


def read_pickle(file: BinaryIO, name: str) -> Any:
    """What a pickle of arrays holds; byte strings of Python 2 stay bytes.

    Args:
        file: the opened file.
        name: what to call it in errors.

    Returns:
        Its content.

    Raises:
        DataError: it is damaged, or asks for anything else than arrays.
    """
    try:
        return _Arrays(file, encoding="bytes").load()
    except Exception as error:  # damaged pickles raise whatever they stumble over
        raise DataError(
            f"{name} is not a pickle of arrays and is not read further ({error}): delete it and "
            "load again to download it anew"
        ) from error


def read_torch(path: Path) -> dict[str, Any]:
    """What a file of `torch.save` with a dict of arrays holds.

    Args:
        path: the file.

    Returns:
        The dict.

    Raises:
        DataError: it is damaged, or asks for anything else than arrays.
    """
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
