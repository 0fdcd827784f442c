"""Gradient accumulation and its two meanings.

* One adversary for the accumulated batch: accumulate, climb, accumulate again. Is the big batch.
* One adversary for each micro-batch: `ascended(accumulate=True)`. Equals m-SAM with chunks.
"""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy

import vasso
from tests.support.compare import flat
from tests.support.problems import BASES, Task, Way, mlp, take_step
from vasso.parts.plans import Chunks

MICRO, SIZE = 4, 4
WHOLE = {
    "SAM": partial(vasso.SAM, rho=0.1),
    "VaSSO": partial(vasso.VaSSO, rho=0.1, theta=0.4),
    "GSAM": partial(vasso.GSAM, rho=0.1, alpha=0.4),
    "LookSAM": partial(vasso.LookSAM, rho=0.1, k=2),
}


def micro(task: Task, t: int, i: int) -> tuple[Tensor, Tensor]:
    x, y = task.batches[t % 4]
    return x[i * SIZE : (i + 1) * SIZE], y[i * SIZE : (i + 1) * SIZE]


def backward(task: Task, t: int, i: int, scaler: GradScaler | None = None) -> None:
    x, y = micro(task, t, i)
    loss = cross_entropy(task.model(x), y) / MICRO
    (loss if scaler is None else scaler.scale(loss)).backward()


def assert_near(a: Tensor, b: Tensor, tolerance: float = 1e-14) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", WHOLE)
def test_accumulating_before_and_inside_is_the_big_batch(name: str) -> None:
    small, big = mlp(torch.float64), mlp(torch.float64)
    ours, theirs = (WHOLE[name](BASES["momentum"](task.params())) for task in (small, big))
    for t in range(8):
        for i in range(MICRO):
            backward(small, t, i)
        with ours.ascended() as up:
            for i in range(MICRO if up else 0):
                backward(small, t, i)
        ours.step()
        ours.zero_grad()
        big.loss(t).backward()
        with theirs.ascended():
            big.loss(t).backward()
        theirs.step()
        theirs.zero_grad()
    assert_near(flat(small.params()), flat(big.params()))  # a mean of means: float64 up to rounding


def in_chunks(task: Task, opt: vasso.SharpnessAware, t: int) -> None:
    def losses(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(task.model(x), y, reduction="none")

    opt.step(vasso.Samples(opt.zero_grad, losses, *task.batches[t % 4]))


def one_by_one(
    task: Task, opt: vasso.SharpnessAware, t: int, scaler: GradScaler | None = None, **options: Any
) -> None:
    for i in range(MICRO):
        backward(task, t, i, scaler)
        with opt.ascended(accumulate=True, scaler=scaler, **options) as up:
            if up:
                backward(task, t, i, scaler)


def chunked(task: Task, theta: float, base: str = "momentum") -> vasso.SharpnessAware:
    return vasso.SharpnessAware(
        BASES[base](task.params()), rho=0.1, direction=vasso.Ema(theta), plan=Chunks(SIZE)
    )


@pytest.mark.parametrize("base", ["momentum", "adamw"])
@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_an_adversary_for_each_micro_batch_is_m_sam(theta: float, base: str) -> None:
    small, big = mlp(torch.float64), mlp(torch.float64)
    ours = vasso.VaSSO(BASES[base](small.params()), rho=0.1, theta=theta)
    theirs = chunked(big, theta, base)
    for t in range(8):
        one_by_one(small, ours, t)
        ours.step()
        ours.zero_grad()
        in_chunks(big, theirs, t)
    # the slope of ours holds gradients of losses divided by MICRO: the direction is the same
    assert_near(flat(small.params()), flat(big.params()), 1e-12)
    assert ours.cost == theirs.cost
    assert ours.param_groups[0]["vasso_step"] == 8


def test_the_sum_is_in_the_gradients_for_clipping() -> None:
    small, big = mlp(torch.float64), mlp(torch.float64)
    ours = vasso.VaSSO(BASES["momentum"](small.params()), rho=0.1, theta=0.4)
    theirs = chunked(big, 0.4)
    theirs.clip_norm = 0.3
    for t in range(4):
        one_by_one(small, ours, t)
        length = nn.utils.clip_grad_norm_(small.params(), 0.3)
        assert length > 0.3
        ours.step()
        ours.zero_grad()
        in_chunks(big, theirs, t)
    assert_near(flat(small.params()), flat(big.params()), 1e-12)


def test_with_a_scaler_it_is_the_same() -> None:
    found = []
    for scaler in (None, GradScaler("cpu", init_scale=2.0**10)):
        task = mlp()
        opt = vasso.VaSSO(BASES["momentum"](task.params()), rho=0.1, theta=0.4)
        for t in range(4):
            one_by_one(task, opt, t, scaler)
            if scaler is None:
                opt.step()
            else:
                scaler.step(opt)
                scaler.update()
            opt.zero_grad()
        found.append(flat(task.params()))
    assert torch.equal(*found)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("by", ["optimizer", "model"])
def test_an_overflow_in_one_micro_batch_skips_its_window(by: str, set_to_none: bool) -> None:
    task, scaler = mlp(), GradScaler("cpu", init_scale=2.0**10)
    opt = vasso.VaSSO(BASES["momentum"](task.params()), rho=0.1, theta=0.4)
    one_by_one(task, opt, 0, scaler)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    kept, slope = (
        flat(task.params()),
        [v.clone() for e in opt._vectors.values() for v in e.values()],
    )
    backward(task, 1, 0, scaler)
    with opt.ascended(accumulate=True, scaler=scaler):
        backward(task, 1, 0, scaler)
        task.params()[0].grad[0, 0] = float("inf")
    for i in (1, 2):
        backward(task, 1, i, scaler)
        with opt.ascended(accumulate=True, scaler=scaler):
            backward(task, 1, i, scaler)
    scaler.step(opt)
    scaler.update()
    assert (opt.skipped, scaler.get_scale()) == (1, 2.0**9)
    assert torch.equal(flat(task.params()), kept)
    assert all(map(torch.equal, slope, [v for e in opt._vectors.values() for v in e.values()]))
    (opt if by == "optimizer" else task.model).zero_grad(set_to_none=set_to_none)
    one_by_one(task, opt, 2, scaler)
    scaler.step(opt)
    scaler.update()
    assert opt.skipped == 1
    assert not torch.equal(flat(task.params()), kept)
    assert flat(task.params()).isfinite().all()


def test_a_non_finite_micro_batch_without_a_scaler_skips_the_step() -> None:
    task = mlp()
    opt = vasso.SAM(BASES["momentum"](task.params()), rho=0.1)
    kept = flat(task.params())
    for i in range(3):
        backward(task, 0, i)
        if i == 1:
            task.params()[0].grad[0, 0] = float("nan")
        with opt.ascended(accumulate=True) as up:
            assert up == (i != 1)
            if up:
                backward(task, 0, i)
    opt.step()
    assert torch.equal(flat(task.params()), kept)
    assert opt.skipped == 1
    opt.zero_grad()
    one_by_one(task, opt, 1)
    opt.step()
    assert not torch.equal(flat(task.params()), kept)


def test_a_tensor_that_a_micro_batch_does_not_use_keeps_its_sum() -> None:
    """The second micro-batch uses the first layer alone."""
    w = [torch.tensor([1.0], requires_grad=True), torch.tensor([2.0], requires_grad=True)]
    opt = vasso.SAM(torch.optim.SGD(w, lr=0.1), rho=0.0)
    for used in ([0, 1], [0]):
        sum(3 * w[i] for i in used).sum().backward()
        with opt.ascended(accumulate=True):
            pass
    assert [x.grad.item() for x in w] == [6.0, 3.0]


def test_a_body_that_is_left_out_adds_what_the_first_pass_found() -> None:
    task = mlp()
    opt = vasso.LookSAM(BASES["sgd"](task.params()), rho=0.1, k=2)
    one_by_one(task, opt, 0)
    opt.step()
    opt.zero_grad()
    one_by_one(task, opt, 1)  # the second step does not climb
    u = torch.cat([p.grad.flatten() for p in task.params()])
    opt.zero_grad()
    for i in range(MICRO):
        backward(task, 1, i)
    g = torch.cat([p.grad.flatten() for p in task.params()])
    assert g.norm() < u.norm() < 3 * g.norm()  # g, and what is reused


def test_a_method_of_one_pass_accumulates_too() -> None:
    found = []
    for accumulated in (True, False):
        task = mlp(torch.float64)
        opt = vasso.MSAM(BASES["momentum"](task.params()), rho=0.1)
        for t in range(4):
            if accumulated:
                for i in range(MICRO):
                    with opt.ascended(accumulate=True):
                        backward(task, t, i)
            else:
                with opt.ascended():
                    for i in range(MICRO):
                        backward(task, t, i)
            opt.step()
            opt.zero_grad()
        found.append(flat(task.params()))
    assert_near(*found, 1e-14)  # momentum is the same for all micro-batches, so this is one batch


def test_two_losses_of_one_micro_batch_are_one_gradient() -> None:
    w = torch.tensor([1.0], requires_grad=True)
    opt = vasso.SAM(torch.optim.SGD([w], lr=0.1), rho=0.0)
    for _ in range(2):
        (2 * w).sum().backward()
        (3 * w).sum().backward()
        with opt.ascended(accumulate=True):
            assert w.grad is None
    assert w.grad.item() == 10.0


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_other_ways_in_discard_a_window_that_was_never_ended(way: Way) -> None:
    task, twin = mlp(), mlp()
    ours, theirs = (vasso.VaSSO(BASES["sgd"](t.params()), rho=0.1, theta=0.4) for t in (task, twin))
    one_by_one(task, ours, 0)
    for opt, its in ((ours, task), (theirs, twin)):
        take_step(opt, partial(its.loss, 1), way)
    assert torch.equal(flat(task.params()), flat(twin.params()))
    assert not any(p._backward_hooks for p in task.params())


@pytest.mark.parametrize(
    ("error", "message"), [(KeyError, None), (RuntimeError, "found no gradient")]
)
def test_a_micro_batch_that_fails_loses_nothing(error: Any, message: str | None) -> None:
    """In the body, or before it for want of a gradient."""
    task = mlp()
    opt = vasso.SAM(BASES["sgd"](task.params()), rho=0.1)
    one_by_one(task, opt, 0)
    kept, total = flat(task.params()), [p.grad.clone() for p in task.params()]
    if error is KeyError:
        backward(task, 1, 0)
    with pytest.raises(error, match=message), opt.ascended(accumulate=True):
        raise KeyError
    assert torch.equal(flat(task.params()), kept)
    assert all(torch.equal(p.grad, x) for p, x in zip(task.params(), total, strict=True))


def test_a_model_can_be_copied_between_micro_batches() -> None:
    task = mlp()
    opt = vasso.SAM(BASES["sgd"](task.params()), rho=0.1)
    one_by_one(task, opt, 0)
    copy.deepcopy(task.model)(task.batches[0][0]).sum().backward()
    assert all(p.grad is not None for p in task.params())


def test_a_mask_that_is_kept_has_no_mean_over_micro_batches() -> None:
    task = mlp()
    opt = vasso.SharpnessAware(BASES["sgd"](task.params()), geometry=vasso.DynamicMask())
    task.loss(0).backward()
    with pytest.raises(ValueError, match="no mean over the shares"), opt.ascended(accumulate=True):
        pass


def test_an_adversary_for_each_micro_batch_is_refused_where_gradients_are_in_shards() -> None:
    """A parameter of FSDP2 is known by its mesh."""
    shard = torch.zeros(2)
    shard.device_mesh = "of two ranks"
    with pytest.raises(ValueError, match="accumulate=True cannot be used with FSDP2"):
        vasso.validation.accumulable(True, [torch.zeros(2), shard])
    vasso.validation.accumulable(False, [shard])
    vasso.validation.accumulable(True, [torch.zeros(2)])


def test_numbers_that_a_policy_remembers_are_means_over_micro_batches() -> None:
    w = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    opt = vasso.AESAM(torch.optim.SGD([w], lr=0.1), total=10)
    for scale in (1.0, 3.0):
        (scale * w.square().sum() / 2).backward()
        with opt.ascended(accumulate=True) as up:
            if up:
                (scale * w.square().sum() / 2).backward()
    opt.step()
    assert opt.param_groups[0]["vasso_mu"] == pytest.approx((25 + 9 * 25) / 2)
