"""The signal-to-noise ratio of batch gradients.

    SNR = ||grad f||^2 / E||g_B - grad f||^2

Numerator and denominator are estimated without bias from gradients g_1 ... g_K of batches at the
same weights:

    S^2 = sum_k ||g_k - mean g||^2 / (K - 1),     ||grad f||^2 ~ ||mean g||^2 - S^2 / K

||mean g||^2 alone counts 1 / K of the noise as signal: at K = 20 it doubles an SNR of 0.05.
Gradients are not stored. Their mean is, and a short sketch of each, from which the interval is
computed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vasso.diagnostics.batches import samples_in
from vasso.diagnostics.estimates import Array, Estimate, student
from vasso.diagnostics.passes import BatchNorm, LossFn, OfModel, objective
from vasso.numerics.vectors import Vector, full_precision, norm

SKETCH = 1 << 16
"""Numbers stored of each gradient; with at most so many weights it is the gradient itself."""


@dataclass(frozen=True)
class Snr:
    """The signal-to-noise ratio of batch gradients.

    Attributes:
        snr: ||grad f||^2 / E||g - grad f||^2, a ratio of powers, at least 0.
        signal: ||grad f||^2, unbiased, so that it may fall below 0.
        noise: E||g - grad f||^2, unbiased.
        batches: number of gradients used.
        batch_size: samples in each; None if unknown.
        left_out: number of batches of another size than the first, which were not used.
    """

    snr: Estimate
    signal: Estimate
    noise: Estimate
    batches: int
    batch_size: int | None = None
    left_out: int = 0

    @property
    def amplitude(self) -> float:
        """The ratio of amplitudes, the root of that of powers."""
        return math.sqrt(self.snr.value)

    def row(self) -> dict[str, Any]:
        """One row of a table: column -> value."""
        return {
            **self.snr.row("snr"),
            **self.signal.row("signal"),
            **self.noise.row("noise"),
            "snr_amplitude": self.amplitude,
            "batches": self.batches,
            "batch_size": self.batch_size,
            "left_out": self.left_out,
        }


class SnrMeter:
    """Estimates the SNR from gradients that are added one by one.

    Example:
        >>> meter = SnrMeter()
        >>> for g in ([2.0, 1.0], [2.0, -1.0], [2.0, 1.0], [2.0, -1.0]):
        ...     meter.add([torch.tensor(g)])
        >>> round(meter.result().signal.value, 4)  # 4 - (4 / 3) / 4
        3.6667
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Vector = []
        self._squares = 0.0
        self._sketches: list[Array] = []

    @torch.no_grad()
    def add(self, g: Sequence[Tensor]) -> None:
        """Adds the gradient of a batch of the same size as the others; it is not stored."""
        g = [full_precision(x) for x in g]
        self.count += 1
        if not self._mean:
            self._mean = [torch.zeros_like(x) for x in g]
        deviation = list(torch._foreach_sub(g, self._mean))
        torch._foreach_add_(self._mean, deviation, alpha=1 / self.count)
        self._squares += norm(deviation).item() ** 2 * (self.count - 1) / self.count
        self._sketches.append(sketch(g))

    def result(self, level: float = 0.95) -> Snr:
        """The estimates from the gradients added so far, at least three."""
        K = self.count
        if K < 3:
            raise ValueError(f"SNR needs the gradients of at least 3 batches, got {K}")
        noise = self._squares / (K - 1)
        signal = norm(self._mean).item() ** 2 - noise / K
        errors = _jackknife(np.stack(self._sketches))
        values = (float(_ratio(signal, noise)), signal, noise)
        pairs = zip(values, errors, strict=True)
        ratio, power, spread = (student(value, error, K - 1, level) for value, error in pairs)
        snr = Estimate(max(ratio.value, 0), max(ratio.low, 0), ratio.high, level, K)
        return Snr(snr, power, spread, K)


def sketch(g: Sequence[Tensor], size: int = SKETCH) -> Array:
    """A vector of at most `size` numbers whose inner products estimate those of g.

    A vector of at most this length is kept in full, in float64. A longer one becomes `size` signed
    sums in the precision of g. Their inner products are unbiased over the signs, and the error of
    `size` random directions is much larger than the rounding of float32.
    """
    flat = torch.cat([x.reshape(-1) for x in g])
    entries: Array
    if len(flat) <= size:
        entries = flat.double().cpu().numpy()
        return entries
    generator = torch.Generator(flat.device).manual_seed(len(flat))
    signs = torch.randint(2, flat.shape, generator=generator, device=flat.device, dtype=torch.int8)
    flat = nn.functional.pad(torch.where(signs == 1, flat, -flat), (0, -len(flat) % size))
    entries = flat.view(-1, size).sum(0).cpu().numpy()
    return entries


def _ratio(signal: Any, noise: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(signal, noise)


def _jackknife(g: Array) -> list[float]:
    """Standard errors of ratio, signal and noise by the jackknife over gradients."""
    K = len(g)
    total = g.sum(0, dtype=np.float64)
    squares = np.einsum("kp,kp->k", g, g, dtype=np.float64)
    rest = total @ total - 2 * (g @ total) + squares  # ||sum of the others||^2
    mean = rest / (K - 1) ** 2
    noise = (squares.sum() - squares - (K - 1) * mean) / (K - 2)
    signal = mean - noise / (K - 1)
    without = (_ratio(signal, noise), signal, noise)
    return [float(np.sqrt((K - 1) * np.var(x))) for x in without]


def snr(
    model: nn.Module,
    loss_fn: LossFn | OfModel,
    batches: Iterable[Any],
    *,
    most: int | None = None,
    batchnorm: BatchNorm = "batch",
    dropout: bool = True,
    level: float = 0.95,
) -> Snr:
    """The SNR of the gradients of batches at the weights of a model; the model is restored.

    By default passes are those of training: batch statistics, dropout, and the loader's
    augmentation. Weight decay is not included.

    Args:
        batches: independent batches; those of another size than the first are left out.
        most: largest number of batches to use; None for all.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> x = torch.ones(1, 1)  # the gradient of (w - y)^2 / 2 is w - y
        >>> batches = [(x, model.weight.detach() - g) for g in (1.0, 2.0, 3.0)]
        >>> result = snr(model, lambda out, y: (out - y).square().mean() / 2, batches)
        >>> round(result.noise.value, 4), round(result.signal.value, 4)  # 4 - 1 / 3
        (1.0, 3.6667)
    """
    meter, size, left_out = SnrMeter(), None, 0
    with objective(model, loss_fn, batches, batchnorm=batchnorm, dropout=dropout) as f:
        for key, batch in enumerate(islice(batches, most)):
            size = size or samples_in(batch)
            if samples_in(batch) == size:
                meter.add(f.gradient(batch, key=key))
            else:
                left_out += 1
    return replace(meter.result(level), batch_size=size, left_out=left_out)
