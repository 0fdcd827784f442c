"""The callback for Lightning: the loop by hand, bit for bit, at any precision, in any window."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR

from tests.hosts import HOSTS_OWN_WARNINGS, lightning_ranks
from tests.hosts.lightning_task import (
    Kept,
    Manual,
    Module,
    assert_same_state,
    fit,
    half,
    settings_of,
    trainer,
)
from tests.hosts.problem import (
    BATCHES,
    ByHand,
    Make,
    adamw,
    assert_same_weights,
    loader,
    moody_net,
    net,
    vasso,
)
from vasso import SharpnessAware

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
