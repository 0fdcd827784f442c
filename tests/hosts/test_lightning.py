"""The callback for Lightning: the loop by hand, bit for bit, at any precision, in any window."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.aggregation import CatMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from tests.hosts import HOSTS_OWN_WARNINGS
from tests.hosts.lightning_task import Kept, Manual, Module, fit, settings_of, trainer
from tests.hosts.problem import (
    BATCHES,
    ByHand,
    Make,
    adamw,
    assert_same_state,
    assert_same_weights,
    half,
    loader,
    moody_net,
    net,
    on_two_ranks,
    vasso,
)
from vasso import SharpnessAware, VaSSO

pytestmark = HOSTS_OWN_WARNINGS


def assert_as_by_hand(
    hand: ByHand, make: Make = vasso, model: Callable[[], nn.Module] = net
) -> tuple[Any, SharpnessAware]:
    """Trains twice and compares weights, buffers, state and the losses at w."""
    ours, theirs = Module(model(), make, hand), model()
    host = trainer(**settings_of(hand))
    opt, plain = fit(ours, host), make(theirs)
    hand.train(theirs, plain, list(loader()))
    assert_same_weights(ours.model, theirs)
    assert_same_state(opt, plain)
    assert [loss for above, loss in ours.seen if not above] == hand.losses
    return host, opt


@pytest.mark.parametrize("make", [vasso, adamw], ids=["momentum", "adamw"])
@pytest.mark.parametrize("model", [net, moody_net], ids=["net", "batchnorm and dropout"])
def test_as_by_hand(make: Make, model: Callable[[], nn.Module]) -> None:
    _, opt = assert_as_by_hand(ByHand(), make, model)
    assert opt.cost == 2 * 2 * BATCHES


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 2, 4, 5])
def test_accumulation_with_a_shorter_window_at_the_end(accumulate: int, clip: float) -> None:
    assert_as_by_hand(ByHand(accumulate=accumulate, clip=clip), model=moody_net)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_bf16(accumulate: int) -> None:
    hand = ByHand(accumulate=accumulate, clip=0.5, autocast=torch.bfloat16)
    assert_as_by_hand(hand, model=moody_net)


@pytest.mark.parametrize(
    "schedule",
    [partial(ExponentialLR, gamma=0.8), partial(OneCycleLR, max_lr=0.3, total_steps=20)],
    ids=["exponential", "one cycle"],
)
def test_schedulers(schedule: Callable[..., Any]) -> None:
    _, opt = assert_as_by_hand(ByHand(schedule=schedule, accumulate=2))
    assert opt.param_groups[0]["lr"] != 0.2


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("above", [False, True], ids=["at w", "above"])
def test_gradients_that_are_not_finite_are_skipped(above: bool, accumulate: int) -> None:
    hand = ByHand(epochs=1, accumulate=accumulate, clip=0.05)
    hand.trouble = lambda step, up: torch.inf if step == 2 and up == above else 1.0
    _, opt = assert_as_by_hand(hand, model=moody_net)
    assert opt.skipped == 1


def test_windows_may_grow_from_epoch_to_epoch() -> None:
    ours, theirs = Module(net(), vasso), net()
    fit(ours, trainer(callbacks=[GradientAccumulationScheduler({0: 1, 1: 3})]))
    opt = vasso(theirs)
    for accumulate in (1, 3):
        ByHand(epochs=1, accumulate=accumulate).train(theirs, opt, list(loader()))
    assert_same_weights(ours.model, theirs)


def assert_half_as_by_hand(hand: ByHand) -> SharpnessAware:
    host, opt = assert_as_by_hand(hand, model=moody_net)
    assert host.precision_plugin.scaler.state_dict() == hand.scaler.state_dict()
    return opt


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_fp16(accumulate: int, clip: float | None) -> None:
    opt = assert_half_as_by_hand(half(accumulate=accumulate, clip=clip))
    assert opt.skipped == 0


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("above", [False, True], ids=["at w", "above"])
def test_fp16_overflow(above: bool, accumulate: int) -> None:
    def trouble(step: int, now_above: bool) -> float:
        return 1e30 if step % 4 == 2 and now_above == above else 1.0

    hand = half(accumulate=accumulate, clip=0.05, trouble=lambda n, up: trouble(n % 7, up))
    hand.epochs = 1
    opt = assert_half_as_by_hand(hand)
    assert opt.skipped > 0


def test_fp16_overflow_until_the_scale_has_come_down() -> None:
    opt = assert_half_as_by_hand(half(2.0**28))
    assert opt.skipped > 2


def test_an_optimizer_that_is_not_sharpness_aware_is_refused() -> None:
    module = Module(net(), lambda model: SGD(model.parameters(), lr=0.1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"with SGD: .*VaSSO\(base, model=self\)"):
        fit(module, trainer())


def test_manual_optimization_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Manual optimizes manually.*with opt\.ascended"):
        fit(Manual(net(), vasso), trainer())


@pytest.mark.filterwarnings("ignore:.*dataloader_iter")
def test_an_iterator_instead_of_a_batch_is_refused() -> None:
    class Iterates(Module):
        def training_step(self, dataloader_iter: Any) -> Any:
            raise AssertionError

    with pytest.raises(RuntimeError, match=r"Iterates.training_step takes a dataloader_iter"):
        fit(Iterates(net(), vasso), trainer())


def test_weights_and_module_are_as_before_after_an_exception_above() -> None:
    class Fails(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            if batch_idx == 2 and self.trainer.optimizers[0].perturbed:
                self.above = [p.detach().clone() for p in self.model.parameters()]
                raise ArithmeticError
            return loss

    module, host, theirs = Fails(net(), vasso), trainer(logger=Kept()), net()
    with pytest.raises(ArithmeticError):
        fit(module, host)
    ByHand(epochs=1).train(theirs, vasso(theirs), list(loader())[:2])
    assert_same_weights(module.model, theirs)
    assert "log" not in vars(module)
    assert "training_step" not in vars(host.strategy)
    assert isinstance(host.logger, Kept)


class Dealt(LightningModule):
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


def train_on_ranks(folder: Path, ranks: int = 2) -> dict[str, Any]:
    several = {"devices": ranks, "strategy": "ddp", "use_distributed_sampler": False}
    window = {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1}
    module, host = Dealt(), trainer(**window, **(several if ranks > 1 else {}))
    host.fit(module)
    return {"weights": module.state_dict(), "state": host.optimizers[0].state_dict()["state"]}


@pytest.mark.ranks
def test_two_ranks_are_one(tmp_path: Path) -> None:
    """float64, accumulation and clipping; sums in another order are all that differs."""
    one = train_on_ranks(tmp_path, ranks=1)
    for two in on_two_ranks(f"{__name__}:train_on_ranks", tmp_path):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-12)


def test_without_the_callback_a_plain_trainer_is_right_but_logs_above() -> None:
    module, theirs = Module(net(), vasso), net()
    host = trainer(callback=False, max_epochs=1)
    fit(module, host)
    hand = ByHand(epochs=1)
    hand.train(theirs, vasso(theirs), list(loader()))
    assert_same_weights(module.model, theirs)
    assert host.callback_metrics["loss_step"].item() != pytest.approx(hand.losses[-1], rel=1e-3)


@pytest.mark.parametrize(
    ("hand", "cause"),
    [
        (ByHand(accumulate=2), "accumulates 2 batches"),
        (ByHand(clip=0.05), "clips the gradient of each pass"),
        (half(), "makes plain steps of SGD"),
    ],
    ids=["window", "clip", "fp16"],
)
def test_what_would_go_wrong_without_the_callback_is_an_error(hand: ByHand, cause: str) -> None:
    module = Module(net(), vasso, hand)
    before = module.model[0].weight.detach().clone()
    with pytest.raises(RuntimeError, match=f"Lightning {cause}.*SharpnessAwareCallback"):
        fit(module, trainer(callback=False, **settings_of(hand)))
    assert torch.equal(module.model[0].weight, before)


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
