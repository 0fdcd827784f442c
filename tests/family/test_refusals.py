"""Settings and crossings without meaning are refused, with the remedy."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from tests.family.batches import (
    assert_same,
    batch,
    closure_of,
    conv,
    each_loss,
    flat,
    made,
    mlp,
    simple,
)
from vasso import presets
from vasso.ascents import MultiStep
from vasso.descents import Reuse, SurrogateGap
from vasso.directions import Ema, Random
from vasso.geometries import Adaptive, Fisher, RandomMask
from vasso.optimizer import SharpnessAware
from vasso.plans import Samples
from vasso.policies import AdaptiveNorm, RefreshEveryK
from vasso.presets import (
    AESAM,
    ASAM,
    ESAM,
    GSAM,
    SSSAM,
    ChunkedSAM,
    FisherSAM,
    LookSAM,
    NoisySAM,
    SubSampledSAM,
)

each_that_needs_samples = pytest.mark.parametrize("preset", [ChunkedSAM, SubSampledSAM, ESAM])


@each_that_needs_samples
def test_a_method_that_has_to_see_samples_refuses_a_plain_closure(preset: type) -> None:
    opt, net = simple(preset)
    with pytest.raises(TypeError, match=r"has to see samples: pass a vasso\.Batch.*vasso\.Samples"):
        opt.step(closure_of(opt, net, *batch(0)))
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))
    assert opt.cost == 0


@each_that_needs_samples
def test_a_method_that_has_to_see_samples_refuses_the_callers_passes(preset: type) -> None:
    opt, net = simple(preset)
    each_loss(net, *batch(0)).mean().backward()
    told = r"needs passes of its own, which ascended\(\) cannot give: use step\(closure\)"
    with pytest.raises(RuntimeError, match=told), opt.ascended():
        pytest.fail("the body must not run")
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))


@each_that_needs_samples
def test_at_radius_zero_a_plain_closure_will_do(preset: type) -> None:
    opt, net = simple(preset, rho=0.0)
    opt.step(closure_of(opt, net, *batch(0)))
    assert opt.cost == 1


class Whole:
    """The full data of methods that want them, not used here."""

    def full(self) -> Any: ...

    fresh = full


REQUIRED = {"total": 10, "start": 3, "data": Whole()}

ALL = [
    preset
    for _, preset in inspect.getmembers(presets, inspect.isclass)
    if preset.__module__ == "vasso.presets" and issubclass(preset, SharpnessAware)
]


def required(preset: type) -> dict[str, Any]:
    """What a preset cannot be made without."""
    found = inspect.signature(preset).parameters
    return {name: value for name, value in REQUIRED.items() if name in found}


@pytest.mark.parametrize("preset", ALL)
def test_variance_suppression_is_a_setting_or_an_error(preset: type) -> None:
    """It is an error exactly where the slope is not an average of batch gradients."""
    base = SGD(made(mlp).parameters(), lr=0.1, momentum=0.9)
    if "theta" in inspect.signature(preset).parameters:
        opt = preset(base, theta=0.3, **required(preset))
        assert isinstance(opt.direction, Ema)
        assert opt.param_groups[0]["theta"] == 0.3
        return
    with pytest.raises(TypeError, match=rf"{preset.__name__} takes no theta: its slope is \w+\("):
        preset(base, theta=0.3, **required(preset))
    assert not isinstance(preset(base, **required(preset)).direction, Ema)


def test_a_probability_that_differs_by_group_is_refused() -> None:
    net = made(mlp)
    groups = [{"params": list(net[0].parameters())}, {"params": list(net[2].parameters()), "p": 1}]
    opt = SSSAM(SGD(groups, lr=0.1), p=0.5, model=net)
    told = r"p belongs to the policy and must be the same in all groups: \[0\.5, 1\.0\]"
    with pytest.raises(ValueError, match=told):
        opt.step(closure_of(opt, net, *batch(0)))
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"direction": Random(), "descent": SurrogateGap()}, r"SurrogateGap.*Random.* never takes"),
        ({"direction": Random(), "descent": Reuse()}, r"Reuse.*needs the gradient at w.*Random"),
        ({"direction": Random(), "policy": AdaptiveNorm(9)}, r"AdaptiveNorm.*Random.* never takes"),
        ({"direction": Random(), "geometry": Fisher()}, r"Fisher.*needs the gradient at w.*Random"),
        ({"direction": Random(), "ascent": MultiStep(2)}, r"MultiStep.*Random.* ignores gradients"),
        *(
            (
                {"direction": Ema(0.4, stale="stay"), "policy": RefreshEveryK(), kind: part},
                rf"{type(part).__name__}.*in every step, but RefreshEveryK.* spares",
            )
            for kind, part in (
                ("descent", SurrogateGap()),
                ("descent", Reuse()),
                ("geometry", Fisher()),
            )
        ),
        ({"policy": RefreshEveryK()}, r"RefreshEveryK.* spares.*use Ema\(theta, stale="),
        ({"geometry": Adaptive(), "restore": "recompute"}, r"recompute.*Adaptive.*Use restore="),
        ({"geometry": RandomMask(), "restore": "recompute"}, r"recompute.*RandomMask.*Use restore"),
    ],
)
def test_a_crossing_without_meaning_is_refused(parts: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        simple(SharpnessAware, **parts)


@pytest.mark.parametrize(
    ("preset", "settings", "told"),
    [
        (ASAM, {"eta": -1.0}, r"eta must be at least 0, got -1"),
        (FisherSAM, {"eta": -1.0}, r"eta must be at least 0, got -1"),
        (FisherSAM, {"source": "batches"}, r"source must be .*\"ema\".* got 'batches'"),
        (GSAM, {"minimise": "both"}, r"minimise must be \"perturbed\" or \"clean\", got 'both'"),
        (GSAM, {"alpha": math.nan}, r"alpha must be finite, got nan"),
        (NoisySAM, {"kappa": -1.0}, r"kappa must be at least 0, got -1"),
        (NoisySAM, {"sigma": -1.0}, r"sigma must be at least 0, got -1"),
        (ChunkedSAM, {"m": 0}, r"m must be a whole number, at least 1, got 0"),
        (SubSampledSAM, {"m": 0}, r"m must be a whole number, at least 1, got 0"),
        (LookSAM, {"k": 2.5}, r"k must be a whole number, at least 1, got 2.5"),
        (LookSAM, {"k": "two"}, r"k must be a whole number, at least 1, got 'two'"),
        (LookSAM, {"k": 0}, r"k must be a whole number, at least 1, got 0"),
        (ESAM, {"beta": 0.0}, r"beta must be above 0 and at most 1, got 0"),
        (ESAM, {"beta": 1.5}, r"beta must be above 0 and at most 1, got 1.5"),
        (ESAM, {"gamma": 0.0}, r"gamma must be above 0 and at most 1, got 0"),
        (ESAM, {"level": "layer"}, r"level must be \"element\" or \"tensor\", got 'layer'"),
        (SSSAM, {"p": 1.5}, r"p must be at least 0 and at most 1, got 1.5"),
        (AESAM, {"total": 0}, r"total must be a whole number, at least 1, got 0"),
        (AESAM, {"total": 9, "delta": 2.0}, r"delta must be at least 0 and at most 1, got 2"),
    ],
)
def test_a_setting_out_of_range(preset: type, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        simple(preset, **settings)


def test_a_part_with_a_setting_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"decompose must be \"batch\" or \"slope\", got 'both'"):
        SurrogateGap(decompose="both")
    with pytest.raises(ValueError, match="p must be 2 or infinity, got 1"):
        Adaptive(p=1)


def test_losses_that_are_not_one_for_each_sample() -> None:
    opt, net = simple(ChunkedSAM, m=11)
    whole = Samples(opt.zero_grad, lambda x, y: cross_entropy(net(x), y), *batch(0))
    told = r"one loss for each of 11 samples, got shape \(\): use reduction=\"none\""
    with pytest.raises(ValueError, match=told):
        opt.step(whole)


def test_samples_that_do_not_fit_together() -> None:
    x, y = batch(0)
    with pytest.raises(ValueError, match=r"one length above 0, got \{.*\}"):
        Samples(lambda: None, lambda x, y: x, x, y[1:])


def test_asam_warns_if_it_cannot_tell_biases_by_their_names() -> None:
    net = made(conv)
    opt = ASAM(SGD(net.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=r"names of the parameters are not known.*pass model="):
        opt.step(closure_of(opt, net, *batch(0)))


def test_asam_takes_names_from_torch() -> None:
    def run(named: bool) -> Tensor:
        net = made(conv)
        params = net.named_parameters() if named else net.parameters()
        opt = ASAM(SGD(params, lr=0.1), model=None if named else net)
        opt.step(closure_of(opt, net, *batch(0)))
        return flat(net.parameters())

    assert_same(run(named=True), run(named=False))
