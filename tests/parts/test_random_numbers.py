"""Random numbers of parts are a function of seed and step."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch

from tests.reference.single_steps import inner, plus, times
from tests.support.batches import SIZE, Make, observed, rows_drawn_by, train
from tests.support.compare import assert_same
from vasso import (
    ESAM,
    SSSAM,
    Fraction,
    HalfSAM,
    NoisySAM,
    RandomMask,
    RandomSAM,
    SubSample,
    SubSampledSAM,
)
from vasso.parts.context import StepContext

RANDOM: dict[str, Callable[[int], Make]] = {
    "NoisySAM": lambda seed: partial(NoisySAM, seed=seed),
    "RandomSAM": lambda seed: partial(RandomSAM, seed=seed),
    "SubSampledSAM": lambda seed: partial(SubSampledSAM, m=6, seed=seed),
    "HalfSAM": lambda seed: partial(HalfSAM, seed=seed),
    "ESAM, elements": lambda seed: partial(ESAM, gamma=1.0, seed=seed),
    "ESAM, tensors": lambda seed: partial(ESAM, gamma=1.0, level="tensor", seed=seed),
    "SSSAM": lambda seed: partial(SSSAM, seed=seed),
}

each_random = pytest.mark.parametrize("name", RANDOM)


@each_random
def test_the_same_seed_is_the_same_path_whatever_torch_draws(name: str) -> None:
    one = train(partial(RANDOM[name](3), rho=0.1)).path
    torch.manual_seed(12345)
    assert_same(train(partial(RANDOM[name](3), rho=0.1)).path, one)


@each_random
def test_torch_draws_the_same_whatever_we_do(name: str) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    train(partial(RANDOM[name](3), rho=0.1), steps=3)
    assert_same(torch.rand(3), expected)


@each_random
def test_another_seed_is_another_path(name: str) -> None:
    one, two = (train(partial(RANDOM[name](seed), rho=0.1)).path[-1] for seed in (3, 4))
    assert (one - two).abs().max() > 1e-6


def test_noise_is_normal_and_differs_by_step_seed_and_tensor() -> None:
    """Means, variances and correlations of 10,000 numbers, up to 5 standard deviations."""
    w = [torch.zeros(100, 100), torch.zeros(100, 100)]
    drawn = [x for t, seed in product(range(3), range(3)) for x in StepContext(t, w).noise(seed)]
    rows = torch.stack([x.flatten() for x in drawn])
    assert rows.mean(1).abs().max() < 0.05
    assert (rows.corrcoef() - torch.eye(len(rows))).abs().max() < 0.05
    assert (rows.var(1) - 1).abs().max() < 5 * math.sqrt(2 / 10_000)


def test_noise_has_kappa_times_the_power_of_the_gradient() -> None:
    """||zeta||^2 / ||g||^2 of 910 weights varies by sqrt(2 / 910), the mean of 12 less."""
    _, records, _ = observed(partial(NoisySAM, rho=0.1, kappa=2.0), steps=12)
    powers = []
    for r in records:
        zeta = plus(r.d, times(-1.0, r.g))
        powers.append(inner(zeta, zeta) / inner(r.g, r.g))
    assert abs(sum(powers) / 12 / 2.0 - 1) < 5 * math.sqrt(2 / 910 / 12)


def test_coins_are_fair() -> None:
    """The mean of 2,000 of them is 1/2 up to 5 deviations, and neighbours are independent."""
    coins = torch.tensor([StepContext(t).coin(seed) for t in range(200) for seed in range(10)])
    assert abs(coins.mean() - 0.5) < 5 / math.sqrt(12 * 2000)
    pairs = torch.stack((coins[:-1], coins[1:]))
    assert pairs.corrcoef()[0, 1].abs() < 5 / math.sqrt(2000)


@pytest.mark.parametrize("level", ["element", "tensor"])
def test_a_random_mask_keeps_beta_of_the_weights_and_their_mean(level: Any) -> None:
    """5 deviations of a coin over all elements, or over all tensors."""
    w = [torch.zeros(3, 3, dtype=torch.float64) for _ in range(20)]
    geometry = RandomMask(beta=0.25, level=level, seed=2)
    masks = [geometry.mask(None, StepContext(t, w)) for t in range(50)]
    kept = torch.stack([x for mask in masks for x in mask])
    tosses = kept.numel() if level == "element" else len(kept)
    assert set(kept.unique().tolist()) == {0.0, 4.0}
    assert abs(kept.mean() - 1) < 5 * math.sqrt((1 / 0.25 - 1) / tosses)
    assert (kept.flatten(1).std(1).max() == 0) == (level == "tensor")


@pytest.mark.parametrize("plan", [SubSample(6, seed=4), Fraction(6 / SIZE, seed=4)], ids=str)
def test_sub_samples_are_drawn_evenly(plan: SubSample | Fraction) -> None:
    """Of 22 samples 6 are drawn 500 times: each 136 times up to 5 deviations, never one twice."""
    counts = torch.zeros(SIZE)
    for t in range(500):
        chosen_rows = rows_drawn_by(plan, t)
        assert len(set(chosen_rows)) == 6
        counts[chosen_rows] += 1
    share = 6 / SIZE
    assert (counts - 500 * share).abs().max() < 5 * math.sqrt(500 * share * (1 - share))
