"""A short training of any method of the catalogue, on real data: what the contract tests run.

scikit-learn's digits, a small network with BatchNorm in float64, batches of 24 samples in a fixed
order. `python -m tests.contract.training FOLDER` goes on with every checkpoint in a folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.compare import digits
from vasso import Method, Outputs, Samples, methods

BATCH, DATA = 24, 240
PRESETS = {name: method for name, method in methods().items() if method.kind == "preset"}
STEPPERS = {name: method for name, method in methods().items() if method.kind == "stepper"}
OPTIMIZERS = PRESETS | STEPPERS
X, Y = (part[:DATA] for part in digits())


class Data:
    """The source of methods that need more than the batch at hand."""

    def __init__(self, run: CatalogueRun) -> None:
        self.run = run

    def full(self) -> Samples:
        return self.run.samples(slice(None))

    def fresh(self) -> Samples:
        self.run.drawn += 1
        return self.run.batch(7 * self.run.drawn)


class LoraLinear(nn.Linear):
    """A linear layer with one pair of LoRA factors, both away from zero."""

    scaling = 2.0

    def __init__(self, read: int, written: int) -> None:
        super().__init__(read, written)
        self.lora_A = nn.Parameter(0.1 * torch.randn(3, read))
        self.lora_B = nn.Parameter(0.1 * torch.randn(written, 3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scaling * (x @ self.lora_A.mT @ self.lora_B.mT)


class CatalogueRun:
    """One method at work.

    Args:
        name: in the catalogue.
        base: makes the base optimizer from parameters.
        rest: settings of a group of their own for biases and norms, if they have one.
        adapters: the first layer has LoRA factors, as for methods that need them.
        **settings: override those of the catalogue's example.
    """

    def __init__(
        self,
        name: str,
        base: Callable[[Any], torch.optim.Optimizer] | None = None,
        *,
        rest: dict[str, Any] | None = None,
        adapters: bool = False,
        **settings: Any,
    ) -> None:
        self.method: Method = OPTIMIZERS[name]
        self.name = name
        with torch.random.fork_rng():
            torch.manual_seed(0)
            first = LoraLinear if adapters or "adapters" in self.method.needs else nn.Linear
            layers = [first(64, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 10)]
            self.model = nn.Sequential(*layers).double()
        weights = [p for p in self.model.parameters() if p.dim() > 1]
        weights.sort(key=lambda p: 3 not in p.shape)  # factors first
        others = [p for p in self.model.parameters() if p.dim() <= 1]
        groups: Any = weights + others
        if rest is not None:
            groups = [{"params": weights}, {"params": others, **rest}]
        make = base or (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
        if "second moment" in self.method.needs:
            make = base or (lambda params: torch.optim.AdamW(params, lr=0.01))
        settings = {**self.method.example, **settings}
        if "source" in self.method.needs:
            settings["data" if name in PRESETS else "source"] = Data(self)
        if "pairs" in self.method.needs:
            settings["pairs"] = [(self.model[0].weight, self.model[3].weight)]
        self.base = make
        self.opt: Any = self.method.build(make(groups), model=self.model, **settings)
        self.steps = self.drawn = 0
        self.evaluated = 0.0  # shares of a batch; a forward pass alone is a third
        self.before_pass: Callable[[], None] = lambda: None
        self.zero_grad: Callable[[], None] = self.opt.zero_grad
        self.losses: list[float] = []
        self.clean = self.climbed = self.refreshed = 0

    def loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        self.before_pass()
        self.evaluated += (1 if torch.is_grad_enabled() else 1 / 3) * len(x) / BATCH
        return nn.functional.cross_entropy(self.model(x), y, reduction="none")

    def samples(self, rows: slice) -> Samples:
        return Samples(self.zero_grad, self.loss_of, X[rows], Y[rows])

    def batch(self, step: int) -> Any:
        start = step * BATCH % DATA
        rows = slice(start, start + BATCH)
        if {"outputs", "head"}.isdisjoint(self.method.needs):
            return self.samples(rows)
        return self.outputs(X[rows], Y[rows], body=3 if "head" in self.method.needs else 4)

    def outputs(self, x: Tensor, y: Tensor, body: int) -> Outputs:
        """The batch, cut after so many layers."""

        def outputs() -> Tensor:
            self.before_pass()
            self.evaluated += 1
            return self.model[:body](x)

        def loss_of(z: Tensor) -> Tensor:
            self.before_pass()
            return nn.functional.cross_entropy(self.model[body:](z), y)

        return Outputs(self.zero_grad, outputs, loss_of, head=self.model[3])

    def other(self, step: int) -> Samples:
        start = (step * BATCH + DATA // 2) % DATA
        half = BATCH // 2 if self.name == "SAM-db-m/2" else BATCH
        return self.samples(slice(start, start + half))

    def step(self) -> None:
        """One step, and what it decided."""
        wanted = self.name in STEPPERS or self.opt.wants_clean
        anew = self.starts_anew()
        other = {}
        if "other batch" in self.method.needs:
            other["ascent_closure"] = self.other(self.steps)
        loss = self.opt.step(self.batch(self.steps), **other)
        self.losses.append(loss.item())
        self.climbed += self.opt.last.climbed
        self.clean += wanted or not self.opt.last.climbed
        self.refreshed += anew
        self.steps += 1

    def starts_anew(self) -> bool:
        every = self.method.example.get("every")
        return self.steps == 0 if every is None else self.steps % every == 0

    def train(self, steps: int) -> CatalogueRun:
        for _ in range(steps):
            self.step()
        return self

    def weights(self) -> Tensor:
        state = [*self.model.parameters(), *self.model.buffers()]
        return torch.cat([x.detach().double().flatten() for x in state])

    def save(self, path: Path) -> None:
        torch.save(
            {
                "name": self.name,
                "steps": self.steps,
                "drawn": self.drawn,
                "model": self.model.state_dict(),
                "opt": self.opt.state_dict(),
            },
            path,
        )

    def load(self, path: Path) -> CatalogueRun:
        saved = torch.load(path, weights_only=True)
        self.steps, self.drawn = saved["steps"], saved["drawn"]
        self.model.load_state_dict(saved["model"])
        self.opt.load_state_dict(saved["opt"])
        return self


def go_on(folder: Path, steps: int = 9) -> None:
    """Goes on with every checkpoint and leaves the weights beside it."""
    for path in sorted(folder.glob("*.ckpt")):
        name = torch.load(path, weights_only=True)["name"]
        torch.save(CatalogueRun(name).load(path).train(steps).weights(), path.with_suffix(".end"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    go_on(Path(sys.argv[1]))
