"""Scalars, empty, sparse and complex tensors, layouts, mixed and short dtypes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, SparseAdam

from tests.contract.marks import RHO, each_preset, each_way, vector
from tests.contract.presets import PRESETS
from tests.problems import (
    Way,
    assert_near,
    assert_same,
    by_hand,
    flat,
    parameter,
    records_of,
    take_step,
)


@each_preset
def test_a_scalar_and_an_empty_parameter_are_tensors_like_others(preset: str) -> None:
    """The gradient (2, 3, 6) has length 7, wherever its entries live."""
    x, scalar = parameter(0.0, 0.0), torch.zeros((), dtype=torch.float64, requires_grad=True)
    empty = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    opt = PRESETS[preset].make(SGD([x, scalar, empty], lr=1.0), rho=0.7)
    records = records_of(opt)
    by_hand(opt, [vector(2, 3), vector(6).sum(), torch.zeros(0, 3)])
    assert_near(flat(records[0].epsilon or []), [0.2, 0.3, 0.6], rtol=1e-15)


@each_preset
def test_nothing_but_an_empty_parameter_is_not_climbed(preset: str) -> None:
    empty = torch.zeros(0, 3, requires_grad=True)
    opt = PRESETS[preset].make(SGD([empty], lr=1.0))
    by_hand(opt, [torch.zeros(0, 3)])
    assert (opt.skipped, opt.last.d_norm) == (0, 0.0)


@each_preset
def test_tensors_of_several_dtypes_share_one_ball(preset: str) -> None:
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    y = torch.zeros(1, dtype=torch.float32, requires_grad=True)
    z = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    opt = PRESETS[preset].make(SGD([x, y, z], lr=1.0), rho=0.875)
    records = records_of(opt)
    by_hand(opt, [vector(2), vector(3), vector(6)])
    found = flat([e.double() for e in records[0].epsilon or []])
    # a bfloat16 has 8 bits: half of 2^-8 for each of two roundings, of the length and of epsilon
    assert_near(found, [0.25, 0.375, 0.75], rtol=2.0**-8)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@each_preset
def test_weights_of_any_layout_come_home(preset: str, layout: torch.memory_format) -> None:
    w = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    w = w.to(memory_format=layout).requires_grad_()
    before = w.detach().clone()
    opt = PRESETS[preset].make(SGD([w], lr=0.0), rho=RHO)
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
def test_a_group_without_a_radius_may_have_sparse_gradients(preset: str, way: Way) -> None:
    def run(sparse: bool) -> Tensor:
        words, layer, loss = embedded(sparse)
        groups = [{"params": words.parameters(), "rho": 0.0}, {"params": layer.parameters()}]
        opt = PRESETS[preset].make(SGD(groups, lr=0.1), rho=RHO)
        for t in range(6):
            take_step(opt, partial(loss, t), way)
        return flat([*words.parameters(), *layer.parameters()])

    assert_same(run(True), run(False))


@each_way
@each_preset
def test_a_base_for_sparse_gradients_works_without_a_radius(preset: str, way: Way) -> None:
    def run(wrapped: bool) -> Tensor:
        words, _, loss = embedded(True)
        opt: Any = SparseAdam(words.parameters(), lr=0.1)
        opt = PRESETS[preset].make(opt, rho=0.0) if wrapped else opt
        for t in range(4):
            take_step(opt, partial(loss, t), way if wrapped else "plain")
        return flat(list(words.parameters()))

    assert_same(run(True), run(False))


@each_preset
def test_a_group_without_a_radius_may_be_complex(preset: str) -> None:
    """As the error for a complex parameter with a radius advises."""
    x, y = torch.ones(2, dtype=torch.complex64, requires_grad=True), parameter(1.0)
    opt = PRESETS[preset].make(SGD([{"params": [x], "rho": 0.0}, {"params": [y]}], lr=0.25))
    take_step(opt, lambda: x.abs().square().sum() + y.square().sum())
    assert x.tolist() == [0.5, 0.5]


@each_preset
def test_a_climb_of_weights_with_eight_bits_goes_as_far_up_as_it_should(preset: str) -> None:
    """The projection on the slope is rho, within 5 %: to nearest it would be next to nothing."""
    random = torch.Generator().manual_seed(8)
    w = torch.randn(100_000, generator=random).bfloat16().requires_grad_()
    g = torch.randn(100_000, generator=random).bfloat16()
    opt = PRESETS[preset].make(SGD([w], lr=0.0), rho=0.05)
    records = records_of(opt)
    by_hand(opt, [g])
    d, epsilon = records[0].d[0].double(), (records[0].epsilon or [])[0].double()
    assert (d @ epsilon / d.norm()).item() == pytest.approx(0.05, rel=0.05)


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
    opt = PRESETS["SAM"].make(SGD(params, lr=0.0), rho=0.5, restore=restore)
    for _ in range(3):
        take_step(opt, lambda: last(words(ids)).square().sum(), way)
    # the rows that were shortened above are not lengthened again; all others are where they were
    assert_near(flat(list(last.parameters())), home[20:], 1e-6)
    moved = (words.weight.detach().flatten() - home[:20]).norm()
    assert moved == 0 if restore == "copy" else moved < 3 * 0.5
