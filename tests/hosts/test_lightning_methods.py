"""Other methods in Lightning: no gradient at w, passes of their own, two optimizers."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from tests.hosts import HOSTS_OWN_WARNINGS
from tests.hosts.lightning_task import (
    Manual,
    Module,
    assert_same_state,
    fit,
    half,
    momentum_sam,
    settings_of,
    trainer,
)
from tests.hosts.problem import (
    BATCHES,
    ByHand,
    Make,
    assert_same_weights,
    loader,
    moody_net,
    net,
    normed_net,
    vasso,
)
from vasso import AESAM, S2SAM, SSSAM, LookSAM, MultiStepSAM, SharpnessAware, VaSSO

pytestmark = HOSTS_OWN_WARNINGS


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
