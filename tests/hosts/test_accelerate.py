"""accelerate with our window is a plain loop, bit for bit; without it, this is what goes wrong."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from tests.hosts import windows
from tests.hosts.problem import on_two_ranks
from tests.hosts.windows import batches, collate, in_windows, lines, weights
from vasso import MSAM, LookSAM, SharpnessAware, VaSSO
from vasso.integrations.accelerate import Window, sharpness_aware
from vasso.standalone import SAMPa

RHO, THETA = 0.1, 0.4


def optimizer(model: nn.Module, lr: float = 0.5, method: Any = VaSSO, **more: Any) -> Any:
    base = SGD(model.parameters(), lr=lr, momentum=0.9)
    settings = {"rho": RHO, **({"theta": THETA} if method is VaSSO else {}), **more}
    return method(base, model=model, **settings)


def loop(
    accelerator: Accelerator, window: Window, opt: Any, data: Any, clip: float | None = None
) -> list[float]:
    """As accelerate's own examples have it, but for `window.backward`; the losses it returned."""
    losses = []
    for batch in data:
        with accelerator.accumulate(window.model):
            losses.append(window.backward(lambda **b: window.model(**b)["loss"], **batch).item())
            if clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(window.model.parameters(), clip)
            opt.step()
            opt.zero_grad()
    return losses


def passes_of(
    model: nn.Module, samples: list[Any], accumulate: int, *, bf16: bool = False
) -> list[windows.Passes]:
    """accelerate divides by the size of a whole window, also in the ragged last one."""

    def one_pass(batch: windows.Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**batch)["loss"].float()
        (loss / accumulate).backward()
        return loss.detach()

    whole = in_windows(batches(samples, 2), accumulate)
    return [[partial(one_pass, batch) for batch in window] for window in whole]


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("more", [{}, {"clip": 0.3}, {"mixed_precision": "bf16"}], ids=str)
def test_accelerate_is_a_plain_loop_bit_for_bit(accumulate: int, more: dict[str, Any]) -> None:
    theirs, ours = windows.characters(), windows.characters()
    clip, bf16 = more.get("clip"), "mixed_precision" in more
    precision = {"mixed_precision": "bf16"} if bf16 else {}
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, **precision)
    data = DataLoader(lines(22), batch_size=2, collate_fn=collate)
    model, opt, data = accelerator.prepare(theirs, optimizer(theirs), data)
    window = Window(accelerator, model, opt)
    found = loop(accelerator, window, opt, data, clip)
    passes = passes_of(ours, lines(22), accumulate, bf16=bf16)
    losses = windows.plain_loop(optimizer(ours), passes, clip=clip, params=list(ours.parameters()))
    assert torch.equal(weights(theirs), weights(ours))
    assert [sum(w) for w in in_windows(found, accumulate)] == pytest.approx(losses, rel=1e-6)
    assert window.optimizer.cost == 2 * len(passes)


def prepared(
    accumulate: int = 2, method: Any = VaSSO, **more: Any
) -> tuple[Accelerator, Window, Any]:
    model = windows.characters()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model, opt = accelerator.prepare(model, optimizer(model, method=method, **more))
    return accelerator, Window(accelerator, model, opt), opt


def windowed(method: Any, **more: Any) -> tuple[Window, list[float]]:
    accelerator, window, opt = prepared(method=method, **more)
    return window, loop(accelerator, window, opt, batches(lines(16), 2))


def test_a_step_that_does_not_climb_is_not_replayed() -> None:
    window, _ = windowed(LookSAM, k=2)
    assert window.optimizer.cost == 2 + 1 + 2 + 1


def test_without_a_radius_nothing_is_replayed() -> None:
    window, _ = windowed(VaSSO, rho=0.0)
    assert window.optimizer.cost == 4


def test_a_method_that_wants_no_gradient_at_w_takes_one_pass() -> None:
    window, losses = windowed(MSAM)
    assert window.optimizer.cost == 4
    twin = windows.characters()
    opt = optimizer(twin, method=MSAM)
    for t, passes in enumerate(passes_of(twin, lines(16), 2)):
        with opt.ascended():
            expected = sum(one_pass().item() for one_pass in passes)
        assert losses[2 * t : 2 * t + 2] == [0.0, pytest.approx(expected, rel=1e-6)]
        opt.step()
        opt.zero_grad()
    assert torch.equal(weights(window.model), weights(twin))


def test_saved_and_loaded_state_goes_on_bit_for_bit(tmp_path: Path) -> None:
    data = batches(lines(24), 2)
    accelerator, window, opt = prepared()
    loop(accelerator, window, opt, data[:6])
    accelerator.save_state(str(tmp_path))
    loop(accelerator, window, opt, data[6:])
    whole = weights(window.model)
    accelerator, window, opt = prepared()
    accelerator.load_state(str(tmp_path))
    loop(accelerator, window, opt, data[6:])
    assert torch.equal(weights(window.model), whole)
    assert window.optimizer.cost == 12


def test_a_micro_batch_that_failed_is_not_replayed() -> None:
    twin, good = windows.characters(), batches(lines(4), 2)
    accelerator, window, opt = prepared()

    def failing(**_: Tensor) -> Tensor:
        raise MemoryError

    with pytest.raises(MemoryError):
        window.backward(failing, **good[0])
    loop(accelerator, window, opt, good)
    windows.plain_loop(optimizer(twin), passes_of(twin, lines(4), 2), clip=None, params=[])
    assert torch.equal(weights(window.model), weights(twin))


def test_ranks_synchronise_in_the_last_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = []

    @contextlib.contextmanager
    def no_sync(self: Accelerator, model: nn.Module) -> Iterator[None]:
        quiet.append(window.optimizer.perturbed)
        yield

    monkeypatch.setattr(Accelerator, "no_sync", no_sync)
    accelerator, window, opt = prepared(3)
    loop(accelerator, window, opt, batches(lines(12), 2))
    assert quiet == 2 * [False, False, True, True]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("where", [None, "below", "above"])
def test_a_scaled_loop_is_plain(accumulate: int, clip: float | None, where: str | None) -> None:
    theirs, ours = windows.characters(), windows.characters()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    accelerator.scaler = windows.scaler()
    model, opt = accelerator.prepare(theirs, optimizer(theirs))
    windows.pretend_fp16(accelerator)
    window = Window(accelerator, model, opt)
    compute_loss = windows.overflowing(model, window.optimizer, where)
    skipped = []
    for batch in batches(lines(16), 2):
        with accelerator.accumulate(model):
            window.backward(compute_loss, **batch)
            if clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            opt.zero_grad()
            if accelerator.sync_gradients:
                skipped.append(accelerator.optimizer_step_was_skipped)
    by_hand = optimizer(ours)
    compute_loss = windows.overflowing(ours, by_hand, where)
    whole = list(in_windows(batches(lines(16), 2), accumulate))
    scale = windows.scaled_loop(
        by_hand, whole, lambda **b: compute_loss(**b) / accumulate, clip=clip, model=ours
    )
    assert torch.equal(weights(theirs), weights(ours))
    assert accelerator.scaler.get_scale() == scale
    assert window.optimizer.skipped == by_hand.skipped == (where is not None)
    assert skipped.index(True) == 1 if where else not any(skipped)


def test_a_function_without_data_is_an_error() -> None:
    model = windows.characters()
    accelerator = Accelerator(cpu=True)
    window = Window(accelerator, model, optimizer(model))
    with pytest.raises(TypeError, match="pass the micro-batch"):
        window.backward(lambda: model(**batches(lines(2), 2)[0])["loss"])


@pytest.mark.parametrize("wrap", [lambda base: base, SAMPa], ids=["a base", "a stepper"])
def test_an_optimizer_without_a_climb_is_an_error(wrap: Any) -> None:
    model = windows.characters()
    accelerator = Accelerator(cpu=True)
    opt = accelerator.prepare(wrap(SGD(model.parameters(), lr=0.1)))
    with pytest.raises(TypeError, match=r"got (SGD|SAMPa).*VaSSO\(optimizer"):
        Window(accelerator, model, opt)


def test_adversaries_by_rank_are_refused(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(windows.characters())
        with pytest.raises(ValueError, match='use sync="global"'):
            sharpness_aware(optimizer(model, sync="local"))
    finally:
        torch.distributed.destroy_process_group()


def with_closure(accumulate: int) -> tuple[SharpnessAware, list[Any]]:
    """What one would write without the window: a closure for accelerate's step."""
    model = windows.characters()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    ours = optimizer(model)
    model, opt = accelerator.prepare(model, ours)
    recorded = []
    for batch in batches(lines(16), 2):
        with accelerator.accumulate(model):

            def closure(batch: windows.Batch = batch) -> Tensor:
                opt.zero_grad()
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                return loss

            recorded.append(opt.step(closure))
    return ours, recorded


def test_a_closure_is_right_without_accumulation_but_its_loss_is_lost() -> None:
    ours, result = with_closure(1)
    twin = windows.characters()
    opt = optimizer(twin)
    windows.plain_loop(opt, passes_of(twin, lines(16), 1), clip=None, params=[])
    assert torch.equal(
        torch.cat([p.flatten() for p in ours._groups.params()]), weights(twin).float()
    )
    assert result == 8 * [None]
    assert ours.last.loss is not None  # where it can be found


def test_a_closure_under_accumulation_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"only the last of 2 micro-batches.*Window"):
        with_closure(2)


def test_backward_and_step_without_the_window_are_an_error_at_the_first_step() -> None:
    model = windows.characters()
    accelerator = Accelerator(cpu=True)
    model, opt = accelerator.prepare(model, optimizer(model))
    accelerator.backward(model(**batches(lines(2), 2)[0])["loss"])
    before = weights(model)
    with pytest.raises(
        RuntimeError, match=r"accelerate's optimizer makes plain steps of SGD.*Window"
    ):
        opt.step()
    assert torch.equal(weights(model), before)


def train_on_ranks(folder: Path) -> Tensor:
    """24 pieces of text, twelve micro-batches in windows of two, clipping."""
    model = windows.characters(torch.float64)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data = DataLoader(lines(24), batch_size=2, collate_fn=collate)
    wrapped, opt, data = accelerator.prepare(model, optimizer(model), data)
    window = Window(accelerator, wrapped, opt)
    loop(accelerator, window, opt, data, clip=0.3)
    assert (window.optimizer.cost, accelerator.num_processes) == (6, 2)
    return weights(model)


@pytest.mark.ranks
def test_two_processes_equal_one_on_the_whole_batch(tmp_path: Path) -> None:
    found = on_two_ranks(f"{__name__}:train_on_ranks", tmp_path)
    model = windows.characters(torch.float64)
    passes = passes_of(model, lines(24), 4)  # 2 ranks, 2 micro-batches each
    windows.plain_loop(optimizer(model), passes, clip=0.3, params=list(model.parameters()))
    for rank in found:
        torch.testing.assert_close(rank, weights(model), rtol=0, atol=1e-14)
