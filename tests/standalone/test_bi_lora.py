"""Bi-LoRA: plain twins, peft's own second adapter, and where the second pair takes no part."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model_state_dict
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from tests.reference.lora import bi_lora
from tests.standalone.adapted import KINDS, Adapted, of_peft, trained
from tests.support.compare import assert_near, assert_same, flat
from vasso import BiLoRA
from vasso.standalone.lora_layers import lora_layers

LR, STEPS, RHO = 0.05, 30, 0.02
ADAM = {"weight_decay": 0.1, "betas": (0.8, 0.9)}


def bi_on(task: Adapted, adam: dict[str, Any] | None = None, **settings: Any) -> BiLoRA:
    base = SGD(task.factors, lr=LR) if adam is None else AdamW(task.factors, lr=LR, **adam)
    return BiLoRA(base, **{"rho": RHO, "model": task.model, **settings})


def second(opt: BiLoRA) -> list[Tensor]:
    return [p for x in opt.adversaries for p in x.factors]


def lengths(opt: BiLoRA) -> float:
    squares = [(x.B @ x.A).square().sum() for x in opt.adversaries]
    return torch.stack(squares).sum().sqrt().item()


def by_hand(task: Adapted, opt: BiLoRA, scaler: Any = None, spoil: int | None = None) -> Tensor:
    """A loop of one's own with two micro-batches a step; `model.zero_grad()` knows pair 1 alone."""
    path = []
    for t in range(STEPS):
        for rows in (slice(0, 4), slice(4, 8)):
            loss = task.loss(t, rows) / 2
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            if t == spoil:
                opt.adversaries[0].A.grad[0, 0] = torch.inf
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
        assert opt.last.climbed or t == spoil
        task.model.zero_grad()
        path.append(flat(task.factors))
    return torch.stack(path)


@pytest.mark.parametrize("adam", [None, ADAM], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("way", ["closure", "micro-batches", "scaler"])
def test_the_path_is_that_of_the_algorithm(way: str, adam: dict[str, Any] | None) -> None:
    task = Adapted()
    opt = bi_on(task, adam)
    pairs = [[*pair, *x.factors] for pair, x in zip(task.pairs, opt.adversaries, strict=True)]
    expected = bi_lora(
        task.loss_of, task.frozen, pairs, s=2.0, lr=LR, rho=RHO, steps=STEPS, adam=adam
    )
    if way == "closure":
        path = task.train(opt, range(STEPS))
    else:
        path = by_hand(task, opt, torch.amp.GradScaler("cpu") if way == "scaler" else None)
    assert_near(path, torch.stack(expected), 1e-11)
    assert opt.cost == STEPS
    assert 0.9 * RHO < lengths(opt) < RHO * (1 + 1e-9)  # it has grown from 0 to the border


def test_the_second_pair_is_a_second_adapter_of_peft_in_every_kind_of_layer() -> None:
    x = torch.randint(7, (3, 5))
    model, ours = of_peft(), of_peft()
    opt = BiLoRA(SGD(trained(ours), lr=0.1), model=ours)
    config = LoraConfig(r=2, target_modules=KINDS, lora_alpha=6)
    model.add_adapter("second", config)
    model.base_model.set_adapter(["default", "second"])
    theirs = [[x.A, x.B] for x in lora_layers(model, "second")]
    for values, adversary in zip(theirs, opt.adversaries, strict=True):
        for value, p in zip(values, adversary.factors, strict=True):
            p.data = torch.randn_like(p)
            value.data = p.data.clone()
    for one in (model, ours):
        one(x).square().sum().backward()
    assert_near(ours(x), model(x), 1e-12)
    assert_near(flat(p.grad for p in second(opt)), flat(p.grad for v in theirs for p in v), 1e-12)
    firsts = [[x.A.grad, x.B.grad] for x in lora_layers(model, "default")]
    assert_near(
        flat(p.grad for x in opt.adversaries for p in (x.layer.A, x.layer.B)),
        flat(g for v in firsts for g in v),
        1e-12,
    )


def test_the_saved_adapter_and_evaluation_know_nothing_of_the_second_pair() -> None:
    x = torch.randint(7, (3, 5))
    model, alone = of_peft(), of_peft()
    opt = BiLoRA(SGD(trained(model), lr=0.1), rho=5.0, model=model)
    for p in second(opt):
        p.data = torch.randn_like(p)
    assert model.state_dict().keys() == alone.state_dict().keys()
    assert get_peft_model_state_dict(model).keys() == get_peft_model_state_dict(alone).keys()
    assert not torch.allclose(model(x), alone(x))
    with torch.no_grad():
        assert_same(model(x), alone(x))
    with model.disable_adapter():
        out = model(x)
    with alone.disable_adapter():
        assert_same(out, alone(x))
    assert_same(model.eval()(x), alone.eval()(x))


def test_a_new_process_goes_on_bit_for_bit() -> None:
    whole = Adapted()
    path = whole.train(bi_on(whole, ADAM, seed=1), range(STEPS))
    task, other = Adapted(), Adapted()
    opt = bi_on(task, ADAM, seed=1)
    task.train(opt, range(11))
    saved = copy.deepcopy((task.model.state_dict(), opt.state_dict()))
    other.model.load_state_dict(saved[0])
    fresh = bi_on(other, ADAM, seed=1)
    fresh.load_state_dict(saved[1])
    assert_same(other.train(fresh, range(11, STEPS)), path[11:])


def test_the_second_pair_is_neither_clipped_nor_decayed_and_has_the_rates_of_the_first() -> None:
    task = Adapted()
    opt = bi_on(task, ADAM, clip_norm=1e-3)
    first, ascending = opt.param_groups
    assert (first["weight_decay"], ascending["weight_decay"]) == (0.1, 0.0)
    seen: dict[str, float] = {}

    def look(*_: Any) -> None:
        norms = [flat(p.grad for p in g["params"]).norm().item() for g in opt.param_groups]
        seen.update(first=norms[0], second=norms[1], lr=ascending["lr"])

    opt.base.register_step_pre_hook(look)
    for p in second(opt):
        p.data = torch.randn_like(p)
    first["lr"] = 0.003
    opt.step(task.closure(opt, 0))
    assert seen["first"] == pytest.approx(1e-3)
    assert seen["second"] > 0.1
    assert seen["lr"] == 0.003


def test_factors_with_names_take_the_same_path() -> None:
    paths = []
    for named in (False, True):
        task = Adapted()
        names = (f"factor {i}" for i in range(4))
        given = list(zip(names, task.factors, strict=True)) if named else task.factors
        opt = BiLoRA(AdamW(given, lr=LR), rho=RHO, model=task.model)
        paths.append(task.train(opt, range(STEPS)))
    assert_same(*paths)
    assert opt.param_groups[1]["param_names"] == [f"factor {i}.adversary" for i in range(4)]


def test_a_gradient_that_a_scaler_has_skipped_is_not_added_to_the_next() -> None:
    """`model.zero_grad()` does not clear it, so the infinity would stay for ever."""
    task, spoiled = Adapted(), Adapted()
    opt = bi_on(task)
    expected = by_hand(task, opt, torch.amp.GradScaler("cpu"))
    other = bi_on(spoiled)
    path = by_hand(spoiled, other, torch.amp.GradScaler("cpu"), spoil=0)
    assert (opt.cost, other.cost) == (STEPS, STEPS - 1)
    assert_same(path[0], flat(p for pair in Adapted().pairs for p in pair))
    assert bool(path.isfinite().all())
    assert not torch.allclose(path[-1], path[0])
    assert not torch.equal(path, expected)


def test_while_rho_is_zero_the_second_pair_stays_as_it_is() -> None:
    task, plain = Adapted(), Adapted()
    opt = bi_on(task, rho=lambda step, lr: 0.0 if 5 <= step < 8 else RHO)
    task.train(opt, range(5))
    start, cost = flat(second(opt)), opt.cost
    plain.model.load_state_dict(task.model.state_dict())
    base = SGD(plain.factors, lr=LR)
    assert_same(task.train(opt, range(5, 8)), plain.train(base, range(5, 8)))
    assert_same(flat(second(opt)), start)
    assert (opt.last.climbed, opt.cost) == (False, cost + 3)
    task.train(opt, range(8, 9))
    assert opt.last.climbed
    assert not torch.equal(flat(second(opt)), start)


def test_a_base_that_maximizes_has_an_adversary_that_goes_down() -> None:
    task, turned = Adapted(), Adapted()
    path = task.train(bi_on(task), range(5))
    turned.loss = lambda t, rows=slice(None): -Adapted.loss(turned, t, rows)  # type: ignore[method-assign]
    opt = BiLoRA(SGD(turned.factors, lr=LR, maximize=True), rho=RHO, model=turned.model)
    assert_near(turned.train(opt, range(5)), path, 1e-12)


def test_adapters_of_low_precision_have_an_adversary_in_float32() -> None:
    model = of_peft().bfloat16()
    opt = BiLoRA(SGD(trained(model), lr=1e-4), rho=0.1, model=model)
    assert {p.dtype for p in second(opt)} == {torch.float32}
    for _ in range(3):
        opt.zero_grad()
        model(torch.randint(7, (3, 5))).square().mean().backward()
        opt.step()
    assert opt.adversaries[1].B.norm() > 0


def test_unwrap_throws_the_second_pair_away() -> None:
    task, plain = Adapted(), Adapted()
    opt = bi_on(task, ADAM)
    task.train(opt, range(4))
    plain.model.load_state_dict(task.model.state_dict())
    base = opt.unwrap()
    assert len(base.param_groups) == 1
    assert {*base.state} == {*task.factors}
    assert_same(task.loss(0).detach(), plain.loss(0).detach())


def test_evaluation_mode_by_mistake_is_a_warning() -> None:
    task = Adapted()
    opt = bi_on(task)
    task.model.eval()
    with pytest.warns(UserWarning, match=r"takes part in training mode alone.*model\.train\(\)"):
        opt.step(task.closure(opt, 0))


def test_what_it_cannot_do_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Adapted()
    with pytest.raises(ValueError, match="pass model=, with peft's layers in it"):
        bi_on(task, model=None)
    layer = nn.Conv1d(2, 3, 1)
    layer.lora_A = nn.Parameter(torch.ones(1, 2))
    layer.lora_B = nn.Parameter(torch.ones(3, 1))
    with pytest.raises(ValueError, match="is no linear layer: leave it out of the adapters"):
        BiLoRA(SGD([layer.lora_A, layer.lora_B], lr=0.1), model=layer)
    model = of_peft(use_dora=True, target_modules=["layers.0"])
    with pytest.raises(ValueError, match="is a variant of LoRA"):
        BiLoRA(SGD(trained(model), lr=0.1), model=model)
    groups = [
        {"params": layer, "rho": rho}
        for layer, rho in ((task.factors[:2], 0.1), (task.factors[2:], 0.2))
    ]
    with pytest.raises(ValueError, match="the radius of all layers together"):
        BiLoRA(SGD(groups, lr=0.1), model=task.model)
    with pytest.raises(ValueError, match=r"has 1 groups, and BiLoRA 2 .* before you wrap it"):
        bi_on(task).load_state_dict(SGD(task.factors, lr=LR).state_dict())
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.raises(RuntimeError, match=r"one process and there are 2.*Use FlatLoRA or BAR"):
        bi_on(task)
