"""A small problem that a host and a loop written by hand both solve, and that loop."""

import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from tests.support.ranks import launch
from vasso import SharpnessAware, VaSSO

BATCHES, SIZE = 7, 8

Make = Callable[[nn.Module], SharpnessAware]
Batch = tuple[Tensor, Tensor]


def net(dtype: torch.dtype = torch.float32, *, norm: bool = False, drop: float = 0.0) -> nn.Module:
    """Two layers; with a norm passes move statistics, with dropout they draw random numbers."""
    torch.manual_seed(3)
    middle = [nn.BatchNorm1d(8)] if norm else []
    after = [nn.Dropout(drop)] if drop else []
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), *after, nn.Linear(8, 3)).to(dtype)


moody_net, normed_net = partial(net, norm=True, drop=0.3), partial(net, norm=True)


def loader(dtype: torch.dtype = torch.float32, size: int = SIZE) -> DataLoader[Any]:
    """Seven batches; a generator of its own, since a loader draws a number at each epoch."""
    drawn = torch.Generator().manual_seed(5)
    x = torch.randn(BATCHES * SIZE, 6, generator=drawn, dtype=dtype)
    y = torch.randint(3, (BATCHES * SIZE,), generator=drawn)
    return DataLoader(TensorDataset(x, y), size, generator=torch.Generator().manual_seed(0))


def vasso(model: nn.Module, **base: Any) -> SharpnessAware:
    """What most tests train with: momentum below, an averaged slope above."""
    settings = {"lr": 0.2, "momentum": 0.9, "weight_decay": 1e-2} | base
    return VaSSO(torch.optim.SGD(model.parameters(), **settings), rho=0.3, theta=0.4, model=model)


def adamw(model: nn.Module) -> SharpnessAware:
    base = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    return VaSSO(base, rho=0.3, theta=0.4, model=model)


@dataclass
class ByHand:
    """The loop that a host has to reproduce: passes at w, climb, passes above, clip, step."""

    epochs: int = 2
    accumulate: int = 1
    clip: float | None = None
    autocast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    schedule: Callable[[Optimizer], Any] | None = None
    trouble: Callable[[int, bool], float] = lambda step, above: 1.0
    losses: list[float] = field(default_factory=list)

    def train(self, model: nn.Module, opt: SharpnessAware, batches: list[Batch]) -> None:
        """Trains from here; the random numbers start where those of the host do."""
        torch.manual_seed(11)
        scheduler = self.schedule(opt) if self.schedule else None
        for number, window in enumerate(self.windows(batches)):
            self.step(model, opt, window, number)
            if scheduler:
                scheduler.step()

    def windows(self, batches: list[Batch]) -> Iterator[list[Batch]]:
        for _ in range(self.epochs):
            for start in range(0, len(batches), self.accumulate):
                yield batches[start : start + self.accumulate]

    def step(self, model: nn.Module, opt: SharpnessAware, window: list[Batch], number: int) -> None:
        opt.zero_grad()
        self.losses += self.passes(model, window, self.trouble(number, False))
        with opt.ascended(**({"scaler": self.scaler} if self.scaler else {})) as up:
            if up:
                self.passes(model, window, self.trouble(number, True))
        if self.scaler:
            self.scaler.unscale_(opt)
        if self.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        if self.scaler:
            self.scaler.step(opt)
            self.scaler.update()
        else:
            opt.step()

    def passes(self, model: nn.Module, window: list[Batch], factor: float) -> list[float]:
        losses = []
        for x, y in window:
            loss = factor * self.loss(model, x, y)
            mean = loss / self.accumulate
            (self.scaler.scale(mean) if self.scaler else mean).backward()
            losses.append(loss.item())
        return losses

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", self.autocast) if self.autocast else nullcontext():
            return cross_entropy(model(x), y)


def assert_same_weights(ours: nn.Module, theirs: nn.Module) -> None:
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_same_state(ours: Any, theirs: SharpnessAware) -> None:
    a, b = ours.state_dict(), theirs.state_dict()
    assert a["param_groups"] == b["param_groups"]
    torch.testing.assert_close(a["state"], b["state"], rtol=0, atol=0, equal_nan=True)


def half(scale: float = 2.0**10, kind: Callable[..., ByHand] = ByHand, **settings: Any) -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    return kind(autocast=torch.float16, scaler=scaler, **settings)


# -- two processes on this machine ----------------------------------------------------------------
def on_two_ranks(job: str, folder: Path) -> list[Any]:
    """What `job`, the `module:function` of a test, returns on each of two ranks."""
    launch("tests.hosts.problem:keep", job, str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in "01"]


def keep(job: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    module, function = job.split(":")
    result = getattr(importlib.import_module(module), function)(Path(folder))
    torch.save(result, Path(folder) / f"{os.environ['RANK']}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
