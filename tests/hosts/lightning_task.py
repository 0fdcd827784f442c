"""What the tests of Lightning train, and how they compare it with the loop by hand."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader

from tests.hosts.problem import (
    ByHand,
    Make,
    loader,
)
from vasso import MSAM, SharpnessAware
from vasso.integrations.lightning import SharpnessAwareCallback


class Module(LightningModule):
    """A net, its optimizer, and a list of the losses it has seen at w and above."""

    def __init__(self, model: nn.Module, make: Make, hand: ByHand | None = None) -> None:
        super().__init__()
        self.model, self.make, self.hand = model, make, hand or ByHand()
        self.seen: list[tuple[bool, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        opt = self.trainer.optimizers[0]
        loss = cross_entropy(self.model(x), y)
        loss = loss * self.hand.trouble(batch_idx // self.hand.accumulate, opt.perturbed)
        self.seen.append((opt.perturbed, loss.item()))
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        opt = self.make(self.model)
        if self.hand.schedule is None:
            return opt
        scheduler = {"scheduler": self.hand.schedule(opt), "interval": "step"}
        return {"optimizer": opt, "lr_scheduler": scheduler}


class Kept(Logger):
    name, version = "kept", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append(dict(metrics))

    def log_hyperparams(self, *arguments: Any, **settings: Any) -> None:
        """There are none."""


def trainer(callback: bool = True, **settings: Any) -> Trainer:
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    chosen = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, **quiet, **settings}
    chosen["callbacks"] = [
        *([SharpnessAwareCallback()] if callback else []),
        *settings.get("callbacks", []),
    ]
    return Trainer(**chosen)


def fit(module: LightningModule, host: Trainer, data: DataLoader[Any] | None = None) -> Any:
    torch.manual_seed(11)
    host.fit(module, data or loader())
    return host.optimizers[0] if host.optimizers else None


def settings_of(hand: ByHand) -> dict[str, Any]:
    found: dict[str, Any] = {
        "max_epochs": hand.epochs,
        "accumulate_grad_batches": hand.accumulate,
        "gradient_clip_val": hand.clip,
    }
    if hand.scaler is not None:
        scaler = torch.amp.GradScaler("cpu", init_scale=hand.scaler.get_scale(), growth_interval=3)
        found["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler)]
    elif hand.autocast is not None:
        found["precision"] = "bf16-mixed"
    return found


def momentum_sam(model: nn.Module) -> SharpnessAware:
    return MSAM(SGD(model.parameters(), lr=0.2, momentum=0.9), rho=0.3, model=model)


class Manual(Module):
    """Owns its passes; a sharpness-aware optimizer for each half of the net."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for opt in self.optimizers():
            opt.zero_grad()
            self.manual_backward(self.loss(batch))
            with opt.ascended(), opt.toggle_model():
                self.manual_backward(self.loss(batch))
            opt.step()

    def loss(self, batch: Any) -> Tensor:
        return cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return [self.make(self.model[0]), self.make(self.model[2])]
