"""fp16 with a GradScaler, on the CPU: scaled losses, true slopes, overflow in either pass.

Scales are powers of two, so that scaling and unscaling are exact and a scaled run has to equal an
unscaled one to the last bit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy

from tests.support.compare import flat
from tests.support.problems import BASES, Task, conv_bn, mlp
from vasso import AESAM, ASAM, GSAM, PGN, SAM, LookSAM, MultiStepSAM, SharpnessAware, VaSSO

STEPS = 6
METHODS: dict[str, Callable[..., SharpnessAware]] = {
    "SAM": partial(SAM, rho=0.1),
    "VaSSO": partial(VaSSO, rho=0.1, theta=0.4),
    "VaSSO recompute": partial(VaSSO, rho=0.1, theta=0.4, restore="recompute"),
    "ASAM": partial(ASAM, rho=0.5),
    "GSAM": partial(GSAM, rho=0.1, alpha=0.4),
    "V+G": partial(GSAM, rho=0.1, alpha=0.4, theta=0.4),
    "LookSAM": partial(LookSAM, rho=0.1, k=3),
    "PGN": partial(PGN, rho=0.1),
    "AESAM": partial(AESAM, rho=0.1, total=6),
}
SLOPED = ("VaSSO", "V+G", "LookSAM")


def scaler_of(scale: float = 2.0**12, interval: int = 1000) -> GradScaler:
    return GradScaler("cpu", init_scale=scale, growth_interval=interval)


def made(name: str, task: Task, **options: Any) -> SharpnessAware:
    return METHODS[name](BASES["momentum"](task.params()), model=task.model, **options)


def slopes(opt: SharpnessAware) -> Tensor:
    found = [v for entry in opt._vectors.values() for v in entry.values()]
    return torch.cat([v.flatten() for v in found]) if found else torch.zeros(0)


def unscaled_step(opt: SharpnessAware, task: Task, t: int, clip: float | None) -> None:
    task.loss(t).backward()
    with opt.ascended() as up:
        if up:
            task.loss(t).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(task.params(), clip)
    opt.step()
    opt.zero_grad()


def scaled_step(
    opt: SharpnessAware,
    task: Task,
    t: int,
    scaler: GradScaler,
    clip: float | None = None,
    spoil: int | None = None,
) -> None:
    """One step of a loop as torch's documentation has it, with a climb; `spoil` a pass with inf."""
    factors = [float("inf") if spoil == number else 1.0 for number in (0, 1)]
    (scaler.scale(task.loss(t)) * factors[0]).backward()
    with opt.ascended(scaler=scaler) as up:
        if up:
            (scaler.scale(task.loss(t)) * factors[1]).backward()
    if clip is not None:
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(task.params(), clip)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", METHODS)
def test_a_scaled_loop_is_the_unscaled_one(name: str, clip: float | None) -> None:
    plain, scaled = mlp(), mlp()
    ours, theirs, scaler = made(name, scaled), made(name, plain), scaler_of()
    for t in range(STEPS):
        unscaled_step(theirs, plain, t, clip)
        scaled_step(ours, scaled, t, scaler, clip)
    assert torch.equal(flat(plain.params()), flat(scaled.params()))
    assert torch.equal(slopes(ours), slopes(theirs))  # the slope holds true gradients
    assert ours.cost == theirs.cost


@pytest.mark.parametrize("name", [*METHODS, "MultiStepSAM"])
def test_a_scaled_closure_is_the_unscaled_one(name: str) -> None:
    found = []
    for scaler in (None, scaler_of()):
        task = mlp()
        make = METHODS.get(name, partial(MultiStepSAM, rho=0.1))
        opt = make(BASES["momentum"](task.params()), model=task.model, clip_norm=0.5)
        losses = []
        for t in range(STEPS):
            losses.append(opt.step(partial(scaled_closure, opt, task, t, scaler), scaler=scaler))
        found.append(torch.cat([torch.stack(losses), flat(task.params()), slopes(opt)]))
    assert torch.equal(*found)


def scaled_closure(opt: Any, task: Task, t: int, scaler: GradScaler | None) -> Tensor:
    opt.zero_grad()
    loss = task.loss(t)
    (loss if scaler is None else scaler.scale(loss)).backward()
    return loss


def test_a_change_of_scale_does_not_show_in_the_slope() -> None:
    """The scale doubles at every step; an average of scaled gradients would show it."""
    found = []
    for interval in (1, 1000):
        task, scaler = mlp(), scaler_of(interval=interval)
        opt = made("VaSSO", task)
        for t in range(STEPS):
            scaled_step(opt, task, t, scaler)
        found.append(torch.cat([flat(task.params()), slopes(opt)]))
        assert (scaler.get_scale() == 2.0**12) == (interval == 1000)
    assert torch.equal(*found)


@pytest.mark.parametrize("spoil", [0, 1], ids=["first pass", "second pass"])
@pytest.mark.parametrize("name", SLOPED)
@pytest.mark.parametrize("way", ["ascended", "closure"])
def test_an_overflow_skips_the_step_and_backs_off(way: str, name: str, spoil: int) -> None:
    task, scaler = conv_bn(), scaler_of()
    opt = made(name, task)
    scaled_step(opt, task, 0, scaler)
    kept, memory = flat(task.params()), slopes(opt)
    base = [v.clone() for s in opt.base.state.values() for v in s.values() if torch.is_tensor(v)]
    if way == "ascended":
        scaled_step(opt, task, 3, scaler, spoil=spoil)
    else:
        spoilt = Spoilt(opt, task, scaler, spoil)
        opt.step(spoilt, scaler=scaler)
        opt.zero_grad()
    climbs = name != "LookSAM"  # whose second step does not climb: no second pass to spoil
    skipped = spoil == 0 or climbs
    assert (opt.skipped, scaler.get_scale()) == ((1, 2.0**11) if skipped else (0, 2.0**12))
    if not skipped:
        return
    assert torch.equal(flat(task.params()), kept)
    after = [v for s in opt.base.state.values() for v in s.values() if torch.is_tensor(v)]
    assert all(map(torch.equal, base, after))
    assert slopes(opt).isfinite().all()
    assert torch.equal(slopes(opt), memory) == (spoil == 0)  # a finite g is kept
    scaled_step(opt, task, 1, scaler)
    assert flat(task.params()).isfinite().all()
    assert not torch.equal(flat(task.params()), kept)
    assert opt.skipped == 1


class Spoilt:
    def __init__(self, opt: Any, task: Task, scaler: GradScaler, spoil: int) -> None:
        self.opt, self.task, self.scaler, self.spoil, self.calls = opt, task, scaler, spoil, 0

    def __call__(self) -> Tensor:
        self.opt.zero_grad()
        loss = self.task.loss(3)
        factor = float("inf") if self.calls == self.spoil else 1.0
        (self.scaler.scale(loss) * factor).backward()
        self.calls += 1
        return loss


@pytest.mark.parametrize("spoil", [None, 0, 1], ids=["fine", "first pass", "second pass"])
def test_a_host_that_unscales_before_the_climb(spoil: int | None) -> None:
    """The order of Lightning: unscale_, climb, clip, scaler.step, update."""
    task, scaler, plain = mlp(), scaler_of(), mlp()
    opt, theirs = made("V+G", task), made("V+G", plain)
    kept = flat(task.params())
    scaler.scale(task.loss(0)).mul(float("inf") if spoil == 0 else 1.0).backward()
    scaler.unscale_(opt)
    with opt.ascended(scaler=scaler, unscaled=True) as up:
        if up:
            scaler.scale(task.loss(0)).mul(float("inf") if spoil == 1 else 1.0).backward()
    nn.utils.clip_grad_norm_(task.params(), 0.5)
    scaler.step(opt)
    scaler.update()
    if spoil is None:
        unscaled_step(theirs, plain, 0, 0.5)
        assert torch.equal(flat(task.params()), flat(plain.params()))
        assert scaler.get_scale() == 2.0**12
    else:
        assert torch.equal(flat(task.params()), kept)
        assert (opt.skipped, scaler.get_scale()) == (1, 2.0**11)
    opt.zero_grad()
    scaled_step(opt, task, 1, scaler)  # a skip does not swallow the next step
    assert not torch.equal(flat(task.params()), kept)


def test_a_skip_that_the_scaler_hides_from_us_does_not_swallow_a_plain_step() -> None:
    task, scaler = mlp(), scaler_of()
    opt = made("SAM", task)
    scaled_step(opt, task, 0, scaler, spoil=1)  # scaler.step never calls ours
    kept = flat(task.params())
    task.loss(1).backward()
    opt.step()
    assert not torch.equal(flat(task.params()), kept)


def test_a_body_that_is_left_out_leaves_gradients_for_one_more_unscaling() -> None:
    """LookSAM does not climb in its second step: what goes down is in units of the scaled loss."""
    task, scaler = mlp(), scaler_of()
    opt = METHODS["LookSAM"](BASES["sgd"](task.params()), model=task.model)
    scaled_step(opt, task, 0, scaler)
    scaler.scale(task.loss(1)).backward()
    scaled = [p.grad.clone() for p in task.params()]
    with opt.ascended(scaler=scaler) as up:
        assert not up
    left = torch.cat([p.grad.flatten() for p in task.params()])
    ratio = left.norm() / torch.cat([x.flatten() for x in scaled]).norm()
    assert 1.0 <= ratio < 2.0  # g and what is reused, 0.7 times as long and orthogonal


def test_a_disabled_scaler_is_none() -> None:
    found = []
    for enabled in (True, False):
        task = mlp()
        opt = made("VaSSO", task)
        scaler = GradScaler("cpu", init_scale=2.0**12, enabled=enabled)
        for t in range(3):
            scaled_step(opt, task, t, scaler, clip=0.5)
        found.append(flat(task.params()))
    assert torch.equal(*found)


def test_other_parameters_later_are_unscaled_too() -> None:
    """A group that is added between two steps."""
    task, scaler = mlp(), scaler_of()
    first, last = task.model[0], task.model[2]
    opt = SAM(BASES["sgd"](first.parameters()), rho=0.1)
    scaled_step(opt, task, 0, scaler)
    opt.add_param_group({"params": list(last.parameters())})
    kept = last.weight.detach().clone()
    scaled_step(opt, task, 1, scaler)
    step = (last.weight - kept).abs().max()
    assert 0 < step < 1.0  # scaled gradients would move it by thousands


def test_real_half_precision_overflows_and_recovers() -> None:
    """fp16 autocast on real digits, from a scale that overflows at once."""
    task = conv_bn()
    scaler = GradScaler("cpu", init_scale=2.0**30, growth_interval=1000)
    opt = made("VaSSO", task)
    first = task.loss(0).item()
    for t in range(60):
        with torch.autocast("cpu", torch.float16):
            loss = task.loss(t)
        scaler.scale(loss).backward()
        with opt.ascended(scaler=scaler) as up:
            if up:
                with torch.autocast("cpu", torch.float16):
                    again = task.loss(t)
                scaler.scale(again).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    assert opt.skipped > 0
    assert opt.param_groups[0]["vasso_step"] == 60 - opt.skipped
    assert scaler.get_scale() == 2.0 ** (30 - opt.skipped)
    assert task.loss(0).item() < first
    assert slopes(opt).isfinite().all()


@pytest.mark.parametrize(
    ("made_with", "given", "kind", "message"),
    [
        ({"nonfinite": "ignore"}, {"scaler": scaler_of()}, ValueError, 'nonfinite="skip"'),
        ({}, {"scaler": 65536}, TypeError, r"GradScaler.*65536"),
        ({}, {"unscaled": True}, ValueError, "scaler="),
    ],
    ids=["no look at infinities", "no scaler", "unscaled without a scaler"],
)
def test_wrong_scalers(made_with: Any, given: Any, kind: type[Exception], message: str) -> None:
    task = mlp()
    opt = made("SAM", task, **made_with)
    task.loss(0).backward()
    with pytest.raises(kind, match=message), opt.ascended(**given):
        pass


def test_a_scaler_without_a_closure_is_told_where_to_go() -> None:
    opt = made("SAM", mlp())
    with pytest.raises(TypeError, match=r"ascended\(scaler=scaler\)"):
        opt.step(scaler=scaler_of())


def test_many_steps_of_the_scaler_alone_are_noticed() -> None:
    """scaler.step(opt) without a climb is a step of the base, silently; not for ever."""
    task, scaler = mlp(), scaler_of()
    opt = made("VaSSO", task)

    def plain() -> None:
        scaler.scale(cross_entropy(task.model(task.batches[0][0]), task.batches[0][1])).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()

    for _ in range(31):
        plain()
    with pytest.warns(UserWarning, match=r"32 plain steps of SGD.*VaSSO.*step\(closure\)"):
        plain()
    plain()  # once is enough


def test_plain_steps_after_a_climb_are_nobodys_business() -> None:
    task = mlp()
    opt = made("VaSSO", task)
    unscaled_step(opt, task, 0, None)
    for t in range(40):
        task.loss(t).backward()
        opt.step()
        opt.zero_grad()
