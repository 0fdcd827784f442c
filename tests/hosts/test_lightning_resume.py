"""Lightning resumes in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from tests.hosts import HOSTS_OWN_WARNINGS
from tests.hosts.lightning_task import Module, assert_same_state, fit, trainer
from tests.hosts.problem import (
    assert_same_weights,
    loader,
    moody_net,
    vasso,
)

pytestmark = HOSTS_OWN_WARNINGS


class Resumable(DataLoader[Any]):
    """Goes on after the batch at which it was saved, as Lightning asks of a loader."""

    def __init__(self) -> None:
        super().__init__(loader().dataset, 8, generator=torch.Generator().manual_seed(0))
        self.done, self.start = 0, 0

    def __iter__(self) -> Any:
        start, self.start, self.done = self.start, 0, self.start
        for number, batch in enumerate(super().__iter__()):
            if number >= start:
                self.done = number + 1
                yield batch

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["done"]


class Reseed(Callback):
    """Dropout draws the same numbers for the same step, before and after a resume."""

    def on_train_batch_start(self, host: Trainer, module: Any, batch: Any, number: int) -> None:
        torch.manual_seed(100 * host.current_epoch + number)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_resuming_in_the_middle_of_an_epoch(accumulate: int, tmp_path: Path) -> None:
    def host(folder: str) -> Trainer:
        saver = ModelCheckpoint(tmp_path / folder, "{step}", every_n_train_steps=3, save_top_k=-1)
        return trainer(
            accumulate_grad_batches=accumulate,
            enable_checkpointing=True,
            callbacks=[Reseed(), saver],
        )

    whole, resumed, again = Module(moody_net(), vasso), Module(moody_net(), vasso), host("again")
    opt = fit(whole, host("whole"), Resumable())
    path = tmp_path / "whole" / "step=3.ckpt"
    again.fit(resumed, Resumable(), ckpt_path=path, weights_only=True)
    assert 0 < len(resumed.seen) < len(whole.seen)
    assert_same_weights(resumed.model, whole.model)
    assert_same_state(again.optimizers[0], opt)
