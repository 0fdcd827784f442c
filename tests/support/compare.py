"""Data that every task is made of, copies of what a step did, and comparisons."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from vasso import SharpnessAware, StepRecord


@cache
def digits() -> tuple[Tensor, Tensor]:
    """The 1,797 handwritten digits of scikit-learn: 64 grey values in [0, 1], and the label."""
    data = load_digits()
    return torch.from_numpy(data.data / 16.0), torch.from_numpy(data.target).long()


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([x.detach().flatten() for x in tensors])


def records_of(opt: SharpnessAware, *, weights: bool = False) -> list[StepRecord]:
    """A list that grows by a copy of each step's record; of its weights too if wanted."""
    kept: list[StepRecord] = []

    def copy(vectors: Any) -> Any:
        return vectors and [None if x is None else x.detach().clone() for x in vectors]

    def keep(record: StepRecord) -> None:
        params = copy(record.params) if weights else list(record.params)
        vectors = (copy(v) for v in (record.g, record.d, record.epsilon, record.h))
        kept.append(StepRecord(record.step, params, *vectors, record.summary))

    opt.observe(keep)
    return kept


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def assert_near(ours: Any, theirs: Any, rtol: float, atol: float = 0.0) -> None:
    """Equal up to a tolerance that the test justifies."""
    ours = torch.as_tensor(ours)
    theirs = torch.as_tensor(theirs, dtype=ours.dtype)
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
