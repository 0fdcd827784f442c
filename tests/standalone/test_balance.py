"""BAR: both rules against plain loops, what does not change them, and where pairs come from."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from tests.support.compare import assert_near, assert_same, flat
from tests.support.problems import closure_of
from vasso import BAR, schedules
from vasso.standalone.lora_layers import lora_layers, product_norm

By = Literal["gradients", "weights"]
each_rule = pytest.mark.parametrize("by", ["gradients", "weights"])
STEPS, LR = 30, 0.02


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Product:
    """Fits B A to a matrix, from two pairs of different sizes."""

    def __init__(self, zero_B: bool = False) -> None:
        self.pairs = [
            (drawn(2, 5, seed=1).requires_grad_(), drawn(4, 2, seed=2).requires_grad_()),
            ((3 * drawn(1, 3, seed=3)).requires_grad_(), drawn(6, 1, seed=4).requires_grad_()),
        ]
        if zero_B:
            for _, B in self.pairs:
                B.detach().zero_()

    @property
    def params(self) -> list[Tensor]:
        return [p for pair in self.pairs for p in pair]

    def loss(self, t: int) -> Tensor:
        targets = [drawn(len(B), A.shape[1], seed=100 + t) for A, B in self.pairs]
        terms = zip(self.pairs, targets, strict=True)
        return sum(((B @ A - y).square().mean() for (A, B), y in terms), start=torch.zeros(()))


def twin(by: By, alpha: Any) -> Tensor:
    """The two algorithms as on paper, with plain SGD."""
    task, path = Product(), []
    values = [p.detach().clone() for p in task.params]
    for t in range(STEPS):
        a = alpha(t) * LR
        with torch.no_grad():
            for p, value in zip(task.params, values, strict=True):
                p.copy_(value)
        gradients = torch.autograd.grad(task.loss(t), task.params)
        for i in (0, 2):
            A, B = i, i + 1
            if by == "gradients":
                up, down = (A, B) if gradients[A].norm() >= gradients[B].norm() else (B, A)
            else:
                up, down = (B, A) if values[A].norm() >= values[B].norm() else (A, B)
            values[up] = (1 + a) * values[up]
            values[down] = (1 - a) * values[down]
        values = [x - LR * g for x, g in zip(values, gradients, strict=True)]
        path.append(flat(values))
    return torch.stack(path)


@each_rule
@pytest.mark.parametrize("way", ["closure", "plain step"])
def test_the_path_is_that_of_the_algorithm(by: By, way: str) -> None:
    task, path = Product(), []
    schedule = schedules.linear(2.0, 0.0, STEPS)
    opt = BAR(SGD(task.params, lr=LR), alpha=schedule, by=by, pairs=task.pairs)
    for t in range(STEPS):
        closure = closure_of(opt, partial(task.loss, t))
        if way == "closure":
            opt.step(closure)
        else:
            closure()
            opt.step()
        path.append(flat(task.params))
    assert_near(torch.stack(path), twin(by, lambda t: 2.0 * (1 - t / STEPS)), 1e-13)
    assert opt.cost == STEPS


@each_rule
def test_the_factors_change_as_a_square_and_their_product_by_one_less_a_square(by: By) -> None:
    task = Product()
    opt = BAR(SGD(task.params, lr=0.1), alpha=2.0, by=by, pairs=task.pairs)
    before = [(A.detach().clone(), B.detach().clone()) for A, B in task.pairs]
    (task.loss(0) * 0).backward()
    for p in task.params:
        p.grad = torch.zeros_like(p)
    opt.step()
    for (A, B), (old_A, old_B) in zip(task.pairs, before, strict=True):
        assert_near(B @ A, (1 - 0.2**2) * old_B @ old_A, 1e-14)
        ratio = (A / old_A).mean().item()
        assert ratio == pytest.approx(1.2 if by == "gradients" else ratio)  # a tie: A grows
        assert {round(ratio, 12), round((B / old_B).mean().item(), 12)} == {1.2, 0.8}


@each_rule
def test_while_the_second_factor_is_zero_only_the_first_shrinks(by: By) -> None:
    task = Product(zero_B=True)
    opt = BAR(SGD(task.params, lr=0.1), alpha=1.0, by=by, pairs=task.pairs)
    before = [A.detach().clone() for A, _ in task.pairs]
    task.loss(0).backward()
    for _, B in task.pairs:
        assert B.grad.norm() > 0  # while that of A is zero
    opt.base.register_step_pre_hook(lambda *_: seen.extend(p.detach().clone() for p in task.params))
    seen: list[Tensor] = []
    opt.step()
    for i, A in enumerate(before):
        assert_near(seen[2 * i], 0.9 * A, 1e-15)
        assert not seen[2 * i + 1].any()


def test_a_common_factor_of_the_gradients_decides_nothing() -> None:
    """A loss scale, clipping of the global norm: AdamW does not see them either."""
    ends = []
    for scale, clip_norm in ((1.0, None), (1024.0, None), (1.0, 1e-3)):
        task = Product()
        base = AdamW(task.params, lr=LR, eps=0.0, weight_decay=0.0)
        opt = BAR(base, alpha=2.0, pairs=task.pairs, clip_norm=clip_norm)
        for t in range(5):
            opt.zero_grad()
            (scale * task.loss(t)).backward()
            opt.step()
        ends.append(flat(task.params))
    assert_near(ends[1], ends[0], 1e-12)
    assert not torch.allclose(ends[2], flat(Product().params))


def test_each_pair_is_compared_by_itself() -> None:
    """A pair with huge gradients says nothing about another."""
    task = Product()
    opt = BAR(SGD(task.params, lr=0.1), alpha=1.0, pairs=task.pairs)
    before = [p.detach().clone() for p in task.params]
    grads = (1e-3, 1e-4, 1e5, 1e6)
    for p, size in zip(task.params, grads, strict=True):
        p.grad = torch.full_like(p, 0.0)
        p.grad.view(-1)[0] = size
    seen: list[Tensor] = []
    opt.base.register_step_pre_hook(lambda *_: seen.extend(p.detach().clone() for p in task.params))
    opt.step()
    ratios = [(x / y).mean().item() for x, y in zip(seen, before, strict=True)]
    assert ratios == pytest.approx([1.1, 0.9, 0.9, 1.1])


def test_a_pair_without_a_gradient_is_left_alone() -> None:
    task = Product()
    opt = BAR(SGD(task.params, lr=0.1), alpha=1.0, pairs=task.pairs)
    task.pairs[0][1].requires_grad_(False)
    before = [p.detach().clone() for p in task.pairs[0]]
    task.loss(0).backward()
    task.pairs[0][0].grad = None
    opt.step()
    assert_same(list(task.pairs[0]), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_rounded_at_random_and_right_on_average(dtype: torch.dtype) -> None:
    """alpha lr = 2e-4 is 20 times below what bfloat16 can tell; to nearest nothing would change."""
    A = (1 + drawn(64, 512, seed=5, dtype=torch.float32).abs()).to(dtype).requires_grad_()
    B = (1 + drawn(512, 64, seed=6, dtype=torch.float32).abs()).to(dtype).requires_grad_()
    opt = BAR(SGD([A, B], lr=2e-4), alpha=1.0, pairs=[(A, B)])
    sizes = [p.detach().double().sum().item() for p in (A, B)]
    for _ in range(20):
        A.grad, B.grad = torch.zeros_like(A), torch.zeros_like(B)
        opt.step()
    for p, size, sign in zip((A, B), sizes, (1, -1), strict=True):
        growth = p.detach().double().sum().item() / size - 1
        # 20 * 32768 roundings of up to 2^-7 have a mean error of about 1e-5
        assert growth == pytest.approx((1 + sign * 2e-4) ** 20 - 1, abs=1e-4)


def test_a_factor_that_would_change_its_sign_is_refused() -> None:
    task = Product()
    opt = BAR(SGD(task.params, lr=0.5), alpha=2.0, pairs=task.pairs)
    task.loss(0).backward()
    with pytest.raises(ValueError, match=r"alpha lr must be below 1.* it is 1 for 'pair 0'"):
        opt.step()


def test_where_one_pair_is_refused_none_is_scaled() -> None:
    task = Product()
    groups = [{"params": task.pairs[0]}, {"params": task.pairs[1], "alpha": 20.0}]
    opt = BAR(SGD(groups, lr=0.1), alpha=1.0, pairs=task.pairs)
    before = [p.detach().clone() for p in task.params]
    task.loss(0).backward()
    with pytest.raises(ValueError, match="for 'pair 1'"):
        opt.step()
    assert_same(task.params, before)


# -- where pairs come from -------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        self.conv = nn.Conv1d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(self.layers(self.words(x)).mT)
        return found


def adapted() -> Any:
    config = LoraConfig(r=2, target_modules=["words", "layers.0", "layers.2", "conv"])
    return get_peft_model(Net(), config)


def test_the_pairs_of_a_peft_model_are_all_found_and_fit() -> None:
    model = adapted()
    layers = lora_layers(model)
    assert [x.name.split("model.")[-1] for x in layers] == [
        "words.default",
        "layers.0.default",
        "layers.2.default",
        "conv.default",
    ]
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for x in layers for p in (x.A, x.B)} == trained
    for x in layers:
        nn.init.normal_(x.B)
        nn.init.normal_(x.A)
        delta = x.module.get_delta_weight(x.adapter) / x.module.scaling[x.adapter]
        assert product_norm(x.A, x.B).item() == pytest.approx(delta.norm().item(), rel=1e-5)


def test_only_adapters_that_are_trained_are_balanced() -> None:
    model = adapted()
    model.add_adapter("other", LoraConfig(r=3, target_modules=["layers.0"]))
    model.set_adapter("default")
    base = SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    assert {x.adapter for x in BAR(base, model=model).pairs} == {"default"}
    assert [x.A.shape[0] for x in lora_layers(model, "other")] == [3]


def test_a_model_with_parameters_of_these_names_is_understood() -> None:
    layer = nn.Linear(4, 3)
    layer.lora_A = nn.Parameter(torch.ones(2, 4))
    layer.lora_B = nn.Parameter(torch.ones(3, 2))
    (found,) = BAR(SGD([layer.lora_A, layer.lora_B], lr=0.1), model=layer).pairs
    assert found.A is layer.lora_A


def test_what_is_no_pair_is_refused_by_name() -> None:
    layer = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="found no pair of LoRA factors"):
        BAR(SGD(layer.parameters(), lr=0.1), model=layer)
    A, B = torch.ones(2, 4, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match=r"is it \(B, A\)\?"):
        BAR(SGD([A, B], lr=0.1), pairs=[(B, A)])
    with pytest.raises(ValueError, match="B of 'pair 0' is not among the parameters of the base"):
        BAR(SGD([A], lr=0.1), pairs=[(A, B)])


def test_a_pair_that_has_lost_a_factor_is_refused_by_name() -> None:
    A, B = torch.ones(2, 4, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    opt = BAR(SGD([{"params": [A]}, {"params": [B]}], lr=0.1), pairs=[(A, B)])
    del opt.param_groups[0]
    (B @ A).sum().backward()
    with pytest.raises(ValueError, match="A of 'pair 0' is not among the parameters of the base"):
        opt.step()
