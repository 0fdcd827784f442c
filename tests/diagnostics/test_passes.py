"""Losses and gradients at w and at w + epsilon, and restoration of the model."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

from tests.diagnostics.nets import batches, check_nothing_touched, net, nothing_touched
from tests.support.compare import assert_near, assert_same, flat
from vasso.diagnostics.batches import rows_of, samples_in
from vasso.diagnostics.passes import OfModel, gradient_of, loss_of, objective, untouched


def stirred(model: nn.Module, loss_fn: Any) -> None:
    with untouched(model):
        model.train()
        for batch in batches(4):
            loss_of(model, loss_fn, batch)
            with torch.enable_grad():
                loss_of(model, loss_fn, batch).backward()
            for p in model.parameters():
                p.mul_(1.1)
        model.eval()


def test_whatever_is_done_inside_untouched_is_undone_also_after_an_interrupt() -> None:
    check_nothing_touched(stirred)


def test_untouched_brings_back_gradients_that_are_views_of_a_bucket() -> None:
    model = nn.Linear(2, 1, bias=False)
    bucket = torch.ones(2)
    model.weight.grad = bucket.view(1, 2)
    with untouched(model):
        bucket.zero_()
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


def test_a_loss_computed_before_can_be_propagated_after() -> None:
    model, (batch,) = net(), batches(1)
    twin = copy.deepcopy(model)
    torch.manual_seed(0)
    loss = loss_of(model, cross_entropy, batch)
    gradient_of(model, cross_entropy, batches(2), batchnorm="batch")
    loss.backward()
    torch.manual_seed(0)
    loss_of(twin, cross_entropy, batch).backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)


def test_a_loader_with_a_generator_of_its_own_gives_the_same_batches_afterwards() -> None:
    data = TensorDataset(torch.arange(8.0).reshape(8, 1), torch.arange(8.0))
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(data, batch_size=2, shuffle=True, generator=generator)
    before = generator.get_state()
    gradient_of(nn.Linear(1, 1), lambda out, y: (out[:, 0] * y).mean(), loader)
    assert_same(generator.get_state(), before)


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
def test_the_gradient_is_that_of_backward_in_the_stated_mode(batchnorm: Any) -> None:
    model, (batch,) = net(torch.float64), batches(1, dtype=torch.float64)
    ours = gradient_of(model, cross_entropy, [batch], batchnorm=batchnorm)
    twin = copy.deepcopy(model).eval()
    if batchnorm == "batch":
        twin[2].train(), twin[8].train()
    cross_entropy(twin(batch[0]), batch[1]).backward()
    theirs = [p.grad for p in twin.parameters() if p.requires_grad]
    assert_same(flat(ours), flat(theirs))


def test_batches_count_by_their_samples() -> None:
    model = net(torch.float64)
    x, y = batches(1, 48, torch.float64)[0]
    ragged = [(x[:5], y[:5]), (x[5:30], y[5:30]), (x[30:], y[30:])]
    ours, whole = (gradient_of(model, cross_entropy, b) for b in (ragged, [(x, y)]))
    assert_near(flat(ours), flat(whole), rtol=1e-12, atol=1e-15)


def test_dropout_is_on_when_asked_for_and_the_same_for_the_same_key() -> None:
    model, (batch,) = net(), batches(1)
    with objective(model, cross_entropy, dropout=True) as f:
        first, again, other = (f.loss(batch, key=key) for key in (1, 1, 2))
    with objective(model, cross_entropy) as f:
        off = f.loss(batch, key=1)
    assert first == again
    assert len({first, other, off}) == 3


def test_an_objective_is_at_w_plus_epsilon_and_back_at_w() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    model.weight.data = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    batch = (torch.eye(2, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64))
    with objective(model, mse_loss) as f:  # |w|^2 / 2
        epsilon = [torch.tensor([[1.0, -2.0]], dtype=torch.float64)]
        value, gradient = f.loss_and_gradient(batch, epsilon)
        assert value == 2.0
        assert gradient[0].tolist() == [[2.0, 0.0]]
        assert f.loss(batch) == 2.5


def test_weights_of_low_precision_climb_on_average() -> None:
    """To nearest, all of this epsilon would round away."""
    model = nn.Linear(10_000, 1, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    epsilon = [torch.full((1, 10_000), 1e-3)]
    loss = OfModel(lambda model, batch: (model.weight.float() - 1).mean() + 0 * batch.sum())
    with objective(model, loss) as f:
        assert f.loss(torch.ones(1), epsilon) == pytest.approx(1e-3, rel=0.15)  # 5 deviations
    assert torch.equal(model.weight, torch.ones_like(model.weight))


def test_a_weight_the_loss_does_not_know_has_gradient_zero() -> None:
    model = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
    loss = OfModel(lambda model, batch: model[0](batch).mean())
    g = gradient_of(model, loss, [torch.ones(2, 1)])
    assert [x.item() for x in g] == [1.0, 0.0]


def test_batches_of_any_form_are_cut_by_samples() -> None:
    batch = {"x": torch.arange(6).reshape(3, 2), "more": (torch.arange(3), "name")}
    part = rows_of(batch, slice(1, 3))
    assert samples_in(part) == 2
    assert part["more"][0].tolist() == [1, 2]
    assert part["more"][1] == "name"


def test_nothing_touched_would_notice() -> None:
    model = net()
    with pytest.raises(AssertionError), nothing_touched(model):
        torch.rand(1)
    with pytest.raises(AssertionError), nothing_touched(model):
        model(batches(1)[0][0])
