"""Float16 and bfloat16: every method goes where it goes in float64, at gradients of any size.

The gradients of a step are numbers of the short dtype, the same in both trainings: what is compared
is the arithmetic alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.contract.training import OPTIMIZERS, STEPPERS
from vasso.parts import context

STEPS, SAMPLES = 4, 6
SHAPES = {"first.weight": (5, 7), "first.bias": (5,), "last.weight": (3, 5)}
SIZES = {
    torch.float16: {"tiny": 2.0**-14, "ordinary": 2e4, "largest": 65504.0},
    torch.bfloat16: {
        "tiny": 2.0**-126,
        "ordinary": 2e4,
        "largest": torch.finfo(torch.bfloat16).max,
    },
}
CHOSEN = [
    name
    for name, method in OPTIMIZERS.items()
    if {"outputs", "head", "second moment", "adapters"}.isdisjoint(method.needs)
]
"""The others need what a table of gradients does not have."""
SUMS = {"Entropy-SGD", "SARAH", "STORM", "SVRG", "noisy SAM (relative)"}
"""Their slopes are sums of several gradients: of bfloat16's largest float32 cannot hold them."""


class Table:
    """A batch whose passes leave gradients that depend only on how many there were before.

    Those of one step are like each other, as at w and at w + epsilon, and those of all steps alike
    by half. The largest entry of each is `size`.
    """

    def __init__(self, params: list[Tensor], dtype: torch.dtype, size: float) -> None:
        self.params, self.dtype, self.size = params, dtype, size
        self.step = self.passes = 0

    def __call__(self) -> Tensor:
        self.passes += 1
        found = []
        for p in self.params:
            parts = [self.draw(p, seed) for seed in (0, 1000 + self.step, 10**6 + self.passes)]
            found.append(parts[0] + 0.5 * parts[1] + 0.3 * parts[2])
        peak = max(x.abs().max() for x in found)
        for p, x in zip(self.params, found, strict=True):
            p.grad = (x / peak * self.size).to(self.dtype).to(p.dtype)
        return torch.tensor(1.0 / self.passes, dtype=torch.float64)

    @staticmethod
    def draw(p: Tensor, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed + p.numel())
        return torch.randn(p.shape, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return SAMPLES

    def losses(self) -> Tensor:
        return torch.arange(SAMPLES, dtype=torch.float64) * (1 + self.passes % 3)

    def subset(self, indices: Tensor) -> Table:
        return self

    def split(self, m: int) -> Sequence[Table]:
        return [self] * -(-SAMPLES // m)

    full = fresh = lambda self: self


def train(name: str, short: torch.dtype, size: float, wide: bool) -> tuple[Any, list[Any]]:
    """Steps with lr 0, so that both trainings stay at the same weights: epsilon, climbed and u.

    In float64 the weights are those of the short dtype. The base's momentum is an average, which
    does not overflow.
    """
    dtype = torch.float64 if wide else short
    params = []
    for i, shape in enumerate(SHAPES.values()):
        w = torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(short)
        params.append(nn.Parameter(w.to(dtype)))
    table = Table(params, short, size)
    base = SGD([*zip(SHAPES, params, strict=True)], lr=0.0, momentum=0.5, dampening=0.9)
    method = OPTIMIZERS[name]
    more: dict[str, Any] = {}
    if "source" in method.needs:
        more["source" if name in STEPPERS else "data"] = table
    if "pairs" in method.needs:
        more["pairs"] = [(params[0], params[2])]
    if "model" in method.needs:
        more["model"] = nn.LayerNorm(5)
        more["model"].weight = params[1]
    opt: Any = method.build(base, **{**method.example, **more})
    if "rho" in opt.param_groups[0]:
        opt.param_groups[0]["rho"] = 0.5
    found: list[Any] = []
    opt.observe(lambda record: found.append((record.epsilon, record.summary.climbed)))
    handed: list[Any] = []
    base.register_step_pre_hook(lambda *_: handed.append([p.grad.double().clone() for p in params]))
    for table.step in range(STEPS):
        other = {"ascent_closure": table} if "other batch" in method.needs else {}
        opt.step(table, **other)
    first = handed[:: len(handed) // len(found)]  # some methods step the base several times
    return opt, [(*seen, u) for seen, u in zip(found, first, strict=True)]


def unit(v: list[Tensor]) -> Tensor:
    """All entries, by the largest."""
    flat = torch.cat([x.double().flatten() for x in v])
    return flat / flat.abs().max().clamp(min=1e-300)


@pytest.mark.parametrize("size", ["tiny", "ordinary", "largest"])
@pytest.mark.parametrize("dtype", SIZES, ids=str)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_method_goes_where_it_goes_in_float64(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, size: str
) -> None:
    monkeypatch.setattr(context, "at_least_float32", lambda dtype: torch.float32)  # of noise
    value = SIZES[dtype][size]
    if name in SUMS and dtype == torch.bfloat16:
        value = min(value, 1e36)
    (opt, short), (_, wide) = (train(name, dtype, value, wide) for wide in (False, True))
    assert opt.skipped == 0
    assert len(short) == len(wide) == STEPS
    ulp = torch.finfo(dtype).eps
    for (epsilon, climbed, u), (expected, climbs, v) in zip(short, wide, strict=True):
        assert climbed == climbs
        assert all(x.isfinite().all() for x in u)
        torch.testing.assert_close(unit(u), unit(v), rtol=0, atol=4 * ulp)
        if expected is not None:
            # stochastic rounding of weights of up to 4 in both directions
            found = torch.cat([x.double().flatten() for x in epsilon])
            exact = torch.cat([x.flatten() for x in expected])
            torch.testing.assert_close(found, exact, rtol=4 * ulp, atol=4 * ulp)
