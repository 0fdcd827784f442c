"""Compatibility: parts that do not fit together are refused; parts that affect each other agree."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.batches import batch, closure_of, each_loss, made, mlp, simple
from tests.support.compare import assert_same, flat
from tests.support.problems import take_step
from tests.support.slopes import BATCH, One, Task, frozen, momentum, norm, records, train
from vasso import (
    ESAM,
    Adaptive,
    AdaptiveNorm,
    After,
    BaseMomentum,
    ChunkedSAM,
    Chunks,
    DynamicMask,
    Ema,
    Fisher,
    FisherMask,
    FrankWolfe,
    GradientNormPenalty,
    HalfSAM,
    LastGradient,
    LayerRelative,
    MeanOfPath,
    MultiStep,
    Random,
    RandomMask,
    RefreshAdaptive,
    RefreshEveryK,
    RefreshRandomly,
    Reuse,
    ReusedSAM,
    Samples,
    Sarah,
    SelectTop,
    SharpnessAware,
    SparseSAM,
    Storm,
    SubSampledSAM,
    SurrogateGap,
    Svrg,
)

WITHOUT_GRADIENT = (BaseMomentum(), LastGradient())
SEVERAL_POINTS = (MultiStep(2), FrankWolfe(2))
AT_W = ({"descent": GradientNormPenalty()}, {"geometry": DynamicMask()})
OF_ITS_OWN = (
    {"direction": Storm()},
    {"direction": Svrg()},
    {"direction": Sarah()},
    {"geometry": FisherMask()},
)
Refused = tuple[dict[str, Any], str]
"""Parts, and what the error says of them."""


def build(**parts: Any) -> SharpnessAware:
    task = Task(torch.float32)
    return SharpnessAware(momentum(task.params()), model=task.model, **parts)


# fmt: off
CONTRADICTIONS: list[Refused] = [
    *(({"direction": Ema(0.4), "policy": p}, r"Refresh\w+\(.*spares gradients at w.*stale=")
        for p in (RefreshEveryK(3), RefreshRandomly(), RefreshAdaptive(),
                  After(3, RefreshEveryK(3)))),
    *(
        ({"direction": direction, **part}, r"needs the gradient at w, but \w+\(\) never takes one")
        for direction in WITHOUT_GRADIENT
        for part in AT_W
    ),
    *(({"direction": Ema(0.4, stale="stay"), "policy": RefreshEveryK(), **part},
        r"in every step, but RefreshEveryK\(k=5\) spares some") for part in AT_W),
    *(
        ({"ascent": ascent, "direction": direction}, r"slope of each point, but .* OneStep\(\)")
        for ascent in SEVERAL_POINTS
        for direction in WITHOUT_GRADIENT
    ),
    *(
        ({"ascent": ascent, **part}, r"takes gradients of its own only at w, .* has more points")
        for ascent in SEVERAL_POINTS
        for part in OF_ITS_OWN
    ),
    *(({"ascent": ascent, "restore": "recompute"},
        r"cannot be used with .*sum of several.*copy") for ascent in SEVERAL_POINTS),
    *(({"geometry": ball, "restore": "recompute"},
        r"cannot be used with .*depends on the weights")
        for ball in (LayerRelative(), DynamicMask(), FisherMask())),
    ({"geometry": DynamicMask(), "plan": Chunks(8)}, "keeps a mask, which has no mean over"),
    ({"direction": Random(), "descent": SurrogateGap()}, r"SurrogateGap.*Random.* never takes"),
    ({"direction": Random(), "plan": SelectTop(0.5)}, r"SelectTop.*Random"),
    ({"direction": Random(), "descent": Reuse()}, r"Reuse.*needs the gradient at w.*Random"),
    ({"direction": Random(), "policy": AdaptiveNorm(9)}, r"AdaptiveNorm.*Random.* never takes"),
    ({"direction": Random(), "geometry": Fisher()}, r"Fisher.*needs the gradient at w.*Random"),
    ({"direction": Random(), "ascent": MultiStep(2)}, r"MultiStep.*Random.* ignores gradients"),
    *(({"direction": Ema(0.4, stale="stay"), "policy": RefreshEveryK(), kind: part},
        rf"{type(part).__name__}.*in every step, but RefreshEveryK.* spares") for kind,
        part in (("descent", SurrogateGap()), ("descent", Reuse()), ("geometry", Fisher()))),
    ({"policy": RefreshEveryK()}, r"RefreshEveryK.* spares.*use Ema\(theta, stale="),
    ({"geometry": Adaptive(), "restore": "recompute"}, r"recompute.*Adaptive.*Use restore="),
    ({"geometry": RandomMask(), "restore": "recompute"}, r"recompute.*RandomMask.*Use restore"),
]
# fmt: on


@pytest.mark.parametrize(("parts", "message"), CONTRADICTIONS, ids=str)
def test_parts_that_contradict_each_other_are_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**parts)


each_that_needs_samples = pytest.mark.parametrize(
    "preset", [ChunkedSAM, HalfSAM, SubSampledSAM, ESAM, SparseSAM]
)


@each_that_needs_samples
def test_a_method_that_has_to_see_samples_refuses_a_plain_closure(preset: type) -> None:
    opt, net = simple(preset)
    with pytest.raises(TypeError, match=r"has to see samples: pass a vasso\.Batch.*vasso\.Samples"):
        opt.step(closure_of(opt, net, *batch(0)))
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))
    assert opt.cost == 0


@each_that_needs_samples
def test_at_radius_zero_a_plain_closure_will_do(preset: type) -> None:
    opt, net = simple(preset, rho=0.0)
    opt.step(closure_of(opt, net, *batch(0)))
    assert opt.cost == 1


@pytest.mark.parametrize("direction", [Svrg(), Sarah()])
def test_a_full_gradient_without_a_source(direction: Any) -> None:
    task = Task(torch.float32)
    before = task.flat()
    opt = SharpnessAware(momentum(task.params()), direction=direction, model=task.model)
    with pytest.raises(TypeError, match=r"(Svrg|Sarah)\(every=50\) needs .*pass source="):
        opt.step(task.samples(opt, 0))
    assert_same(task.flat(), before)


@pytest.mark.parametrize(
    "make",
    [ChunkedSAM, HalfSAM, SubSampledSAM, ESAM, SparseSAM]
    + [partial(SharpnessAware, **part) for part in OF_ITS_OWN]
    + [partial(SharpnessAware, ascent=ascent) for ascent in SEVERAL_POINTS],
)
def test_a_loop_of_ones_own_cannot_give_samples_or_further_gradients(make: Any) -> None:
    opt, net = simple(make)
    each_loss(net, *batch(0)).mean().backward()
    message = r"needs passes of its own, which ascended\(\) cannot give: use step\(closure\)"
    with pytest.raises(RuntimeError, match=message), opt.ascended():
        pytest.fail("the body must not run")
    assert_same(flat(net.parameters()), flat(made(mlp).parameters()))


def test_the_mean_of_the_path_needs_nothing_at_w() -> None:
    """So it may go with a slope that is spared; with one point it is what SAM descends by."""
    settings = {"direction": Ema(0.3, stale="stay"), "policy": RefreshEveryK(3)}
    mean = train(partial(SharpnessAware, descent=MeanOfPath(), **settings))
    assert_same(mean, train(partial(SharpnessAware, **settings)))


def test_a_dynamic_mask_is_exchanged_once_however_many_points_are_visited() -> None:
    def masks(ascent: Any) -> list[Tensor]:
        geometry = DynamicMask(sparsity=0.5, every=3, drop=0.5)
        make = partial(SharpnessAware, geometry=geometry, ascent=ascent, rho=0.2)
        taken = records(make, frozen, steps=4)
        return [flat([opt._vectors[p]["mask"] for p in r.params]) for r, _, opt in taken]

    for one, many in zip(masks(MultiStep(1)), masks(MultiStep(3)), strict=True):
        assert_same(many, one)


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
def test_corrections_go_back_with_all_weights(direction: Any) -> None:
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
    for _ in range(3):
        take_step(opt, lambda: 1e-25 * model.weight.sum())
    assert lengths == pytest.approx([0.5] * 3, rel=1e-6)  # float32


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
