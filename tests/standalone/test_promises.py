"""What SAMPa and Entropy-SGD promise beyond tests/contract."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import SGD

from tests.reference.digits import batch, flat
from tests.standalone.task import (
    METHODS,
    Digits,
    assert_unchanged,
    each_method,
    entropy_on,
    sampa_on,
    snapshot,
    train,
)
from tests.support.compare import assert_same
from tests.support.problems import closure_of
from vasso import methods
from vasso.standalone import EntropySGD, SAMPa
from vasso.standalone.stepper import Stepper


def test_no_stepper_of_the_catalogue_is_left_out() -> None:
    made = {type(make(Digits())) for make in METHODS.values()}
    steppers = [method for method in methods().values() if method.kind == "stepper"]
    without = {"pairs", "adapters"}  # they have tests of their own
    assert made == {method.build for method in steppers if without.isdisjoint(method.needs)}


@each_method
def test_a_run_resumes_through_torchs_getters(make: Callable[..., Stepper]) -> None:
    straight = Digits()
    expected = train(straight, make(straight), 5)[3:]
    task = Digits()
    opt = make(task)
    train(task, opt, 3)
    saved = copy.deepcopy(get_optimizer_state_dict(task.model, opt))
    other = Digits(model=copy.deepcopy(task.model))
    other.t = task.t
    fresh = make(other)
    get_optimizer_state_dict(other.model, fresh)  # as a loader of checkpoints does first
    set_optimizer_state_dict(other.model, fresh, saved)
    assert_same(train(other, fresh, 2), expected)


def spoiled(task: Digits, t: int) -> Callable[[], Tensor]:
    def run() -> Tensor:
        loss = task.closure(t)()
        list(task.model.parameters())[-1].grad[0] = math.nan
        return loss

    return run


@each_method
def test_nonfinite_may_raise_instead(make: Callable[..., Stepper]) -> None:
    task = Digits()
    opt = make(task, nonfinite="raise")
    train(task, opt, 2)
    before = snapshot(task, opt)
    with pytest.raises(FloatingPointError, match=r"weights(, slope)? and base are as before"):
        opt.step(spoiled(task, 0))
    assert_unchanged(before, snapshot(task, opt))


@each_method
def test_unchecked_gradients_give_the_same_steps(make: Callable[..., Stepper]) -> None:
    one, other = Digits(), Digits()
    assert_same(train(one, make(one, nonfinite="ignore")), train(other, make(other)))


@each_method
def test_weights_are_borrowed_in_place_and_come_home(make: Callable[..., Stepper]) -> None:
    task = Digits()
    opt = make(task, settings={"lr": 0.0}) if make is sampa_on else None
    opt = opt or make(task, SGD(task.model.parameters(), lr=0.0))
    before, where = flat(task.model), [p.data_ptr() for p in task.model.parameters()]
    seen = []
    for t in range(2):
        closure = task.closure(t, lambda: seen.append((opt.perturbed, flat(task.model))))
        if isinstance(opt, EntropySGD):
            opt.fresh = lambda closure=closure: closure
        opt.step(closure)
    assert_same(flat(task.model), before)
    assert [p.data_ptr() for p in task.model.parameters()] == where
    away = [not torch.equal(weights, before) for _, weights in seen]
    if isinstance(opt, EntropySGD):
        assert away == [perturbed for perturbed, _ in seen] == [False, True, True] * 2
    else:  # y is x where lr is 0, but borrowed
        assert [perturbed for perturbed, _ in seen] == [False, True, True, True]
        assert away == [False, True, False, True]


@each_method
def test_what_may_not_be_done_while_weights_are_away(make: Callable[..., Stepper]) -> None:
    task = Digits()
    opt = make(task)
    train(task, opt, 1)
    before = flat(task.model)

    def closure() -> Tensor:
        loss = task.closure(9)()
        if opt.perturbed:
            opt.state_dict()
        return loss

    if isinstance(opt, EntropySGD):
        opt.fresh = lambda: closure
    with pytest.raises(RuntimeError, match=r"state_dict\(\).* while the weights are perturbed"):
        opt.step(closure)
    assert_same(flat(task.model), before)


@each_method
@pytest.mark.parametrize("mode", ["clean", "perturbed", "both"])
def test_batchnorm_is_moved_by_the_first_pass_or_the_last_or_by_all(
    make: Callable[..., Stepper], mode: str
) -> None:
    task = Digits(norm=True)
    opt = make(task, batchnorm=mode)
    twin = copy.deepcopy(task.model)
    seen: list[tuple[Tensor, list[Tensor]]] = []

    def note(module: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
        seen.append((args[0], [p.detach().clone() for p in module.parameters()]))

    handle = task.model.register_forward_hook(note)
    train(task, opt, 1)
    handle.remove()
    chosen = {"clean": seen[:1], "perturbed": seen[-1:], "both": seen}[mode]
    for inputs, weights in chosen:
        with torch.no_grad():
            for p, x in zip(twin.parameters(), weights, strict=True):
                p.copy_(x)
        twin(inputs)
    for ours, theirs in zip(task.model.buffers(), twin.buffers(), strict=True):
        assert_same(ours, theirs)


@each_method
def test_a_checkpoint_of_the_plain_base_and_of_other_parts(make: Callable[..., Stepper]) -> None:
    task, plain = Digits(), Digits()
    opt = make(task)
    base = SGD(plain.model.parameters(), lr=opt.param_groups[0]["lr"], momentum=0.9)
    train(plain, base, 2)
    opt.load_state_dict(base.state_dict())
    buffers = [s["momentum_buffer"] for s in base.state.values()]
    ours = [opt.base.state[p]["momentum_buffer"] for p in task.model.parameters()]
    assert_same(torch.cat([b.flatten() for b in ours]), torch.cat([b.flatten() for b in buffers]))
    other = Digits()
    wrong = entropy_on(other) if isinstance(opt, SAMPa) else sampa_on(other)
    with pytest.raises(ValueError, match="the checkpoint is of other parts"):
        wrong.load_state_dict(opt.state_dict())


@each_method
def test_weights_of_low_precision_come_home_too(make: Callable[..., Stepper]) -> None:
    model = nn.Linear(4, 2).to(torch.bfloat16)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    task = Digits(model=model)
    opt = make(task, {"lr": 0.0}) if make is sampa_on else None
    opt = opt or make(task, SGD(model.parameters(), lr=0.0))
    closure = closure_of(opt, lambda: model(x).square().mean())
    if isinstance(opt, EntropySGD):
        opt.fresh = lambda: closure
    before = flat(model)
    for _ in range(3):
        opt.step(closure)
    assert_same(flat(model), before)
    assert opt.cost in (6, 9)
    assert all(p.grad.dtype == torch.bfloat16 for p in model.parameters())


@each_method
def test_a_closure_that_raises_on_a_nan_leaves_no_nan_in_the_statistics(
    make: Callable[..., Stepper],
) -> None:
    task = Digits(norm=True)
    opt = make(task)
    train(task, opt, 2)
    before = snapshot(task, opt)

    def closure() -> Tensor:
        task.model(torch.full_like(batch(0)[0], math.nan))
        raise FloatingPointError("the loss is nan")

    with pytest.raises(FloatingPointError, match="the loss is nan"):
        opt.step(closure)
    assert_unchanged(before, snapshot(task, opt))
