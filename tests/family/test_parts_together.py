"""Parts that do not fit together are refused; those that have to know of each other do."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.family.steps import (
    BATCH,
    Make,
    One,
    Task,
    assert_same,
    flat,
    frozen,
    momentum,
    norm,
    records,
    train,
)
from vasso import (
    MSAM,
    S2SAM,
    After,
    Bernoulli,
    Chunks,
    DynamicMask,
    Ema,
    FisherMask,
    FrankWolfe,
    FriendlySAM,
    GradientNormPenalty,
    LateSAM,
    LayerRelative,
    MeanOfPath,
    MultiStep,
    RefreshAdaptive,
    RefreshEveryK,
    RefreshRandomly,
    ReusedSAM,
    Samples,
    Sarah,
    SelectTop,
    SharpnessAware,
    SparseSAM,
    Storm,
    StormSAM,
    Svrg,
)
from vasso.directions import BaseMomentum, LastGradient

# -- errors ---------------------------------------------------------------------------------------


def build(**parts: Any) -> SharpnessAware:
    task = Task(torch.float32)
    return SharpnessAware(momentum(task.params()), model=task.model, **parts)


@pytest.mark.parametrize(
    "policy", [RefreshEveryK(3), RefreshRandomly(), RefreshAdaptive(), After(3, RefreshEveryK(3))]
)
def test_a_policy_that_spares_gradients_needs_a_slope_that_can_wait(policy: Any) -> None:
    with pytest.raises(ValueError, match=r"Refresh\w+\(.*spares gradients at w.*stale=\"stay\""):
        build(direction=Ema(0.4), policy=policy)


@pytest.mark.parametrize("direction", [BaseMomentum(), LastGradient()])
@pytest.mark.parametrize(
    "part",
    [
        {"descent": GradientNormPenalty()},
        {"geometry": DynamicMask()},
    ],
    ids=str,
)
def test_parts_that_need_the_gradient_at_w_refuse_methods_without(
    direction: Any, part: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"needs the gradient at w, but \w+\(\) never takes one"):
        build(direction=direction, **part)


@pytest.mark.parametrize("part", [{"descent": GradientNormPenalty()}, {"geometry": DynamicMask()}])
def test_parts_that_need_the_gradient_at_w_refuse_to_be_spared(part: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"in every step, but RefreshEveryK\(k=5\) spares some"):
        build(direction=Ema(0.4, stale="stay"), policy=RefreshEveryK(), **part)


@pytest.mark.parametrize("ascent", [MultiStep(2), FrankWolfe(2)])
@pytest.mark.parametrize("direction", [BaseMomentum(), LastGradient()])
def test_slopes_that_ignore_gradients_refuse_several_points(ascent: Any, direction: Any) -> None:
    with pytest.raises(ValueError, match=r"looks at the slope of each point, but .* OneStep\(\)"):
        build(ascent=ascent, direction=direction)


@pytest.mark.parametrize("ascent", [MultiStep(2), FrankWolfe(2)])
@pytest.mark.parametrize(
    "part",
    [
        {"direction": Storm()},
        {"direction": Svrg()},
        {"direction": Sarah()},
        {"geometry": FisherMask()},
    ],
    ids=str,
)
def test_parts_that_take_gradients_of_their_own_refuse_several_points(
    ascent: Any, part: dict[str, Any]
) -> None:
    with pytest.raises(
        ValueError, match=r"takes gradients of its own only at w, .* climbs further"
    ):
        build(ascent=ascent, **part)


@pytest.mark.parametrize("ascent", [MultiStep(2), FrankWolfe(2)])
def test_the_way_home_of_several_points_cannot_be_recomputed(ascent: Any) -> None:
    with pytest.raises(ValueError, match=r"recompute.* cannot be used with .*sum of several.*copy"):
        build(ascent=ascent, restore="recompute")


@pytest.mark.parametrize("geometry", [LayerRelative(), DynamicMask(), FisherMask()])
def test_the_way_home_in_a_ball_of_the_weights_cannot_be_recomputed(geometry: Any) -> None:
    with pytest.raises(
        ValueError, match=r"recompute.* cannot be used with .*depends on the weights"
    ):
        build(geometry=geometry, restore="recompute")


@pytest.mark.parametrize("direction", [Svrg(), Sarah()])
def test_a_full_gradient_without_a_source(direction: Any) -> None:
    task = Task(torch.float32)
    before = task.flat()
    opt = SharpnessAware(momentum(task.params()), direction=direction, model=task.model)
    with pytest.raises(TypeError, match=r"(Svrg|Sarah)\(every=50\) needs .*pass source="):
        opt.step(task.samples(opt, 0))
    assert_same(task.flat(), before)


@pytest.mark.parametrize(
    "base",
    [
        partial(torch.optim.SGD, lr=0.1),
        partial(torch.optim.Adagrad, lr=0.1),
        partial(torch.optim.RMSprop, lr=0.1),
    ],
)
def test_msam_needs_a_base_with_momentum(base: Any) -> None:
    with pytest.raises(ValueError, match=rf"{base.func.__name__} has no momentum to climb along"):
        MSAM(base(Task().params()))


def test_msam_needs_momentum_in_every_group() -> None:
    first, *rest = Task().params()
    with pytest.raises(ValueError, match="SGD has no momentum"):
        MSAM(momentum([{"params": [first], "momentum": 0.0}, {"params": rest}]))


def test_the_fisher_mask_needs_to_see_samples() -> None:
    with pytest.raises(TypeError, match=r"FisherMask\(.* has to see samples: pass a vasso.Batch"):
        build(geometry=FisherMask()).step(lambda: None)


@pytest.mark.parametrize(
    "parts",
    [
        {"direction": Storm()},
        {"direction": Svrg()},
        {"direction": Sarah()},
        {"geometry": FisherMask()},
        {"ascent": MultiStep(2)},
        {"ascent": FrankWolfe(2)},
    ],
    ids=str,
)
def test_a_loop_of_ones_own_cannot_give_further_gradients(parts: dict[str, Any]) -> None:
    opt = build(**parts)
    opt.param_groups[0]["params"][0].sum().backward()
    with (
        pytest.raises(RuntimeError, match=r"needs passes of its own, .*use step\(closure\)"),
        opt.ascended(),
    ):
        pass


@pytest.mark.parametrize("method", [MSAM, S2SAM, FriendlySAM, StormSAM])
def test_methods_with_a_slope_of_their_own_take_no_theta(method: Any) -> None:
    with pytest.raises(TypeError, match=rf"{method.__name__} takes no theta: its slope is"):
        method(momentum(Task().params()), theta=0.4)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (partial(After, -1), "start must be at least 0, got -1"),
        (partial(RefreshEveryK, 0), "k must be a whole number, at least 1, got 0"),
        (partial(RefreshRandomly, 1.5), "p must be at least 0 and at most 1, got 1.5"),
        (partial(RefreshAdaptive, "flatt"), 'rule must be "flat", "sharp" or "ratio", got'),
        (partial(RefreshAdaptive, z=1.0), "z must be above 1, got 1"),
        (partial(RefreshAdaptive, lam=1.5), "lam must be at least 0 and at most 1, got 1.5"),
        (partial(Ema, stale="wait"), 'stale must be "stay", "follow" or None, got'),
        (partial(MultiStep, 0), "n must be a whole number, at least 1, got 0"),
        (partial(MultiStep, 2, "n"), 'stride must be "rho" or "rho/n", got'),
        (partial(FrankWolfe, 0), "K must be a whole number, at least 1, got 0"),
        (partial(Storm, 0.0), "a must be above 0 and at most 1, got 0"),
        (partial(Svrg, 0), "every must be a whole number, at least 1, got 0"),
        (partial(Sarah, 0), "every must be a whole number, at least 1, got 0"),
        (partial(DynamicMask, sparsity=1.0), "sparsity must be below 1"),
        (partial(DynamicMask, every=0), "every at least 1, got 0.5, 0"),
        (partial(FisherMask, sparsity=-0.1), "sparsity must be at least 0, got -0.1"),
        (partial(DynamicMask, drop=1.5), "drop must be at least 0 and at most 1, got 1.5"),
        (
            partial(FriendlySAM, momentum([torch.zeros(1)]), lam=1.0),
            "lam must be at least 0 and below 1, got 1",
        ),
        (
            partial(FriendlySAM, momentum([torch.zeros(1)]), use="newest"),
            'use must be "new" or "old", got',
        ),
        (
            partial(SparseSAM, momentum([torch.zeros(1)]), mask="fish"),
            "mask must be one of .* Did you mean 'fisher'",
        ),
    ],
)
def test_settings_out_of_range_are_named(make: Make, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


def test_the_mean_of_the_path_needs_nothing_at_w() -> None:
    """So it may go with a slope that is spared; with one point it is what SAM descends by."""
    settings = {"direction": Ema(0.3, stale="stay"), "policy": RefreshEveryK(3)}
    mean = train(partial(SharpnessAware, descent=MeanOfPath(), **settings))
    assert_same(mean, train(partial(SharpnessAware, **settings)))


# -- parts that have to know of each other --------------------------------------------------------


def test_a_dynamic_mask_is_exchanged_once_however_many_points_are_visited() -> None:
    def masks(ascent: Any) -> list[Tensor]:
        geometry = DynamicMask(sparsity=0.5, every=3, drop=0.5)
        make = partial(SharpnessAware, geometry=geometry, ascent=ascent, rho=0.2)
        taken = records(make, frozen, steps=4)
        return [flat([opt._memories[p]["mask"] for p in r.params]) for r, _, opt in taken]

    for one, many in zip(masks(MultiStep(1)), masks(MultiStep(3)), strict=True):
        assert_same(many, one)


def test_chunks_with_a_kept_mask_are_refused() -> None:
    base = momentum(Task().params())
    with pytest.raises(ValueError, match="keeps a mask, which has no mean over"):
        SharpnessAware(base, geometry=DynamicMask(sparsity=0.5, every=2), plan=Chunks(8))


def test_many_steps_up_by_layers_may_pass_a_layer_of_zeros() -> None:
    task = Task()
    nn.init.zeros_(task.model[3].weight)
    opt = SharpnessAware(
        momentum(task.params()), geometry=LayerRelative(), ascent=MultiStep(2), model=task.model
    )
    for t in range(3):
        opt.step(task.samples(opt, t))
    assert opt.skipped == 0


@pytest.mark.parametrize("direction", [Storm(0.1), Sarah(50), Svrg(5)], ids=str)
def test_a_correction_goes_back_with_all_weights_also_those_that_are_not_climbed(
    direction: Any,
) -> None:
    """One batch again and again, so that d has to be g; biases have rho = 0."""
    task = Task()
    weights = [p for p in task.params() if p.dim() > 1]
    biases = [p for p in task.params() if p.dim() == 1]
    base = momentum([{"params": weights}, {"params": biases, "rho": 0.0}])
    opt = SharpnessAware(base, direction=direction, source=One(task, base), model=task.model)
    errors = []
    opt.observe(lambda r: errors.append((flat(r.d) - flat(r.g)).abs().max().item()))
    for _ in range(8):
        opt.step(task.samples(opt, 0))
    assert max(errors) < 1e-14


@pytest.mark.parametrize("direction", [Storm(0.1), Sarah(50)], ids=str)
def test_a_skipped_step_does_not_make_a_correction_count_twice(direction: Any) -> None:
    """One batch again and again, so that d has to be g; the last pass of step 3 is not finite."""
    task = Task()
    base = momentum(task.params())
    opt = SharpnessAware(base, direction=direction, source=One(task, base), model=task.model)
    errors, passes = [], []
    opt.observe(lambda r: errors.append((flat(r.d) - flat(r.g)).abs().max().item()))

    class Broken(Samples):
        def __call__(self) -> Tensor:
            loss = super().__call__()
            passes.append(len(errors))
            if passes.count(3) == 3:  # at w, at the weights before, and this one above w
                for p in task.params():
                    p.grad.mul_(math.nan)
            return loss

    batch = task.samples(opt, 0)
    for _ in range(8):
        opt.step(Broken(batch.zero_grad, batch.losses_of, *batch.tensors))
    assert opt.skipped == 1
    assert max(errors) < 1e-14


def test_samples_are_chosen_by_their_rise_above_w_whatever_a_slope_has_asked_since() -> None:
    task = Task()
    opt = SharpnessAware(
        momentum(task.params()),
        direction=Storm(0.1),
        plan=SelectTop(0.5),
        rho=0.2,
        model=task.model,
    )
    used = []

    class Watched(Samples):
        def subset(self, indices: Tensor) -> Samples:
            used.append(indices.tolist())
            return super().subset(indices)

    for t in range(6):
        batch = task.samples(opt, t)
        at_w = batch.losses()
        up = {}
        handle = opt.observe(lambda r, up=up: up.update(zip(r.params, r.epsilon, strict=True)))
        home = [p.detach().clone() for p in task.params()]
        opt.step(Watched(batch.zero_grad, batch.losses_of, *batch.tensors))
        handle.remove()
        above = Task()
        with torch.no_grad():
            for p, x, ours in zip(above.params(), home, task.params(), strict=True):
                p.copy_(x + up[ours])
        rise = above.samples(opt, t).losses() - at_w
        assert used[-1] == sorted(rise.topk(BATCH // 2).indices.tolist())


@pytest.mark.parametrize("stale", ["stay", "follow"])
def test_a_slope_of_any_size_is_climbed_also_in_a_spared_step(stale: Any) -> None:
    model = nn.Linear(2, 1, bias=False)
    base = torch.optim.SGD(model.parameters(), lr=0.0)
    opt = ReusedSAM(base, rho=0.5, refresh=RefreshEveryK(3), stale=stale, model=model)
    lengths = []
    opt.observe(lambda r: lengths.append(norm(r.epsilon)))

    def closure() -> Tensor:
        opt.zero_grad()
        loss = 1e-25 * model.weight.sum()
        loss.backward()
        return loss

    for _ in range(3):
        opt.step(closure)
    assert lengths == pytest.approx([0.5] * 3, rel=1e-6)  # float32


@pytest.mark.parametrize("other", [0.7, lambda step, lr: 0.7], ids=["number", "schedule"])
def test_the_p_of_a_late_coin_does_not_bind_a_checkpoint(other: Any) -> None:
    def late(p: Any) -> LateSAM:
        task = Task()
        return LateSAM(momentum(task.params()), start=2, then=Bernoulli(p), model=task.model)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checkpoint's p wins
        late(other).load_state_dict(late(0.5).state_dict())


def test_a_fisher_mask_and_a_choice_of_samples_go_together() -> None:
    task = Task(torch.float32)
    opt = SharpnessAware(
        momentum(task.params()), geometry=FisherMask(), plan=SelectTop(0.5), model=task.model
    )
    opt.step(task.samples(opt, 0))
    assert opt.last.climbed


def test_a_fisher_mask_needs_to_see_samples_of_other_ascent_data_too() -> None:
    task = Task(torch.float32)
    opt = SparseSAM(momentum(task.params()), model=task.model)
    batch = task.samples(opt, 0)
    with pytest.raises(TypeError, match=r"FisherMask\(.* has to see samples: pass a vasso.Batch"):
        opt.step(batch, ascent_closure=lambda: batch())
