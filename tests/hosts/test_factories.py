"""Factories: wrap what they give back, or hand them a recipe."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, AdamW, Optimizer

from tests.reference.digits import closure_on_batch, flat, net
from vasso import ASAM, SAM, VaSSO
from vasso.integrations.factories import Recipe

ROOT = Path(__file__).parents[2]
RHO, THETA = 0.3, 0.4
REGISTRY: dict[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "adamw": AdamW,
    "vasso_sgd": Recipe(VaSSO, SGD, rho=RHO, theta=THETA),
    "sam_adamw": Recipe(SAM, AdamW, rho=RHO),
}


def create_optimizer_v2(
    model_or_params: Any, opt: str = "sgd", lr: float | None = None, **kwargs: Any
) -> Optimizer:
    """A stand-in in the form of timm's: names, groups for weight decay, `cls(params, **kwargs)`."""
    decay = kwargs.pop("weight_decay", 0.0)
    params = model_or_params
    if isinstance(model_or_params, nn.Module):
        vectors = [p for p in model_or_params.parameters() if p.ndim < 2]
        matrices = [p for p in model_or_params.parameters() if p.ndim >= 2]
        params = [
            {"params": vectors, "weight_decay": 0.0},
            {"params": matrices, "weight_decay": decay},
        ]
    if lr is not None:
        kwargs["lr"] = lr
    return REGISTRY[opt](params, **kwargs)


class VaSSOSGD(VaSSO):
    def __init__(self, params: Any, *, rho: float = 0.05, theta: float = 0.4, **kwargs: Any):
        super().__init__(SGD(params, **kwargs), rho=rho, theta=theta)


def steps(opt: Optimizer, model: nn.Module, first: int = 0, count: int = 4) -> Tensor:
    for t in range(first, first + count):
        opt.step(closure_on_batch(opt, model, t))
    return flat(model)


def expected() -> Tensor:
    model = net()
    vectors = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    groups = [{"params": vectors}, {"params": matrices, "weight_decay": 0.1}]
    return steps(VaSSO(SGD(groups, lr=0.5, momentum=0.9), rho=RHO, theta=THETA), model)


WAYS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "wrapped afterwards": lambda model: VaSSO(
        create_optimizer_v2(model, opt="sgd", lr=0.5, momentum=0.9, weight_decay=0.1),
        rho=RHO,
        theta=THETA,
        model=model,
    ),
    "from the registry": lambda model: create_optimizer_v2(
        model, opt="vasso_sgd", lr=0.5, momentum=0.9, weight_decay=0.1
    ),
}


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_a_factory_in_the_form_of_timms(make: Callable[[nn.Module], Optimizer]) -> None:
    model = net()
    assert torch.equal(steps(make(model), model), expected())


def test_a_class_of_ones_own_for_hosts_that_insist_on_one() -> None:
    model, twin = net(), net()
    opt = VaSSOSGD(model.parameters(), lr=0.5, momentum=0.9, rho=RHO)
    by_hand = VaSSO(SGD(twin.parameters(), lr=0.5, momentum=0.9), rho=RHO, theta=THETA)
    assert torch.equal(steps(opt, model), steps(by_hand, twin))
    model, opt = pickle.loads(pickle.dumps((model, opt)))
    assert torch.equal(steps(opt, model, first=4), steps(by_hand, twin, first=4))


def test_settings_of_the_method_may_come_with_the_call() -> None:
    opt = create_optimizer_v2(net(), opt="vasso_sgd", lr=0.5, rho=0.7, nonfinite="raise")
    assert (opt.param_groups[1]["rho"], opt.param_groups[1]["theta"]) == (0.7, THETA)
    assert opt.nonfinite == "raise"


def test_a_recipe_around_a_partial_method_and_a_partial_base() -> None:
    recipe = Recipe(partial(ASAM, eta=0.2), partial(SGD, momentum=0.9), rho=2.0)
    opt = recipe(net().parameters(), lr=0.1)
    assert (opt.geometry.eta, opt.param_groups[0]["momentum"]) == (0.2, 0.9)


def test_a_setting_the_method_does_not_have_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"VaSSO has no setting 'lr'.*come with the call"):
        Recipe(VaSSO, SGD, lr=0.1)


def test_a_keyword_that_nobody_knows_reaches_the_base_which_refuses_it() -> None:
    with pytest.raises(TypeError, match="rhoo"):
        Recipe(VaSSO, SGD)(net().parameters(), lr=0.1, rhoo=0.1)


def test_a_keyword_of_both_is_an_error_that_says_how_to_tell_them_apart() -> None:
    with pytest.raises(TypeError, match=r"'rho' is a setting of SAM and of Adadelta"):
        Recipe(SAM, Adadelta)(net().parameters(), rho=0.5)
    opt = Recipe(SAM, partial(Adadelta, rho=0.8), rho=0.5)(net().parameters())
    assert (opt.param_groups[0]["rho"], opt.param_groups[0]["vasso_rho"]) == (0.8, 0.5)


@pytest.mark.parametrize("name", ["vasso_sgd", "sam_adamw"])
def test_a_recipe_and_what_it_makes_can_be_pickled(name: str) -> None:
    recipe = REGISTRY[name]
    again = pickle.loads(pickle.dumps(recipe))
    assert again == recipe
    assert hash(again) == hash(recipe)
    model = net()
    opt = recipe(model.parameters(), lr=0.5)
    steps(opt, model)
    saved = pickle.dumps((model, opt))
    goes_on = steps(opt, model, first=4)
    model, opt = pickle.loads(saved)
    assert torch.equal(steps(opt, model, first=4), goes_on)


def test_a_recipe_reaches_another_process() -> None:
    code = (
        "import pickle, sys, torch;"
        "recipe = pickle.loads(sys.stdin.buffer.read());"
        "print(recipe, recipe([torch.zeros(1, requires_grad=True)], lr=0.1).param_groups[0]['rho'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(REGISTRY["vasso_sgd"]),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.decode().strip() == f"Recipe(VaSSO, SGD, rho={RHO}, theta={THETA}) {RHO}"


def test_a_registry_may_ask_for_a_name() -> None:
    assert REGISTRY["vasso_sgd"].__name__ == "VaSSO(SGD)"


def test_a_recipe_makes_an_optimizer_of_a_model_and_knows_it_then() -> None:
    """As transformers calls a factory: first without anything, then with the model."""
    model = net()
    opt = Recipe(VaSSO, SGD, rho=RHO)()(model, lr=0.5)
    assert opt.model is model
    assert (opt.param_groups[0]["rho"], opt.param_groups[0]["lr"]) == (RHO, 0.5)
