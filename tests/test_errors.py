"""Invalid input gets an error that names the value and the remedy, and nothing is lost."""

import copy
import math
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import vasso.losses
from tests.support.problems import take_step
from vasso import L2, SAM, SARAHSAM, SVRGSAM, Ema, SAMPa, Samples, SharpnessAware, VaSSO
from vasso.losses import MESA
from vasso.parts.directions import Direction
from vasso.parts.geometries import Geometry
from vasso.parts.part import Range


def weight() -> Tensor:
    return torch.tensor([3.0, 4.0], requires_grad=True)


def low_precision() -> Tensor:
    return weight().detach().bfloat16().requires_grad_()


def sgd(*groups: object, **options: object) -> torch.optim.SGD:
    return torch.optim.SGD(list(groups) or [weight()], lr=0.1, **options)


def loss_of(opt: torch.optim.Optimizer) -> Tensor:
    return sum(p.square().sum() for group in opt.param_groups for p in group["params"])


def one_argument(step: int) -> float:
    return 0.1


@dataclass(frozen=True)
class OtherTheta(Geometry):
    theta: float = 0.5
    scheduled: ClassVar = {"theta": Range()}


def twice(base: torch.optim.Optimizer) -> object:
    return SAM(base), VaSSO(base)


RHO = "rho must be at least 0, got {}"
THETA = "theta must be above 0 and at most 1, got {}"
CLIP = "clip_norm must be above 0 and finite, or None, got {}"
NUMBER = "rho must be a number or a schedule (step, lr) -> number, got {}"
NO_OPTIMIZER = "base must be a torch optimizer, got {}: pass one that has the parameters"
WRAPPED = "base is wrapped by a SAM already: call its unwrap() first"
NO_SOURCE = "has to be a vasso.Source, an object whose full() and fresh() return closures of all"
NO_SAMPLES = "Samples(opt.zero_grad, losses_of, x, y), got ("
NO_CLOSURE = "step() was given a Tensor: it takes a closure"
NO_STEPS = "neither first_step() nor second_step(): call step(closure)"
NOT_KNOWN = "unexpected keyword argument {}"

# The table is wrapped by hand: what is done, the error, parts of its message.
# fmt: off
REFUSED: dict[str, tuple[Any, ...]] = {
    "rho below 0": (lambda: SAM(sgd(), rho=-0.1), ValueError, RHO.format(-0.1)),
    "rho nan": (lambda: SAM(sgd(), rho=math.nan), ValueError, RHO.format("nan")),
    "rho infinite": (lambda: SAM(sgd(), rho=math.inf), ValueError, RHO.format("inf")),
    "rho a string": (lambda: SAM(sgd(), rho="0.1"), TypeError, NUMBER.format("'0.1'")),
    "rho None": (lambda: SAM(sgd(), rho=None), TypeError, NUMBER.format(None)),
    "rho True": (lambda: SAM(sgd(), rho=True), TypeError, NUMBER.format(True)),
    "theta 0": (lambda: VaSSO(sgd(), theta=0.0), ValueError, THETA.format(0)),
    "theta below 0": (lambda: VaSSO(sgd(), theta=-1.0), ValueError, THETA.format(-1)),
    "theta above 1": (lambda: VaSSO(sgd(), theta=1.5), ValueError, THETA.format(1.5)),
    "theta nan": (lambda: VaSSO(sgd(), theta=math.nan), ValueError, THETA.format("nan")),
    "clip_norm 0": (lambda: SAM(sgd(), clip_norm=0.0), ValueError, CLIP.format(0.0)),
    "clip_norm below 0": (lambda: SAM(sgd(), clip_norm=-1.0), ValueError, CLIP.format(-1.0)),
    "clip_norm nan": (lambda: SAM(sgd(), clip_norm=math.nan), ValueError, CLIP.format("nan")),
    "clip_norm inf": (lambda: SAM(sgd(), clip_norm=math.inf), ValueError, CLIP.format("inf")),
    # schedules that cannot be called with step and lr
    "schedule": (lambda: SAM(sgd(), rho=one_argument), TypeError,
        NUMBER.format("one_argument(step: ")),
    "schedule of a group": (lambda: SAM(sgd({"params": [weight()], "rho": one_argument})),
        TypeError, NUMBER.format("one_argument(step: ")),
    "schedule of a later group": (
        lambda: SAM(sgd()).add_param_group({"params": [weight()], "rho": one_argument}),
        TypeError, NUMBER.format("one_argument(step: ")),
    "schedule of a part": (lambda: VaSSO(sgd(), theta=lambda: 0.4), TypeError,
        "theta must be ", " (step, lr) ", " got <lambda>()"),
    # the base, and the calls of other implementations
    "a class": (lambda: VaSSO(torch.optim.SGD), TypeError,
        "base is the class SGD: pass an instance", "VaSSO(SGD("),
    "a model": (lambda: VaSSO(nn.Linear(2, 2)), TypeError,
        "base is a model (Linear): pass an optimizer"),
    "a list": (lambda: VaSSO([weight()]), TypeError, NO_OPTIMIZER.format("list")),
    "parameters, class": (
        lambda: SAM(nn.Linear(2, 2).parameters(), torch.optim.SGD, rho=0.05, lr=0.1), TypeError,
        NO_OPTIMIZER.format("generator"), "for example SAM(SGD(model.parameters(), lr=0.1))"),
    "parameters, lr": (lambda: VaSSO(nn.Linear(2, 2).parameters(), lr=0.1), TypeError,
        NO_OPTIMIZER.format("generator")),
    "LBFGS": (lambda: VaSSO(torch.optim.LBFGS([weight()])), TypeError,
        "LBFGS calls the closure itself", "use a base whose step"),
    "a wrapped base": (lambda: twice(sgd()), ValueError, WRAPPED),
    "an optimizer of ours": (lambda: VaSSO(SAM(sgd())), ValueError, WRAPPED),
    "no name": (lambda: VaSSO(sgd(), 0.1), TypeError,
        "VaSSO takes its base alone without a name, got 0.1 too: name each setting"),
    "rh": (lambda: VaSSO(sgd(), rh=0.1), TypeError, NOT_KNOWN.format("'rh'"), "mean 'rho'?"),
    "thet": (lambda: VaSSO(sgd(), thet=0.1), TypeError, "'thet'. Did you mean 'theta'?"),
    "directoin": (lambda: SharpnessAware(sgd(), directoin=Ema()), TypeError,
        NOT_KNOWN.format("'directoin'"), "mean 'direction'?"),
    "lamb": (lambda: SAMPa(sgd(), lamb=0.1), TypeError, "'lamb'. Did you mean 'lam'?"),
    "restor": (lambda: SAM(sgd(), restor="copy"), TypeError, "Did you mean 'restore'?"),
    "lr": (lambda: SAM(sgd(), lr=0.1), TypeError, "SAM got an unexpected", "'lr': it takes model"),
    "restore of a stepper": (lambda: SAMPa(sgd(), restore="recompute"), TypeError,
        NOT_KNOWN.format("'restore'"), "it takes model, batchnorm, nonfinite, clip_norm"),
    "sync of a stepper": (lambda: vasso.EntropySGD(sgd(), L=1, sync="local"), TypeError,
        NOT_KNOWN.format("'sync'")),
    # options
    "restore": (lambda: SAM(sgd(), restore="copi"), ValueError, "'copi'. Did you mean 'copy'?"),
    "batchnorm": (lambda: SAM(sgd(), batchnorm="perturb"), ValueError,
        "'perturb'. Did you mean 'perturbed'?"),
    "nonfinite": (lambda: SAM(sgd(), nonfinite="skp"), ValueError, "'skp'. Did you mean 'skip'?"),
    "sync": (lambda: SAM(sgd(), sync="per-rank"), ValueError,
        "sync must be one of 'global', 'local', got 'per-rank'"),
    "models": (lambda: SAM(sgd(), model=[nn.Linear(2, 2)]), TypeError,
        "model must be a torch.nn.Module or None, got list"),
    "another model": (lambda: SAM(sgd(), model=nn.Linear(2, 2)), ValueError,
        "model (Linear) has none of the optimizer's parameters"),
    # parts
    "a part of the wrong kind": (lambda: SharpnessAware(sgd(), direction=L2()), TypeError,
        "direction must be a Direction, got L2(eps=0.0)"),
    "the class of a part": (lambda: SharpnessAware(sgd(), direction=Ema), TypeError,
        "got the class Ema; write Ema()"),
    "init of Ema": (lambda: Ema(0.4, init="last"), ValueError,
        "init must be one of 'first', 'zero', got 'last'"),
    "eps of L2": (lambda: L2(eps=-1), ValueError, "eps must be at least 0 and finite, got -1"),
    "two settings of one name": (lambda: SharpnessAware(sgd(), geometry=OtherTheta()), ValueError,
        "two parts have a setting called 'theta'"),
    "recompute, low precision": (lambda: SAM(sgd(low_precision()), restore="recompute"),
        ValueError, "cannot restore torch.bfloat16 weights", 'Use restore="copy"'),
    # data and steps
    "source of SVRG": (lambda: SVRGSAM(sgd(), data=3), TypeError, NO_SOURCE, "got 3"),
    "source of SARAH": (lambda: SARAHSAM(sgd(), data=3), TypeError, NO_SOURCE, "got 3"),
    "MESA of a base": (lambda: MESA(sgd()), TypeError,
        "MESA is a loss, ", " got SGD: loss = MESA(model)"),
    "Samples of x, y": (lambda: Samples(weight(), weight()), TypeError, NO_SAMPLES + "Tensor, Te"),
    "Samples of three": (lambda: Samples(*[weight()] * 3), TypeError, NO_SAMPLES + "Tensor, Te"),
    "Samples of functions": (lambda: Samples(sgd().zero_grad, len), TypeError, NO_SAMPLES, "func"),
    "a loss for SAM": (lambda: SAM(sgd()).step(torch.ones(())), TypeError, NO_CLOSURE),
    "a loss for SAMPa": (lambda: SAMPa(sgd()).step(torch.ones(())), TypeError, NO_CLOSURE),
    "first_step": (lambda: SAM(sgd()).first_step, AttributeError, NO_STEPS, "opt.ascended()"),
    "second_step": (lambda: VaSSO(sgd()).second_step, AttributeError, NO_STEPS),
    "first_step of the class": (lambda: SAM.first_step, AttributeError, NO_STEPS),
}
# fmt: on


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_input_is_refused_with_the_remedy(name: str) -> None:
    act, kind, *parts = REFUSED[name]
    with pytest.raises(kind) as error:
        act()
    for text in parts:
        assert text in str(error.value)


def test_pasted_code_is_sent_to_a_page_that_exists() -> None:
    page = "docs/how-to/coming-from-sam-py.md"
    with pytest.raises(AttributeError, match=page):
        SAM(sgd()).first_step  # noqa: B018
    assert (Path(__file__).parent.parent / page).exists()
    assert not hasattr(SAM(sgd()), "second_step")


def test_a_subclass_may_have_such_steps() -> None:
    class Mine(SAM):
        def first_step(self) -> str:
            return "mine"

    opt = SAM(sgd())
    opt.second_step = lambda: "ours"
    assert (Mine(sgd()).first_step(), opt.second_step()) == ("mine", "ours")


def test_a_subclass_may_have_another_constructor() -> None:
    class FromParameters(VaSSO):
        def __init__(self, params: object, lr: float, radius: float = 0.1) -> None:
            super().__init__(torch.optim.SGD(params, lr=lr), rho=radius)

    class WithPlaces(SAM):
        def __init__(self, base: torch.optim.Optimizer, rho: float, **rest: Any) -> None:
            self.note = rest.pop("note")
            super().__init__(base, rho=rho, **rest)

    assert FromParameters([weight()], 0.5, radius=0.3).param_groups[0]["rho"] == 0.3
    assert WithPlaces(sgd(), 0.2, note="mine", restore="recompute").note == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Vasso", ". Did you mean 'VaSSO'?"),
        ("FriendlySam", ". Did you mean 'FriendlySAM'?"),
        ("SAF", ": it is a loss, write vasso.losses.SAF"),
        ("MESA", ": it is a loss, write vasso.losses.MESA"),
        ("integrations", ": it is a module, write import vasso.integrations"),
        ("qqqq", ""),
        ("__wrapped__", ""),
    ],
)
def test_a_name_that_is_nearly_ours(name: str, message: str, monkeypatch: Any) -> None:
    monkeypatch.delattr(vasso, name, raising=False)
    with pytest.raises(AttributeError) as error:
        getattr(vasso, name)
    assert str(error.value) == f"module 'vasso' has no attribute {name!r}{message}"


def test_a_star_import_binds_all_public_names() -> None:
    names: dict[str, Any] = {}
    exec("from vasso import *", names)
    assert names["VaSSO"] is vasso.VaSSO
    assert set(dir(vasso)) - {"__version__"} <= set(names)


@pytest.mark.parametrize("rho", [max, lambda *given: 0.1, lambda step, lr, more=0: 0.1])
def test_any_function_of_step_and_lr_is_a_schedule(rho: Any) -> None:
    assert SAM(sgd(), rho=rho).param_groups[0]["rho"] == 0.1


def test_an_error_inside_a_schedule_is_passed_on() -> None:
    def rho(step: int, lr: float) -> float:
        return math.sqrt("one")  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="must be real number, not str") as error:
        SAM(sgd(), rho=rho)
    assert error.traceback[-1].name == "rho"


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_a_group_with_a_bad_value_is_not_added(bad: float) -> None:
    opt = SAM(sgd())
    with pytest.raises(ValueError, match="rho must be at least 0"):
        opt.add_param_group({"params": [weight()], "rho": bad})
    assert len(opt.param_groups) == 1


def test_a_failed_construction_leaves_the_base_free() -> None:
    base = sgd({"params": [weight()], "rho": -1.0})
    with pytest.raises(ValueError, match="rho must be at least 0"):
        SAM(base)
    base.param_groups[0]["rho"] = 0.3
    assert SAM(base).param_groups[0]["rho"] == 0.3
    base = sgd()
    with pytest.raises(ValueError, match="none of the optimizer's parameters"):
        SAM(base, model=nn.Linear(2, 2))
    assert "rho" not in base.param_groups[0]
    SAM(base)


def test_use_after_unwrap() -> None:
    opt = SAM(sgd())
    opt.unwrap()
    with pytest.raises(RuntimeError, match=r"this SAM has given its base back \(unwrap\)"):
        opt.step()


def no_backward(w: Tensor, opt: SAM) -> object:
    return opt.step(lambda: w.square().sum())


def no_loss(w: Tensor, opt: SAM) -> object:
    return opt.step(lambda: w.square().sum().backward())


def optimizer_in_backward(w: Tensor, opt: SAM) -> object:
    w.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    return take_step(opt, lambda: w.square().sum())


def no_second_pass(w: Tensor, opt: SAM) -> None:
    w.square().sum().backward()
    with opt.ascended():
        pass


def no_gradient(w: Tensor, opt: SAM) -> None:
    with opt.ascended():
        pytest.fail("the body must not run")


@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        (no_loss, TypeError, "the closure returned None: it has to zero the gradients"),
        (no_backward, RuntimeError, "left no gradient on any parameter: does it call back"),
        (optimizer_in_backward, RuntimeError, "optimizer-in-backward"),
        (no_second_pass, RuntimeError, r"second pass, at w \+ epsilon, left no gradient"),
        (no_gradient, RuntimeError, r"ascended\(\) found no gradient: call backward\(\)"),
    ],
)
def test_a_pass_without_gradient_or_loss(act: Any, kind: type[Exception], message: str) -> None:
    w = weight()
    with pytest.raises(kind, match=message):
        act(w, SAM(sgd(w)))
    assert torch.equal(w, weight())


def sparse() -> tuple[Tensor, Tensor]:
    embedding = nn.Embedding(5, 2, sparse=True)
    return embedding.weight, embedding(torch.tensor([1, 2])).sum()


def plain() -> tuple[Tensor, Tensor]:
    w = weight()
    return w, w.square().sum()


@pytest.mark.parametrize(
    ("make", "parts", "kind", "message"),
    [
        (sparse, {}, TypeError, r"shape \(5, 2\) has a sparse gradient.*give its group rho=0"),
        (plain, {"direction": Direction()}, NotImplementedError, None),
    ],
)
def test_what_cannot_be_perturbed_is_refused_before_it_moves(
    make: Any, parts: dict[str, Any], kind: type[Exception], message: str | None
) -> None:
    w, loss = make()
    opt = SharpnessAware(sgd(w), **parts)
    before = w.detach().clone()
    loss.backward()
    with pytest.raises(kind, match=message), opt.ascended():
        pytest.fail("the body must not run")
    assert torch.equal(w, before)
    assert not opt.perturbed


def test_recompute_refuses_a_group_of_low_precision_that_comes_later() -> None:
    w = weight()
    opt = SAM(sgd(w), restore="recompute")
    opt.add_param_group({"params": [low_precision()]})
    loss_of(opt).backward()
    message = "cannot restore torch.bfloat16 weights"
    with pytest.raises(ValueError, match=message), opt.ascended():
        pytest.fail("the body must not run")
    assert torch.equal(w, weight())


def test_recompute_allows_low_precision_in_a_group_that_is_not_perturbed() -> None:
    base = sgd({"params": [weight()]}, {"params": [low_precision()], "rho": 0.0})
    assert SAM(base, restore="recompute").param_groups[1]["rho"] == 0


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("step()", lambda opt: opt.step()),
        ("step()", lambda opt: opt.step(lambda: 0.0)),
        ("ascended()", lambda opt: opt.ascended().__enter__()),
        ("state_dict()", lambda opt: opt.state_dict()),
        ("load_state_dict()", lambda opt: opt.load_state_dict({"state": {}, "param_groups": []})),
        ("unwrap()", lambda opt: opt.unwrap()),
        ("a copy", copy.deepcopy),
        ("a copy", pickle.dumps),
    ],
)
def test_what_may_not_be_done_inside_ascended(name: str, act: Any) -> None:
    w = weight()
    opt = SAM(sgd(w))
    w.square().sum().backward()
    with opt.ascended():
        with pytest.raises(RuntimeError, match=rf"^{re.escape(name)} .*weights are perturbed"):
            act(opt)
        w.square().sum().backward()
    assert torch.equal(w, weight())
    opt.step()
    assert opt.state_dict()["param_groups"][0]["vasso_step"] == 1
