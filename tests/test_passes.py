"""Two passes: the second really runs at w + epsilon, and what each leaves goes where it should."""

import copy
import gc
import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests import faults
from tests.faults import WAYS, Way, assert_same, batches, net, take_step, weights
from tests.support import problems
from vasso import SAM, SharpnessAware, StepRecord, VaSSO
from vasso.parts.directions import Random


def test_same_rng_draws_no_more_numbers_than_the_plain_base() -> None:
    states = []
    for wrap in (
        lambda base, model: base,
        lambda base, model: SAM(base, model=model, same_rng=True),
    ):
        torch.manual_seed(3)
        model = net(dropout=0.5)
        opt = wrap(SGD(model.parameters(), lr=0.1), model)
        for batch in batches(2):
            take_step(opt, model, batch)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"same_rng": True}, "same_rng=True"), ({"batchnorm": "perturbed"}, 'batchnorm="perturbed"')],
)
def test_what_must_own_the_first_pass_refuses_the_callers(options: Any, named: str) -> None:
    model, (batch,) = net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model, **options)
    before = weights(model)
    faults.closure_of(opt, model, batch)()
    with pytest.raises(RuntimeError, match=rf"{named}.*step\(closure\)"), opt.ascended():
        pass
    assert_same(weights(model), before)
    take_step(opt, model, batch)  # the other way in works all the same


def test_a_gradient_shorter_than_clip_norm_goes_down_as_it_is() -> None:
    ends = []
    for clip in (None, 1e6):
        model = net()
        opt = VaSSO(SGD(model.parameters(), lr=0.1, momentum=0.9), model=model, clip_norm=clip)
        for batch in batches(3):
            take_step(opt, model, batch)
        ends.append(weights(model))
    assert_same(*ends)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_does_not_climb_is_clipped_too(way: Way) -> None:
    model, (batch,) = net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.0), rho=0.0, model=model, clip_norm=1e-3)
    take_step(opt, model, batch, way)
    length = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert length.item() == pytest.approx(1e-3, rel=1e-3)  # torch divides by the norm + 1e-6


def test_a_plain_step_is_clipped_too() -> None:
    w = torch.ones(4, requires_grad=True)
    opt = SAM(SGD([w], lr=1.0), clip_norm=1.0)
    (3 * w).sum().backward()
    opt.step()
    assert w.tolist() == pytest.approx([0.5] * 4, rel=1e-5)


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_a_gradient_whose_norm_overflows_is_clipped_and_not_lost(way: Way) -> None:
    w = torch.zeros(4, requires_grad=True)
    opt = SAM(SGD([w], lr=1.0), rho=0.1, clip_norm=1.0)
    problems.take_step(opt, lambda: (w * 1e30).sum(), way)
    assert w.tolist() == pytest.approx([-0.5] * 4, rel=1e-5)


class Recorder:
    """A closure on a quadratic around a centre that notes where it was called."""

    def __init__(self, opt: Any, w: Tensor, centre: list[float]) -> None:
        self.opt, self.w, self.calls = opt, w, []
        self.centre = torch.tensor(centre, dtype=w.dtype)

    def __call__(self) -> Tensor:
        self.opt.zero_grad()
        self.calls.append(self.w.detach().clone())
        loss = 0.5 * (self.w - self.centre).square().sum()
        loss.backward()
        return loss


def quadratic(**options: Any) -> tuple[Tensor, SAM]:
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    return w, SAM(SGD([w], lr=0.5), **options)


def test_the_adversary_comes_from_the_ascent_closure_and_the_descent_from_the_other() -> None:
    w, opt = quadratic(rho=1.0)
    up, down = Recorder(opt, w, [-3.0, 0.0]), Recorder(opt, w, [0.0, 4.0])
    loss = opt.step(down, ascent_closure=up)
    # up: gradient (3, 0) at the origin, so the adversary is at (1, 0), where down's is (1, -4)
    assert [x.tolist() for x in up.calls] == [[0.0, 0.0]]
    assert [x.tolist() for x in down.calls] == [[1.0, 0.0]]
    assert w.tolist() == [-0.5, 2.0]
    assert (loss.item(), opt.last.loss_at) == (4.5, "w, ascent data")
    assert opt.last.perturbed_loss.item() == 8.5


def test_the_loss_of_a_method_without_a_gradient_at_w_is_that_at_the_adversary() -> None:
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    opt = SharpnessAware(SGD([w], lr=0.5), rho=1.0, direction=Random())
    loss = opt.step(Recorder(opt, w, [0.0, 0.0]))
    assert (loss.item(), opt.last.loss_at) == (pytest.approx(0.5, rel=1e-6), "w + epsilon")


def test_with_rho_zero_only_the_descent_closure_is_called() -> None:
    w, opt = quadratic(rho=0.0)
    up, down = Recorder(opt, w, [-3.0, 0.0]), Recorder(opt, w, [0.0, 4.0])
    loss = opt.step(down, ascent_closure=up)
    assert (len(up.calls), len(down.calls), w.tolist()) == (0, 1, [0.0, 2.0])
    assert (loss.item(), opt.last.loss_at, opt.cost) == (8.0, "w", 1.0)


def test_gradients_are_cleared_on_entry_and_weights_are_up_inside() -> None:
    w, opt = quadratic(rho=2.0)
    Recorder(opt, w, [-1.0, 0.0])()
    with opt.ascended() as up:
        inside = (up, opt.perturbed, w.grad, w.tolist())
        (0.5 * w.square().sum()).backward()
    assert inside == (True, True, None, [2.0, 0.0])
    assert (opt.perturbed, w.tolist(), w.grad.tolist()) == (False, [0.0, 0.0], [2.0, 0.0])


@pytest.mark.parametrize("left_out", [True, False])
def test_with_rho_zero_up_is_false_and_the_step_is_the_bases(left_out: bool) -> None:
    w, opt = quadratic(rho=0.0)
    closure = Recorder(opt, w, [1.0, 2.0])
    closure()
    with opt.ascended() as up:
        cleared = w.grad is None
        if not left_out:
            closure()
    opt.step()
    assert (up, cleared, w.tolist(), opt.cost) == (False, True, [0.5, 1.0], 1.0 + (not left_out))


def test_what_a_body_does_not_replace_is_put_back() -> None:
    a, b = (torch.zeros(1, requires_grad=True) for _ in range(2))
    opt = SAM(SGD([a, b], lr=1.0), rho=0.0)
    (a + 2 * b).sum().backward()
    with opt.ascended():
        (5 * a).sum().backward()
    opt.step()
    assert (a.item(), b.item()) == (-5.0, -2.0)


@pytest.mark.parametrize("left_out", [True, False])
def test_after_a_nan_a_step_is_skipped_whatever_the_body_does(left_out: bool) -> None:
    w, opt = quadratic(rho=1.0)
    (math.nan * w).sum().backward()
    with opt.ascended() as up:
        if not left_out:
            Recorder(opt, w, [1.0, 2.0])()
    opt.step()
    assert (up, opt.skipped, opt.last.skipped, w.tolist()) == (False, 1, True, [0.0, 0.0])
    take = Recorder(opt, w, [1.0, 2.0])
    take()
    with opt.ascended():
        take()
    opt.step()
    assert (opt.skipped, opt.last.skipped) == (1, False)
    assert w.tolist() != [0.0, 0.0]


def test_a_nan_in_a_body_that_had_nothing_to_climb_skips_the_step() -> None:
    w, opt = quadratic(rho=0.0)
    Recorder(opt, w, [1.0, 2.0])()
    with opt.ascended():
        opt.zero_grad()
        (math.nan * w).sum().backward()
    opt.step()
    assert (opt.skipped, w.tolist()) == (1, [0.0, 0.0])


def watch(opt: Any) -> tuple[list[StepRecord], Any]:
    records: list[StepRecord] = []
    return records, opt.observe(lambda record: records.append(copy.deepcopy(record)))


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_a_record_holds_the_vectors_of_the_step(way: Way) -> None:
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    opt = VaSSO(SGD([w], lr=1.0), rho=2.0, theta=0.5)
    records, _ = watch(opt)
    for centre in ([-3.0, 0.0], [0.0, 3.0]):
        problems.drive(opt, Recorder(opt, w, centre), way)
    # step 0: g = d = (3, 0), epsilon = (2, 0), h = (5, 0), so w = (-5, 0)
    # step 1: g = (-5, -3), d = (-1, -1.5), epsilon = 2 d / |d|, h = g + epsilon
    length = math.hypot(1.0, 1.5)
    epsilon = [-2.0 / length, -3.0 / length]
    result = [(r.step, r.g[0].tolist(), r.d[0].tolist()) for r in records]
    assert result == [(0, [3.0, 0.0], [3.0, 0.0]), (1, [-5.0, -3.0], [-1.0, -1.5])]
    assert (records[0].epsilon[0].tolist(), records[0].h[0].tolist()) == ([2.0, 0.0], [5.0, 0.0])
    # float64, and epsilon is what is left of it after w + epsilon was rounded
    assert records[1].epsilon[0].tolist() == pytest.approx(epsilon, rel=1e-14)
    assert records[1].h[0].tolist() == pytest.approx(
        [-5.0 + epsilon[0], -3.0 + epsilon[1]], rel=1e-14
    )
    norms = records[1].summary
    assert [x.item() for x in (norms.g_norm, norms.d_norm)] == [math.hypot(5.0, 3.0), length]


@pytest.mark.parametrize("way", ["closure", "ascended"])
def test_an_observer_sees_weights_at_home_before_the_base_steps(way: Way) -> None:
    model, (batch,) = net(), batches(1)
    opt = VaSSO(SGD(model.parameters(), lr=0.1), rho=0.5, model=model)
    before, seen = weights(model), []
    opt.observe(lambda record: seen.append((weights(model), opt.perturbed, record.params)))
    take_step(opt, model, batch, way)
    at, perturbed, params = seen[0]
    assert_same(at, before)
    assert not perturbed
    assert [id(p) for p in params] == [id(p) for p in model.parameters()]


def test_a_step_that_does_not_climb_has_a_record_without_epsilon_and_h() -> None:
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    opt = VaSSO(SGD([w], lr=1.0), rho=lambda step, lr: 0.0)
    records, _ = watch(opt)
    opt.step(Recorder(opt, w, [-3.0, 0.0]))
    record = records[0]
    assert (record.g[0].tolist(), record.d[0].tolist()) == ([3.0, 0.0], [3.0, 0.0])
    assert (record.epsilon, record.h, record.summary.climbed) == (None, None, False)


def test_a_tensor_without_a_second_gradient_has_none_in_the_record() -> None:
    a, b = (torch.ones(1, requires_grad=True) for _ in range(2))
    opt = SAM(SGD([a, b], lr=1.0), rho=1.0)
    records, _ = watch(opt)
    (a + b).sum().backward()
    with opt.ascended():
        a.sum().backward()
    assert [None if x is None else x.item() for x in records[0].h] == [1.0, None]


def test_a_skipped_step_has_no_record() -> None:
    w, opt = quadratic(rho=1.0)
    records, _ = watch(opt)
    (math.inf * w.sum()).backward()
    with opt.ascended():
        pass
    opt.step()
    assert records == []


def test_a_removed_observer_is_not_called_and_the_others_are() -> None:
    w, opt = quadratic(rho=1.0)
    (first, handle), (second, _) = watch(opt), watch(opt)
    closure = Recorder(opt, w, [1.0, 2.0])
    opt.step(closure)
    handle.remove()
    opt.step(closure)
    assert (len(first), len(second)) == (1, 2)


def test_the_gradient_at_w_does_not_live_through_the_second_pass() -> None:
    model, (batch,) = net(), batches(1)
    opt = VaSSO(SGD(model.parameters(), lr=0.1), model=model)
    take_step(opt, model, batch)
    first: list[Any] = []
    alive: list[bool] = []

    def closure() -> Tensor:
        if opt.perturbed:
            gc.collect()
            alive.extend(x() is not None for x in first)
        opt.zero_grad()
        loss = faults.loss_of(model, batch)
        loss.backward()
        if not opt.perturbed:
            first.extend(weakref.ref(p.grad) for p in model.parameters())
        return loss

    opt.step(closure)
    assert alive == [False] * len(list(model.parameters()))


def test_a_record_is_let_go_after_the_step() -> None:
    model, (batch,) = net(), batches(1)
    opt = VaSSO(SGD(model.parameters(), lr=0.1), model=model)
    vectors: list[Any] = []
    opt.observe(lambda record: vectors.extend(weakref.ref(x) for x in record.epsilon))
    take_step(opt, model, batch)
    gc.collect()
    assert [x() for x in vectors] == [None] * len(list(model.parameters()))


def test_a_model_in_evaluation_mode_is_trained_all_the_same() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).double().eval()
    opt = VaSSO(SGD(model.parameters(), lr=0.1), model=model)
    before = weights(model)
    take_step(opt, model, batches(1)[0])
    assert not faults.equal(weights(model), before)


@pytest.mark.parametrize("way", ["ascended", "plain"])
def test_a_loss_that_was_not_seen_is_said_to_be_in_the_callers_loop(way: Any) -> None:
    model, (batch,) = net(), batches(1)
    opt = VaSSO(SGD(model.parameters(), lr=0.1), model=model)
    assert opt.last.loss_at is None
    take_step(opt, model, batch, way)
    assert (opt.last.loss, opt.last.loss_at) == (None, "not seen, in your loop")


def test_a_step_with_a_closure_after_an_ascent_that_never_ended_counts_every_call() -> None:
    model, (batch,) = net(), batches(1)
    opt = SAM(SGD(model.parameters(), lr=0.1), model=model)
    calls, closure = [], faults.closure_of(opt, model, batch)
    closure()
    with opt.ascended():
        closure()
    assert opt.cost == 2
    opt.step(lambda: calls.append(closure()) or calls[-1])
    assert opt.cost == 2 + len(calls)
    twin = net()
    for _ in range(2):  # the pass before the ascent, and the one at w of the step
        twin(batch[0])
    assert model.norm.num_batches_tracked == twin.norm.num_batches_tracked
