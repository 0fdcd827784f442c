"""What is in a batch? Tensors whose first dimension counts samples, nested as the loader likes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def tensors_in(batch: Any) -> list[Tensor]:
    """The tensors of a batch, however it nests tuples, lists and mappings.

    Args:
        batch: what a loader gives.

    Returns:
        Its tensors, in order.
    """
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        return [x for value in batch.values() for x in tensors_in(value)]
    if isinstance(batch, list | tuple):
        return [x for value in batch for x in tensors_in(value)]
    return []


def samples_in(batch: Any) -> int:
    """How many samples a batch has: the first dimension of its first tensor.

    Args:
        batch: what a loader gives.

    Returns:
        The number.

    Raises:
        TypeError: there is no tensor with samples in it.

    Example:
        >>> samples_in((torch.ones(3, 2), torch.ones(3)))
        3
    """
    found = [x for x in tensors_in(batch) if x.dim()]
    if not found:
        raise TypeError(
            f"a batch has no tensor whose first dimension counts samples: {type(batch).__name__}. "
            "Pass (inputs, targets), or a mapping of tensors with OfModel(...)"
        )
    return len(found[0])


def rows_of(batch: Any, rows: slice) -> Any:
    """Some samples of a batch, in the form of the batch.

    Args:
        batch: what a loader gives.
        rows: which samples.

    Returns:
        Views of its tensors; what is no tensor stays.
    """
    if isinstance(batch, Tensor):
        return batch[rows] if batch.dim() else batch
    if isinstance(batch, Mapping):
        return {key: rows_of(value, rows) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(rows_of(value, rows) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(rows_of(value, rows) for value in batch)
    return batch


def on_device(batch: Any, device: torch.device) -> Any:
    """A batch on a device; the same tensors if they are there.

    Args:
        batch: what a loader gives.
        device: where to.

    Returns:
        The batch in its form.
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(on_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(on_device(value, device) for value in batch)
    return batch
