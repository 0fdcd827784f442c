"""N steps, a checkpoint, a new process, M steps: bit for bit N + M steps without a break.

Run as a script (`python -m tests.test_resume <folder>`) this is the new process.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from tests.faults import Way, assert_same_tree, batches, net, take_step
from vasso import SAM, SharpnessAware, VaSSO

STEPS = 200
"""Before the break, and after it."""


def cosine_rho(step: int, lr: float) -> float:
    """A radius that falls from 0.1 to 0.05 in 400 steps."""
    return 0.075 + 0.025 * math.cos(math.pi * step / (2 * STEPS))


def falling_theta(step: int, lr: float) -> float:
    """SAM at first, then a longer and longer memory: 1 for 150 steps, later 4 / (t + 8)^(2/3)."""
    return 1.0 if step < 150 else min(1.0, 4 / (step + 8) ** (2 / 3))


def rho_of_lr(step: int, lr: float) -> float:
    """A radius proportional to lr, as in GSAM."""
    return 2 * lr


momentum = partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
adamw = partial(AdamW, lr=0.01, weight_decay=0.1)
one_cycle = partial(OneCycleLR, max_lr=0.05, total_steps=2 * STEPS)
cosine = partial(CosineAnnealingLR, T_max=2 * STEPS)


@dataclass(frozen=True)
class Case:
    """A training: method, base, scheduler and way in."""

    method: Callable[..., SharpnessAware]
    base: Callable[..., Optimizer]
    scheduler: Callable[..., LRScheduler] = cosine
    way: Way = "closure"


CASES = {
    "SAM, SGD": Case(partial(SAM, rho=0.1, same_rng=True), momentum, one_cycle),
    "SAM, AdamW": Case(partial(SAM, rho=cosine_rho), adamw, cosine, "ascended"),
    "VaSSO, SGD": Case(
        partial(VaSSO, rho=rho_of_lr, clip_norm=0.5), momentum, one_cycle, "ascended"
    ),
    "VaSSO, AdamW": Case(
        partial(VaSSO, rho=0.1, theta=falling_theta, restore="recompute"), adamw, cosine
    ),
}


@dataclass
class Training:
    """What a script of a user's holds in its hands."""

    model: Any
    opt: SharpnessAware
    scheduler: LRScheduler
    way: Way

    @classmethod
    def of(cls, case: Case) -> Training:
        model = net(dropout=0.2, dtype=torch.float32)
        opt = case.method(case.base(model.parameters()), model=model)
        return cls(model, opt, case.scheduler(opt), case.way)

    def go_on(self, steps: range) -> None:
        data = batches(16, torch.float32)
        for t in steps:
            take_step(self.opt, self.model, data[t % len(data)], self.way)
            self.scheduler.step()

    def save(self, path: Path) -> None:
        parts = {name: vars(self)[name].state_dict() for name in ("model", "opt", "scheduler")}
        torch.save({**parts, "rng": torch.get_rng_state()}, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        for name in ("model", "opt", "scheduler"):
            vars(self)[name].load_state_dict(saved[name])
        torch.set_rng_state(saved["rng"])

    def result(self) -> dict[str, Any]:
        """All that a later step depends on."""
        rng = torch.get_rng_state()
        return {"model": self.model.state_dict(), "opt": self.opt.state_dict(), "rng": rng}


def new_process(folder: Path) -> None:
    """Goes on with every case from its checkpoint."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for i, case in enumerate(CASES.values()):
        training = Training.of(case)
        training.load(folder / f"{i}.half.pt")
        training.go_on(range(STEPS, 2 * STEPS))
        torch.save(training.result(), folder / f"{i}.whole.pt")


def test_a_break_and_a_new_process_change_no_bit_of_a_training(tmp_path: Path) -> None:
    for i, case in enumerate(CASES.values()):
        torch.manual_seed(i)
        training = Training.of(case)
        training.go_on(range(STEPS))
        training.save(tmp_path / f"{i}.half.pt")
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "tests.test_resume", str(tmp_path)]
    subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=True)
    resumed, unbroken = {}, {}
    for i, (name, case) in enumerate(CASES.items()):
        torch.manual_seed(i)
        training = Training.of(case)
        training.go_on(range(2 * STEPS))
        unbroken[name] = training.result()
        resumed[name] = torch.load(tmp_path / f"{i}.whole.pt", weights_only=True)
    assert_same_tree(resumed, unbroken)


if __name__ == "__main__":
    new_process(Path(sys.argv[1]))
