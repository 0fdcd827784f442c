"""The signal-to-noise ratio: closed forms, no bias, and intervals that hold the truth."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.diagnostics.nets import batches, net
from tests.diagnostics.noisy import generator, share_within
from vasso.diagnostics.adversary import snr as module
from vasso.diagnostics.adversary.snr import Snr, SnrMeter, sketch, snr
from vasso.diagnostics.passes import gradient_of


def estimated(g: torch.Tensor) -> Snr:
    meter = SnrMeter()
    for row in g:
        meter.add([row])
    return meter.result()


def repeated(times: int, K: int, size: int, ratio: float, seed: int) -> list[Snr]:
    """Estimates of an SNR that is known: the gradient is (1, 0, ...), the noise 1 / ratio."""
    drawn = torch.randn(times, K, size, generator=generator(seed), dtype=torch.float64)
    drawn *= (1 / ratio / size) ** 0.5
    drawn[:, :, 0] += 1
    return [estimated(g) for g in drawn]


def z_of(values: list[float], truth: float) -> float:
    return float((np.mean(values) - truth) / (np.std(values, ddof=1) / math.sqrt(len(values))))


def test_streaming_gives_what_the_definition_says() -> None:
    g = torch.randn(9, 5, generator=generator(0), dtype=torch.float64) + 1
    mean = g.mean(0)
    noise_power = (g - mean).square().sum().item() / 8
    signal = mean.square().sum().item() - noise_power / 9
    found = estimated(g)
    assert found.noise.value == pytest.approx(noise_power, rel=1e-12)
    assert found.signal.value == pytest.approx(signal, rel=1e-12)
    assert found.snr.value == pytest.approx(signal / noise_power, rel=1e-12)


def test_the_interval_is_that_of_estimates_without_each_gradient() -> None:
    g = torch.randn(9, 5, generator=generator(0), dtype=torch.float64) + 1
    without = [estimated(torch.cat([g[:k], g[k + 1 :]])).snr.value for k in range(9)]
    error = math.sqrt(8 * np.var(without))
    found = estimated(g).snr
    assert (found.high - found.value) / 2.306004 == pytest.approx(error, rel=1e-6)  # t, 8 dof


def test_signal_and_noise_have_no_bias_where_the_plain_square_doubles_the_ratio() -> None:
    found = repeated(400, 20, 50, 0.05, seed=1)
    assert abs(z_of([x.signal.value for x in found], 1.0)) < 4
    assert abs(z_of([x.noise.value for x in found], 20.0)) < 4
    naive = np.mean([x.signal.value + x.noise.value / x.batches for x in found])
    assert naive == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("ratio", [0.05, 1.0])
def test_intervals_hold_the_truth_as_often_as_they_say(ratio: float) -> None:
    found = repeated(300, 20, 200, ratio, seed=2)
    share_within([x.snr.low <= ratio <= x.snr.high for x in found], 0.95)
    share_within([x.noise.low <= 1 / ratio <= x.noise.high for x in found], 0.95)


def test_intervals_from_sketches_are_about_as_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inner products of m signed sums add 1 / m to the 1 / n of n independent entries."""
    exact = repeated(40, 20, 300, 0.05, seed=3)
    monkeypatch.setattr(module.sketch, "__defaults__", (150,))
    rough = repeated(40, 20, 300, 0.05, seed=3)
    widths = [np.mean([x.snr.high - x.snr.value for x in some]) for some in (exact, rough)]
    assert [x.snr.value for x in exact] == [x.snr.value for x in rough]
    assert 1.0 < widths[1] / widths[0] < 2.2  # sqrt(1 + 300 / 150) = 1.7


def test_a_sketch_keeps_inner_products_on_average() -> None:
    a, b = torch.randn(2, 5000, generator=generator(4), dtype=torch.float64) + 0.5
    truth = (a @ b).item()
    ours = sketch([a[:1000], a[1000:]], 500) @ sketch([b[:1000], b[1000:]], 500)
    assert abs(ours - truth) < 4 * a.norm() * b.norm() / 500**0.5  # four standard errors


@pytest.mark.parametrize("size", [5000, 5001])
def test_a_vector_that_is_no_longer_than_its_sketch_is_kept_in_full(size: int) -> None:
    g = torch.randn(5000, generator=generator(4), dtype=torch.float64)
    assert sketch([g[:1000], g[1000:]], size).tolist() == g.tolist()
    assert sketch([g.float()], size).dtype == np.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_signed_sums_have_the_precision_of_the_vector(dtype: torch.dtype) -> None:
    g = torch.randn(5000, generator=generator(4), dtype=dtype)
    assert sketch([g], 500).dtype == str(dtype).removeprefix("torch.")


def test_of_a_model_it_is_that_of_its_gradients() -> None:
    model, some = net(), batches(5)
    model[5].p = 0.0
    found = snr(model, cross_entropy, [*some, (some[0][0][:3], some[0][1][:3])])
    meter = SnrMeter()
    for batch in some:
        meter.add(gradient_of(model, cross_entropy, [batch], batchnorm="batch"))
    assert found.snr == meter.result().snr
    assert (found.batch_size, found.left_out) == (16, 1)
    assert found.row()["snr_low"] <= found.row()["snr"] <= found.row()["snr_high"]
