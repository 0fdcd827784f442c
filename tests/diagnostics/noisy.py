"""A quadratic whose batches have a gradient noise of known size."""

import torch
from torch import Tensor, nn

from vasso.diagnostics.passes import OfModel


class Point(nn.Module):
    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w.clone())


def quadratic(H: Tensor) -> OfModel:
    """f_B(w) = w'Hw / 2 + <mean of the rows of B, w>: the gradient is Hw + the mean row."""
    return OfModel(lambda model, batch: 0.5 * model.w @ H @ model.w + batch.mean(0) @ model.w)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(count: int, size: int, scale: float, seed: int) -> list[Tensor]:
    drawn = torch.randn(count, 1, size, generator=generator(seed), dtype=torch.float64)
    return list(drawn * scale)


def share_within(hits: list[bool], level: float) -> None:
    """Says that intervals hold the truth as often as they state.

    Seeds are fixed, so a bound need not allow for bad luck in every run of the tests: three
    deviations of the count, and half a percent for intervals that are right in the limit only.
    """
    n, rate = len(hits), sum(hits) / len(hits)
    slack = 3 * (level * (1 - level) / n) ** 0.5 + 0.005
    assert abs(rate - level) < slack, f"{rate:.3f} of {n} intervals hold the truth, not {level}"
