"""Batches in Lightning: changed, taken apart, left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tests.hosts import HOSTS_OWN_WARNINGS
from tests.hosts.lightning_task import Module, fit, half, momentum_sam, settings_of, trainer
from tests.hosts.problem import (
    ByHand,
    Make,
    assert_same_weights,
    loader,
    net,
    vasso,
)

pytestmark = HOSTS_OWN_WARNINGS


class Dicts(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The same data as mappings."""

    def __init__(self) -> None:
        self.data = loader().dataset

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        x, y = self.data[i]
        return {"x": x, "y": y}


def dicts() -> DataLoader[Any]:
    return DataLoader(Dicts(), 8, generator=torch.Generator().manual_seed(0))


class TakesOut(Module):
    """Changes its batch in a hook, and takes things out of it in `training_step`."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        batch["x"] = 2 * batch["x"]
        batch["y"] -= 0  # in place, before training_step

    def training_step(self, batch: Any) -> Any:  # without the number of the batch
        y = batch.pop("y")
        batch["x"] = batch["x"] / 2
        return {"loss": super().training_step((batch["x"], y), 0)}


def test_a_batch_may_be_changed_before_and_taken_apart_inside() -> None:
    module, hand, theirs = TakesOut(net(), vasso), ByHand(accumulate=2), net()
    fit(module, trainer(accumulate_grad_batches=2), dicts())
    hand.train(theirs, vasso(theirs), list(loader()))
    assert_same_weights(module.model, theirs)


def test_a_batch_changed_in_place_inside_is_refused() -> None:
    class Spoils(Module):
        """Its second pass would see another batch."""

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            batch[0].mul_(1.1)
            return super().training_step(batch, batch_idx)

    with pytest.raises(RuntimeError, match=r"changed a tensor of its batch in place.*clone"):
        fit(Spoils(net(), vasso), trainer())


class LeavesOut(Module):
    """Finds nothing in some batches."""

    out: tuple[int, ...] = ()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx in self.out else super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:.*training_step.* returned .*None")
@pytest.mark.parametrize("make", [vasso, momentum_sam], ids=["VaSSO", "MSAM"])
def test_a_batch_may_be_left_out(make: Make) -> None:
    module, theirs = LeavesOut(net(), make), net()
    module.out = (1, 4)
    opt, plain = fit(module, trainer(max_epochs=1)), make(theirs)
    kept = [batch for number, batch in enumerate(loader()) if number not in module.out]
    ByHand(epochs=1).train(theirs, plain, kept)
    assert_same_weights(module.model, theirs)
    assert opt.param_groups[0]["vasso_step"] == len(kept)


@pytest.mark.filterwarnings("ignore:.*training_step.* returned .*None")
def test_batches_may_be_left_out_of_windows() -> None:
    module, theirs = LeavesOut(net(), vasso), net()
    module.out = (0, 3, 4, 5)  # windows: 0 1 | 2 3 | 4 5 | 6
    fit(module, trainer(max_epochs=1, accumulate_grad_batches=2))
    hand, opt, batches = ByHand(accumulate=2), vasso(theirs), list(loader())
    for number in (1, 2, 6):
        hand.step(theirs, opt, [batches[number]], number)
    assert_same_weights(module.model, theirs)


@pytest.mark.filterwarnings("ignore:.*training_step.* returned .*None")
def test_fp16_with_a_batch_left_out() -> None:
    hand, theirs = half(accumulate=2), net()
    module = LeavesOut(net(), vasso, hand)
    module.out = (3, 4)  # windows: 0 1 | 2 3 | 4 5 | 6, and Lightning takes no step in the second
    settings = settings_of(hand) | {"max_epochs": 1}
    fit(module, trainer(**settings))
    opt, batches = vasso(theirs), list(loader())
    for window in ([0, 1], [5], [6]):
        hand.step(theirs, opt, [batches[number] for number in window], 0)
    assert_same_weights(module.model, theirs)


def test_a_window_that_the_end_of_an_epoch_has_cut_off_is_forgotten() -> None:
    class Stops(Module):
        """Ends its epochs in the middle of a window, as Lightning lets it."""

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 3 else None

    module, theirs = Stops(net(), vasso), net()
    fit(module, trainer(accumulate_grad_batches=2))
    ByHand(accumulate=2).train(theirs, vasso(theirs), list(loader())[:2])
    assert_same_weights(module.model, theirs)
