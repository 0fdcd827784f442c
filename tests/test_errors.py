"""Bad input gets a clear error that names the value and the remedy, and loses nothing."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import vasso
from vasso import L2, SAM, SARAHSAM, SVRGSAM, Ema, SAMPa, Samples, SharpnessAware, VaSSO
from vasso.directions import Direction
from vasso.geometries import Geometry
from vasso.parts import Range


def weight() -> Tensor:
    return torch.tensor([3.0, 4.0], requires_grad=True)


def sgd(*groups: object, **options: object) -> torch.optim.SGD:
    return torch.optim.SGD(list(groups) or [weight()], lr=0.1, **options)


def loss_of(opt: torch.optim.Optimizer) -> Tensor:
    return sum(p.square().sum() for group in opt.param_groups for p in group["params"])


@pytest.mark.parametrize("rho", [-0.1, math.nan, math.inf])
def test_rho_out_of_range(rho: float) -> None:
    with pytest.raises(ValueError, match=rf"rho must be at least 0, got {rho:g}"):
        SAM(sgd(), rho=rho)


@pytest.mark.parametrize("theta", [0.0, -1.0, 1.5, math.nan])
def test_theta_out_of_range(theta: float) -> None:
    with pytest.raises(ValueError, match=rf"theta must be above 0 and at most 1, got {theta:g}"):
        VaSSO(sgd(), theta=theta)


@pytest.mark.parametrize("value", ["0.1", None, True])
def test_a_setting_that_is_not_a_number(value: object) -> None:
    with pytest.raises(TypeError, match=rf"rho must be a number or a schedule .* got {value!r}"):
        SAM(sgd(), rho=value)


def test_a_setting_that_goes_out_of_range_later_stops_the_step_before_anything_moves() -> None:
    w = weight()
    opt = SAM(sgd(w), rho=lambda step, lr: -1.0 if step else 0.1)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = loss_of(opt)
        loss.backward()
        return loss

    opt.step(closure)
    before = w.detach().clone()
    with pytest.raises(ValueError, match="rho must be at least 0, got -1"):
        opt.step(closure)
    assert torch.equal(w, before)


def one_argument(step: int) -> float:
    return 0.1


@pytest.mark.parametrize(
    "act",
    [
        lambda: SAM(sgd(), rho=one_argument),
        lambda: SAM(sgd({"params": [weight()], "rho": one_argument})),
        lambda: SAM(sgd()).add_param_group({"params": [weight()], "rho": one_argument}),
    ],
)
def test_a_schedule_of_other_arguments_is_refused_by_the_name_of_its_setting(act: Any) -> None:
    told = r"rho must be a number or a schedule \(step, lr\) -> number, got one_argument\(step: "
    with pytest.raises(TypeError, match=told):
        act()


def test_the_schedule_of_a_part_is_named_too() -> None:
    with pytest.raises(TypeError, match=r"theta must be .* \(step, lr\) .* got <lambda>\(\)"):
        VaSSO(sgd(), theta=lambda: 0.4)


@pytest.mark.parametrize("rho", [max, lambda *given: 0.1, lambda step, lr, more=0: 0.1])
def test_whatever_can_be_asked_with_step_and_lr_is_a_schedule(rho: Any) -> None:
    assert SAM(sgd(), rho=rho).param_groups[0]["rho"] == 0.1


def test_what_a_schedule_raises_is_its_own() -> None:
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


def test_a_base_whose_group_has_a_bad_value_stays_as_it_was() -> None:
    base = sgd({"params": [weight()], "rho": -1.0})
    with pytest.raises(ValueError, match="rho must be at least 0"):
        SAM(base)
    base.param_groups[0]["rho"] = 0.3
    assert SAM(base).param_groups[0]["rho"] == 0.3


def test_a_class_instead_of_an_optimizer() -> None:
    with pytest.raises(TypeError, match=r"base is the class SGD: pass an instance.*VaSSO\(SGD\("):
        VaSSO(torch.optim.SGD)


def test_a_model_instead_of_an_optimizer() -> None:
    with pytest.raises(TypeError, match=r"base is a model \(Linear\): pass an optimizer"):
        VaSSO(nn.Linear(2, 2))


def test_something_else_instead_of_an_optimizer() -> None:
    with pytest.raises(TypeError, match="base must be a torch optimizer, got list"):
        VaSSO([weight()])


def test_the_calls_of_other_implementations() -> None:
    model = nn.Linear(2, 2)
    example = r"SAM\(SGD\(model.parameters\(\), lr=0.1\)\)"
    with pytest.raises(
        TypeError, match=rf"base must be a torch optimizer, got generator.*{example}"
    ):
        SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1)
    with pytest.raises(TypeError, match="got generator"):
        VaSSO(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("method", "name", "told"),
    [
        (VaSSO, "rh", "VaSSO has no setting 'rh'. Did you mean 'rho'?"),
        (VaSSO, "modle", "VaSSO has no setting 'modle'. Did you mean 'model'?"),
        (SharpnessAware, "directoin", "no setting 'directoin'. Did you mean 'direction'?"),
        (SAMPa, "lamb", "SAMPa has no setting 'lamb'. Did you mean 'lam'?"),
        (SAM, "weight_decay", "SAM has no setting 'weight_decay'. There are base, rho, theta, "),
    ],
)
def test_an_unknown_setting_suggests_the_near_one(method: type, name: str, told: str) -> None:
    with pytest.raises(TypeError, match=re.escape(told)):
        method(sgd(), **{name: 1.0})


def test_settings_that_there_are_are_told_once_each() -> None:
    with pytest.raises(TypeError, match="VaSSO has no setting 'x'") as trouble:
        VaSSO(sgd(), x=1)
    told = str(trouble.value).split("There are ")[1].rstrip(".").split(", ")
    assert {"rho", "theta", "model"} <= set(told)
    assert len(told) == len(set(told))


def test_a_setting_without_its_name() -> None:
    with pytest.raises(TypeError, match=r"VaSSO takes its settings by name, got 0.1 without one"):
        VaSSO(sgd(), 0.1)


def test_a_class_of_ones_own_is_called_as_it_likes() -> None:
    class FromParameters(VaSSO):
        def __init__(self, params: object, lr: float, radius: float = 0.1) -> None:
            super().__init__(torch.optim.SGD(params, lr=lr), rho=radius)

    class WithPlaces(SAM):
        def __init__(self, base: torch.optim.Optimizer, rho: float, **rest: Any) -> None:
            self.note = rest.pop("note")
            super().__init__(base, rho=rho, **rest)

    assert FromParameters([weight()], 0.5, radius=0.3).param_groups[0]["rho"] == 0.3
    assert WithPlaces(sgd(), 0.2, note="mine", restore="recompute").note == "mine"


@pytest.mark.parametrize("method", [SAM, SAMPa])
def test_a_loss_instead_of_a_closure(method: type) -> None:
    opt = method(sgd())
    with pytest.raises(TypeError, match=r"step\(\) was given a Tensor: it takes a closure"):
        opt.step(torch.tensor(1.0))


def test_a_base_that_calls_the_closure_itself() -> None:
    with pytest.raises(TypeError, match=r"LBFGS calls the closure itself.*use a base whose step"):
        VaSSO(torch.optim.LBFGS([weight()]))


def test_a_base_that_is_wrapped_already() -> None:
    base = sgd()
    opt = SAM(base)
    with pytest.raises(ValueError, match=r"base is wrapped by a SAM already: call its unwrap\(\)"):
        VaSSO(base)
    with pytest.raises(ValueError, match=r"base is wrapped by a SAM already: call its unwrap\(\)"):
        VaSSO(opt)


@pytest.mark.parametrize("name", ["first_step", "second_step"])
@pytest.mark.parametrize("opt", [SAM(sgd()), VaSSO(sgd()), SAM])
def test_the_steps_of_a_pasted_sam_py_are_told_by_their_names_here(opt: Any, name: str) -> None:
    told = r"neither first_step\(\) nor second_step\(\): call step\(closure\).*opt.ascended\(\).*"
    with pytest.raises(AttributeError, match=told + r"docs/how-to/coming-from-sam-py.md"):
        getattr(opt, name)
    assert (Path(__file__).parent.parent / "docs/how-to/coming-from-sam-py.md").exists()
    assert not hasattr(opt, name)


def test_a_subclass_may_have_such_steps() -> None:
    class Mine(SAM):
        def first_step(self) -> str:
            return "mine"

    opt = SAM(sgd())
    opt.second_step = lambda: "ours"
    assert (Mine(sgd()).first_step(), opt.second_step()) == ("mine", "ours")


@pytest.mark.parametrize(
    ("name", "told"),
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
def test_a_name_that_is_nearly_ours(name: str, told: str, monkeypatch: Any) -> None:
    monkeypatch.delattr(vasso, name, raising=False)
    with pytest.raises(AttributeError) as error:
        getattr(vasso, name)
    assert str(error.value) == f"module 'vasso' has no attribute {name!r}{told}"


@pytest.mark.parametrize("method", [SVRGSAM, SARAHSAM])
def test_a_source_that_is_none(method: type) -> None:
    told = r"a vasso.Source, an object whose full\(\) and fresh\(\) return closures .* got 3"
    with pytest.raises(TypeError, match=told):
        method(sgd(), data=3)


def test_a_loss_around_an_optimizer() -> None:
    with pytest.raises(TypeError, match=r"MESA is a loss, .* got SGD: loss = MESA\(model\)"):
        vasso.losses.MESA(sgd())


@pytest.mark.parametrize("given", [(), (weight(),), (sgd().zero_grad, len)])
def test_samples_of_data_alone(given: tuple[Any, ...]) -> None:
    x = [weight(), weight()] if len(given) < 2 else []
    told = r"Samples\(opt.zero_grad, losses_of, x, y\), got \((Tensor, Tensor|.*function.*)"
    with pytest.raises(TypeError, match=told):
        Samples(*given, *x)


def test_use_after_unwrap() -> None:
    opt = SAM(sgd())
    opt.unwrap()
    with pytest.raises(RuntimeError, match=r"this SAM has given its base back \(unwrap\)"):
        opt.step()


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("restore", "copi", "Did you mean 'copy'"),
        ("batchnorm", "perturb", "Did you mean 'perturbed'"),
        ("nonfinite", "skp", "Did you mean 'skip'"),
        ("sync", "per-rank", "sync must be one of 'global', 'local'"),
    ],
)
def test_an_unknown_option_suggests_the_near_one(option: str, value: str, told: str) -> None:
    with pytest.raises(ValueError, match=rf"{told}") as error:
        SAM(sgd(), **{option: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_clip_norm_out_of_range(value: float) -> None:
    with pytest.raises(ValueError, match=rf"clip_norm must be above 0 and finite.* got {value}"):
        SAM(sgd(), clip_norm=value)


def test_a_typing_error_in_an_option_is_not_swallowed() -> None:
    with pytest.raises(TypeError, match="restor"):
        SAM(sgd(), restor="copy")


def test_a_part_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"direction must be a Direction, got L2\(eps=0.0\)"):
        SharpnessAware(sgd(), direction=L2())
    with pytest.raises(TypeError, match=r"got the class Ema; write Ema\(\)"):
        SharpnessAware(sgd(), direction=Ema)


def test_parts_with_bad_settings() -> None:
    with pytest.raises(ValueError, match=r'init must be "first" or "zero", got \'last\''):
        Ema(0.4, init="last")
    with pytest.raises(ValueError, match="eps must be at least 0 and finite, got -1"):
        L2(eps=-1)


def test_two_parts_with_a_setting_of_one_name() -> None:
    @dataclass(frozen=True)
    class Other(Geometry):
        theta: float = 0.5
        scheduled: ClassVar = {"theta": Range()}

    with pytest.raises(ValueError, match="two parts have a setting called 'theta'"):
        SharpnessAware(sgd(), direction=Ema(), geometry=Other())


def test_a_model_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module or None, got list"):
        SAM(sgd(), model=[nn.Linear(2, 2)])


def test_a_model_of_other_parameters() -> None:
    with pytest.raises(
        ValueError, match=r"model \(Linear\) has none of the optimizer's parameters"
    ):
        SAM(sgd(), model=nn.Linear(2, 2))


def test_a_failed_construction_leaves_the_base_free() -> None:
    base = sgd()
    with pytest.raises(ValueError, match="none of the optimizer's parameters"):
        SAM(base, model=nn.Linear(2, 2))
    assert "rho" not in base.param_groups[0]
    SAM(base)


def test_a_sparse_gradient_where_it_would_be_climbed() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    opt = SAM(torch.optim.SGD(embedding.parameters(), lr=0.1))
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([1, 2])).sum().backward()
    with (
        pytest.raises(
            TypeError, match=r"shape \(5, 2\) has a sparse gradient.*give its group rho=0"
        ),
        opt.ascended(),
    ):
        pytest.fail("the body must not run")
    assert torch.equal(embedding.weight, before)
    assert not opt.perturbed


def test_a_complex_parameter() -> None:
    w = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    opt = SAM(sgd(w))
    w.abs().square().sum().backward()
    with pytest.raises(TypeError, match="is complex, which cannot be climbed"), opt.ascended():
        pytest.fail("the body must not run")


def test_a_closure_that_returns_no_loss() -> None:
    w = weight()
    opt = SAM(sgd(w))
    with pytest.raises(TypeError, match="the closure returned None: it has to zero the gradients"):
        opt.step(lambda: w.square().sum().backward())
    assert torch.equal(w, weight())


def test_a_closure_that_leaves_no_gradient() -> None:
    w = weight()
    opt = SAM(sgd(w))
    with pytest.raises(RuntimeError, match=r"left no gradient on any parameter: does it call back"):
        opt.step(lambda: w.square().sum())


def test_a_second_pass_that_leaves_no_gradient() -> None:
    w = weight()
    opt = SAM(sgd(w))
    w.square().sum().backward()
    told = r"second pass, at w \+ epsilon, left no gradient"
    with pytest.raises(RuntimeError, match=told), opt.ascended():
        pass
    assert torch.equal(w, weight())


def test_an_optimizer_in_backward_is_found_out() -> None:
    w = weight()
    opt = SAM(sgd(w))
    w.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))

    def closure() -> Tensor:
        loss = w.square().sum()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="optimizer-in-backward"):
        opt.step(closure)


def test_ascended_without_a_gradient() -> None:
    with (
        pytest.raises(RuntimeError, match=r"ascended\(\) found no gradient: call backward\(\)"),
        SAM(sgd()).ascended(),
    ):
        pytest.fail("the body must not run")


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("step()", lambda opt: opt.step()),
        ("step()", lambda opt: opt.step(lambda: 0.0)),
        ("ascended()", lambda opt: opt.ascended().__enter__()),
        ("state_dict()", lambda opt: opt.state_dict()),
        ("load_state_dict()", lambda opt: opt.load_state_dict({"state": {}, "param_groups": []})),
        ("unwrap()", lambda opt: opt.unwrap()),
        ("a copy", lambda opt: opt.__getstate__()),
    ],
)
def test_what_may_not_be_done_inside_ascended(name: str, act: object) -> None:
    w = weight()
    opt = SAM(sgd(w))
    w.square().sum().backward()
    with pytest.raises(RuntimeError) as error, opt.ascended():
        act(opt)
    assert str(error.value).startswith(f"{name} inside ascended()")
    assert torch.equal(w, weight())


def test_recompute_refuses_weights_of_low_precision() -> None:
    w = weight().detach().bfloat16().requires_grad_()
    with pytest.raises(ValueError, match=r"would not bring torch.bfloat16 weights home.*copy"):
        SAM(sgd(w), restore="recompute")


def test_recompute_refuses_a_group_of_low_precision_that_comes_later() -> None:
    w = weight()
    opt = SAM(sgd(w), restore="recompute")
    late = weight().detach().bfloat16().requires_grad_()
    opt.add_param_group({"params": [late]})
    loss_of(opt).backward()
    told = r"would not bring torch.bfloat16 weights home"
    with pytest.raises(ValueError, match=told), opt.ascended():
        pytest.fail("the body must not run")
    assert torch.equal(w, weight())


def test_recompute_leaves_a_group_alone_that_is_not_climbed() -> None:
    low = weight().detach().bfloat16().requires_grad_()
    base = sgd({"params": [weight()]}, {"params": [low], "rho": 0.0})
    assert SAM(base, restore="recompute").param_groups[1]["rho"] == 0


def test_recompute_refuses_a_ball_that_changes_with_the_weights() -> None:
    @dataclass(frozen=True)
    class Relative(Geometry):
        depends_on_w: ClassVar[bool] = True

    with pytest.raises(
        ValueError, match=r"cannot be used with Relative\(\).*depends on the weights"
    ):
        SharpnessAware(sgd(), geometry=Relative(), restore="recompute")


def test_an_abstract_part_is_not_a_method() -> None:
    w = weight()
    opt = SharpnessAware(sgd(w), direction=Direction())
    w.square().sum().backward()
    with pytest.raises(NotImplementedError), opt.ascended():
        pytest.fail("the body must not run")
    assert torch.equal(w, weight())
