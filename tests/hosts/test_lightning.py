"""A Trainer with the callback does what a loop written by hand does, to the last bit."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.aggregation import CatMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from tests.hosts import HOSTS_OWN_WARNINGS, lightning_ranks
from tests.hosts.problem import (
    BATCHES,
    ByHand,
    Make,
    adamw,
    assert_same_weights,
    loader,
    moody_net,
    net,
    normed_net,
    vasso,
)
from vasso import AESAM, MSAM, S2SAM, SSSAM, LookSAM, MultiStepSAM, SharpnessAware, VaSSO
from vasso.integrations.lightning import SharpnessAwareCallback

pytestmark = HOSTS_OWN_WARNINGS


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
    """Keeps what is logged."""

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
    """What a Trainer is told to do what the loop does."""
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


def assert_same_state(ours: SharpnessAware, theirs: SharpnessAware) -> None:
    a, b = ours.state_dict(), theirs.state_dict()
    assert a["param_groups"] == b["param_groups"]
    torch.testing.assert_close(a["state"], b["state"], rtol=0, atol=0, equal_nan=True)


# -- the loop by hand -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [vasso, adamw], ids=["momentum", "adamw"])
@pytest.mark.parametrize("model", [net, moody_net], ids=["net", "batchnorm and dropout"])
def test_as_by_hand(make: Make, model: Callable[[], nn.Module]) -> None:
    _, opt = assert_as_by_hand(ByHand(), make, model)
    assert opt.cost == 2 * 2 * BATCHES


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [2, 4, 5])
def test_accumulation_with_a_shorter_window_at_the_end(accumulate: int, clip: float) -> None:
    assert_as_by_hand(ByHand(accumulate=accumulate, clip=clip), model=moody_net)


def test_clipping() -> None:
    assert_as_by_hand(ByHand(clip=0.05))


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


# -- float16 --------------------------------------------------------------------------------------


def half(scale: float = 2.0**10, **settings: Any) -> ByHand:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    return ByHand(autocast=torch.float16, scaler=scaler, **settings)


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


# -- what is logged -------------------------------------------------------------------------------


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


def test_a_logger_used_directly_hears_of_each_batch_once() -> None:
    class Direct(Module):
        """Speaks to its logger, and prints."""

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.logger.log_metrics({"direct": loss.item()})
            self.print("a batch")
            return loss

    kept, printed = Kept(), []
    module = Direct(net(), vasso)
    module.print = lambda *words: printed.append(words)  # type: ignore[method-assign]
    host = trainer(max_epochs=1, logger=kept, log_every_n_steps=100)
    fit(module, host)
    at_w = [loss for above, loss in module.seen if not above]
    assert [row["direct"] for row in kept.rows if "direct" in row] == at_w
    assert len(printed) == BATCHES
    assert host.logger is kept


# -- batches --------------------------------------------------------------------------------------


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


# -- other methods --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "most"),
    [(partial(LookSAM, k=3), 5), (partial(SSSAM, p=0.4), 13), (partial(AESAM, total=14), 13)],
    ids=["LookSAM", "SSSAM", "AESAM"],
)
def test_a_step_that_does_not_climb_costs_one_pass(method: Any, most: int) -> None:
    def make(model: nn.Module) -> SharpnessAware:
        return method(SGD(model.parameters(), lr=0.2, momentum=0.9), rho=0.3, model=model)

    module, hand, theirs = Module(net(), make), ByHand(), net()
    opt, plain = fit(module, trainer()), make(theirs)
    hand.train(theirs, plain, list(loader()))
    assert_same_weights(module.model, theirs)
    assert_same_state(opt, plain)
    climbs = sum(above for above, _ in module.seen)
    assert 0 < climbs <= most
    assert opt.cost == 2 * BATCHES + climbs


def momentum_sam(model: nn.Module) -> SharpnessAware:
    return MSAM(SGD(model.parameters(), lr=0.2, momentum=0.9), rho=0.3, model=model)


def last_gradient_sam(model: nn.Module) -> SharpnessAware:
    return S2SAM(SGD(model.parameters(), lr=0.2, momentum=0.9), rho=0.3, model=model)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Without statistics; of these only the counts of batches."""
    return {name: t for name, t in model.state_dict().items() if "running" not in name}


@pytest.mark.parametrize("make", [momentum_sam, last_gradient_sam], ids=["MSAM", "S2SAM"])
@pytest.mark.parametrize("accumulate", [1, 2, 5])
def test_a_method_without_a_gradient_at_w(accumulate: int, make: Make) -> None:
    ours, theirs = Module(normed_net(), make), normed_net()
    fit(ours, trainer(accumulate_grad_batches=accumulate))
    hand, opt = ByHand(accumulate=accumulate), make(theirs)
    for window in hand.windows(list(loader())):
        with opt.ascended():
            hand.passes(theirs, window, 1.0)
        opt.step()
    torch.testing.assert_close(weights_of(ours.model), weights_of(theirs), rtol=0, atol=0)
    if accumulate == 1:
        assert_same_weights(ours.model, theirs)
        assert len(ours.seen) == 2 * BATCHES


def test_clipping_without_a_gradient_at_w() -> None:
    ours, theirs = Module(net(), momentum_sam), net()
    fit(ours, trainer(gradient_clip_val=0.05, accumulate_grad_batches=2))
    hand, opt = ByHand(accumulate=2), momentum_sam(theirs)
    for window in hand.windows(list(loader())):
        with opt.ascended():
            hand.passes(theirs, window, 1.0)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        opt.step()
    assert_same_weights(ours.model, theirs)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_fp16_without_a_gradient_at_w(accumulate: int) -> None:
    hand, theirs = half(accumulate=accumulate), normed_net()
    ours, opt = Module(normed_net(), momentum_sam, hand), momentum_sam(theirs)
    fit(ours, trainer(**settings_of(hand)))
    for window in hand.windows(list(loader())):
        with opt.ascended(scaler=hand.scaler):
            hand.passes(theirs, window, 1.0)
        hand.scaler.step(opt)
        hand.scaler.update()
    torch.testing.assert_close(weights_of(ours.model), weights_of(theirs), rtol=0, atol=0)


# -- resuming -------------------------------------------------------------------------------------


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


# -- manual optimization --------------------------------------------------------------------------


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


def test_manual_optimization_with_two_optimizers() -> None:
    module, theirs = Manual(net(), vasso), net()
    host = trainer(callback=False)
    fit(module, host)
    optimizers = vasso(theirs[0]), vasso(theirs[2])
    for _ in range(2):
        for batch in loader():
            for opt in optimizers:
                theirs.zero_grad()
                cross_entropy(theirs(batch[0]), batch[1]).backward()
                with opt.ascended():
                    cross_entropy(theirs(batch[0]), batch[1]).backward()
                opt.step()
    assert_same_weights(module.model, theirs)
    assert host.global_step == 2 * 2 * BATCHES


def test_manual_optimization_with_a_closure() -> None:
    class WithClosure(Manual):
        """Lets the optimizer make the passes."""

        def training_step(self, batch: Any, batch_idx: int) -> None:
            def closure() -> Tensor:
                opt.zero_grad()
                loss = self.loss(batch)
                self.manual_backward(loss)
                return loss

            opt = self.optimizers()
            opt.step(closure)

        def configure_optimizers(self) -> Any:
            return self.make(self.model)

    module, theirs = WithClosure(net(), vasso), net()
    fit(module, trainer(callback=False))
    ByHand().train(theirs, vasso(theirs), list(loader()))
    assert_same_weights(module.model, theirs)


# -- misuse ---------------------------------------------------------------------------------------


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
        """Its batches could be seen once."""

        def training_step(self, dataloader_iter: Any) -> Any:
            raise AssertionError

    with pytest.raises(RuntimeError, match=r"Iterates.training_step takes a dataloader_iter"):
        fit(Iterates(net(), vasso), trainer())


def test_weights_and_module_are_as_before_after_an_exception_above() -> None:
    class Fails(Module):
        """In its third second pass."""

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


# -- ranks ----------------------------------------------------------------------------------------


def test_two_ranks_are_one(tmp_path: Path) -> None:
    """float64, accumulation and clipping; sums in another order are all that differs."""
    script = Path(__file__).with_name("lightning_ranks.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), "2", str(tmp_path / "2.pt")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    two = torch.load(tmp_path / "2.pt", weights_only=True)
    torch.testing.assert_close(lightning_ranks.train(1), two, rtol=0, atol=1e-12)


# -- without the callback -------------------------------------------------------------------------


def weights_without(hand: ByHand, make: Make = vasso) -> tuple[Tensor, Tensor]:
    """The first layer after training without the callback, and by hand."""
    ours, theirs = Module(net(), make, hand), net()
    fit(ours, trainer(callback=False, **settings_of(hand)))
    hand.train(theirs, make(theirs), list(loader()))
    return ours.model[0].weight, theirs[0].weight


def test_without_the_callback_a_plain_trainer_is_right_but_logs_above() -> None:
    module, theirs = Module(net(), vasso), net()
    host = trainer(callback=False, max_epochs=1)
    fit(module, host)
    hand = ByHand(epochs=1)
    hand.train(theirs, vasso(theirs), list(loader()))
    assert_same_weights(module.model, theirs)
    assert host.callback_metrics["loss_step"].item() != pytest.approx(hand.losses[-1], rel=1e-3)


@pytest.mark.parametrize("hand", [ByHand(accumulate=2), ByHand(clip=0.05)], ids=["window", "clip"])
def test_without_the_callback_windows_and_clipping_are_wrong(hand: ByHand) -> None:
    """If this fails Lightning has changed, and the page in docs/how-to should too."""
    ours, theirs = weights_without(hand)
    assert (ours - theirs).norm() > 1e-3 * theirs.norm()  # rounding is 1e-7


def test_without_the_callback_fp16_is_a_plain_step_and_says_so() -> None:
    hand = half(epochs=20)
    module = Module(net(), vasso, hand)
    with pytest.warns(UserWarning, match="plain steps of SGD and not one climb"):
        fit(module, trainer(callback=False, **settings_of(hand)))
    assert not any(above for above, _ in module.seen)


# -- batches that are left out --------------------------------------------------------------------


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


# -- methods that need passes of their own --------------------------------------------------------


def two_steps_up(model: nn.Module) -> SharpnessAware:
    return MultiStepSAM(SGD(model.parameters(), lr=0.1), n=2, model=model)


def same_dropout(model: nn.Module) -> SharpnessAware:
    base = SGD(model.parameters(), lr=0.1)
    return VaSSO(base, rho=0.3, theta=0.4, model=model, same_rng=True, clip_norm=0.05)


@pytest.mark.parametrize("make", [two_steps_up, same_dropout])
def test_own_passes_over_single_batches(make: Make) -> None:
    module, theirs = Module(moody_net(), make), moody_net()
    host = trainer(max_epochs=1)
    opt, plain, losses = fit(module, host), make(theirs), []
    torch.manual_seed(11)
    for x, y in loader():

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            plain.zero_grad()
            loss = cross_entropy(theirs(x), y)
            loss.backward()
            return loss

        losses.append(plain.step(closure).item())
    assert_same_weights(module.model, theirs)
    assert_same_state(opt, plain)
    mean = sum(losses) / len(losses)
    assert host.callback_metrics["loss_epoch"].item() == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(
    ("hand", "remedy"),
    [
        (ByHand(clip=0.1), r"clip_norm="),
        (ByHand(accumulate=2), r"last of 2 batches: set accumulate_grad_batches=1"),
        (half(), r"use bf16"),
    ],
    ids=["clip", "window", "fp16"],
)
def test_own_passes_are_refused_where_lightning_is_in_the_way(hand: ByHand, remedy: str) -> None:
    with pytest.raises(RuntimeError, match=rf"same_rng=True needs passes of its own.*{remedy}"):
        fit(Module(net(), same_dropout), trainer(**settings_of(hand)))


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "lightning_trainer.py"))
    assert "40 steps, 80 gradients" in capsys.readouterr().out
