"""Batches: tensors whose first dimension counts samples, nested in tuples, lists and mappings."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors_in(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        return [x for value in batch.values() for x in tensors_in(value)]
    if isinstance(batch, list | tuple):
        return [x for value in batch for x in tensors_in(value)]
    return []


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nested batch with every tensor changed; other values stay."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, change) for value in batch)
    return batch


def samples_in(batch: Any) -> int:
    """The number of samples in a batch: the first dimension of its first tensor that has one."""
    counted = [x for x in tensors_in(batch) if x.dim()]
    if not counted:
        raise TypeError(
            f"a batch has no tensor whose first dimension counts samples: {type(batch).__name__}. "
            "Pass (inputs, targets), or a mapping of tensors with OfModel(...)"
        )
    return len(counted[0])


def rows_of(batch: Any, rows: slice) -> Any:
    """The batch restricted to some of its samples, as views."""
    return map_tensors(batch, lambda x: x[rows] if x.dim() else x)


def on_device(batch: Any, device: torch.device) -> Any:
    """The batch on a device; tensors that are there already are not copied."""
    return map_tensors(batch, lambda x: x.to(device, non_blocking=True))


def batch_list(batches: Iterable[Any], what: str) -> list[Any]:
    """The batches as a list; a ValueError that names what needs them if there are none."""
    batches = list(batches)
    if not batches:
        raise ValueError(f"batches is empty: {what} needs at least one batch")
    return batches
