"""Trace and density of matrices whose spectrum is known: unbiased, and intervals that cover."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from vasso.diagnostics.curvature.density import spectral_density
from vasso.diagnostics.curvature.products import Hessian
from vasso.diagnostics.curvature.trace import Trace, hutch_plus_plus, hutchinson

SIZE = 40
OUTLIERS = np.array([50.0, 20.0, 10.0, 5.0])
BULK = np.linspace(-1.0, 1.0, SIZE - len(OUTLIERS))
SPECTRUM = np.concatenate([OUTLIERS, BULK])


class Quadratic(nn.Module):
    """w' A w / 2 with a known spectrum in a random basis."""

    def __init__(self, spectrum: np.ndarray) -> None:
        super().__init__()
        generator = np.random.default_rng(3)
        basis, _ = np.linalg.qr(generator.standard_normal((len(spectrum), len(spectrum))))
        self.register_buffer("A", torch.tensor(basis * spectrum @ basis.T))
        self.w = nn.Parameter(torch.tensor(generator.standard_normal(len(spectrum))))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w @ self.A @ self.w / 2).expand(len(x))


def quadratic(spectrum: np.ndarray = SPECTRUM) -> Hessian:
    nothing = torch.zeros(1)
    return Hessian(Quadratic(spectrum), lambda out, _: out.mean(), [(nothing, nothing)])


@pytest.mark.parametrize("method", [hutchinson, hutch_plus_plus])
def test_the_trace_is_unbiased_and_its_interval_covers(method) -> None:
    H, runs = quadratic(), 60
    found = [method(H, 30, seed=seed) for seed in range(runs)]
    values = np.array([trace.value for trace in found])
    z = (values.mean() - SPECTRUM.sum()) / (values.std(ddof=1) / np.sqrt(runs))
    assert abs(z) < 3.3
    hits = sum(t.estimate(0.9).low <= SPECTRUM.sum() <= t.estimate(0.9).high for t in found)
    assert stats.binomtest(hits, runs, 0.9).pvalue > 1e-3


def test_the_stated_error_of_the_trace_is_its_spread() -> None:
    H = quadratic()
    found = [hutchinson(H, 30, seed=seed) for seed in range(50)]
    stated = np.sqrt(np.mean([trace.error**2 for trace in found]))
    # the spread of 50 estimates is itself known to 10 %
    assert np.std([trace.value for trace in found], ddof=1) == pytest.approx(stated, rel=0.35)


def test_hutch_plus_plus_has_less_noise_where_few_eigenvalues_stand_out() -> None:
    H = quadratic()
    assert hutch_plus_plus(H, 30).error < hutchinson(H, 30).error / 3


def test_what_a_trace_costs_is_what_was_asked_for() -> None:
    for products in (6, 7, 8, 30):
        H = quadratic()
        assert hutch_plus_plus(H, products).products == H.products == products


def test_a_sketch_of_full_rank_is_exact() -> None:
    found = hutch_plus_plus(quadratic(), 3 * SIZE)
    assert found.value == pytest.approx(SPECTRUM.sum(), rel=1e-10)
    assert found.error < 1e-10


def test_a_row_holds_the_interval() -> None:
    row = Trace(1.0, 0.0, 2, 2, 5).row()
    assert row == {"trace": 1, "trace_low": 1, "trace_high": 1, "products": 2, "samples": 5}


def test_moments_of_the_density_are_traces_of_powers() -> None:
    density = spectral_density(quadratic(), probes=60, steps=12)
    for power in (1, 2, 3):
        value, error = density.moment(power)
        assert abs(value - np.mean(SPECTRUM**power)) < 4 * error, power


def test_one_probe_is_a_gauss_quadrature() -> None:
    """Exact for powers up to 2 steps - 1: z' H^7 z from four steps."""
    H, steps = quadratic(), 4
    density = spectral_density(H, probes=2, steps=steps, seed=5)
    z = np.random.default_rng(5).standard_normal(SIZE)
    z /= np.linalg.norm(z)
    A = H.model.A.numpy()
    found = (density.weights[0] * density.nodes[0] ** 7).sum()
    assert found == pytest.approx(z @ np.linalg.matrix_power(A, 7) @ z, rel=1e-9)
    np.testing.assert_allclose(density.weights.sum(axis=1), 1, rtol=1e-12)


def test_all_steps_find_all_eigenvalues() -> None:
    density = spectral_density(quadratic(), probes=2, steps=SIZE)
    np.testing.assert_allclose(np.sort(density.nodes[0]), np.sort(SPECTRUM), atol=1e-7)


def test_few_distinct_eigenvalues_end_the_steps_early() -> None:
    density = spectral_density(quadratic(np.repeat([1.0, 4.0], SIZE // 2)), probes=3, steps=10)
    assert density.products == 6
    assert density.share_above(2.0)[0] == pytest.approx(0.5, abs=0.2)
    np.testing.assert_allclose(density.weights.sum(axis=1), 1)


def test_a_smoothed_density_integrates_to_one_and_lies_where_the_spectrum_is() -> None:
    density = spectral_density(quadratic(), probes=40, steps=20)
    where = np.linspace(-10, 60, 7001)
    height, error = density.at(where, 0.5)
    assert np.trapezoid(height, where) == pytest.approx(1, abs=1e-6)
    bulk = np.abs(where) < 2.5
    share = np.trapezoid(height[bulk], where[bulk])
    doubt = np.trapezoid(error[bulk], where[bulk])
    assert abs(share - len(BULK) / SIZE) < 4 * doubt
