"""Properties that hold for any shapes, groups, scales and missing gradients, tried by hypothesis.

Gradients are put there by hand, so that their scale can be anything a float32 holds: from 1e-30,
whose square is 0, to 1e30, whose square is infinite.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import SGD

from tests.reference import vasso as twin
from tests.reference.sam import Gradients, Group
from tests.support.compare import assert_near, assert_same, flat, records_of
from tests.support.problems import by_hand, known
from vasso import SAM, SharpnessAware, VaSSO

pytestmark = pytest.mark.thorough
SHAPES = [(), (0,), (1,), (3,), (2, 2), (4, 1, 2)]
DTYPES = [torch.float32, torch.float64]
LOW = [torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Step:
    scale: int
    first: tuple[bool, ...]
    second: tuple[bool, ...]
    seed: int

    def gradients(self, shapes: list[Any], dtype: torch.dtype) -> list[list[Tensor | None]]:
        random = torch.Generator().manual_seed(self.seed)
        found: list[list[Tensor | None]] = []
        for scale, there in ((10.0**self.scale, self.first), (1.0, self.second)):
            drawn = [torch.randn(s, generator=random, dtype=torch.float64) * scale for s in shapes]
            found.append([g.to(dtype) if t else None for g, t in zip(drawn, there, strict=True)])
        return found


@dataclass(frozen=True)
class Scene:
    shapes: list[tuple[int, ...]]
    places: list[int]
    rho: list[float]
    theta: list[float]
    dtype: torch.dtype
    steps: list[Step]

    def start(self, zero: bool = False) -> list[Tensor]:
        random = torch.Generator().manual_seed(1)
        drawn = [torch.randn(s, generator=random, dtype=torch.float64) for s in self.shapes]
        return [(0 * w if zero else w).to(self.dtype).requires_grad_() for w in drawn]

    def rows(self) -> list[list[int]]:
        return [[i for i, at in enumerate(self.places) if at == k] for k in range(len(self.rho))]

    def groups(self, w: list[Tensor]) -> list[dict[str, Any]]:
        return [
            {"params": [w[i] for i in rows], "rho": rho, "theta": theta}
            for rows, rho, theta in zip(self.rows(), self.rho, self.theta, strict=True)
        ]

    def ordered(self, values: list[Any]) -> list[Any]:
        return [values[i] for rows in self.rows() for i in rows]

    def play(self, opt: SharpnessAware) -> Any:
        for step in self.steps:
            first, second = step.gradients(self.shapes, self.dtype)
            by_hand(opt, self.ordered(first), self.ordered(second))
            yield step


@st.composite
def scenes(
    draw: st.DrawFn,
    dtypes: list[torch.dtype] = DTYPES,
    radii: tuple[float, ...] = (0.0, 0.05, 1.0, 20.0),
    scales: tuple[int, int] = (-30, 30),
    missing: bool = True,
) -> Scene:
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=5))
    n, k = len(shapes), draw(st.integers(1, 3))
    masks = st.tuples(*[st.booleans()] * n).filter(any) if missing else st.just((True,) * n)
    steps = st.builds(Step, st.integers(*scales), masks, masks, st.integers(0, 1000))
    return Scene(
        shapes,
        draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n)),
        draw(st.lists(st.sampled_from(radii), min_size=k, max_size=k)),
        draw(st.lists(st.sampled_from((0.01, 0.4, 0.9, 1.0)), min_size=k, max_size=k)),
        draw(st.sampled_from(dtypes)),
        draw(st.lists(steps, min_size=1, max_size=4)),
    )


def radii_over_rho(epsilon: list[Tensor], rho: list[float]) -> float:
    scaled = (e.double().norm().item() / r for e, r in zip(epsilon, rho, strict=True))
    return math.sqrt(math.fsum(x * x for x in scaled))


@settings(max_examples=2 * settings.default.max_examples)
@given(st.one_of(scenes(dtypes=DTYPES + LOW, scales=(-4, 2)), scenes()))
def test_a_copy_brings_weights_home_bit_for_bit(scene: Scene) -> None:
    w = scene.start()
    before = flat(w)
    for _ in scene.play(VaSSO(SGD(scene.groups(w), lr=0.0))):
        pass
    assert_same(flat(w), before)


@given(scenes(missing=False))
def test_recomputing_brings_weights_home_up_to_an_ulp_of_weight_and_adversary(scene: Scene) -> None:
    """Two roundings, each at most half an ulp of |w| + |epsilon|; so is epsilon's, in both ways."""
    w = scene.start()
    opt = VaSSO(SGD(scene.groups(w), lr=0.0), restore="recompute")
    records = records_of(opt)
    excess = []
    before = flat(w)
    for _ in scene.play(opt):
        pairs = zip(records[-1].params, records[-1].epsilon or [], strict=False)  # none, or all
        e = {id(p): x for p, x in pairs}
        moved = flat([e[id(p)] if id(p) in e else torch.zeros_like(p) for p in w]).abs()
        allowed = torch.finfo(scene.dtype).eps * (before.abs() + moved)
        excess.append(bool(((flat(w) - before).abs() > allowed).any()))
        before = flat(w)
    assert not any(excess)


@given(scenes(missing=False, scales=(-4, 4)))
def test_recomputing_visits_the_same_adversary(scene: Scene) -> None:
    """From weights of 0, where the way there has no rounding of its own."""
    seen = []
    for restore in ("copy", "recompute"):
        opt = VaSSO(SGD(scene.groups(scene.start(zero=True)), lr=0.0), restore=restore)  # type: ignore[arg-type]
        records = records_of(opt)
        next(scene.play(opt))
        seen.append(flat(records[0].epsilon or [torch.zeros(0)]))
    assert_same(seen[1], seen[0])


def lengths(scene: Scene, method: Any) -> list[tuple[float, float]]:
    """||epsilon / rho|| and what it should be, for each step that climbs, from weights of 0."""
    w = scene.start(zero=True)
    opt = method(SGD(scene.groups(w), lr=0.0))
    records, found = records_of(opt), []
    radius = {id(p): g["rho"] for g in opt.param_groups for p in g["params"]}
    for _ in scene.play(opt):
        r = records[-1]
        if r.epsilon is not None:
            length = radii_over_rho(r.epsilon, [radius[id(p)] for p in r.params])
            found.append((length, 1.0 if any(bool(d.any()) for d in r.d) else 0.0))
    return found


def assert_lengths(scene: Scene, method: Any) -> None:
    """A sum of n squares has a relative error of n roundings at most, epsilon a few more."""
    n = sum(math.prod(shape) for shape in scene.shapes)
    rounding = (n + 8) * torch.finfo(scene.dtype).eps
    found = lengths(scene, method)
    assert [x for x, _ in found] == pytest.approx([y for _, y in found], rel=rounding)


@given(scenes())
def test_the_adversary_of_sam_is_as_long_as_the_radius(scene: Scene) -> None:
    assert_lengths(replace(scene, theta=[1.0] * len(scene.rho)), SAM)


@settings(max_examples=2 * settings.default.max_examples, phases=[Phase.generate])
@given(scenes())
def test_the_adversary_of_vasso_is_as_long_as_the_radius(scene: Scene) -> None:
    assert_lengths(scene, VaSSO)


def radius_after(opt: SharpnessAware, *steps: list[float | None]) -> float:
    """||epsilon|| of the last of some steps, whose gradients have equal entries; weights are 0."""
    records = records_of(opt)
    params = [p for group in opt.param_groups for p in group["params"]]
    for values in steps:
        pairs = zip(params, values, strict=True)
        by_hand(opt, [None if v is None else torch.full_like(p, v) for p, v in pairs])
    return radii_over_rho(records[-1].epsilon or [], [1.0] * len(records[-1].params))


def zeros(n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(n, dtype=dtype, requires_grad=True)


HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
EXTREMES: dict[str, tuple[Any, list[tuple[int, torch.dtype]], list[list[float | None]]]] = {
    "large, away for a step": (
        VaSSO,
        [(2, SINGLE), (2, SINGLE)],
        [[1e25, 1.0], [None, 1.0], [1.0, 1.0]],
    ),
    "tiny in double beside single": (SAM, [(2, SINGLE), (1, DOUBLE)], [[0.0, 1e-60]]),
    "tiny in single beside half": (SAM, [(2, HALF), (1, SINGLE)], [[0.0, 1e-9]]),
    "large in half": (SAM, [(2, HALF)], [[6e4]]),
    "the largest": (SAM, [(4, SINGLE)], [[3e38]]),
    "small in double": (SAM, [(2, DOUBLE)], [[1e-200]]),
    "large in double": (SAM, [(2, DOUBLE)], [[1e200]]),
}
"""Method, tensors, the entries of their gradients in each step."""


@pytest.mark.parametrize("name", EXTREMES)
def test_a_slope_far_from_one_is_climbed(name: str) -> None:
    method, tensors, steps = EXTREMES[name]
    opt = method(SGD([zeros(*tensor) for tensor in tensors], lr=0.0), rho=0.1)
    rounding = 2**-10 if name == "large in half" else 1e-6  # a float16 has 11 bits
    assert radius_after(opt, *steps) == pytest.approx(0.1, rel=rounding)


def test_a_small_slope_beside_a_large_one_that_is_scheduled_at_zero_is_climbed() -> None:
    groups = [{"params": [zeros(2)], "rho": lambda step, lr: 0.0}, {"params": [zeros(2)]}]
    opt = SAM(SGD(groups, lr=0.0), rho=0.1)
    assert radius_after(opt, [1.0, 1.0], [1.0, 1e-25]) == pytest.approx(0.1, rel=1e-6)


@known("lerp takes the difference of -3e38 and 3e38, which is infinite")
def test_the_largest_slopes_there_are_have_an_average() -> None:
    w = zeros(2)
    opt = VaSSO(SGD([w], lr=0.0), rho=0.1, theta=0.25)
    radius_after(opt, [3e38], [-3e38])
    # 0.75 * 3e38 - 0.25 * 3e38
    assert opt.state[w]["vasso_d"].tolist() == pytest.approx([1.5e38] * 2, rel=1e-6)


@given(scenes(), st.data())
def test_no_number_that_is_not_finite_enters_a_slope(scene: Scene, data: st.DataObject) -> None:
    """One entry of one tensor in one of the passes of some steps is infinite or NaN."""
    w = scene.start()
    opt = VaSSO(SGD(scene.groups(w), lr=0.0))
    bad = st.sampled_from((None, math.inf, -math.inf, math.nan))
    for step in scene.steps:
        passes = step.gradients(scene.shapes, scene.dtype)
        for gradients in passes:
            value = data.draw(bad)
            hit = data.draw(st.integers(0, len(w) - 1))
            spoilt = gradients[hit]
            if value is not None and spoilt is not None and spoilt.numel():
                spoilt.view(-1)[-1] = value
        by_hand(opt, *(scene.ordered(gradients) for gradients in passes))
    kept = [opt.state[p]["vasso_d"] for p in opt.state if "vasso_d" in opt.state[p]]
    assert all(bool(d.isfinite().all()) for d in kept)


@given(scenes(dtypes=[torch.float64]))
def test_the_slope_is_that_of_the_twin(scene: Scene) -> None:
    w = scene.start()
    opt = VaSSO(SGD(scene.groups(w), lr=0.0))
    groups = twin_groups(scene)
    d: Gradients = {}
    for step in scene.play(opt):
        first, _ = step.gradients(scene.shapes, scene.dtype)
        d = twin.observe(d, {i: g for i, g in enumerate(first) if g is not None}, groups)
    entries = {i: opt.state[p] for i, p in enumerate(w)} if opt.state else {}
    ours = {i: e["vasso_d"] for i, e in entries.items() if e.get("vasso_has_d")}
    assert sorted(ours) == sorted(d)
    for i in d:
        # two products and a sum for each of four steps; they may cancel to any size
        assert_near(
            ours[i], d[i], rtol=1e-14, atol=1e-15 * 10.0 ** max(s.scale for s in scene.steps)
        )


def twin_groups(scene: Scene) -> list[Group]:
    zipped = zip(scene.rows(), scene.rho, scene.theta, strict=True)
    return [Group(rows, lr=0.05, rho=rho, theta=theta) for rows, rho, theta in zipped]


@given(scenes(dtypes=[torch.float64], radii=(0.0, 0.05, 1.0), scales=(-3, 3)))
def test_the_whole_way_is_that_of_the_twin(scene: Scene) -> None:
    """Gradients are c (x - b + mean of x), in steps of size 0.05 / c: convex, well conditioned.

    A rounding is 1e-16 of numbers up to 10; where slopes of different scale meet, their sum may
    lose three digits more.
    """
    ours, theirs = scene.start(), [w.detach().clone() for w in scene.start()]
    opt = VaSSO(SGD(scene.groups(ours), lr=0.05))
    groups, d = twin_groups(scene), {}
    for step in scene.steps:
        c, b = 10.0**step.scale, replace(step, scale=0).gradients(scene.shapes, scene.dtype)

        def gradient(x: list[Tensor], k: int, c: float = c, b: Any = b) -> Gradients:
            mean = flat(x).sum() / max(1, flat(x).numel())
            there = [i for i, target in enumerate(b[k]) if target is not None]
            return {i: c * (x[i].detach() - b[k][i] + mean) for i in there}

        for ours_group, group in zip(opt.param_groups, groups, strict=True):
            ours_group["lr"] = group.lr = 0.05 / c
        passes = iter(range(2))

        def closure(gradient: Any = gradient, passes: Any = passes) -> Tensor:
            found = gradient(ours, next(passes))
            for i, p in enumerate(ours):
                p.grad = found.get(i)
            return torch.zeros(())

        opt.step(closure)
        theirs, d = twin.step(theirs, d, gradient, groups)
    assert_near(flat(ours), flat(theirs), rtol=1e-12, atol=1e-12)
