"""Trains with a Trainer on several ranks and saves the weights: ``lightning_ranks.py ranks file``.

Run as a script, since Lightning starts its ranks by running the script again.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

from tests.hosts.problem import loader, net, vasso
from vasso.integrations.lightning import SharpnessAwareCallback


class Module(LightningModule):
    """Deals the rows of each batch of 8 to the ranks in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.model = net(torch.float64)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return vasso(self.model)

    def train_dataloader(self) -> DataLoader[Any]:
        data, ranks = loader(torch.float64).dataset, self.trainer.world_size
        dealer = DistributedSampler(data, ranks, self.trainer.global_rank, shuffle=False)
        return DataLoader(data, 8 // ranks, sampler=dealer)


def train(ranks: int) -> dict[str, Any] | None:
    """The weights and the state of the optimizer at the end, on the first rank."""
    quiet = "logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"
    module, trainer = (
        Module(),
        Trainer(
            accelerator="cpu",
            devices=ranks,
            strategy="ddp" if ranks > 1 else "auto",
            use_distributed_sampler=False,
            max_epochs=2,
            accumulate_grad_batches=3,
            gradient_clip_val=0.1,
            callbacks=[SharpnessAwareCallback()],
            **dict.fromkeys(quiet, False),
        ),
    )
    trainer.fit(module)
    if not trainer.is_global_zero:
        return None
    return {"weights": module.state_dict(), "state": trainer.optimizers[0].state_dict()["state"]}


def main(ranks: int, path: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    result = train(ranks)
    if result:
        torch.save(result, path)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # a rank of gloo may abort at exit after all its work is done


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
