"""Ascents: several steps and Frank-Wolfe follow their twins and end inside the ball."""

from functools import partial
from typing import Any

import pytest

from tests.reference import trajectories as twins
from tests.support.compare import flat
from tests.support.slopes import Task, adamw, assert_near, momentum, norm, ours, path_of, records
from vasso import (
    L2,
    Adaptive,
    Ema,
    FrankWolfe,
    FrankWolfeSAM,
    LayerRelative,
    Linf,
    MultiStep,
    MultiStepSAM,
    SharpnessAware,
    StepRecord,
)


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("stride", ["rho", "rho/n"])
def test_many_steps_up_each_with_its_own_slope(stride: str, mean: bool, theta: float) -> None:
    settings = {"rho": 0.2, "n": 3, "mean": mean, "theta": theta}
    length = 0.2 if stride == "rho" else 0.2 / 3
    twin = path_of(twins.multi_step, stride=length, **settings)
    assert_near(ours(partial(MultiStepSAM, stride=stride, **settings)), twin)


@pytest.mark.parametrize("theta", [1.0, 0.3])
@pytest.mark.parametrize("faded", [False, True])
@pytest.mark.parametrize("K", [2, 4])
def test_frank_wolfe_goes_part_of_the_way_to_each_top(K: int, faded: bool, theta: float) -> None:
    settings = {"rho": 0.2, "K": K, "momentum": faded, "theta": theta}
    assert_near(ours(partial(FrankWolfeSAM, **settings)), path_of(twins.frank_wolfe, **settings))


@pytest.mark.parametrize("method", [MultiStepSAM, FrankWolfeSAM])
def test_many_steps_up_with_adamw(method: Any) -> None:
    if method is MultiStepSAM:
        twin = path_of(twins.multi_step, adamw, rho=0.2, n=2, stride=0.2)
    else:
        twin = path_of(twins.frank_wolfe, adamw, rho=0.2, K=2)
    assert_near(ours(partial(method, rho=0.2), adamw), twin)


@pytest.mark.parametrize("ascent", [MultiStep(3), MultiStep(4, "rho/n"), FrankWolfe(3)])
def test_points_between_do_not_enter_the_memory(ascent: Any) -> None:
    """d_t is the average of the gradients at w, however many points were visited above."""
    average = None
    make = partial(SharpnessAware, rho=0.2, direction=Ema(0.3), ascent=ascent)
    for record, _, opt in records(make):
        g = flat(record.g)
        average = g if average is None else 0.7 * average + 0.3 * g
        kept = flat([opt._vectors[p]["d"] for p in record.params])
        assert_near(kept, average, atol=1e-15)  # convex combinations of numbers below 1


BALLS = {
    "the Euclidean ball": (L2(), lambda e, x: norm(e)),
    "the cube": (Linf(), lambda e, x: flat(e).abs().max().item()),
    "the ball of ASAM": (
        Adaptive(),
        lambda e, x: norm([
            a / (w.abs() + 0.01) if w.dim() > 1 else a for a, w in zip(e, x, strict=True)
        ]),
    ),
    "the balls of the layers": (
        LayerRelative(),
        lambda e, x: max(norm([a]) / norm([w]) for a, w in zip(e, x, strict=True) if w.dim() > 1),
    ),
}


@pytest.mark.parametrize("ball", BALLS)
@pytest.mark.parametrize("ascent", [MultiStep(3), MultiStep(3, "rho/n"), FrankWolfe(3)])
def test_many_steps_up_end_inside_the_ball(ascent: Any, ball: str) -> None:
    geometry, length = BALLS[ball]
    make = partial(SharpnessAware, rho=0.3, geometry=geometry, ascent=ascent)
    lengths = [length(record.epsilon, home) for record, home, _ in records(make)]
    assert min(lengths) > 0.1
    assert max(lengths) <= 0.3 * (1 + 1e-12)  # x + e - x rounds


def test_a_long_stride_ends_on_the_surface_and_a_short_one_or_frank_wolfe_inside() -> None:
    def gap(ascent: Any) -> float:
        make = partial(SharpnessAware, rho=0.3, ascent=ascent)
        return 0.3 - max(norm(record.epsilon) for record, *_ in records(make))

    gaps = [gap(ascent) for ascent in (MultiStep(3), MultiStep(3, "rho/n"), FrankWolfe(3))]
    assert [gap > 1e-5 for gap in gaps] == [False, True, True]
    assert abs(gaps[0]) < 1e-13  # x + e - x rounds


@pytest.mark.parametrize("ascent", [MultiStep(3), FrankWolfe(3)])
def test_the_ball_of_many_steps_may_differ_by_group(ascent: Any) -> None:
    """|| (e_1 / rho_1, e_2 / rho_2) || <= 1."""
    task = Task()
    first, second, third, fourth = task.params()
    groups = [{"params": [first, second], "rho": 0.2}, {"params": [third, fourth], "rho": 0.8}]
    opt = SharpnessAware(momentum(groups), ascent=ascent, model=task.model)
    lengths = []

    def look(record: StepRecord) -> None:
        a, b, c, d = record.epsilon
        lengths.append(norm([a / 0.2, b / 0.2, c / 0.8, d / 0.8]))

    opt.observe(look)
    for t in range(8):
        opt.step(task.samples(opt, t))
    assert min(lengths) > 0.9
    assert max(lengths) <= 1 + 1e-12  # x + e - x rounds
