"""Frozen and tied parameters; scalars, empty, sparse and complex tensors, layouts, dtypes."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.contract.marks import RHO, Preset, each_preset, each_way, vector
from tests.support.compare import assert_near, assert_same, flat, records_of
from tests.support.problems import BASES, Task, Way, by_hand, mlp, parameter, take_step, train
from vasso import SAM, SharpnessAware, StormSAM
from vasso.parts.ascents import MultiStep
from vasso.parts.geometries import Linf


@each_preset
def test_a_scalar_and_an_empty_parameter_are_tensors_like_others(preset: Preset) -> None:
    """The gradient (2, 3, 6) has length 7, wherever its entries live."""
    x, scalar = parameter(0.0, 0.0), torch.zeros((), dtype=torch.float64, requires_grad=True)
    empty = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    opt = preset(SGD([x, scalar, empty], lr=1.0), rho=0.7)
    records = records_of(opt)
    by_hand(opt, [vector(2, 3), vector(6).sum(), torch.zeros(0, 3)])
    assert_near(flat(records[0].epsilon or []), [0.2, 0.3, 0.6], rtol=1e-15)


@each_preset
def test_nothing_but_an_empty_parameter_is_not_climbed(preset: Preset) -> None:
    empty = torch.zeros(0, 3, requires_grad=True)
    opt = preset(SGD([empty], lr=1.0))
    by_hand(opt, [torch.zeros(0, 3)])
    assert (opt.skipped, opt.last.d_norm) == (0, 0.0)


@each_preset
def test_tensors_of_several_dtypes_share_one_ball(preset: Preset) -> None:
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(1, dtype=torch.float32, requires_grad=True)
    z = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    opt = preset(SGD([x, y, z], lr=1.0), rho=0.875)
    records = records_of(opt)
    by_hand(opt, [vector(2), vector(3), vector(6)])
    found = flat([e.double() for e in records[0].epsilon or []])
    # a bfloat16 has 8 bits: half of 2^-8 for each of two roundings, of the length and of epsilon
    assert_near(found, [0.25, 0.375, 0.75], rtol=2.0**-8)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@each_preset
def test_weights_of_any_layout_come_home(preset: Preset, layout: torch.memory_format) -> None:
    w = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    w = w.to(memory_format=layout).requires_grad_()
    before = w.detach().clone()
    opt = preset(SGD([w], lr=0.0), rho=RHO)
    for _ in range(2):
        take_step(opt, lambda: w.cosh().sum())
    assert_same(w.detach(), before)


def embedded(sparse: bool) -> tuple[nn.Embedding, nn.Linear, Any]:
    """Words and a layer above them, and the loss of some words, none of them twice in a batch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        words, layer = nn.Embedding(9, 4, sparse=sparse), nn.Linear(4, 2)
    sentences = torch.tensor([[1, 2, 5], [3, 1, 8], [0, 4, 2]])
    return words, layer, lambda t: layer(words(sentences[t % 3])).tanh().square().sum()


@each_way
@each_preset
def test_a_group_without_a_radius_may_have_sparse_gradients(preset: Preset, way: Way) -> None:
    def run(sparse: bool) -> Tensor:
        words, layer, loss = embedded(sparse)
        groups = [{"params": words.parameters(), "rho": 0.0}, {"params": layer.parameters()}]
        opt = preset(SGD(groups, lr=0.1), rho=RHO)
        for t in range(6):
            take_step(opt, partial(loss, t), way)
        return flat([*words.parameters(), *layer.parameters()])

    assert_same(run(True), run(False))


@each_preset
def test_a_group_without_a_radius_may_be_complex(preset: Preset) -> None:
    """As the error for a complex parameter with a radius advises."""
    x, y = torch.ones(2, dtype=torch.complex64, requires_grad=True), parameter(1.0)
    opt = preset(SGD([{"params": [x], "rho": 0.0}, {"params": [y]}], lr=0.25))
    take_step(opt, lambda: x.abs().square().sum() + y.square().sum())
    assert x.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("restore", ["copy", "recompute"])
@each_way
def test_weights_come_home_though_the_model_writes_to_them(restore: Any, way: Way) -> None:
    """`max_norm` shortens rows in every pass: here those that the climb has made too long."""
    torch.manual_seed(3)
    words, last = nn.Embedding(5, 4, max_norm=1.0), nn.Linear(4, 2)
    ids, params = torch.arange(5), [*words.parameters(), *last.parameters()]
    with torch.no_grad():
        words(ids)
    home = flat(params)
    opt = SAM(SGD(params, lr=0.0), rho=0.5, restore=restore)
    for _ in range(3):
        take_step(opt, lambda: last(words(ids)).square().sum(), way)
    # the rows that were shortened above are not lengthened again; all others are where they were
    assert_near(flat(list(last.parameters())), home[20:], 1e-6)
    moved = (words.weight.detach().flatten() - home[:20]).norm()
    assert moved == 0 if restore == "copy" else moved < 3 * 0.5


def test_a_nested_parameter_is_refused_with_what_helps() -> None:
    rows = [torch.ones(2), torch.ones(3)]
    p = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    opt = SAM(SGD([p], lr=0.1))
    p.grad = torch.ones_like(p)
    with pytest.raises(TypeError, match=r"nested.*strided parameter"), opt.ascended():
        pass


def test_a_parameter_of_inference_mode_is_refused() -> None:
    with torch.inference_mode():
        p = torch.ones(2)
    with pytest.raises(ValueError, match="inference_mode"):
        SAM(SGD([p], lr=0.1))


def test_lazy_modules_may_be_wrapped_before_their_first_forward() -> None:
    model = nn.LazyLinear(2)
    opt = SAM(SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        take_step(opt, lambda: model(torch.ones(3)).sum())
    assert model.weight.shape == (2, 3)
    assert opt.cost == 4


def test_storm_does_not_advise_a_radius_of_zero_which_does_not_help_it() -> None:
    words, layer, loss = embedded(True)
    groups = [{"params": words.parameters(), "rho": 0.0}, {"params": layer.parameters()}]
    opt = StormSAM(SGD(groups, lr=0.1))
    with pytest.raises(TypeError, match="an optimizer of its own") as error:
        take_step(opt, partial(loss, 0))
    assert "rho=0" not in str(error.value)


class Tied(nn.Module):
    """x -> tanh(Wx) -> W'(...), with the matrix once or, tied, as the weight of two layers."""

    def __init__(self, W: Tensor, tied: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 10, bias=False), nn.Linear(64, 10, bias=False)
        self.up.weight = nn.Parameter(W.clone())
        if tied:
            self.down.weight = self.up.weight
        else:
            del self.down

    def forward(self, x: Tensor) -> Tensor:
        again = self.down.weight if hasattr(self, "down") else self.up.weight
        return nn.functional.linear((self.up(x) @ again).tanh(), again)


@each_preset
def test_a_tied_weight_is_one_weight(preset: Preset) -> None:
    def run(tied: bool) -> Tensor:
        like = mlp()
        W = torch.randn(10, 64, generator=torch.Generator().manual_seed(3)) / 8
        task = Task(Tied(W, tied), like.batches)
        opt = preset(BASES["momentum"](task.params()), rho=RHO)
        return train(task, opt)

    assert_same(run(True), run(False))


def test_an_empty_tensor_has_no_part_in_the_cube() -> None:
    w = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    empty = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    base = SGD([w, empty], lr=0.1)
    opt = SharpnessAware(base, rho=0.5, geometry=Linf(), ascent=MultiStep(2))
    seen = []

    def closure() -> Tensor:
        opt.zero_grad()
        seen.append(w.detach().clone())
        loss = w.sum() + empty.sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert torch.equal(seen[-1], seen[0] + 0.5)
