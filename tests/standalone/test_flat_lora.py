"""Flat-LoRA: a plain twin, the law of the noise, and what it leaves alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.reference.lora import flat_lora
from tests.standalone.adapted import Adapted, of_peft, trained
from tests.support.compare import assert_near, assert_same, flat
from vasso import FlatLoRA

LR, STEPS = 0.05, 20


def flat_on(task: Adapted, **settings: Any) -> FlatLoRA:
    base = SGD(task.factors, lr=LR)
    return FlatLoRA(base, **{"rho": 0.5, "total": STEPS, "model": task.model, **settings})


def by_hand(task: Adapted, opt: FlatLoRA, scaler: Any = None) -> Tensor:
    """A loop of one's own, two micro-batches a step."""
    path = []
    for t in range(STEPS):
        for rows in (slice(0, 4), slice(4, 8)):
            with opt.ascended():
                loss = task.loss(t, rows) / 2
                (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
        assert opt.last.climbed == (t > 0)  # at the first step rho is 0
        opt.zero_grad()
        path.append(flat(task.factors))
    return torch.stack(path)


@pytest.mark.parametrize("way", ["closure", "micro-batches", "scaler"])
def test_the_path_is_that_of_the_algorithm(way: str) -> None:
    task = Adapted()
    opt = flat_on(task, seed=3)
    expected = flat_lora(
        task.loss_of, task.frozen, task.pairs, s=2.0, lr=LR, rho=0.5, total=STEPS, seed=3
    )
    if way == "closure":
        path = task.train(opt, range(STEPS))
    else:
        path = by_hand(task, opt, torch.amp.GradScaler("cpu") if way == "scaler" else None)
    assert_near(path, torch.stack(expected), 1e-12)
    assert opt.cost == STEPS


def test_rho_rises_along_half_a_cosine() -> None:
    task = Adapted()
    opt = flat_on(task, rho=0.4)
    seen = []
    for t in range(STEPS):
        task.train(opt, range(t, t + 1))
        seen.append(opt.param_groups[0]["rho"])
    assert (seen[0], seen[STEPS // 2]) == pytest.approx((0.0, 0.2))
    assert seen == sorted(seen)
    opt.step()
    task.train(opt, range(1))
    assert opt.param_groups[0]["rho"] == 0.4


def noise_of(opt: FlatLoRA) -> list[Tensor]:
    before = [x.weight.detach().clone() for x in opt.layers]
    with opt.ascended():
        return [(x.weight - w).detach() for x, w in zip(opt.layers, before, strict=True)]


def test_the_noise_of_an_output_unit_is_rho_of_its_own_size() -> None:
    layer = nn.Linear(4096, 3).requires_grad_(False)
    layer.weight.mul_(torch.tensor([[1.0], [10.0], [0.0]]))
    layer.lora_A = nn.Parameter(torch.randn(2, 4096))
    layer.lora_B = nn.Parameter(torch.randn(3, 2))
    layer.scaling = 0.5
    base = SGD([layer.lora_A, layer.lora_B], lr=0.1)
    opt = FlatLoRA(base, rho=lambda step, lr: 0.1, total=1, model=layer)
    (noise,) = noise_of(opt)
    merged = layer.weight + 0.5 * layer.lora_B @ layer.lora_A
    ratio = noise.norm(dim=1) / merged.norm(dim=1)
    assert ratio.tolist() == pytest.approx([0.1] * 3, rel=4 / math.sqrt(2 * 4096))
    assert noise.mean(dim=1).abs().max() < 4 * 0.1 * merged.norm(dim=1).max() / 4096


def test_every_kind_of_layer_of_peft_carries_its_noise_by_output_units() -> None:
    """An embedding's matrix is stored with the output units as columns, GPT-2's layers too."""
    model = of_peft()
    opt = FlatLoRA(SGD(trained(model), lr=0.1), rho=lambda *_: 1e-3, total=1, model=model)
    for x, noise in zip(opt.layers, noise_of(opt), strict=True):
        merged = x.weight + x.host.get_delta_weight("default")
        by_unit = [m.mT if "words" in x.name else m.flatten(1) for m in (merged, noise)]
        scale = 1e-3 * by_unit[0].norm(dim=1, keepdim=True) / math.sqrt(by_unit[0].shape[1])
        normal = (by_unit[1] / scale).detach().flatten()
        assert len(normal) == x.weight.numel() >= 20
        assert 0.5 < normal.std().item() < 1.6  # of 20 to 48 normal numbers
    assert all("words" in x.name or not x.is_transposed for x in opt.layers)


def test_the_noise_is_a_function_of_seed_and_step_and_no_other_random_number_changes() -> None:
    task = Adapted()
    opt, state = flat_on(task, rho=lambda step, lr: 0.1), torch.get_rng_state()
    first, again = noise_of(opt), noise_of(opt)
    assert_same(flat(first), flat(again))
    task.train(opt, range(1))
    assert_same(torch.get_rng_state(), state)
    assert not torch.allclose(flat(noise_of(opt)), flat(first))
    assert not torch.allclose(
        flat(noise_of(flat_on(Adapted(), rho=lambda *_: 0.1, seed=1))), flat(first)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_come_back_bit_for_bit_also_after_an_exception(dtype: torch.dtype) -> None:
    task = Adapted()
    task.model.to(dtype)
    opt = flat_on(task, rho=lambda step, lr: 0.3)
    before = flat(task.frozen)

    def stopped() -> None:
        with opt.ascended() as perturbed:
            assert (perturbed, opt.perturbed) == (True, True)
            assert not torch.equal(flat(task.frozen), before)
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        stopped()
    assert_same(flat(task.frozen), before)
    assert not opt.perturbed


def test_a_weight_with_two_adapters_carries_one_noise_and_comes_back() -> None:
    model = of_peft(target_modules=["layers.0"])
    model.add_adapter("other", model.peft_config["default"])
    model.base_model.set_adapter(["default", "other"])
    opt = FlatLoRA(SGD(trained(model), lr=0.1), rho=lambda *_: 0.3, total=1, model=model)
    assert len(opt.layers) == 2
    weight = opt.layers[0].weight
    before = weight.clone()
    with opt.ascended():
        assert not torch.equal(weight, before)
    assert_same(weight, before)


def test_what_cannot_carry_the_noise_is_refused_in_a_sentence() -> None:
    task = Adapted()
    with pytest.raises(ValueError, match="pass model=, with peft's layers in it"):
        flat_on(task, model=None)
    model = of_peft(use_dora=True, target_modules=["layers.0"])
    with pytest.raises(ValueError, match=r"'.*layers\.0\.default' is a variant of LoRA"):
        FlatLoRA(SGD(trained(model), lr=0.1), total=5, model=model)
    task.model[0].weight.data = torch.ones(4, 5, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"weight of '0' is of torch\.int8.*use BiLoRA"):
        flat_on(task)


def test_plain_steps_without_any_noise_are_a_warning() -> None:
    task = Adapted()
    opt = flat_on(task)
    opt.param_groups[0]["lr"] = 0.0
    for t in range(32):  # at the first rho is 0
        task.loss(t).backward()
        opt.step()
    with pytest.warns(UserWarning, match=r"32 plain steps of SGD .* `with opt\.ascended\(\):`"):
        opt.step()
