"""What the tests of Bi-LoRA and Flat-LoRA train: layers with LoRA factors, models of peft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from tests.contract.training import LoraLinear
from tests.support.compare import flat


class Adapted:
    """Two LoRA layers in float64, trained on random data, all but the factors frozen."""

    def __init__(self, zero_B: bool = False) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = nn.Sequential(LoraLinear(5, 4), nn.Tanh(), LoraLinear(4, 3)).double()
            self.x = torch.randn(40, 8, 5, dtype=torch.float64)
            self.y = torch.randn(40, 8, 3, dtype=torch.float64)
        self.layers = [self.model[0], self.model[2]]
        self.factors = [p for layer in self.layers for p in (layer.lora_A, layer.lora_B)]
        for p in {*self.model.parameters()} - {*self.factors}:
            p.requires_grad_(False)
        for layer in self.layers if zero_B else []:
            layer.lora_B.detach().zero_()

    @property
    def frozen(self) -> list[Tensor]:
        return [layer.weight.detach().clone() for layer in self.layers]

    @property
    def pairs(self) -> list[list[Tensor]]:
        found = [[layer.lora_A, layer.lora_B] for layer in self.layers]
        return [[p.detach().clone() for p in pair] for pair in found]

    def loss(self, t: int, rows: slice = slice(None)) -> Tensor:
        return (self.model(self.x[t, rows]) - self.y[t, rows]).square().mean()

    def loss_of(self, weights: list[Tensor], t: int) -> Tensor:
        """The same loss as a function of merged weights."""
        first, second = self.layers
        hidden = torch.tanh(self.x[t] @ weights[0].mT + first.bias)
        return (hidden @ weights[1].mT + second.bias - self.y[t]).square().mean()

    def closure(self, opt: Any, t: int) -> Callable[[], Tensor]:
        def run() -> Tensor:
            opt.zero_grad()
            loss = self.loss(t)
            loss.backward()
            return loss

        return run

    def train(self, opt: Any, steps: range) -> Tensor:
        """The factors after each step, by closures."""
        path = []
        for t in steps:
            opt.step(self.closure(opt, t))
            path.append(flat(self.factors))
        return torch.stack(path)


class Net(nn.Module):
    """One layer of each kind that peft adapts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        self.conv = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(self.layers(self.words(x)).mT)
        return found


KINDS = ["words", "layers.0", "layers.2", "conv"]


def of_peft(**settings: Any) -> Any:
    """A model of peft with adapters away from zero."""
    torch.manual_seed(0)
    chosen = {"r": 2, "target_modules": KINDS, "lora_alpha": 6, **settings}
    model = get_peft_model(Net().double(), LoraConfig(**chosen))
    for name, p in model.named_parameters():
        if "lora" in name:
            p.data = torch.randn_like(p, dtype=torch.float64)
    return model


def trained(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]
