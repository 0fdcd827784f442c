"""Directions: one gradient a step, friendly slopes and variance reduction follow their twins."""

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.reference import trajectories as twins
from tests.support.compare import assert_same, flat
from tests.support.problems import closure_of
from tests.support.slopes import (
    BASES,
    BATCHES,
    SOURCED,
    Make,
    One,
    Oracle,
    Task,
    adamw,
    assert_near,
    frozen,
    momentum,
    norm,
    ours,
    path_of,
    plain,
    records,
    train,
)
from vasso import (
    MSAM,
    S2SAM,
    SAM,
    SARAHSAM,
    SVRGSAM,
    EigenSAM,
    FriendlySAM,
    SparseSAM,
    StormSAM,
)
from vasso.parts.context import StepContext


def falling(t: int) -> float:
    """A radius that is 0 in a warm-up and falls later."""
    return 0.0 if t < 5 else 2.0 / (t + 1)


@pytest.mark.parametrize("twin", [twins.msam, twins.msam_shifted])
@pytest.mark.parametrize("base", BASES)
def test_msam_is_its_explicit_and_its_shifted_form(twin: Any, base: Make) -> None:
    assert_near(ours(partial(MSAM, rho=0.5), base), path_of(twin, base, rho=lambda t: 0.5))


@pytest.mark.parametrize("twin", [twins.msam, twins.msam_shifted])
def test_msam_with_a_radius_that_changes_is_both_of_its_forms(twin: Any) -> None:
    make = partial(MSAM, rho=lambda step, lr: falling(step))
    assert_near(ours(make), path_of(twin, rho=falling))


@pytest.mark.parametrize(("base", "buffer"), [(momentum, "momentum_buffer"), (adamw, "exp_avg")])
def test_msam_goes_on_against_the_momentum_from_before_the_step(base: Make, buffer: str) -> None:
    steps = records(partial(MSAM, rho=0.7), base)
    first, _, opt = next(steps)
    assert not flat(first.epsilon).any()
    v = [opt.base.state[p][buffer].clone() for p in first.params]
    for record, _, opt in steps:
        assert_near(flat(record.epsilon), flat(v) * (-0.7 / norm(v)), atol=1e-14)  # x + e - x
        v = [opt.base.state[p][buffer].clone() for p in record.params]


@pytest.mark.parametrize("base", BASES)
def test_s2sam_climbs_along_the_gradient_of_the_step_before(base: Make) -> None:
    assert_near(ours(partial(S2SAM, rho=0.1), base), path_of(twins.s2sam, base, rho=0.1))


@pytest.mark.parametrize("method", [MSAM, S2SAM])
def test_the_first_step_of_a_method_with_one_gradient_is_the_bases(method: Any) -> None:
    assert_same(train(method)[0], train(plain)[0])


@pytest.mark.parametrize("use", ["new", "old"])
@pytest.mark.parametrize(("sigma", "base"), [(1.0, momentum), (0.5, momentum), (0.5, adamw)])
def test_friendly_sam_takes_the_average_out(use: str, sigma: float, base: Make) -> None:
    settings = {"rho": 0.1, "sigma": sigma, "lam": 0.6, "use": use}
    twin = path_of(twins.friendly, base, **settings)
    assert_near(ours(partial(FriendlySAM, **settings), base), twin)


def test_both_forms_of_friendly_sam_point_the_same_way_at_sigma_one() -> None:
    new, old = (ours(partial(FriendlySAM, use=use)) for use in ("new", "old"))
    assert_near(new, old)


def test_both_forms_of_friendly_sam_differ_at_other_sigmas() -> None:
    new, old = (ours(partial(FriendlySAM, sigma=0.5, use=use)) for use in ("new", "old"))
    assert (new - old).abs().max() > 1e-3


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("a", [0.1, 0.7])
def test_storm_corrects_for_the_way_gone(a: float, base: Make) -> None:
    twin = path_of(twins.storm, base, rho=0.1, a=a)
    assert_near(ours(partial(StormSAM, rho=0.1, a=a), base), twin)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("method", "twin"), [(SVRGSAM, twins.svrg), (SARAHSAM, twins.sarah)])
def test_svrg_and_sarah_start_from_full_gradients(method: Any, twin: Any, base: Make) -> None:
    settings = {"rho": 0.1, "every": 7}
    theirs = path_of(twin, base, full=Oracle().full, **settings)
    assert_near(ours(partial(method, **settings), base), theirs)


@pytest.mark.parametrize("method", [SVRGSAM, SARAHSAM])
def test_with_a_snapshot_at_every_step_the_slope_is_the_full_gradient(method: Any) -> None:
    for record, home, _ in records(partial(method, every=1)):
        full = flat(Oracle().full(home))
        assert_near(flat(record.d), full, atol=1e-15)  # sums of 80 numbers below 0.1


@pytest.mark.parametrize(
    "make",
    [partial(StormSAM, a=0.1), partial(SVRGSAM, every=5), partial(SARAHSAM, every=5)],
)
def test_without_noise_every_correction_gives_the_gradient_itself(make: Make) -> None:
    """One batch again and again: d_{t-1} = g(x_{t-1}) cancels, up to a sum of roundings."""
    task = Task()
    base = momentum(task.params())
    data = {"data": One(task, base)} if make.func in SOURCED else {}
    opt = make(base, model=task.model, **data)
    errors = []
    opt.observe(lambda r: errors.append((flat(r.d) - flat(r.g)).abs().max().item()))
    for _ in range(30):
        opt.step(task.samples(opt, 0))
    assert max(errors) < 1e-14


def test_a_correction_sees_the_dropout_of_the_gradient_it_corrects() -> None:
    """At weights that do not move, d_t = g_t + (1 - a) (d_{t-1} - g_t), whatever was dropped."""
    make = partial(StormSAM, a=0.2)
    taken = [record for record, *_ in records(make, frozen, middle=nn.Dropout(0.5))]
    assert not torch.equal(flat(taken[0].g), flat(taken[BATCHES].g))  # the same batch
    for before, now in itertools.pairwise(taken):
        g = flat(now.g)
        assert_near(flat(now.d), g + 0.8 * (flat(before.d) - g), atol=1e-15)  # numbers below 1


@pytest.mark.parametrize("name", ["storm that trusts the newest gradient", "a Fisher mask of ones"])
def test_gradients_on_the_side_use_up_no_random_numbers(name: str) -> None:
    make = {
        "storm that trusts the newest gradient": partial(StormSAM, a=1.0),
        "a Fisher mask of ones": partial(SparseSAM, rho=0.05, sparsity=0.0, every=2),
    }[name]

    def path(make: Make) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            steps = records(make, middle=nn.Dropout(0.5))
            return torch.stack([flat(record.h) for record, *_ in steps])

    assert_same(path(make), path(SAM))


def test_momentum_points_down_the_objective_also_where_the_base_maximizes() -> None:
    ends = []
    for sign in (1.0, -1.0):
        w = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
        opt = MSAM(torch.optim.SGD([w], lr=0.01, momentum=0.9, maximize=sign < 0), rho=0.5)
        for _ in range(5):
            opt.step(closure_of(opt, lambda w=w, sign=sign: sign * w.pow(4).sum()))
        ends.append(w.detach())
    assert_same(*ends)


# -- the top eigenvector ---------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1.0, 0.4])
def test_eigensam_is_its_twin_with_other_differences(theta: float) -> None:
    settings = {"rho": 0.1, "alpha": 0.7, "every": 7, "steps": 3, "theta": theta}
    start = StepContext(0, Task().params()).noise(0)
    twin = path_of(twins.eigen, start=start, **settings)
    # one-sided differences of step 1e-8 (1 + ||x||) are off by about 1e-7
    assert_near(ours(partial(EigenSAM, **settings)), twin, atol=1e-5)


class Quadratic:
    """0.5 x'Hx with eigenvalues -3, 2, 1 and 0.1; the gradients' differences are exact."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        turned = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64))[0]
        self.v, self.H = turned[:, 0], turned @ torch.diag(turned.new([-3, 2, 1, 0.1])) @ turned.mT
        self.x = torch.ones(4, dtype=torch.float64, requires_grad=True)

    def record(self, opt: EigenSAM) -> Any:
        seen: list[Any] = []
        handle = opt.observe(lambda r: seen.append((r.epsilon[0].clone(), r.g[0].clone())))
        opt.step(closure_of(opt, lambda: 0.5 * self.x @ self.H @ self.x))
        handle.remove()
        return seen[0]


@pytest.mark.parametrize("turned", [1.0, -1.0])
def test_eigensam_tilts_to_the_eigenvector_whatever_its_sign_and_longer_than_rho(
    turned: float,
) -> None:
    """From the first step on; the authors' code perturbs by rho g until v is known."""
    task = Quadratic()
    opt = EigenSAM(torch.optim.SGD([task.x], lr=0.0), rho=0.3, alpha=0.5, steps=60)
    epsilon, g = task.record(opt)
    kept = opt._vectors[task.x]
    assert_near((kept["v"] @ task.v).abs(), 1.0, atol=1e-8)  # of the largest |eigenvalue|
    kept["v"].mul_(turned)
    again, _ = task.record(opt)
    n = g / g.norm()
    cosine = n @ task.v
    expected = n + 0.5 * cosine.sign() * (task.v - cosine * n)
    for found in (epsilon, again):
        assert_near(found, 0.3 * expected, atol=1e-6)
        assert_near(found.norm(), 0.3 * (1 + 0.25 * (1 - cosine**2)).sqrt(), atol=1e-6)


def test_eigensam_goes_on_from_where_its_vector_was() -> None:
    task = Quadratic()
    opt = EigenSAM(torch.optim.SGD([task.x], lr=0.0), every=1, steps=1)
    errors = []
    for _ in range(40):
        task.record(opt)
        errors.append(1 - float((opt._vectors[task.x]["v"] @ task.v).abs()))
    assert errors[-1] < 1e-9 < errors[3]
    assert opt.cost == 40 * 3


def test_eigensam_without_a_tilt_is_sam() -> None:
    settings = {"rho": 0.1, "theta": 0.4}
    assert_near(ours(partial(EigenSAM, alpha=0.0, **settings)), ours(partial(SAM, **settings)))
