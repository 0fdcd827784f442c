"""Batches in Lightning: changed, taken apart, left out."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader

from tests.hosts import HOSTS_OWN_WARNINGS, problem
from tests.hosts.lightning_task import Manual, Module, fit, momentum_sam, settings_of, trainer
from tests.support.problems import closure_of
from vasso import AESAM, S2SAM, SSSAM, LookSAM, MultiStepSAM, SharpnessAware, VaSSO

pytestmark = HOSTS_OWN_WARNINGS


class Dicts(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self.data = problem.loader().dataset

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
    module, hand, theirs = (
        TakesOut(problem.net(), problem.vasso),
        problem.ByHand(accumulate=2),
        problem.net(),
    )
    fit(module, trainer(accumulate_grad_batches=2), dicts())
    hand.train(theirs, problem.vasso(theirs), list(problem.loader()))
    problem.assert_same_weights(module.model, theirs)


def test_a_batch_changed_in_place_inside_is_refused() -> None:
    class Spoils(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            batch[0].mul_(1.1)
            return super().training_step(batch, batch_idx)

    with pytest.raises(RuntimeError, match=r"changed a tensor of its batch in place.*clone"):
        fit(Spoils(problem.net(), problem.vasso), trainer())


class LeavesOut(Module):
    out: tuple[int, ...] = ()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx in self.out else super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:.*training_step.* returned .*None")
@pytest.mark.parametrize("make", [problem.vasso, momentum_sam], ids=["VaSSO", "MSAM"])
def test_a_batch_may_be_left_out(make: problem.Make) -> None:
    module, theirs = LeavesOut(problem.net(), make), problem.net()
    module.out = (1, 4)
    opt, plain = fit(module, trainer(max_epochs=1)), make(theirs)
    kept = [batch for number, batch in enumerate(problem.loader()) if number not in module.out]
    problem.ByHand(epochs=1).train(theirs, plain, kept)
    problem.assert_same_weights(module.model, theirs)
    assert opt.param_groups[0]["vasso_step"] == len(kept)


@pytest.mark.filterwarnings("ignore:.*training_step.* returned .*None")
def test_batches_may_be_left_out_of_windows() -> None:
    module, theirs = LeavesOut(problem.net(), problem.vasso), problem.net()
    module.out = (0, 3, 4, 5)  # windows: 0 1 | 2 3 | 4 5 | 6
    fit(module, trainer(max_epochs=1, accumulate_grad_batches=2))
    hand, opt, batches = problem.ByHand(accumulate=2), problem.vasso(theirs), list(problem.loader())
    for number in (1, 2, 6):
        hand.step(theirs, opt, [batches[number]], number)
    problem.assert_same_weights(module.model, theirs)


@pytest.mark.filterwarnings("ignore:.*training_step.* returned .*None")
def test_fp16_with_a_batch_left_out() -> None:
    hand, theirs = problem.half(accumulate=2), problem.net()
    module = LeavesOut(problem.net(), problem.vasso, hand)
    module.out = (3, 4)  # windows: 0 1 | 2 3 | 4 5 | 6, and Lightning takes no step in the second
    settings = settings_of(hand) | {"max_epochs": 1}
    fit(module, trainer(**settings))
    opt, batches = problem.vasso(theirs), list(problem.loader())
    for window in ([0, 1], [5], [6]):
        hand.step(theirs, opt, [batches[number] for number in window], 0)
    problem.assert_same_weights(module.model, theirs)


def test_a_window_that_the_end_of_an_epoch_has_cut_off_is_forgotten() -> None:
    class Stops(Module):
        """Ends its epochs in the middle of a window, as Lightning lets it."""

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 3 else None

    module, theirs = Stops(problem.net(), problem.vasso), problem.net()
    fit(module, trainer(accumulate_grad_batches=2))
    problem.ByHand(accumulate=2).train(theirs, problem.vasso(theirs), list(problem.loader())[:2])
    problem.assert_same_weights(module.model, theirs)


@pytest.mark.parametrize(
    ("method", "most"),
    [(partial(LookSAM, k=3), 5), (partial(SSSAM, p=0.4), 13), (partial(AESAM, total=14), 13)],
    ids=["LookSAM", "SSSAM", "AESAM"],
)
def test_a_step_that_does_not_climb_costs_one_pass(method: Any, most: int) -> None:
    def make(model: nn.Module) -> SharpnessAware:
        return method(SGD(model.parameters(), lr=0.2, momentum=0.9), rho=0.3, model=model)

    module, hand, theirs = Module(problem.net(), make), problem.ByHand(), problem.net()
    opt, plain = fit(module, trainer()), make(theirs)
    hand.train(theirs, plain, list(problem.loader()))
    problem.assert_same_weights(module.model, theirs)
    problem.assert_same_state(opt, plain)
    climbs = sum(above for above, _ in module.seen)
    assert 0 < climbs <= most
    assert opt.cost == 2 * problem.BATCHES + climbs


def last_gradient_sam(model: nn.Module) -> SharpnessAware:
    return S2SAM(SGD(model.parameters(), lr=0.2, momentum=0.9), rho=0.3, model=model)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Without statistics; of these only the counts of batches."""
    return {name: t for name, t in model.state_dict().items() if "running" not in name}


@pytest.mark.parametrize("make", [momentum_sam, last_gradient_sam], ids=["MSAM", "S2SAM"])
@pytest.mark.parametrize("accumulate", [1, 2, 5])
def test_a_method_without_a_gradient_at_w(accumulate: int, make: problem.Make) -> None:
    ours, theirs = Module(problem.normed_net(), make), problem.normed_net()
    fit(ours, trainer(accumulate_grad_batches=accumulate))
    hand, opt = problem.ByHand(accumulate=accumulate), make(theirs)
    for window in hand.windows(list(problem.loader())):
        with opt.ascended():
            hand.passes(theirs, window, 1.0)
        opt.step()
    torch.testing.assert_close(weights_of(ours.model), weights_of(theirs), rtol=0, atol=0)
    if accumulate == 1:
        problem.assert_same_weights(ours.model, theirs)
        assert len(ours.seen) == 2 * problem.BATCHES


def test_clipping_without_a_gradient_at_w() -> None:
    ours, theirs = Module(problem.net(), momentum_sam), problem.net()
    fit(ours, trainer(gradient_clip_val=0.05, accumulate_grad_batches=2))
    hand, opt = problem.ByHand(accumulate=2), momentum_sam(theirs)
    for window in hand.windows(list(problem.loader())):
        with opt.ascended():
            hand.passes(theirs, window, 1.0)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        opt.step()
    problem.assert_same_weights(ours.model, theirs)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_fp16_without_a_gradient_at_w(accumulate: int) -> None:
    hand, theirs = problem.half(accumulate=accumulate), problem.normed_net()
    ours, opt = Module(problem.normed_net(), momentum_sam, hand), momentum_sam(theirs)
    fit(ours, trainer(**settings_of(hand)))
    for window in hand.windows(list(problem.loader())):
        with opt.ascended(scaler=hand.scaler):
            hand.passes(theirs, window, 1.0)
        hand.scaler.step(opt)
        hand.scaler.update()
    torch.testing.assert_close(weights_of(ours.model), weights_of(theirs), rtol=0, atol=0)


def test_manual_optimization_with_two_optimizers() -> None:
    module, theirs = Manual(problem.net(), problem.vasso), problem.net()
    host = trainer(callback=False)
    fit(module, host)
    optimizers = problem.vasso(theirs[0]), problem.vasso(theirs[2])
    for _ in range(2):
        for batch in problem.loader():
            for opt in optimizers:
                theirs.zero_grad()
                cross_entropy(theirs(batch[0]), batch[1]).backward()
                with opt.ascended():
                    cross_entropy(theirs(batch[0]), batch[1]).backward()
                opt.step()
    problem.assert_same_weights(module.model, theirs)
    assert host.global_step == 2 * 2 * problem.BATCHES


def test_manual_optimization_with_a_closure() -> None:
    class WithClosure(Manual):
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

    module, theirs = WithClosure(problem.net(), problem.vasso), problem.net()
    fit(module, trainer(callback=False))
    problem.ByHand().train(theirs, problem.vasso(theirs), list(problem.loader()))
    problem.assert_same_weights(module.model, theirs)


def two_steps_up(model: nn.Module) -> SharpnessAware:
    return MultiStepSAM(SGD(model.parameters(), lr=0.1), n=2, model=model)


def same_dropout(model: nn.Module) -> SharpnessAware:
    base = SGD(model.parameters(), lr=0.1)
    return VaSSO(base, rho=0.3, theta=0.4, model=model, same_rng=True, clip_norm=0.05)


@pytest.mark.parametrize("make", [two_steps_up, same_dropout])
def test_own_passes_over_single_batches(make: problem.Make) -> None:
    module, theirs = Module(problem.moody_net(), make), problem.moody_net()
    host = trainer(max_epochs=1)
    opt, plain, losses = fit(module, host), make(theirs), []
    torch.manual_seed(11)
    for x, y in problem.loader():
        closure = closure_of(plain, lambda x=x, y=y: cross_entropy(theirs(x), y))
        losses.append(plain.step(closure).item())
    problem.assert_same_weights(module.model, theirs)
    problem.assert_same_state(opt, plain)
    mean = sum(losses) / len(losses)
    assert host.callback_metrics["loss_epoch"].item() == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize(
    ("hand", "remedy"),
    [
        (problem.ByHand(clip=0.1), r"clip_norm="),
        (problem.ByHand(accumulate=2), r"last of 2 batches: set accumulate_grad_batches=1"),
        (problem.half(), r"use bf16"),
    ],
    ids=["clip", "window", "fp16"],
)
def test_own_passes_are_refused_where_lightning_is_in_the_way(
    hand: problem.ByHand, remedy: str
) -> None:
    with pytest.raises(RuntimeError, match=rf"same_rng=True needs passes of its own.*{remedy}"):
        fit(Module(problem.net(), same_dropout), trainer(**settings_of(hand)))
