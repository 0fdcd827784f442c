"""Lightning logs the loss at w, and counts each batch once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.aggregation import CatMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from tests.hosts import HOSTS_OWN_WARNINGS
from tests.hosts.lightning_task import Kept, Module, fit, trainer
from tests.hosts.problem import (
    BATCHES,
    ByHand,
    loader,
    net,
    vasso,
)
from vasso import VaSSO

pytestmark = HOSTS_OWN_WARNINGS


def test_what_is_logged_is_the_loss_at_w() -> None:
    hand, module, kept = ByHand(epochs=1, accumulate=2), Module(net(), vasso), Kept()
    host = trainer(max_epochs=1, accumulate_grad_batches=2, logger=kept, log_every_n_steps=1)
    fit(module, host)
    theirs = net()
    hand.train(theirs, vasso(theirs), list(loader()))
    logged = [row["loss_step"] for row in kept.rows if "loss_step" in row]
    assert logged == pytest.approx(hand.losses[1::2] + hand.losses[-1:], rel=1e-7)
    mean = sum(hand.losses) / len(hand.losses)
    assert host.callback_metrics["loss_epoch"].item() == pytest.approx(mean, rel=1e-6)


class Counting(Module):
    """Updates metrics in `training_step` in the ways users do."""

    def __init__(self) -> None:
        super().__init__(net(), vasso)
        self.accuracy = MulticlassAccuracy(3, average="micro")
        self.mean, self.all = MeanMetric(), CatMetric()
        group = MulticlassConfusionMatrix(3), MulticlassAccuracy(3, average="macro")
        self.several = MetricCollection(list(group))
        self.results: list[dict[str, Any]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        scores = self.model(batch[0])
        self.accuracy(scores, batch[1])  # logged as an object: Lightning computes and resets
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.mean.update(loss.detach())
        self.all.update(loss.detach())
        self.several(scores, batch[1])
        return {"loss": loss, "scores": scores.detach()}

    def on_train_epoch_end(self) -> None:
        self.results.append({
            "mean": self.mean.compute(),
            "all": self.all.compute(),
            "n": self.mean.update_count,
        })
        self.results[-1] |= self.several.compute()
        for metric in (self.mean, self.all, self.several):
            metric.reset()


def test_metrics_count_each_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, plain = Counting(), Counting()
    host = trainer(accumulate_grad_batches=2)
    fit(module, host)
    at_w = [loss for above, loss in module.seen if not above]
    for result, start in zip(module.results, (0, BATCHES), strict=True):
        expected = torch.tensor(at_w[start : start + BATCHES])
        torch.testing.assert_close(result["all"], expected, rtol=0, atol=0)
        torch.testing.assert_close(result["mean"], expected.mean())
        assert result["MulticlassConfusionMatrix"].sum() == BATCHES * 8
        assert result["n"] == BATCHES
    still = trainer(accumulate_grad_batches=2)  # with rho = 0 nothing is seen twice
    plain.make = lambda model: VaSSO(SGD(model.parameters(), lr=0.0), rho=0.0, model=model)
    fit(plain, still)
    assert {above for above, _ in plain.seen} == {False}


def test_accuracy_logged_as_a_metric_is_that_at_w() -> None:
    class Watching(Counting):
        """Computes the same by itself."""

        right = 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            output = super().training_step(batch, batch_idx)
            if not self.trainer.optimizers[0].perturbed:
                self.right += int((output["scores"].argmax(1) == batch[1]).sum())
            return output

    module = Watching()
    host = trainer(max_epochs=1)
    fit(module, host)
    assert host.callback_metrics["accuracy"].item() == pytest.approx(module.right / BATCHES / 8)


def test_a_logger_used_directly_hears_of_each_batch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Direct(Module):
        """Speaks to its logger, and prints."""

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.logger.log_metrics({"direct": loss.item()})
            self.print("a batch")
            return loss

    kept = Kept()
    printed: list[Any] = []
    module = Direct(net(), vasso)
    monkeypatch.setattr(module, "print", lambda *words: printed.append(words))
    host = trainer(max_epochs=1, logger=kept, log_every_n_steps=100)
    fit(module, host)
    at_w = [loss for above, loss in module.seen if not above]
    assert [row["direct"] for row in kept.rows if "direct" in row] == at_w
    assert len(printed) == BATCHES
    assert host.logger is kept
