"""Slices of the loss: closed forms on a quadratic, and directions that networks share."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import batches, net
from vasso.diagnostics.landscape import Slice, direction, interpolation, slice_1d, slice_2d

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]]).double()
DATA = [(X[:2], torch.zeros(2, 1).double()), (X[2:], torch.zeros(1, 1).double())]


def linear() -> nn.Module:
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.7)
    return model


def by_hand(w: torch.Tensor) -> float:
    return float((X @ w.reshape(2)).square().mean())


def test_a_line_and_a_plane_of_a_quadratic_are_what_the_formula_says() -> None:
    model, at, along = linear(), [-1.0, 0.0, 0.5], [-0.3, 2.0]
    w, (d,), (e,) = model.weight.detach().clone(), direction(model, 3), direction(model, 4)
    line = slice_1d(model, nn.MSELoss(), DATA, seed=3, at=at)
    plane = slice_2d(model, nn.MSELoss(), DATA, seeds=(3, 4), across=at, along=along)
    np.testing.assert_allclose(line.losses, [by_hand(w + a * d) for a in at], rtol=1e-12)
    expected = [[by_hand(w + a * d + b * e) for b in along] for a in at]
    np.testing.assert_allclose(plane.losses, expected, rtol=1e-12)
    assert line.samples == plane.samples == 3


def test_every_filter_is_as_long_as_the_weights_and_biases_and_norms_stay() -> None:
    model = net()
    for p, d in zip(model.parameters(), direction(model, 0), strict=True):
        if p.dim() < 2:
            assert not d.any()
        else:
            torch.testing.assert_close(d.flatten(1).norm(dim=1), p.flatten(1).norm(dim=1))


def test_networks_of_one_architecture_share_directions_up_to_lengths() -> None:
    one, other = net(), net()
    for p in other.parameters():
        nn.init.normal_(p)
    for d, e in zip(direction(one, 5), direction(other, 5), strict=True):
        if d.dim() > 1:
            alike = torch.cosine_similarity(d.flatten(1), e.flatten(1))
            torch.testing.assert_close(alike, torch.ones_like(alike))
    assert not torch.equal(direction(one, 5)[0], direction(one, 6)[0])


def test_a_network_rescaled_by_what_batchnorm_undoes_has_the_same_landscape() -> None:
    """What filter normalisation is for; in evaluation mode the running statistics scale along."""
    model = net(torch.float64).eval()
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        scaled[1].weight.mul_(8), scaled[1].bias.mul_(8)
        scaled[2].running_mean.copy_(8 * model[2].running_mean)
        scaled[2].running_var.copy_(64 * (model[2].running_var + model[2].eps) - model[2].eps)
    few = batches(2, dtype=torch.float64)
    one, other = (slice_1d(m, cross_entropy, few, at=[-1, 0, 1]) for m in (model, scaled))
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-9)


def test_interpolation_ends_at_the_solutions_with_their_statistics() -> None:
    one, other, few = net(), net(), batches(3)
    for p in other.parameters():
        nn.init.normal_(p, std=0.1)
    other.train()(few[0][0])
    found = interpolation(net(), one.state_dict(), other.state_dict(), cross_entropy, few)
    for model, loss in ((one, found.losses[0]), (other, found.losses[-1])):
        model.eval()
        with torch.no_grad():
            expected = np.mean([float(cross_entropy(model(x), y)) for x, y in few])
        assert loss == pytest.approx(expected, rel=1e-5)


def test_a_barrier_is_the_height_above_the_line_between_the_ends() -> None:
    at = np.array([0.0, 0.5, 1.0])
    errors = np.zeros(3)
    assert Slice(at, np.array([1.0, 5.0, 3.0]), errors, 1).barrier == 3
    assert Slice(at, np.array([1.0, 1.0, 3.0]), errors, 1).row()["barrier"] == 0


def test_errors_are_those_of_a_mean_over_batches() -> None:
    few = batches(4)
    found = slice_1d(net(), cross_entropy, few, at=[0.0, 1.0])
    each = [slice_1d(net(), cross_entropy, [one], at=[0.0, 1.0]).losses[0] for one in few]
    assert found.errors[0] == pytest.approx(np.std(each, ddof=1) / 2, rel=1e-6)
