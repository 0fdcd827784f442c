"""A loop with Fabric does what the same loop does without, to the last bit."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from tests.hosts import HOSTS_OWN_WARNINGS, problem
from tests.hosts.problem import (
    BATCHES,
    ByHand,
    Make,
    adamw,
    assert_same_state,
    assert_same_weights,
    loader,
    moody_net,
    net,
    on_two_ranks,
    vasso,
)
from vasso import ChunkedSAM
from vasso.integrations.lightning import scaler_of
from vasso.parts.plans import Samples

pytestmark = HOSTS_OWN_WARNINGS


class HandCast(ByHand):
    """Fabric's mixed precision: inputs are cast, and the loss is taken outside, in float32."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if self.autocast is None:
            return super().loss(model, x, y)
        with torch.autocast("cpu", self.autocast):
            scores = model(x.to(self.autocast))
        return cross_entropy(scores.float(), y)


def fabric_for(hand: ByHand) -> Fabric:
    if hand.scaler is not None:
        scaler = torch.amp.GradScaler("cpu", init_scale=hand.scaler.get_scale(), growth_interval=3)
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        return Fabric(accelerator="cpu", devices=1, plugins=[plugin])
    precision = "bf16-mixed" if hand.autocast is not None else "32-true"
    return Fabric(accelerator="cpu", devices=1, precision=precision)


def with_fabric(fabric: Fabric, hand: ByHand, model: Any, opt: Any) -> list[float]:
    """The loop of `ByHand` in Fabric's words: the same for every precision."""
    torch.manual_seed(11)
    losses = []
    for number, window in enumerate(hand.windows(list(loader()))):
        opt.zero_grad()
        losses += passes(fabric, hand, model, window, hand.trouble(number, False))
        with opt.ascended(scaler=scaler_of(fabric)) as up:
            if up:
                passes(fabric, hand, model, window, hand.trouble(number, True))
        if hand.clip:
            fabric.clip_gradients(model, opt, max_norm=hand.clip, error_if_nonfinite=False)
        opt.step()
    return losses


def passes(fabric: Fabric, hand: ByHand, model: Any, window: Any, factor: float) -> list[float]:
    losses = []
    for number, (x, y) in enumerate(window, start=1):
        with fabric.no_backward_sync(model, enabled=number < len(window)):
            loss = factor * cross_entropy(model(x), y)
            fabric.backward(loss / hand.accumulate)
            losses.append(loss.item())
    return losses


def assert_as_by_hand(
    hand: HandCast, make: Make = vasso, net: Callable[[], nn.Module] = moody_net
) -> tuple[Fabric, Any]:
    fabric, ours, theirs = fabric_for(hand), net(), net()
    model, opt = fabric.setup(ours, make(ours))
    losses = with_fabric(fabric, hand, model, opt)
    plain = make(theirs)
    hand.train(theirs, plain, list(loader()))
    assert_same_weights(ours, theirs)
    assert_same_state(opt, plain)
    assert losses == hand.losses
    return fabric, opt


@pytest.mark.parametrize("make", [vasso, adamw], ids=["momentum", "adamw"])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_as_by_hand(accumulate: int, clip: float | None, make: Make) -> None:
    assert_as_by_hand(HandCast(accumulate=accumulate, clip=clip), make)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_bf16(clip: float | None) -> None:
    assert_as_by_hand(HandCast(autocast=torch.bfloat16, clip=clip))


half = partial(problem.half, kind=HandCast)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_fp16(accumulate: int, clip: float | None) -> None:
    hand = half(accumulate=accumulate, clip=clip)
    fabric, opt = assert_as_by_hand(hand)
    assert scaler_of(fabric).state_dict() == hand.scaler.state_dict()  # type: ignore[union-attr]
    assert opt.skipped == 0


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("above", [False, True], ids=["at w", "above"])
def test_fp16_overflow(above: bool, clip: float | None) -> None:
    hand = half(clip=clip, trouble=lambda n, up: 1e30 if n % 4 == 2 and up == above else 1.0)
    fabric, opt = assert_as_by_hand(hand)
    assert scaler_of(fabric).state_dict() == hand.scaler.state_dict()  # type: ignore[union-attr]
    assert opt.skipped == 3


def test_fp16_that_has_never_been_told_of_the_scaler_does_not_climb_and_says_so() -> None:
    hand = half()
    fabric, ours = fabric_for(hand), net()
    model, opt = fabric.setup(ours, vasso(ours))
    x, y = next(iter(loader()))

    def closure() -> Tensor:
        loss = cross_entropy(model(x), y)
        fabric.backward(loss)
        return loss

    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        opt.step(closure)


def test_a_closure() -> None:
    fabric, ours, theirs = Fabric(accelerator="cpu", devices=1), moody_net(), moody_net()
    model, opt = fabric.setup(ours, vasso(ours))
    torch.manual_seed(11)
    losses = []
    for _ in range(2):
        for x, y in loader():

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                opt.zero_grad()
                loss = cross_entropy(model(x), y)
                fabric.backward(loss)
                return loss

            losses.append(opt.step(closure).item())
    hand = ByHand()
    hand.train(theirs, vasso(theirs), list(loader()))
    assert_same_weights(ours, theirs)
    assert losses == hand.losses


def test_a_batch_instead_of_a_closure() -> None:
    """m-sharpness: an adversary for every chunk of a batch."""
    fabric, ours, theirs = Fabric(accelerator="cpu", devices=1), net(), net()
    model, opt = fabric.setup(ours, ChunkedSAM(SGD(ours.parameters(), lr=0.1), m=4, model=ours))
    plain = ChunkedSAM(SGD(theirs.parameters(), lr=0.1), m=4, model=theirs)
    for x, y in loader():
        for step, scores in ((opt, model), (plain, theirs)):

            def losses(x: Tensor, y: Tensor, scores: Any = scores) -> Tensor:
                return cross_entropy(scores(x), y, reduction="none")

            step.step(Samples(step.zero_grad, losses, x, y))
    assert_same_weights(ours, theirs)
    assert opt.cost == plain.cost == 2 * BATCHES


def test_one_autocast_around_both_passes_does_not_keep_old_weights() -> None:
    """autocast keeps low-precision copies of the weights, which a climb makes stale."""
    fabric, ours, theirs = fabric_for(HandCast(autocast=torch.bfloat16)), net(), net()
    model, opt = fabric.setup(ours, vasso(ours))
    for x, y in loader():
        opt.zero_grad()
        with fabric.autocast():
            fabric.backward(cross_entropy(model(x), y))
            with opt.ascended():
                fabric.backward(cross_entropy(model(x), y))
        opt.step()
    HandCast(epochs=1, autocast=torch.bfloat16).train(theirs, vasso(theirs), list(loader()))
    assert_same_weights(ours, theirs)


def test_what_is_under_way_is_seen_from_both_sides_of_the_wrapper() -> None:
    fabric, ours = Fabric(accelerator="cpu", devices=1), net()
    raw = vasso(ours)
    model, opt = fabric.setup(ours, raw)
    x, y = next(iter(loader()))
    fabric.backward(cross_entropy(model(x), y))
    with opt.ascended():
        assert opt.perturbed
        assert raw.perturbed
        fabric.backward(cross_entropy(model(x), y))
        with pytest.raises(RuntimeError, match="weights are perturbed"):
            opt.step()
    assert not raw.perturbed
    opt.step()
    assert raw.last.climbed
    assert opt.last is raw.last
    assert (opt.cost, opt.param_groups) == (2.0, raw.base.param_groups)


def test_saved_and_loaded(tmp_path: Path) -> None:
    fabric, hand = Fabric(accelerator="cpu", devices=1), HandCast(epochs=1)
    whole, halves, resumed = net(), net(), net()
    for epochs, model in ((2, whole), (1, halves)):
        hand.epochs = epochs
        wrapped, opt = fabric.setup(model, vasso(model))
        with_fabric(fabric, hand, wrapped, opt)
    fabric.save(tmp_path / "half.ckpt", {"model": wrapped, "opt": opt})
    wrapped, opt = fabric.setup(resumed, vasso(resumed))
    fabric.load(tmp_path / "half.ckpt", {"model": wrapped, "opt": opt}, weights_only=True)
    hand.epochs = 1
    with_fabric(fabric, hand, wrapped, opt)
    assert_same_weights(resumed, whole)


def train_on_ranks(folder: Path, ranks: int = 2) -> dict[str, Any]:
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    fabric.launch()
    ours = net(torch.float64)
    model, opt = fabric.setup(ours, vasso(ours))
    data = [[t[fabric.global_rank :: ranks] for t in batch] for batch in loader(torch.float64)]
    hand = ByHand(epochs=1, accumulate=3)
    for window in hand.windows(data):
        opt.zero_grad()
        passes(fabric, hand, model, window, 1.0)
        with opt.ascended():
            passes(fabric, hand, model, window, 1.0)
        fabric.clip_gradients(model, opt, max_norm=0.1)
        opt.step()
    return {"weights": ours.state_dict(), "state": opt.state_dict()["state"]}


@pytest.mark.ranks
def test_two_ranks_are_one(tmp_path: Path) -> None:
    """float64, accumulation and clipping; sums in another order are all that differs."""
    one = train_on_ranks(tmp_path, ranks=1)
    for two in on_two_ranks(f"{__name__}:train_on_ranks", tmp_path):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-12)
